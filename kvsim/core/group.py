"""Layer groups: which blocks a group of layers keeps, caches and finds (vllm/SPEC.md section 6)."""

from __future__ import annotations

import math
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from kvsim.core.prefix_cache import PrefixCache

NEVER = 1 << 62
"""More tokens than any sequence has."""


class LayerGroup(NamedTuple):
    """Layers that share one block table."""

    kind: str
    """`full` or `sliding`."""
    block_size: int
    """Tokens of one block."""
    window: int | None = None
    """Tokens that a sliding-window layer attends to, the current one included."""


class GroupKind(Protocol):
    """All groups of one specification: their tables have equal lengths and equal windows."""

    members: tuple[int, ...]
    """Indices of the groups."""
    block_size: int

    def gate_blocks(self, tokens: int) -> int:
        """Blocks of one table that the full-sequence gate wants for `tokens` tokens."""

    def skipped_blocks(self, computed: int) -> int:
        """Leading blocks that are wholly out of the window once `computed` tokens have KV."""

    def frees_at(self, null_blocks: int) -> int:
        """Smallest number of computed tokens that skips more blocks than `null_blocks`."""

    def kept(self, first: int, stop: int, ends: Seq[int]) -> list[tuple[int, int]]:
        """Which of the blocks `first` to `stop` (excluded) the prefix cache keeps, as ranges.

        `ends`, in tokens, are places in the sequence whose windows are kept.
        """

    def next_kept(self, first: int) -> int | None:
        """The first block from `first` on that is kept wherever the `ends` are."""

    def longest_hit(self, cache: PrefixCache, keys: Seq[Seq[int]]) -> list[list[int]]:
        """The longest usable run of cached blocks: a table for each member, 0 out of the window.

        `keys` are the content numbers of each member's blocks, from the first block to the limit.
        """


class FullKind:
    """Full attention keeps every block."""

    def __init__(self, members: tuple[int, ...], block_size: int, aligned: int) -> None:
        """Hits end at multiples of `aligned` tokens."""
        self.members = members
        self.block_size = block_size
        self._step = aligned // block_size

    def gate_blocks(self, tokens: int) -> int:
        """All of them."""
        return -(-tokens // self.block_size)

    def skipped_blocks(self, computed: int) -> int:
        """No token leaves the window."""
        return 0

    def frees_at(self, null_blocks: int) -> int:
        """Never."""
        return NEVER

    def kept(self, first: int, stop: int, ends: Seq[int]) -> list[tuple[int, int]]:
        """All."""
        return [(first, stop)] if first < stop else []

    def next_kept(self, first: int) -> int | None:
        """All."""
        return first

    def longest_hit(self, cache: PrefixCache, keys: Seq[Seq[int]]) -> list[list[int]]:
        """The leading blocks that all members have."""
        runs: list[list[int]] = []
        count = len(keys[0])
        for member_keys in keys:
            run = cache.find_run(member_keys[:count])
            count = len(run)
            runs.append(run)
        count -= count % self._step
        return [run[:count] for run in runs]


class SlidingKind:
    """Sliding-window attention gives blocks below the window back and caches some of the others.

    Retention `None` caches the window before every multiple of `aligned` tokens, 0 the windows
    before the given places only, and R > 0 those and the window before every multiple of R.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        block_size: int,
        window: int,
        *,
        aligned: int,
        retention: int | None,
        max_tokens: int,
        max_in_flight: int,
    ) -> None:
        """No sequence has more than `max_tokens`, and at most `max_in_flight` are in flight."""
        self.members = members
        self.block_size = block_size
        self._window = window
        self._step = aligned // block_size
        self._segment = aligned if retention is None else retention
        self._run = -(-(window - 1) // block_size)
        """Blocks of which a hit consists."""
        self._gate_cap = -(-min(window - 1 + max_in_flight, max_tokens) // block_size) + 1

    def gate_blocks(self, tokens: int) -> int:
        """What the window and the tokens in flight hold at most, wherever blocks begin."""
        return min(-(-tokens // self.block_size), self._gate_cap)

    def skipped_blocks(self, computed: int) -> int:
        """The next token attends to the `window - 1` tokens before it."""
        outside = computed - self._window + 1
        return outside // self.block_size if outside > 0 else 0

    def frees_at(self, null_blocks: int) -> int:
        """When the window begins one block later."""
        return (null_blocks + 1) * self.block_size + self._window - 1

    def kept(self, first: int, stop: int, ends: Seq[int]) -> list[tuple[int, int]]:
        """The last blocks before the ends and before the retained places."""
        size, run, segment = self.block_size, self._run, self._segment
        if not run:
            return []
        if segment and run * size >= segment:
            return [(first, stop)] if first < stop else []
        if segment:
            retained = -(-(first + 1) * size // segment) * segment
            ends = [*ends, *range(retained, (stop + run) * size, segment)]
        ranges: list[tuple[int, int]] = []
        for end in sorted(ends):
            low, high = max(end // size - run, first), min(end // size, stop)
            if low < high:
                ranges.append((low, high))
                first = high
        return ranges

    def next_kept(self, first: int) -> int | None:
        """The last blocks before the retained places."""
        span = self._run * self.block_size
        if not self._segment or not span:
            return None
        before_end = -(first + 1) * self.block_size % self._segment
        if before_end < span:
            return first
        return first + (before_end - span) // self.block_size + 1

    def longest_hit(self, cache: PrefixCache, keys: Seq[Seq[int]]) -> list[list[int]]:
        """From right to left: the first run that fills the window, or the run from block 0 on."""
        found: list[list[int]] = []
        nulls = 0
        for index in reversed(range(len(keys[0]))):
            if not found and (index + 1) % self._step:
                continue
            blocks = _find_all(cache, keys, index)
            if blocks is None:
                found = []
                continue
            found.append(blocks)
            if len(found) >= self._run:
                nulls = index
                break
        found.reverse()
        return [[0] * nulls + [blocks[m] for blocks in found] for m in range(len(keys))]


def _find_all(cache: PrefixCache, keys: Seq[Seq[int]], index: int) -> list[int] | None:
    blocks = []
    for member_keys in keys:
        block = cache.find(member_keys[index])
        if block is None:
            return None
        blocks.append(block)
    return blocks


def group_kinds(
    groups: Seq[LayerGroup],
    *,
    retention: int | None,
    max_tokens: int,
    max_in_flight: int,
) -> list[GroupKind]:
    """The distinct specifications among `groups`, full attention first."""
    aligned = scheduler_block(groups)
    members: dict[LayerGroup, list[int]] = {}
    for index, group in enumerate(groups):
        members.setdefault(group, []).append(index)
    kinds: list[GroupKind] = []
    for group in sorted(members, key=lambda group: group.kind != "full"):
        held = tuple(members[group])
        if group.window is None:
            kinds.append(FullKind(held, group.block_size, aligned))
        else:
            kinds.append(
                SlidingKind(
                    held,
                    group.block_size,
                    group.window,
                    aligned=aligned,
                    retention=retention,
                    max_tokens=max_tokens,
                    max_in_flight=max_in_flight,
                )
            )
    return kinds


def scheduler_block(groups: Seq[LayerGroup]) -> int:
    """Least common multiple of the block sizes, in tokens: cached lengths are multiples of it."""
    return math.lcm(*(group.block_size for group in groups))


def check_groups(groups: Seq[LayerGroup]) -> None:
    """ValueError unless the groups can share a pool."""
    if not groups:
        raise ValueError("groups must name at least one layer group")
    for index, group in enumerate(groups):
        name = f"groups[{index}]"
        if group.block_size < 1:
            raise ValueError(f"{name}.block_size (={group.block_size}) must be >= 1 token")
        if group.kind == "full":
            if group.window is not None:
                raise ValueError(f"{name}.window (={group.window}) must be None: kind is full")
        elif group.kind != "sliding":
            raise ValueError(f"{name}.kind (={group.kind!r}) must be 'full' or 'sliding'")
        elif group.window is None or group.window < 1:
            raise ValueError(f"{name}.window (={group.window}) must be >= 1 token")
