"""Trees of requests: which tokens of a prompt are those of a request in a row above."""

from __future__ import annotations

from array import array
from collections.abc import Hashable, Mapping
from typing import NamedTuple

from kvsim.core.request import Fork
from kvsim.workload.fields import BadRowError
from kvsim.workload.row_format import Extras, Row
from kvsim.workload.segment_table import Segments

MAX_PIECES = 1_000
"""Most segments of one prompt: the prompts and outputs it passes through."""


class _Link(NamedTuple):
    """Where a prompt leaves the request that is the first to have its token before that place."""

    name: str
    tokens: int
    pieces: int
    """Segments of the tokens up to there."""


class Trees:
    """The rows that can be parents, those with a `request_id`, and where prompts leave them.

    A prompt follows its parent's prompt and output, as far as the fork says, and goes on in a
    stream of its own: ("prompt", its name). What a parent generates is ("output", its name). So
    prompts share exactly what the forks say, at any depth.

    24 bytes a row, beside the names and forks; paths are made when they are asked for.
    """

    def __init__(self, numbers: Mapping[str, int]) -> None:
        """`numbers` are the places of names in the order of `add`, kept up to date by the owner."""
        self.parents: set[str] = set()
        """Rows that other rows fork from, so far."""
        self._numbers = numbers
        self._arrivals = array("q")
        self._prompts = array("q")
        self._outputs = array("q")
        self._several: set[int] = set()
        """Rows with more than one output."""
        self._links: dict[int, _Link] = {}

    def check(self, row: Row, fork: Fork) -> int:
        """Segments of the row's prompt. Changes nothing.

        Raises `BadRowError` for a parent that is not above, arrives later or does not have so many
        tokens, and for a path of too many pieces.
        """
        parent, at = fork
        number = self._numbers.get(parent)
        if number is None:
            raise BadRowError(
                "unknown_parent",
                f"column parent_id: {parent!r} is the request_id of no usable row above",
            )
        prompt, output = self._prompts[number], self._outputs[number]
        if at > prompt + output:
            raise BadRowError(
                "bad_fork",
                f"column fork_at_token: {at:,} is more than the {prompt + output:,} tokens of"
                f" {parent!r}, prompt and output",
            )
        if at > prompt and number in self._several:
            raise BadRowError(
                "bad_fork",
                f"column fork_at_token: {at:,} is more than the prompt of {parent!r}, {prompt:,}"
                " tokens, which has several outputs",
            )
        if row.arrival_ns < self._arrivals[number]:
            raise BadRowError("bad_fork", f"column parent_id: {parent!r} arrives after this row")
        pieces = self._link(fork).pieces + (row.prompt_tokens > at)
        if pieces > MAX_PIECES:
            raise BadRowError(
                "bad_fork",
                f"column parent_id: the prompt has {pieces:,} pieces, of this row and those it"
                f" goes back to, more than {MAX_PIECES:,}",
            )
        return pieces

    def add(self, row: Row, extras: Extras) -> None:
        """A row to keep; `numbers` has its name."""
        if extras.fork is not None:
            self.parents.add(extras.fork.parent_id)
        if extras.request_id is None:
            return
        number = len(self._prompts)
        self._arrivals.append(row.arrival_ns)
        self._prompts.append(row.prompt_tokens)
        self._outputs.append(row.output_tokens)
        if extras.branches is not None:
            self._several.add(number)
        if extras.fork is not None:
            self._links[number] = self._link(extras.fork)

    def streams(
        self, name: str, prompt: int, extras: Extras
    ) -> tuple[Segments | None, Hashable | None]:
        """Segments and output stream of a row that was added, whose request is called `name`.

        Neither for a row outside all trees. A row with several outputs has no output stream.
        """
        fork, is_parent = extras.fork, extras.request_id in self.parents
        if fork is None and not is_parent:
            return None, None
        parts = self._path(fork) if fork else []
        rest = prompt - (fork.tokens if fork else 0)
        if rest:
            parts.append((("prompt", name), rest))
        generates = is_parent and extras.branches is None
        return tuple(parts), ("output", name) if generates else None

    def _link(self, fork: Fork) -> _Link:
        """The fork, from the request whose own tokens it reaches."""
        name, at = fork
        number = self._numbers[name]
        link = self._links.get(number)
        while link is not None and at <= link.tokens:
            name = link.name
            number = self._numbers[name]
            link = self._links.get(number)
        start, pieces = (link.tokens, link.pieces) if link else (0, 0)
        prompt = self._prompts[number]
        return _Link(name, at, pieces + (min(at, prompt) > start) + (at > prompt))

    def _path(self, fork: Fork) -> list[tuple[Hashable, int]]:
        """The fork's tokens as segments."""
        parts: list[tuple[Hashable, int]] = []
        link: _Link | None = self._link(fork)
        while link is not None:
            name, at, _ = link
            number = self._numbers[name]
            prompt = self._prompts[number]
            link = self._links.get(number)
            start = link.tokens if link else 0
            if at > prompt:
                parts.append((("output", name), at - prompt))
            if min(at, prompt) > start:
                parts.append((("prompt", name), min(at, prompt) - start))
        parts.reverse()
        return parts
