"""Paged KV memory of several layer groups over one pool of blocks (vllm/SPEC.md sections 3-6)."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.accounting import Usage
from kvsim.core.block_pool import BlockPool
from kvsim.core.eviction import EvictionOrder
from kvsim.core.group import (
    NEVER,
    GroupKind,
    LayerGroup,
    check_groups,
    check_tables,
    check_usage,
    group_kinds,
    scheduler_block,
    slots_per_token,
    state_slots,
)
from kvsim.core.group_cache import GroupedHit, open_group_cache
from kvsim.core.plan import Copy
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.protocols import Hit
from kvsim.core.request import Request, Sequence
from kvsim.core.streams import StreamTree

NOTHING_FOUND = GroupedHit([], 0)


class GroupedAllocator:
    """One pool of block ids for groups of layers that keep different tokens, or a state.

    `Sequence.tables` holds one table per group, in the order of `groups`; `Sequence.null_blocks`
    says how many leading entries of each are out of the window (or before the chunk): they are 0
    and hold nothing. A state has one block per request and group, as vLLM's Mamba groups without
    prefix caching.

    The unit of memory is a *slot*: a block of any group has `block_size` slots, which is the least
    common multiple of the groups' block sizes, so a token fills `block_size / group.block_size`
    slots of each group and `usage.slots_per_token` in all. What a state leaves empty of its block
    is `usage.roundup`.

    Appends that change something are irregular: `horizon` tells when the next one is.
    """

    seals_ahead = False
    reserves_ahead = False

    def __init__(
        self,
        num_blocks: int,
        groups: Seq[LayerGroup],
        *,
        max_model_len: int,
        max_num_batched_tokens: int,
        async_scheduling: bool,
        null_block: bool = True,
        eviction: EvictionOrder | None = None,
        streams: StreamTree | None = None,
        retention_interval: int | None = 0,
        hash_lookahead: int = 0,
        lookahead_tokens: int = 0,
    ) -> None:
        """`num_blocks` counts vLLM's null block unless `null_block` is false.

        `max_num_batched_tokens` (twice that with `async_scheduling`) bounds what a sliding group
        holds beyond its window, in the full-sequence gate. `retention_interval` says which blocks
        of sliding groups are cached (see `SlidingKind`). The rest is as for `PagedAllocator`.
        """
        check_groups(groups, cached=eviction is not None, retention=retention_interval)
        self.groups = tuple(groups)
        self.cache = None if eviction is None else PrefixCache(eviction)
        self.pool = BlockPool(num_blocks, null_block=null_block, cache=self.cache)
        self.num_blocks = num_blocks
        self.block_size = scheduler_block(groups)
        self.capacity_slots = self.pool.num_usable * self.block_size
        self.usage = Usage()
        self.usage.slots_per_token = slots_per_token(groups)
        self.group_blocks = [0] * len(groups)
        """Blocks allocated per group, one held by several tables counted once."""
        self.live_tokens: Callable[[Sequence], int] = lambda sequence: sequence.computed
        self._kinds = group_kinds(
            groups,
            retention=retention_interval,
            max_tokens=max_model_len,
            max_in_flight=max_num_batched_tokens * (2 if async_scheduling else 1),
        )
        by_group = {member: kind for kind in self._kinds for member in kind.members}
        self._kind_of: list[GroupKind] = [by_group[index] for index in range(len(groups))]
        self._leaving = [i for i, group in enumerate(groups) if group.window or group.chunk]
        self._state_slots, self._state_rest = state_slots(groups)
        self._max_model_len, self._lag = max_model_len, int(async_scheduling)
        self._shapes = [
            (kind.members[0], len(kind.members), kind.block_size, kind.frees_at)
            for kind in self._kinds
        ]
        """Per kind: a group, how many there are, tokens per block, and when a block leaves."""
        self._lookahead_tokens = lookahead_tokens
        self._contents = open_group_cache(
            self.pool,
            self.cache,
            self.groups,
            self._kinds,
            aligned=self.block_size,
            streams=streams or StreamTree(),
            hash_lookahead=hash_lookahead,
        )
        self.ledger = self._contents.ledger

    def never_fits(self, request: Request, final_kv_tokens: int) -> str | None:
        """Why the whole pool could not hold the request, or None.

        Sliding groups count with their bound in the full-sequence gate, as in vLLM's own check at
        start-up, so that the request can be admitted again after a preemption, however long.
        """
        tokens = self._slots_for(final_kv_tokens)
        need = self._gate_need(tokens, 0)
        if need <= self.pool.num_usable:
            return None
        return (
            f"needs up to {need} blocks in {len(self.groups)} layer groups, "
            f"the pool has {self.pool.num_usable}"
        )

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest prefix that all groups have cached.

        The result says where a longer hit of some group ended even if the common hit is empty: hand
        it to `admit` unchanged.
        """
        return self._contents.lookup(sequence)

    def keys(self, sequence: Sequence, first: int, stop: int, group: int) -> Seq[int]:
        """Content numbers of a group's logical blocks; a prefix cache is needed."""
        return self._contents.keys(sequence, first, stop, group)

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """Fill empty tables; refuse by the gate, the need of these tokens, and the watermark.

        `known_tokens` is the full-sequence gate (`scheduler_reserve_full_isl`), 0 without it.
        """
        end = hit.tokens + new_tokens
        slots = self._slots_for(end)
        free = self.pool.num_free() - keep_free - hit.free_blocks
        if self._gate_need(min(known_tokens, self._max_model_len), hit.tokens) > free:
            return False
        missing = 0
        for _, groups, size, _ in self._shapes:
            missing += (-(-slots // size) - hit.tokens // size) * groups
        if missing > free:
            return False
        if self.ledger is not None:
            self.ledger.admitted(sequence, hit.tokens)
        found: GroupedHit = hit.blocks or NOTHING_FOUND
        sequence.junction = found.junction
        sequence.sealed = hit.tokens // self.block_size
        sequence.null_blocks = [kind.skipped_blocks(hit.tokens) for kind in self._kind_of]
        sequence.tables = found.tables or [[] for _ in self.groups]
        if hit.tokens:
            self._use_hit(sequence)
        self._extend(sequence, slots)
        self.usage.state += self._state_slots
        self.usage.roundup += self._state_rest
        self._contents.computed(sequence, end, sequence.tokens)
        return True

    def _gate_need(self, tokens: int, hit_tokens: int) -> int:
        """Blocks beyond the hit that the gate wants for `tokens` tokens; section 3's need()."""
        need = 0
        for kind in self._kinds:
            missing = kind.gate_blocks(tokens) - hit_tokens // kind.block_size
            if missing > 0:
                need += missing * len(kind.members)
        return need

    def _slots_for(self, end: int) -> int:
        if not self._lookahead_tokens:
            return end
        return min(end + self._lookahead_tokens, self._max_model_len)

    def _use_hit(self, sequence: Sequence) -> None:
        assert self.cache is not None
        revived = shared = 0
        for index, table in enumerate(sequence.tables):
            held = table[sequence.null_blocks[index] :]
            free = self.pool.hold(held)
            self.cache.free.hit(held)
            self.group_blocks[index] += free
            revived += free
            shared += len(held) - free
        usage, size = self.usage, self.block_size
        usage.allocated += revived * size
        usage.shared += shared * size
        usage.out_of_window += sum(sequence.null_blocks) * size
        usage.cached = self.pool.num_cached_free() * size

    def append(
        self, sequence: Sequence, computed: int, new_tokens: int, known: int, in_flight: int = 0
    ) -> bool:
        """Extend the tables to `computed + new_tokens` tokens, or refuse.

        Blocks that the window has left are given back first, even if the answer is no: the
        exception to "a refused call changes nothing". Asking again changes nothing more.
        """
        end = computed + new_tokens
        slots = self._slots_for(end)
        tables, nulls = sequence.tables, sequence.null_blocks
        missing, leaves = 0, False
        for group, groups, size, frees_at in self._shapes:
            if computed - in_flight >= frees_at(nulls[group]):
                leaves = True
            count = -(-slots // size) - len(tables[group])
            if count > 0:
                missing += count * groups
        if leaves:
            self._leave_window(sequence, computed - in_flight)
        if missing:
            if missing > self.pool.num_free():
                return False
            self._extend(sequence, slots)
        self._contents.computed(sequence, end, known)
        return True

    def _leave_window(self, sequence: Sequence, computed: int) -> None:
        """Give back what `computed` processed tokens put out of the window, last block first."""
        nulls = sequence.null_blocks
        freed = left = 0
        for index in self._leaving:
            kind, first = self._kind_of[index], nulls[index]
            stop = kind.skipped_blocks(computed)
            if stop > first:
                free = self._contents.leave(sequence, index, kind, first, stop)
                self.group_blocks[index] -= free
                freed += free
                left += stop - first
                sequence.tables[index][first:stop] = [0] * (stop - first)
                nulls[index] = stop
        if left:
            usage, size = self.usage, self.block_size
            usage.allocated -= freed * size
            usage.shared -= (left - freed) * size
            usage.out_of_window += left * size
            usage.cached = self.pool.num_cached_free() * size

    def _extend(self, sequence: Sequence, slots: int) -> None:
        """Give each table, group after group, the blocks it lacks for `slots` tokens."""
        usage, size, pool = self.usage, self.block_size, self.pool
        final = sequence.final_kv_tokens
        for index, (kind, table) in enumerate(zip(self._kind_of, sequence.tables, strict=True)):
            tokens = kind.block_size
            count = -(-slots // tokens) - len(table)
            if count > 0:
                self.group_blocks[index] += count
                table.extend(pool.take(count))
                usage.allocated += count * size
                beyond = len(table) * tokens - final
                if beyond > 0:
                    usage.internal_tail += min(beyond, count * tokens) * (size // tokens)
        usage.cached = pool.num_cached_free() * size

    def _never_filled(self, sequence: Sequence) -> int:
        """Slots of held last blocks that the final length leaves empty."""
        final = sequence.final_kv_tokens
        slots = 0
        for kind in self._kinds:
            size = kind.block_size
            tail = len(sequence.tables[kind.members[0]]) * size - final
            if tail > 0:
                slots += tail * (self.block_size // size) * len(kind.members)
        return slots

    def seal(self, sequence: Sequence, upto: int) -> None:
        """The first `upto` tokens have KV, and the token behind them is known."""
        self._contents.seal(sequence, upto, NEVER)

    def append_bulk(self, sequences: Seq[Sequence]) -> bool:
        """Never called: appends are irregular."""
        raise NotImplementedError

    def seal_bulk(self, sequences: Seq[Sequence]) -> None:
        """Never called: appends are irregular."""
        raise NotImplementedError

    def append_period(self) -> int | None:
        """Irregular: windows, block boundaries and cached lengths come round at different times."""
        return None

    def horizon(self, sequence: Sequence, computed: int) -> int:
        """Appends that cross no block boundary, free nothing and give no block a content.

        Of a decode: one token is computed at a time, and it is known before the append
        (synchronous) or one append later (asynchronous, where one token is in flight).
        """
        until = self._contents.next_end(sequence) - 1 + self._lag
        tables, nulls = sequence.tables, sequence.null_blocks
        for group, _, size, frees_at in self._shapes:
            room = len(tables[group]) * size
            if room < self._max_model_len and room - self._lookahead_tokens < until:
                until = room - self._lookahead_tokens
            leaves = frees_at(nulls[group]) + self._lag
            if leaves < until:
                until = leaves
        return until - computed if until > computed else 0

    def free_count(self) -> int:
        """Blocks in the free queue."""
        return self.pool.num_free()

    def held_up(self, sequence: Sequence) -> bool:
        """Never: any free block serves any group of any sequence."""
        return False

    def fits_sum(self, sequence: Sequence) -> bool:
        """Whether the full-sequence gate would let a waiting sequence pass."""
        tokens = min(sequence.tokens, self._max_model_len)
        if self._gate_need(tokens, 0) <= self.pool.num_free():
            return True
        hit = self.lookup(sequence)
        return self._gate_need(tokens, hit.tokens) + hit.free_blocks <= self.pool.num_free()

    def largest_free_extent(self) -> int:
        """All free slots: tables may hold any of them."""
        return self.pool.num_free() * self.block_size

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """Give the tables back, group after group, and empty them."""
        if not sequence.tables:
            return
        usage, size = self.usage, self.block_size
        usage.internal_tail -= self._never_filled(sequence)
        if resumes:
            self._contents.name_private(sequence)
        freed = held = 0
        for index, kind in enumerate(self._kind_of):
            held += len(sequence.tables[index]) - sequence.null_blocks[index]
            free = self._contents.release(sequence, index, kind)
            self.group_blocks[index] -= free
            freed += free
        usage.state -= self._state_slots
        usage.roundup -= self._state_rest
        usage.allocated -= freed * size
        usage.shared -= (held - freed) * size
        usage.out_of_window -= sum(sequence.null_blocks) * size
        usage.cached = self.pool.num_cached_free() * size
        if self.ledger is not None:
            self.ledger.computed(sequence, sequence.computed)
        sequence.tables = []
        sequence.null_blocks = []
        sequence.sealed = 0

    def prefix_counts(self) -> dict[str, int] | None:
        """Tokens of first admissions by what became of them, and blocks evicted."""
        if self.ledger is None or self.cache is None:
            return None
        return self.ledger.as_dict(evicted_blocks=self.cache.evicted)

    def further_holders(self) -> int:
        """Table entries beyond the first of each block."""
        return self.pool.num_extra_holders

    def take_copies(self) -> list[Copy]:
        """None: tables never move."""
        return []

    def dump(self) -> dict[str, Any]:
        """Slots per block, tokens per block of each group, the free queue's ids in pop order."""
        return {
            "block_size": self.block_size,
            "group_block_sizes": [group.block_size for group in self.groups],
            "free": self.pool.free_ids(),
        }

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Every block free or held as often as counted; usage equal to what the tables say."""
        held = [
            table[nulls:]
            for sequence in sequences
            for table, nulls in zip(sequence.tables, sequence.null_blocks, strict=True)
        ]
        self.pool.check_integrity(held)
        size, usage = self.block_size, self.usage
        expected = {
            "allocated": len({block for table in held for block in table}) * size,
            "internal_tail": sum(self._never_filled(sequence) for sequence in sequences),
            "shared": self.pool.num_extra_holders * size,
            "cached": self.pool.num_cached_free() * size,
            "out_of_window": sum(sum(sequence.null_blocks) for sequence in sequences) * size,
            "state": self._state_slots * len(sequences),
            "roundup": self._state_rest * len(sequences),
        }
        check_usage(usage, expected)
        check_tables(sequences, self._kind_of, self.group_blocks)
        self._contents.check_integrity(sequences)
