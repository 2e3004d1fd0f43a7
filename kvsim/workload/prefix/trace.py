"""Who shares which prefix with whom, token by token: the paths of all requests through one tree."""

from __future__ import annotations

from array import array
from collections import defaultdict
from collections.abc import Hashable, Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.core.request import Request
from kvsim.errors import InputError

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class PrefixTrace:
    """Requests in arrival order, each a path from the root of a tree of streams.

    A node is one stream after one history: (the nodes above, how many tokens of each, the stream).
    Request i runs through the nodes `nodes[starts[i]:starts[i + 1]]`; the j-th part of all ends
    before token `ends[j]` of its request. So two requests share the first n tokens iff their paths
    agree up to there. The last part may be generated tokens, of which all but the last sampled one
    get KV; generated tokens that no later prompt can repeat, and prompts that share nothing, have
    no parts.
    """

    prompts: Ints
    """Prompt tokens of each request."""
    totals: Ints
    """Tokens with KV at each request's end: prompt + output - 1."""
    starts: Ints
    nodes: Ints
    begins: Ints
    ends: Ints

    @classmethod
    def of(cls, requests: Iterable[Request]) -> PrefixTrace:
        """Read all requests. Raises `InputError` for segments that do not make up the prompt."""
        numbers: defaultdict[tuple[int, int, Hashable], int] = defaultdict()
        numbers.default_factory = numbers.__len__
        prompts, totals, counts = array("q"), array("q"), array("q")
        nodes, begins, ends = array("q"), array("q"), array("q")
        for request in requests:
            prompt = request.prompt_tokens
            total = prompt + request.output_tokens - 1
            prompts.append(prompt)
            totals.append(total)
            before = len(nodes)
            if request.segments is not None:
                node, length, end = -1, 0, 0
                for stream, tokens in request.segments:
                    if tokens:
                        node = numbers[node, length, stream]
                        length = tokens
                        nodes.append(node)
                        begins.append(end)
                        end += tokens
                        ends.append(end)
                if end != prompt:
                    raise _wrong_sum(request, end)
                if request.output_stream is not None and total > prompt:
                    nodes.append(numbers[node, length, request.output_stream])
                    begins.append(end)
                    ends.append(total)
            counts.append(len(nodes) - before)
        starts = np.concatenate([[0], np.cumsum(_ints(counts))]).astype(np.int64)
        return cls(_ints(prompts), _ints(totals), starts, _ints(nodes), _ints(begins), _ints(ends))

    def __len__(self) -> int:
        return len(self.prompts)

    @property
    def owners(self) -> Ints:
        """The request of each part."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))

    def seen_tokens(self, among: Bools | None = None) -> Ints:
        """Of each request, the prompt tokens in the longest prefix it shares with an earlier one.

        Earlier are only the requests marked in `among` (default all); the others are given 0.
        """
        owners = self.owners
        parts = np.arange(len(owners)) if among is None else np.flatnonzero(among[owners])
        order = parts[np.argsort(self.nodes[parts], kind="stable")]
        node, end = self.nodes[order], self.ends[order]
        # One running maximum over all nodes: a node's tokens start above those of the one before.
        step = int(end.max(initial=0)) + 1
        longest = np.maximum.accumulate(node * step + end) - node * step
        shared = np.zeros(len(order), dtype=np.int64)
        again = node[1:] == node[:-1]
        shared[1:][again] = np.minimum(end[1:], longest[:-1])[again]
        seen = np.zeros(len(self), dtype=np.int64)
        np.maximum.at(seen, owners[order], shared)
        return np.minimum(seen, self.prompts)


def _ints(values: array[int]) -> Ints:
    return np.frombuffer(values, dtype=np.int64) if len(values) else np.zeros(0, dtype=np.int64)


def _wrong_sum(request: Request, end: int) -> InputError:
    return InputError(
        f"the segments of {request.request_id!r} have {end:,} tokens,"
        f" its prompt {request.prompt_tokens:,}",
        where="segments",
        fix="Make their lengths sum to prompt_tokens",
    )
