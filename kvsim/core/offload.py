"""Tiers outside the device that keep cached contents: the host's memory, a disk.

Stated choices, where servers differ:

* A block's content is written to the first tier when the block gets it (write-through, as vLLM's
  offloading connector and LMCache do). Writing goes on in the background and costs no step time.
* Each tier gives up the content that was used least recently to the next one; the last forgets it.
  Use is when a block gets the content (computed or fetched), and when a sequence that holds it is
  released, its last block first, as on the device. What is used moves to the first tier.
* A look-up takes the run of blocks on the device first and continues it in the tiers, not back on
  the device (vLLM's connectors). Fetched blocks need free blocks of the device.
* The step that admits the sequence waits until everything is there (synchronous), tier by tier.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable
from collections.abc import Sequence as Seq
from dataclasses import asdict, dataclass
from itertools import groupby
from typing import Any, NamedTuple

from kvsim.core.eviction import EvictionOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Transfer
from kvsim.core.prefix_cache import PrefixCache
from kvsim.core.protocols import Hit
from kvsim.core.request import Sequence


class Tier(NamedTuple):
    """Memory outside the device."""

    name: str
    capacity_blocks: int
    transfer_s: Callable[[int, int], float]
    """Seconds to bring so many tokens, which fill so many blocks, to the device."""


@dataclass(slots=True)
class TierCounts:
    """What one tier did since the start."""

    fetched_tokens: int = 0
    fetched_blocks: int = 0
    declined_tokens: int = 0
    """Found here and computed all the same, because that is faster."""
    stored_blocks: int = 0
    """Blocks written: of new contents, of contents that came up or down from another tier."""
    evicted_blocks: int = 0
    """Blocks that left for lack of room: to the next tier, or for good from the last."""
    peak_blocks: int = 0
    transfer_s: float = 0.0
    """Seconds that steps waited for this tier."""


class Tiers:
    """Which content lies in which tier: each in one, together one queue by latest use."""

    def __init__(self, tiers: Seq[Tier]) -> None:
        """The fastest first. Raises `ValueError` for a negative capacity or a name twice."""
        for tier in tiers:
            if tier.capacity_blocks < 0:
                raise ValueError(
                    f"capacity_blocks of {tier.name} (={tier.capacity_blocks}) must be >= 0"
                )
        self.counts = {tier.name: TierCounts() for tier in tiers}
        if len(self.counts) < len(tiers):
            raise ValueError(f"tiers must have distinct names, got {[t.name for t in tiers]}")
        self.tiers = [tier for tier in tiers if tier.capacity_blocks]
        """Those that can hold anything."""
        self._held: list[OrderedDict[int, None]] = [OrderedDict() for _ in self.tiers]
        """Contents of each tier, least recently used first."""
        self._place: dict[int, int] = {}

    def store(self, keys: Iterable[int]) -> None:
        """Contents are used; those that no tier has are written to the first one."""
        if not self.tiers:
            return
        place, held = self._place, self._held
        for key in keys:
            index = place.get(key)
            if index == 0:
                held[0].move_to_end(key)
                continue
            if index is not None:
                del held[index][key]
            self._insert(key)

    def touch(self, keys: Iterable[int]) -> None:
        """Contents are used; what no tier has stays unknown."""
        place = self._place
        self.store([key for key in keys if key in place])

    def _insert(self, key: int) -> None:
        for index, tier in enumerate(self.tiers):
            held, counts = self._held[index], self.counts[tier.name]
            held[key] = None
            self._place[key] = index
            counts.stored_blocks += 1
            if len(held) <= tier.capacity_blocks:
                counts.peak_blocks = max(counts.peak_blocks, len(held))
                return
            key, _ = held.popitem(last=False)
            counts.evicted_blocks += 1
        del self._place[key]

    def find_run(self, keys: Iterable[int]) -> list[int]:
        """Places in `tiers` of the leading contents that are all in some tier."""
        place = self._place
        run: list[int] = []
        for key in keys:
            index = place.get(key)
            if index is None:
                break
            run.append(index)
        return run

    def sizes(self) -> dict[str, int]:
        """Blocks that each tier holds, by name."""
        return {tier.name: len(held) for tier, held in zip(self.tiers, self._held, strict=True)}

    def check_integrity(self) -> None:
        """Every content is where it is said to be and nowhere else; a tier fills up first."""
        listed = {key: index for index, held in enumerate(self._held) for key in held}
        assert listed == self._place, f"contents of tiers {listed} != places {self._place}"
        total = sum(map(len, self._held))
        assert total == len(listed), f"{total} blocks in tiers for {len(listed)} contents"
        for tier, held in zip(self.tiers, self._held, strict=True):
            assert len(held) <= tier.capacity_blocks, (
                f"{tier.name} holds {len(held)} blocks, more than its {tier.capacity_blocks}"
            )


class WriteThroughCache(PrefixCache):
    """A prefix cache that hands every content that a block gets to `store`."""

    __slots__ = ("_store",)

    def __init__(self, order: EvictionOrder, store: Callable[[Iterable[int]], None]) -> None:
        super().__init__(order)
        self._store = store

    def seal(self, blocks: Seq[int], keys: Seq[int]) -> None:
        """The held `blocks` are full: their contents can be found here and in the tiers."""
        super().seal(blocks, keys)
        self._store(keys)


class Fetch(NamedTuple):
    """What a hit needs from the tiers, and what it could have had from them."""

    transfers: list[Transfer]
    declined: list[Transfer]


class OffloadingAllocator(PagedAllocator):
    """Paged memory whose prefix cache continues in tiers outside the device.

    Fetched tokens are hits like those found on the device. Capacities are blocks of this memory's
    size. All contents are filed, those nobody else can ask for too: they take up room.
    """

    def __init__(
        self,
        num_blocks: int,
        block_size: int,
        *,
        eviction: EvictionOrder,
        tiers: Seq[Tier],
        compute_s: Callable[[int, int], float] | None = None,
        **settings: Any,
    ) -> None:
        """`settings` are those of `PagedAllocator`.

        `compute_s` (prior tokens, new tokens) says in how many seconds the device would compute
        new tokens behind prior ones; with it only what is fetched faster than computed is fetched.
        """
        self.tiers = Tiers(tiers)
        super().__init__(num_blocks, block_size, eviction=eviction, **settings)
        self._files_private = True
        self._compute_s = compute_s
        self._transfers: list[Transfer] = []

    def _new_cache(self, eviction: EvictionOrder) -> PrefixCache:
        return WriteThroughCache(eviction, self.tiers.store)

    def lookup(self, sequence: Sequence) -> Hit:
        """The run of cached blocks on the device, and what is worth fetching of its continuation.

        The last known token is always computed.
        """
        hit = super().lookup(sequence)
        first, limit = len(hit.blocks), (sequence.tokens - 1) // self.block_size
        if first == limit:
            return hit
        run = self.tiers.find_run(self.keys(sequence, first, limit))
        if not run:
            return hit
        length = self._worth_fetching(run, hit.tokens, sequence.tokens)
        fetch = Fetch(self._transfers_of(run[:length]), self._transfers_of(run[length:]))
        return hit._replace(tokens=hit.tokens + length * self.block_size, fetch=fetch)

    def _worth_fetching(self, run: list[int], prior: int, known: int) -> int:
        """How many blocks of the run to fetch: all, none, or up to where the tier changes.

        The choice after which everything is computed first; of equals the one that fetches less.
        """
        if self._compute_s is None:
            return len(run)
        best, length = 0, 0
        least_s = self._compute_s(prior, known - prior)
        for _, blocks in groupby(run):
            length += len(list(blocks))
            behind = prior + length * self.block_size
            seconds = self._compute_s(behind, known - behind)
            seconds += sum(map(self._transfer_s, self._transfers_of(run[:length])))
            if seconds < least_s:
                best, least_s = length, seconds
        return best

    def _transfers_of(self, run: list[int]) -> list[Transfer]:
        """One transfer from each tier that has blocks of the run."""
        tiers, size = self.tiers.tiers, self.block_size
        counts = {index: run.count(index) for index in sorted(set(run))}
        return [Transfer(tiers[i].name, count * size, count) for i, count in counts.items()]

    def _transfer_s(self, transfer: Transfer) -> float:
        tier = next(tier for tier in self.tiers.tiers if tier.name == transfer.link)
        return tier.transfer_s(transfer.tokens, transfer.blocks)

    def admit(
        self, sequence: Sequence, hit: Hit, new_tokens: int, known_tokens: int, keep_free: int
    ) -> bool:
        """As any paged memory; what the hit fetches fills blocks that are taken now."""
        if not super().admit(sequence, hit, new_tokens, known_tokens, keep_free):
            return False
        fetch: Fetch | None = hit.fetch
        if fetch is not None:
            self._book(fetch)
        return True

    def _book(self, fetch: Fetch) -> None:
        counts = self.tiers.counts
        self._transfers += fetch.transfers
        for transfer in fetch.transfers:
            of_tier = counts[transfer.link]
            of_tier.fetched_tokens += transfer.tokens
            of_tier.fetched_blocks += transfer.blocks
            of_tier.transfer_s += self._transfer_s(transfer)
        for transfer in fetch.declined:
            counts[transfer.link].declined_tokens += transfer.tokens

    def release(self, sequence: Sequence, *, resumes: bool = False) -> None:
        """As any paged memory; the contents that the sequence held count as used."""
        self.tiers.touch(reversed(self.keys(sequence, 0, sequence.sealed)))
        super().release(sequence, resumes=resumes)

    def take_transfers(self) -> list[Transfer]:
        """What admissions since the last call fetch. Forgets it."""
        transfers, self._transfers = self._transfers, []
        return transfers

    def offload_counts(self) -> dict[str, dict[str, float]]:
        """What each tier did since the start, by its name."""
        return {name: asdict(counts) for name, counts in self.tiers.counts.items()}

    def dump(self) -> dict[str, Any]:
        """As any paged memory, and how many blocks each tier holds."""
        return {**super().dump(), "tiers": self.tiers.sizes()}

    def check_integrity(self, sequences: Seq[Sequence]) -> None:
        """As any paged memory; and every content is in one tier at most, none over-full."""
        super().check_integrity(sequences)
        self.tiers.check_integrity()
