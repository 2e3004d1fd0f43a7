"""The KV-cache manager: prefix lookups and block tables (SPEC.md, sections 3 to 6)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

from tests.reference.groups import FullKind, Kind, SlidingKind, cdiv
from tests.reference.pool import Block, BlockPool
from tests.reference.request import RefRequest
from tests.reference.settings import Settings
from tests.reference.tokens import PrefixIds


@dataclass
class Hit:
    """What a prefix lookup found: a list of blocks for each group, null below the window."""

    blocks: list[list[Block]]
    tokens: int = 0


class CacheManager:
    """Gives blocks to requests and takes them back."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.pool = BlockPool(settings.num_gpu_blocks)
        self.prefix_ids = PrefixIds()
        # section 6: groups with an equal spec are of one kind and are looked up together
        kinds: dict[tuple[str, int, int], Kind] = {}
        for spec in settings.groups:
            if spec not in kinds:
                kinds[spec] = self._kind(*spec)
        self.kinds = [kinds[spec] for spec in settings.groups]
        """The kind of each group."""

    def _kind(self, name: str, block_size: int, window: int) -> Kind:
        if name == "full":
            return FullKind(block_size)
        return SlidingKind(block_size, window, self.settings, self.pool.null)

    # Prefix lookup

    def no_hit(self) -> Hit:
        """What a request gets that is not looked up."""
        return Hit([[] for _ in self.kinds])

    def lookup(self, request: RefRequest) -> Hit:
        """The longest cached prefix; nothing but the request's junction changes (section 5)."""
        hit = self.no_hit()
        if not self.settings.enable_prefix_caching:
            return hit
        self._number_prefixes(request)
        limit = request.known - 1  # section 2b, step 3
        longest = 0
        while True:
            # section 6: each result lowers the limit for the next; repeat until stable
            before = limit
            for kind in self._full_first():
                members = [index for index, other in enumerate(self.kinds) if other is kind]
                find = partial(self._find, request, members)
                found = kind.longest_hit(find, limit, self.settings.aligned)
                limit = len(found) * kind.block_size
                longest = max(longest, limit)
                for place, member in enumerate(members):
                    hit.blocks[member] = [blocks[place] for blocks in found]
            if limit == before:
                break
        # section 6: longer lists are cut to the common length
        for kind, blocks in zip(self.kinds, hit.blocks, strict=True):
            del blocks[limit // kind.block_size :]
        hit.tokens = limit
        request.junction = longest if longest > limit else 0
        return hit

    def _full_first(self) -> list[Kind]:
        return sorted(dict.fromkeys(self.kinds), key=lambda kind: not kind.is_full)

    def _find(self, request: RefRequest, members: list[int], index: int) -> list[Block] | None:
        """A block must be found for all groups of a kind (section 6)."""
        found = []
        for member in members:
            prefix = self._prefix(request, member, index)
            block = None if prefix is None else self.pool.find((member, prefix))
            if block is None:
                return None
            found.append(block)
        return found

    def _prefix(self, request: RefRequest, group: int, index: int) -> int | None:
        """The number of all tokens up to the end of a group's block, once it is hashable."""
        hash_blocks = self.kinds[group].block_size // self.settings.hash_block
        last = (index + 1) * hash_blocks - 1
        return request.prefixes[last] if last < len(request.prefixes) else None

    def _number_prefixes(self, request: RefRequest) -> None:
        settings = self.settings
        request.extend_prefixes(self.prefix_ids, settings.hash_block, settings.hash_lookahead)

    # Allocation

    def allocate(
        self,
        request: RefRequest,
        new: int,
        hit: Hit,
        *,
        full_isl: bool = False,
        keep_free: int = 0,
    ) -> bool:
        """Section 3: slots for `new` tokens after the computed and the hit ones, or nothing."""
        mml = self.settings.max_model_len
        request.tables = request.tables or [[] for _ in self.kinds]
        request.considered = request.considered or [0 for _ in self.kinds]
        total = min(request.computed + hit.tokens, mml)
        # section 3, step 1: the whole known sequence must fit, sliding groups capped
        if full_isl:
            needed = self._needed(request, min(request.known, mml), hit, total, capped=True)
            if needed + keep_free > len(self.pool.free):
                return False
        # section 3, step 2: also where the allocation then fails
        self._drop_out_of_window(request, total - request.inflight)
        # section 3, step 3
        slots = min(total + new + self.settings.lookahead, mml)
        needed = self._needed(request, slots, hit, total, capped=False)
        if needed + keep_free > len(self.pool.free):
            return False
        # section 3, step 4: first the hit blocks of all groups, then the missing ones
        self._attach(request, hit, total)
        for kind, table in zip(self.kinds, request.tables, strict=True):
            for _ in range(cdiv(slots, kind.block_size) - len(table)):
                table.append(self.pool.take())
        # section 3, step 5: at schedule time
        self.cache(request, min(total + new, request.known))
        return True

    def _needed(
        self, request: RefRequest, tokens: int, hit: Hit, total: int, *, capped: bool
    ) -> int:
        """Section 3, need(n): over all groups, from the one pool."""
        needed = 0
        for kind, table, hits in zip(self.kinds, request.tables, hit.blocks, strict=True):
            wanted = cdiv(tokens, kind.block_size)
            if capped:
                wanted = kind.admission_cap(wanted)
            if table:
                needed += max(wanted - len(table), 0)  # a running request
                continue
            skipped = kind.skipped_blocks(total)
            needed += max(wanted - max(skipped, len(hits)), 0)
            # touching a hit block that is in the free queue uses it up
            needed += sum(block.users == 0 and not block.is_null for block in hits[skipped:])
        return needed

    def _drop_out_of_window(self, request: RefRequest, tokens: int) -> None:
        """Section 6: null below the window, from high to low up to the first null."""
        for kind, table in zip(self.kinds, request.tables, strict=True):
            dropped = []
            for index in reversed(range(min(kind.skipped_blocks(tokens), len(table)))):
                if table[index].is_null:
                    break
                dropped.append(table[index])
                table[index] = self.pool.null
            self.pool.release(dropped)

    def _attach(self, request: RefRequest, hit: Hit, total: int) -> None:
        """Section 6: hit blocks below the window are nulls in the table and not touched."""
        if not hit.tokens:
            return
        for group, (kind, hits) in enumerate(zip(self.kinds, hit.blocks, strict=True)):
            skipped = kind.skipped_blocks(total)
            table = [self.pool.null] * skipped + hits[skipped:]
            for block in table:
                if not block.is_null:
                    self.pool.touch(block)
            request.tables[group] = table
            request.considered[group] = len(table)

    def cache(self, request: RefRequest, tokens: int) -> None:
        """Section 5: hash the full blocks up to `tokens`, each one once considered."""
        if not self.settings.enable_prefix_caching:
            return
        self._number_prefixes(request)
        aligned = self.settings.aligned
        cacheable = tokens // aligned * aligned  # section 6
        kept_ends = [(request.prompt - 1) // aligned * aligned, request.junction]
        for group, (kind, table) in enumerate(zip(self.kinds, request.tables, strict=True)):
            for index in range(request.considered[group], cacheable // kind.block_size):
                prefix = self._prefix(request, group, index)
                if prefix is None:
                    break  # section 5, eagle: the next token is not known yet
                if not table[index].is_null and kind.is_cached(index, kept_ends):
                    self.pool.remember(table[index], (group, prefix))
                request.considered[group] = index + 1

    def release(self, request: RefRequest) -> None:
        """Section 4: all blocks, group after group, each table from its end."""
        for table in request.tables:
            self.pool.release([block for block in reversed(table) if not block.is_null])
        request.tables = []
        request.considered = []
