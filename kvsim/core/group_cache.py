"""What blocks of layer groups hold, and what is found among them (vllm/SPEC.md section 6)."""

from __future__ import annotations

from collections.abc import Iterable
from collections.abc import Sequence as Seq
from typing import NamedTuple

from kvsim.core.block_pool import BlockPool
from kvsim.core.eviction import LruOrder
from kvsim.core.group import NEVER, GroupKind, LayerGroup
from kvsim.core.hit_ledger import HitLedger
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.protocols import NO_HIT, Hit
from kvsim.core.request import Sequence
from kvsim.core.streams import MAX_KINDS, StreamTree, block_keys


class GroupedHit(NamedTuple):
    """`Hit.blocks` of a look-up over layer groups. It may say something although nothing is hit."""

    tables: list[list[int]]
    """One per group, as long as the hit; 0 out of the window."""
    junction: int
    """The longest hit of any group, in tokens, if that is more than the hit of all; else 0."""


class GroupCache:
    """Contents of the blocks of all groups of a pool; `aligned` tokens are the scheduler block.

    `Sequence.sealed` counts the leading scheduler blocks that were considered: which blocks of
    which group then got a content, the kinds tell. `Sequence.first_private` is in tokens; blocks
    that end behind them can be asked for by their own sequence only, after a preemption. They are
    counted, and get a name when that becomes possible.
    """

    def __init__(
        self,
        pool: BlockPool,
        cache: PrefixCache,
        groups: Seq[LayerGroup],
        kinds: Seq[GroupKind],
        *,
        aligned: int,
        streams: StreamTree,
        hash_lookahead: int,
        names_private: bool,
    ) -> None:
        """`names_private` gives every content a name, even if nobody else can ask for it."""
        if len(groups) > MAX_KINDS:
            raise ValueError(f"{len(groups)} groups: the prefix cache tells at most {MAX_KINDS}")
        self._pool = pool
        self._cache = cache
        self._groups = groups
        self._kinds = kinds
        self._aligned = aligned
        self._streams = streams
        self._hash_lookahead = hash_lookahead
        self._names_private = names_private
        self._keeps_all = any(group.window is None for group in groups)
        self.ledger = HitLedger(aligned, hash_lookahead=hash_lookahead)
        """Why prompt tokens were not found."""
        windows = sum(groups[kind.members[0]].window is not None for kind in kinds)
        # A sliding hit, looked up again within its own length, is the same: only another kind of
        # sliding group can shorten it.
        self._one_pass = windows <= 1

    def lookup(self, sequence: Sequence) -> Hit:
        """The longest prefix that all groups have cached, a multiple of the scheduler block.

        Each kind of group is asked within the limit that the kinds before it left. The last known
        token is always computed.
        """
        tables: list[list[int]] = [[] for _ in self._groups]
        length = sequence.tokens - 1
        longest = 0
        while True:
            before = length
            for kind in self._kinds:
                stop = length // kind.block_size
                keys = [self.keys(sequence, 0, stop, member) for member in kind.members]
                found = kind.longest_hit(self._cache, keys)
                length = len(found[0]) * kind.block_size
                longest = max(longest, length)
                for member, table in zip(kind.members, found, strict=True):
                    tables[member] = table
            if self._one_pass or length == before:
                break
        if not longest:
            return NO_HIT
        return self._usable(tables, length, longest)

    def _usable(self, tables: list[list[int]], length: int, longest: int) -> Hit:
        """Cut the tables to the common length and to the window."""
        free_blocks = 0
        for kind in self._kinds:
            nulls, stop = kind.skipped_blocks(length), length // kind.block_size
            for member in kind.members:
                held = tables[member][nulls:stop]
                free_blocks += self._pool.count_free(held)
                tables[member] = [0] * nulls + held
        return Hit(length, GroupedHit(tables, longest if longest > length else 0), free_blocks)

    def keys(self, sequence: Sequence, first: int, stop: int, group: int) -> Seq[int]:
        """Content numbers of the logical blocks `first` to `stop` (excluded) of a group."""
        if not sequence.piece_ends:
            self._open(sequence)
        size = self._groups[group].block_size
        return block_keys(sequence, first, stop, size, kind=group, lookahead=self._hash_lookahead)

    def _open(self, sequence: Sequence) -> None:
        """Number the sequence's content, and find how much of it others can share."""
        self._streams.open(sequence)
        request = sequence.request
        if self._names_private or (request.segments and request.output_stream is not None):
            sequence.first_private = NEVER
        elif request.segments is not None:
            sequence.first_private = max(request.prompt_tokens - self._hash_lookahead, 0)

    def computed(self, sequence: Sequence, end: int, known: int) -> None:
        """The first `end` tokens are being computed, `known` tokens are known in value."""
        upto = end if end < known else known
        self.seal(sequence, upto, known)
        if sequence.request.segments is not None:
            self.ledger.computed(sequence, upto)

    def seal(self, sequence: Sequence, upto: int, known: int) -> None:
        """Give the blocks that are kept their content, up to `upto` computed and known tokens.

        `known` tokens are known in all. Whole scheduler blocks are considered, each once.
        """
        first = sequence.sealed
        stop = upto // self._aligned
        if stop <= first:
            return
        if self._hash_lookahead:
            stop = min(stop, (known - self._hash_lookahead) // self._aligned)
            if stop <= first:
                return
        sequence.sealed = stop
        ends = self._kept_ends(sequence)
        for kind in self._kinds:
            per = self._aligned // kind.block_size
            low, high = max(first * per, sequence.null_blocks[kind.members[0]]), stop * per
            private = sequence.first_private // kind.block_size
            if private > low:
                self._name(sequence, kind, kind.kept(low, min(private, high), ends))
                low = private
            self._cache.num_private += _length(kind.kept(low, high, ends)) * len(kind.members)

    def _name(self, sequence: Sequence, kind: GroupKind, ranges: Seq[tuple[int, int]]) -> None:
        """From now on others find these blocks."""
        for first, stop in ranges:
            for member in kind.members:
                blocks = sequence.tables[member][first:stop]
                self._cache.seal(blocks, self.keys(sequence, first, stop, member))

    def leave(self, sequence: Sequence, member: int, kind: GroupKind, first: int, stop: int) -> int:
        """Give back blocks out of the window, last one first; return how many became free."""
        if member == kind.members[0]:
            # The sequence will look for them if it is preempted.
            self._name_private(sequence, kind, first, stop)
        return self._free(sequence, member, kind, first, stop, private=stop)

    def release(self, sequence: Sequence, member: int, kind: GroupKind) -> int:
        """Give back a table, last block first; return how many became free."""
        first, stop = sequence.null_blocks[member], len(sequence.tables[member])
        private = sequence.first_private // kind.block_size
        return self._free(sequence, member, kind, first, stop, private)

    def _free(
        self,
        sequence: Sequence,
        member: int,
        kind: GroupKind,
        first: int,
        stop: int,
        private: int,
    ) -> int:
        """Blocks with a content go to the back of the free queue, the others to the front.

        Contents from the block `private` on have no name.
        """
        blocks = sequence.tables[member][first:stop]
        considered = min(sequence.sealed * self._aligned // kind.block_size, stop)
        if considered <= first:
            return self._pool.give_back(blocks)
        private = min(max(private, first), considered)
        shared = blocks[: private - first]
        contents = [block for block in shared if block in self._cache]
        others = [block for block in shared if block not in self._cache]
        num_named = len(contents)
        for low, high in kind.kept(private, considered, self._kept_ends(sequence)):
            others += blocks[private - first : low - first]
            contents += blocks[low - first : high - first]
            private = high
        others += blocks[private - first :]
        return self._pool.give_back(contents + others, len(contents), num_named)

    def name_private(self, sequence: Sequence) -> None:
        """The sequence will look for its own content: from now on that is found like any."""
        if not sequence.piece_ends:
            self._open(sequence)
        for kind in self._kinds:
            member = kind.members[0]
            first, stop = sequence.null_blocks[member], len(sequence.tables[member])
            self._name_private(sequence, kind, first, stop)
        sequence.first_private = NEVER

    def _name_private(self, sequence: Sequence, kind: GroupKind, first: int, stop: int) -> None:
        """Name what has a content among the blocks `first` to `stop` (excluded)."""
        size = kind.block_size
        first = max(sequence.first_private // size, first)
        stop = min(sequence.sealed * self._aligned // size, stop)
        if first < stop:
            kept = kind.kept(first, stop, self._kept_ends(sequence))
            self._cache.num_private -= _length(kept) * len(kind.members)
            self._name(sequence, kind, kept)

    def _kept_ends(self, sequence: Sequence) -> tuple[int, int]:
        """Places whose windows sliding groups keep: the prompt's reusable end and the junction."""
        last_prompt_token = sequence.request.prompt_tokens - 1
        return last_prompt_token - last_prompt_token % self._aligned, sequence.junction

    def next_end(self, sequence: Sequence) -> int:
        """Where the next blocks that get a content end, in tokens; NEVER if none will.

        Of a decode, whose prompt is considered.
        """
        if self._keeps_all:
            return (sequence.sealed + 1) * self._aligned + self._hash_lookahead
        until = NEVER
        for kind in self._kinds:
            size = kind.block_size
            kept = kind.next_kept(sequence.sealed * self._aligned // size)
            if kept is not None:
                until = min(until, -(-(kept + 1) * size // self._aligned) * self._aligned)
        return until + self._hash_lookahead

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """What was considered and is kept has a content, what was not considered has none."""
        private = sum(block not in self._cache for block in self._cache.free.ids())
        for sequence in sequences:
            ends = self._kept_ends(sequence)
            for kind in self._kinds:
                size, nulls = kind.block_size, sequence.null_blocks[kind.members[0]]
                considered = sequence.sealed * self._aligned // size
                shared = min(sequence.first_private // size, considered)
                kept = {i for ends_of in kind.kept(nulls, shared, ends) for i in range(*ends_of)}
                own = kind.kept(max(shared, nulls), considered, ends)
                private += _length(own) * len(kind.members)
                for member in kind.members:
                    table = sequence.tables[member]
                    named = {i for i in range(nulls, len(table)) if table[i] in self._cache}
                    assert kept <= named, f"{sequence}: group {member} lost {kept - named}"
                    early = {index for index in named if index >= shared}
                    assert not early, f"{sequence}: group {member} has contents in {early}"
        assert private == self._cache.num_private, (
            f"private contents free or in tables ({private}) != {self._cache.num_private}"
        )


class NoGroupCache:
    """Nothing gets a content, nothing is found."""

    ledger = None

    def __init__(self, pool: BlockPool) -> None:
        self._pool = pool

    def lookup(self, sequence: Sequence) -> Hit:
        """No cached tokens."""
        return NO_HIT

    def keys(self, sequence: Sequence, first: int, stop: int, group: int) -> Seq[int]:
        """Nothing has a number."""
        return ()

    def computed(self, sequence: Sequence, end: int, known: int) -> None:
        """Nothing to do."""

    def seal(self, sequence: Sequence, upto: int, known: int) -> None:
        """Nothing to do."""

    def leave(self, sequence: Sequence, member: int, kind: GroupKind, first: int, stop: int) -> int:
        """Give back blocks out of the window, last one first; return how many became free."""
        return self._pool.give_back(sequence.tables[member][first:stop])

    def release(self, sequence: Sequence, member: int, kind: GroupKind) -> int:
        """Give back a table, last block first; return how many became free."""
        return self._pool.give_back(sequence.tables[member][sequence.null_blocks[member] :])

    def name_private(self, sequence: Sequence) -> None:
        """Nothing to do."""

    def next_end(self, sequence: Sequence) -> int:
        """Never."""
        return NEVER

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """Nothing to check."""


def open_group_cache(
    pool: BlockPool,
    cache: PrefixCache | None,
    groups: Seq[LayerGroup],
    kinds: Seq[GroupKind],
    *,
    aligned: int,
    streams: StreamTree,
    hash_lookahead: int,
) -> GroupCache | NoGroupCache:
    """What blocks hold, where there is a prefix cache.

    Under LRU, contents that nobody else can ask for need no name.
    """
    if cache is None:
        return NoGroupCache(pool)
    return GroupCache(
        pool,
        cache,
        groups,
        kinds,
        aligned=aligned,
        streams=streams,
        hash_lookahead=hash_lookahead,
        names_private=not isinstance(cache.free, LruOrder),
    )


def _length(ranges: Iterable[tuple[int, int]]) -> int:
    return sum(stop - first for first, stop in ranges)
