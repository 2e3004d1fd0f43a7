"""Why a prompt token was not found in the prefix cache."""

from __future__ import annotations

from bisect import bisect_right
from typing import NamedTuple

from kvsim.core.request import Sequence


class HitCounts(NamedTuple):
    """Prompt tokens of first admissions, by what became of them; the last five sum to the first."""

    query_tokens: int = 0
    hit_tokens: int = 0
    never_seen_tokens: int = 0
    """No request had computed them behind the same tokens before."""
    evicted_tokens: int = 0
    """In full blocks that were computed before and could not be found any more."""
    block_rounding_tokens: int = 0
    """Computed before, but in a block that differs from the prompt's before its end."""
    last_token_tokens: int = 0
    """In the last block of a prompt that is known as a whole: its last token must be computed."""


class HitLedger:
    """Books every first admission. Its memory grows with the distinct named segments."""

    def __init__(self, block_size: int, *, hash_lookahead: int = 0) -> None:
        """`block_size` is the unit of a hit, in tokens; `hash_lookahead` more belong to a block."""
        self._block_size = block_size
        self._hash_lookahead = hash_lookahead
        self._seen: dict[int, int] = {}
        """Per piece of a stream: the farthest position computed, in tokens of the request."""
        self._sums = [0] * len(HitCounts._fields)
        self._resumed_hit_tokens = 0

    def counts(self) -> HitCounts:
        """All first admissions so far."""
        return HitCounts(*self._sums)

    def as_dict(self, *, evicted_blocks: int) -> dict[str, int]:
        """The counts by name, with `resumed_hit_tokens`: what preempted sequences found again."""
        return {
            **self.counts()._asdict(),
            "resumed_hit_tokens": self._resumed_hit_tokens,
            "evicted_blocks": evicted_blocks,
        }

    def admitted(self, sequence: Sequence, hit_tokens: int) -> None:
        """Book an admission; call it before the sequence counts as computed."""
        if sequence.admissions:
            self._resumed_hit_tokens += hit_tokens
            return
        prompt, block_size = sequence.request.prompt_tokens, self._block_size
        seen = max(self._seen_tokens(sequence), hit_tokens)
        same = seen if seen == prompt else max(0, seen - self._hash_lookahead)
        whole = max(same // block_size * block_size, hit_tokens)
        reachable = min(whole, (prompt - 1) // block_size * block_size)
        terms = (
            prompt,
            hit_tokens,
            prompt - seen,
            reachable - hit_tokens,
            seen - whole,
            whole - reachable,
        )
        self._sums = [total + term for total, term in zip(self._sums, terms, strict=True)]

    def computed(self, sequence: Sequence, upto: int) -> None:
        """The first `upto` tokens of the sequence are computed."""
        request = sequence.request
        if request.segments is None:
            return
        ends, bases = sequence.piece_ends, sequence.piece_bases
        seen = self._seen
        named = len(ends) - (request.output_stream is None)
        last = min(bisect_right(ends, upto - 1), named - 1)
        for piece in range(last, -1, -1):
            position = min(upto, ends[piece])
            if seen.get(bases[piece], 0) >= position:
                break
            seen[bases[piece]] = position

    def _seen_tokens(self, sequence: Sequence) -> int:
        request = sequence.request
        if request.segments is None:
            return 0
        seen = 0
        for end, base in zip(sequence.piece_ends, sequence.piece_bases, strict=True):
            stop = min(end, request.prompt_tokens)
            position = min(self._seen.get(base, 0), stop)
            seen = max(seen, position)
            if position < stop or stop == request.prompt_tokens:
                break
        return seen
