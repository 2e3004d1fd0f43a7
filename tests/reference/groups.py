"""Kinds of layer groups: which blocks they need, keep, cache and find (SPEC.md, section 6)."""

from __future__ import annotations

from collections.abc import Callable

from tests.reference.pool import Block
from tests.reference.settings import Settings

Find = Callable[[int], list[Block] | None]
"""The cached blocks at a block index, one for each group of the kind, or nothing."""


def cdiv(count: int, size: int) -> int:
    """Division, rounded up."""
    return -(-count // size)


class FullKind:
    """Full attention: every block is kept and cached."""

    is_full = True

    def __init__(self, block_size: int) -> None:
        self.block_size = block_size

    def skipped_blocks(self, tokens: int) -> int:
        """No block falls out of the window."""
        return 0

    def admission_cap(self, blocks: int) -> int:
        """The gate counts the whole sequence."""
        return blocks

    def is_cached(self, index: int, kept_ends: list[int]) -> bool:
        """Every full block is cached."""
        return True

    def longest_hit(self, find: Find, limit: int, aligned: int) -> list[list[Block]]:
        """Left to right from block 0, rounded down to the scheduler block (section 6)."""
        hits: list[list[Block]] = []
        for index in range(limit // self.block_size):
            blocks = find(index)
            if blocks is None:
                break
            hits.append(blocks)
        while len(hits) * self.block_size % aligned:
            hits.pop()
        return hits


class SlidingKind:
    """Sliding window: what lies below the window is given back."""

    is_full = False

    def __init__(self, block_size: int, window: int, settings: Settings, null: Block) -> None:
        self.block_size = block_size
        self.window = window
        self.null = null
        self.need = cdiv(window - 1, block_size)
        """So many consecutive blocks must be found."""
        self.retention = settings.retention_interval
        self.aligned = settings.aligned
        # section 6: admission cap; async has twice as many tokens in flight
        tokens = min(window - 1 + settings.max_in_flight, settings.max_model_len)
        self.cap = cdiv(tokens, block_size) + 1

    def skipped_blocks(self, tokens: int) -> int:
        """Section 6: the blocks below the window, `tokens` being computed."""
        return max(0, tokens - self.window + 1) // self.block_size

    def admission_cap(self, blocks: int) -> int:
        """Section 6: the gate counts no more than the window and what is in flight."""
        return min(blocks, self.cap)

    def is_cached(self, index: int, kept_ends: list[int]) -> bool:
        """Section 6: whether retention keeps the block, the `need` last ones before an end.

        `kept_ends` are the ends, in tokens, that belong to the request.
        """
        block_end = (index + 1) * self.block_size
        if self.retention is None:
            ends = [cdiv(block_end, self.aligned) * self.aligned]
        elif self.retention == 0:
            ends = kept_ends
        else:
            ends = [cdiv(block_end, self.retention) * self.retention, *kept_ends]
        return any(0 <= end - block_end < self.need * self.block_size for end in ends)

    def longest_hit(self, find: Find, limit: int, aligned: int) -> list[list[Block]]:
        """Section 6: right to left for `need` hits in a row that end at a scheduler block."""
        run: list[list[Block]] = []
        for index in reversed(range(limit // self.block_size)):
            blocks = find(index)
            if blocks is None:
                run = []
            elif run or (index + 1) * self.block_size % aligned == 0:
                run.insert(0, blocks)
                if len(run) >= self.need:
                    below = [[self.null] * len(blocks) for _ in range(index)]
                    return [*below, *run]
        return run  # else the run that touches block 0 counts


Kind = FullKind | SlidingKind
