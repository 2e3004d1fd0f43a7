"""Numbers for block contents: equal numbers mean that all tokens up to the block's end are equal.

No token and no hash is ever computed. A history is a path through named streams; a place in it is
(the path so far, the stream, the position), and the path is interned as a node of a tree. Streams
that only one request can hold are numbered on the fly and remembered nowhere.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Hashable
from collections.abc import Sequence as Seq

from kvsim.core.request import Sequence

KIND_SHIFT = 28
"""Bits for the index of a block inside one node."""
NODE_SHIFT = KIND_SHIFT + 5
"""Bits for the kind (layer group) above it."""
MAX_KINDS = 1 << (NODE_SHIFT - KIND_SHIFT)
_OPEN_END = 1 << 62


class StreamTree:
    """Interns the paths of named streams. Its memory grows with the distinct named segments."""

    def __init__(self) -> None:
        self._nodes: dict[tuple[int, int, Hashable], int] = {}
        self._next = 1

    def open(self, sequence: Sequence) -> None:
        """Set the sequence's `piece_ends` (tokens) and `piece_bases`, its last piece open.

        Without segments nobody can share any of it: then it is one piece of its own.
        """
        request = sequence.request
        ends: list[int] = []
        bases: list[int] = []
        node = taken = end = 0
        for stream, tokens in request.segments or ():
            if tokens:
                node = self._child(node, taken, stream)
                taken = tokens
                end += tokens
                ends.append(end)
                bases.append(node << NODE_SHIFT)
        output = request.output_stream
        named = request.segments is not None and output is not None
        node = self._child(node, taken, output) if named else self._unnamed()
        ends.append(_OPEN_END)
        bases.append(node << NODE_SHIFT)
        sequence.piece_ends = ends
        sequence.piece_bases = bases

    def _unnamed(self) -> int:
        node = self._next
        self._next = node + 1
        return node

    def _child(self, parent: int, taken: int, stream: Hashable) -> int:
        key = (parent, taken, stream)
        node = self._nodes.get(key)
        if node is None:
            node = self._nodes[key] = self._unnamed()
        return node


def block_keys(
    sequence: Sequence, first: int, stop: int, block_size: int, *, kind: int = 0, lookahead: int = 0
) -> Seq[int]:
    """Content numbers of the sequence's logical blocks `first` to `stop` (excluded).

    `lookahead` further tokens belong to a block's identity (EAGLE: 1, vllm/SPEC.md section 5);
    `kind` keeps blocks of different layer groups apart.
    """
    ends, bases = sequence.piece_ends, sequence.piece_bases
    shift = kind << KIND_SHIFT
    piece = 0
    if len(ends) > 1:
        piece = bisect_left(ends, (first + 1) * block_size + lookahead)
    last_end = stop * block_size + lookahead
    if last_end <= ends[piece]:
        base = bases[piece] + shift
        return range(base + first, base + stop)
    keys: list[int] = []
    while first < stop:
        until = min(stop, (ends[piece] - lookahead) // block_size)
        if until > first:
            base = bases[piece] + shift
            keys.extend(range(base + first, base + until))
            first = until
        piece += 1
    return keys
