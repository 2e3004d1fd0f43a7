"""Layer groups: which blocks a group of layers keeps, caches and finds (vllm/SPEC.md section 6)."""

from __future__ import annotations

import math
from collections.abc import Mapping
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from kvsim.core.accounting import Usage
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.request import Sequence

NEVER = 1 << 62
"""More tokens than any sequence has."""


class LayerGroup(NamedTuple):
    """Layers that share one block table."""

    kind: str
    """`full`, `sliding`, `chunked` (Llama 4) or `state` (linear attention, Mamba)."""
    block_size: int
    """Tokens of one block; of a state, the tokens whose KV would fill its block."""
    window: int | None = None
    """Tokens that a sliding-window layer attends to, the current one included."""
    chunk: int | None = None
    """Tokens of a chunk: a layer attends to those from the start of the current chunk on."""
    state_tokens: int | None = None
    """Tokens whose KV takes as many bytes as a state, at most `block_size`."""


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


class _Uncached:
    """Of kinds that the prefix cache does not cover: nothing is kept and nothing found."""

    members: tuple[int, ...]

    def kept(self, first: int, stop: int, ends: Seq[int]) -> list[tuple[int, int]]:
        """Nothing."""
        return []

    def next_kept(self, first: int) -> int | None:
        """Nothing."""
        return None

    def longest_hit(self, cache: PrefixCache, keys: Seq[Seq[int]]) -> list[list[int]]:
        """Nothing."""
        return [[] for _ in self.members]


class ChunkedKind(_Uncached):
    """Chunked-local attention gives back the blocks before the chunk of the next token.

    A chunk need not begin where a block does: then one block more may be held.
    """

    def __init__(
        self,
        members: tuple[int, ...],
        block_size: int,
        chunk: int,
        *,
        max_tokens: int,
        max_in_flight: int,
    ) -> None:
        """No sequence has more than `max_tokens`, and at most `max_in_flight` are in flight."""
        self.members = members
        self.block_size = block_size
        self._chunk = chunk
        held = min(chunk + max_in_flight, max_tokens)
        self._gate_cap = -(-held // block_size) + (chunk % block_size > 0)

    def gate_blocks(self, tokens: int) -> int:
        """What a chunk and the tokens in flight hold at most."""
        return min(-(-tokens // self.block_size), self._gate_cap)

    def skipped_blocks(self, computed: int) -> int:
        """The next token attends to the tokens from its chunk's start on."""
        return computed // self._chunk * self._chunk // self.block_size

    def frees_at(self, null_blocks: int) -> int:
        """The first start of a chunk behind one block more."""
        return -(-(null_blocks + 1) * self.block_size // self._chunk) * self._chunk


class StateKind(_Uncached):
    """A state takes one block per request, whatever its length: a block that holds any tokens."""

    block_size = NEVER

    def __init__(self, members: tuple[int, ...]) -> None:
        self.members = members

    def gate_blocks(self, tokens: int) -> int:
        """One."""
        return 1

    def skipped_blocks(self, computed: int) -> int:
        """The state stays."""
        return 0

    def frees_at(self, null_blocks: int) -> int:
        """Never."""
        return NEVER


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
        held, size = tuple(members[group]), group.block_size
        limits = {"max_tokens": max_tokens, "max_in_flight": max_in_flight}
        if group.kind == "state":
            kinds.append(StateKind(held))
        elif group.chunk is not None:
            kinds.append(ChunkedKind(held, size, group.chunk, **limits))
        elif group.window is not None:
            kinds.append(
                SlidingKind(
                    held, size, group.window, aligned=aligned, retention=retention, **limits
                )
            )
        else:
            kinds.append(FullKind(held, size, aligned))
    return kinds


def scheduler_block(groups: Seq[LayerGroup]) -> int:
    """Least common multiple of the block sizes, in tokens: cached lengths are multiples of it."""
    return math.lcm(*(group.block_size for group in groups))


_LIMITS = {"full": None, "sliding": "window", "chunked": "chunk", "state": "state_tokens"}
"""What a kind of group must state beside its block size."""
UNCACHED_KINDS = ("chunked", "state")
"""Kinds that the prefix cache does not cover."""


def slots_per_token(groups: Seq[LayerGroup]) -> int:
    """Slots that a token fills in all groups; a block of any has as many as the scheduler block."""
    slots = scheduler_block(groups)
    return sum(slots // group.block_size for group in groups if group.state_tokens is None)


def state_slots(groups: Seq[LayerGroup]) -> tuple[int, int]:
    """Slots that the states of one request fill, and those that they leave empty in their blocks.

    Slots are as for tokens: a state of `state_tokens` fills as many of a block.
    """
    slots = scheduler_block(groups)
    states = [group for group in groups if group.state_tokens is not None]
    filled = sum((one.state_tokens or 0) * (slots // one.block_size) for one in states)
    return filled, len(states) * slots - filled


def check_usage(usage: Usage, expected: Mapping[str, int]) -> None:
    """AssertionError unless the counted slots are those of the tables."""
    for name, slots in expected.items():
        counted = getattr(usage, name)
        assert slots == counted, f"{name} slots by tables ({slots}) != usage.{name} ({counted})"


def check_tables(sequences: Seq[Sequence], kind_of: Seq[GroupKind], group_blocks: Seq[int]) -> None:
    """AssertionError unless nulls lead, lengths agree within a kind, and counts are the tables'.

    `group_blocks` are the blocks of each group, one that several tables hold counted once.
    """
    for sequence in sequences:
        for index, kind in enumerate(kind_of):
            table, nulls = sequence.tables[index], sequence.null_blocks[index]
            twin = kind.members[0]
            lengths = (len(sequence.tables[twin]), sequence.null_blocks[twin])
            assert (len(table), nulls) == lengths, f"{sequence}: {table}, {nulls} != {lengths}"
            assert not any(table[:nulls]), f"{sequence}: {table} has {nulls} leading nulls"
    for group, counted in enumerate(group_blocks):
        held = {b for one in sequences for b in one.tables[group][one.null_blocks[group] :]}
        assert len(held) == counted, f"group {group} holds {len(held)} blocks, counted {counted}"


def check_groups(groups: Seq[LayerGroup], *, cached: bool, retention: int | None) -> None:
    """ValueError unless the groups can share a pool, which has a prefix cache if `cached`."""
    if retention is not None and retention < 0:
        raise ValueError(f"retention_interval (={retention}) must be >= 0 tokens")
    if not groups:
        raise ValueError("groups must name at least one layer group")
    for index, group in enumerate(groups):
        name = f"groups[{index}]"
        if group.block_size < 1:
            raise ValueError(f"{name}.block_size (={group.block_size}) must be >= 1 token")
        if group.kind not in _LIMITS:
            raise ValueError(f"{name}.kind (={group.kind!r}) must be one of {', '.join(_LIMITS)}")
        if cached and group.kind in UNCACHED_KINDS:
            raise ValueError(f"{name}.kind (={group.kind!r}) must not be with a prefix cache")
        needed = _LIMITS[group.kind]
        for field in ("window", "chunk", "state_tokens"):
            value = getattr(group, field)
            if field != needed and value is not None:
                raise ValueError(f"{name}.{field} (={value}) must be None: kind is {group.kind}")
            if field == needed and (value is None or value < 1):
                raise ValueError(f"{name}.{field} (={value}) must be >= 1 token")
        if group.state_tokens is not None and group.state_tokens > group.block_size:
            raise ValueError(
                f"{name}.state_tokens (={group.state_tokens}) must be <= block_size"
                f" (={group.block_size}): a state has one block"
            )
