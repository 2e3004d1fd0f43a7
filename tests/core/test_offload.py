"""Cached prefixes outside the device: tiers, the choice between fetching and computing."""

from __future__ import annotations

from itertools import groupby, pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.eviction import EVICTION_ORDERS, LruOrder
from kvsim.core.offload import OffloadingAllocator, Tier, Tiers
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan, Transfer
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from tests.core.decisions import PROMPTS, decisions
from tests.core.shadow_cache import Token, admit, sequence, snapshot, tokens_of

SIZE = 4


def tier(name: str, blocks: int, *, block_s: float = 0.0, latency_s: float = 0.0) -> Tier:
    return Tier(name, blocks, lambda tokens, count: latency_s + block_s * count)


def offloading(blocks: int, *tiers: Tier, **more: Any) -> OffloadingAllocator:
    return OffloadingAllocator(blocks + 1, SIZE, eviction=LruOrder(), tiers=tiers, **more)


def filled(allocator: PagedAllocator, *streams: str, tokens: int = 16) -> None:
    """Each stream's first tokens are computed by a request that ends."""
    for stream in streams:
        one = sequence(((stream, tokens),))
        admit(allocator, one)
        allocator.release(one)


# Tiers


def test_what_one_tier_has_no_room_for_goes_to_the_next_and_what_is_used_comes_back() -> None:
    tiers = Tiers([tier("host", 2), tier("disk", 2)])
    tiers.store([1, 2, 3, 4, 5])
    assert tiers.find_run([5, 4, 3, 2, 1]) == [0, 0, 1, 1]
    tiers.touch([2, 1])
    assert tiers.find_run([5, 2]) == [0, 0]
    assert tiers.find_run([4, 3, 9]) == [1, 1]
    tiers.store([6])
    assert tiers.find_run([6, 2, 5, 4]) == [0, 0, 1, 1]
    assert tiers.find_run([3]) == []
    host, disk = tiers.counts["host"], tiers.counts["disk"]
    assert (host.stored_blocks, host.evicted_blocks, host.peak_blocks) == (7, 5, 2)
    assert (disk.stored_blocks, disk.evicted_blocks, disk.peak_blocks) == (5, 2, 2)
    tiers.check_integrity()


def test_tiers_that_make_no_sense_are_refused() -> None:
    with pytest.raises(ValueError, match=r"capacity_blocks of host \(=-1\) must be >= 0"):
        Tiers([tier("host", -1)])
    with pytest.raises(ValueError, match="distinct names"):
        Tiers([tier("host", 1), tier("host", 1)])


# Hits


def test_a_run_that_ends_on_the_device_goes_on_in_the_tiers() -> None:
    """Of four blocks the device kept the first, the host has all: three are fetched."""
    allocator = offloading(5, tier("host", 100))
    filled(allocator, "a")
    filled(allocator, "b")
    one = sequence((("a", 17),))
    hit = allocator.lookup(one)
    assert (hit.tokens, len(hit.blocks), hit.free_blocks) == (16, 1, 1)
    assert allocator.admit(one, hit, 1, 17, 0)
    assert allocator.take_transfers() == [Transfer("host", 12, 3)]
    assert allocator.take_transfers() == []
    assert allocator.offload_counts()["host"]["fetched_tokens"] == 12
    counts = allocator.prefix_counts()
    assert counts is not None
    assert (counts["hit_tokens"], counts["evicted_tokens"]) == (16, 0)
    allocator.check_integrity([one])


def test_a_run_may_alternate_between_tiers_and_each_is_read_once() -> None:
    """The host keeps the contents used last: here blocks 0, 2 and 3 of a chain of four."""
    allocator = offloading(4, tier("host", 3), tier("disk", 100))
    filled(allocator, "a")
    chain = allocator.keys(sequence((("a", 16),)), 0, 4)
    filled(allocator, "b")
    allocator.tiers.store([chain[i] for i in (3, 2, 0)])
    assert allocator.tiers.find_run(chain) == [0, 1, 0, 0]
    one = sequence((("a", 16), ("c", 1)))
    hit = allocator.lookup(one)
    assert (hit.tokens, list(hit.blocks)) == (16, [])
    assert hit.fetch.transfers == [Transfer("host", 12, 3), Transfer("disk", 4, 1)]


def test_the_last_known_token_is_computed_even_if_a_tier_has_its_block() -> None:
    """vllm/SPEC.md section 5 holds for fetched blocks too."""
    allocator = offloading(4, tier("host", 100))
    filled(allocator, "a", "b")
    assert allocator.lookup(sequence((("a", 16),))).tokens == 12
    assert allocator.lookup(sequence((("a", 15), ("c", 2)))).tokens == 12


def test_a_fetch_needs_free_blocks_and_a_refused_one_changes_nothing() -> None:
    allocator = offloading(6, tier("host", 100))
    filled(allocator, "a", "b")
    holder = sequence(8)
    admit(allocator, holder)
    one = sequence((("a", 17),))
    hit = allocator.lookup(one)
    assert hit.tokens == 16
    before = (snapshot(allocator), allocator.offload_counts())
    assert not allocator.fits_sum(one)
    assert not allocator.admit(one, hit, 1, 17, 0)
    assert (snapshot(allocator), allocator.offload_counts()) == before
    assert allocator.take_transfers() == []
    allocator.release(holder)
    assert allocator.admit(one, allocator.lookup(one), 1, 17, 0)


def test_what_nobody_else_can_ask_for_takes_up_room_in_a_tier_too() -> None:
    allocator = offloading(8, tier("host", 5))
    filled(allocator, "a")
    other = sequence(16)
    admit(allocator, other)
    allocator.release(other)
    assert allocator.tiers.sizes() == {"host": 5}
    assert allocator.offload_counts()["host"]["evicted_blocks"] == 3


# Fetching against computing


@pytest.mark.parametrize(
    ("host_s", "disk_s", "latency_s", "fetched"),
    [
        (1.0, 1.0, 0.0, 4),
        (3.9, 3.9, 0.0, 4),
        (4.0, 4.0, 0.0, 0),
        (1.0, 4.5, 0.0, 2),
        (1.0, 4.0, 0.0, 2),
        (1.0, 3.5, 1.0, 2),
        (1.0, 3.4, 1.0, 4),
        (5.0, 3.4, 0.0, 0),
        (5.0, 2.5, 0.0, 4),
    ],
)
def test_what_is_computed_faster_is_not_fetched(
    host_s: float, disk_s: float, latency_s: float, fetched: int
) -> None:
    """Two blocks in the host and two on disk; a token is computed in 1 s, a block in 4 s."""
    allocator = offloading(
        5,
        tier("host", 2, block_s=host_s),
        tier("disk", 100, block_s=disk_s, latency_s=latency_s),
        compute_s=lambda prior, new: float(new),
    )
    filled(allocator, "a")
    filled(allocator, "b", tokens=20)
    one = sequence((("a", 17),))
    chain = allocator.keys(one, 0, 4)
    allocator.tiers.store(chain[1::-1])
    assert allocator.tiers.find_run(chain) == [0, 0, 1, 1]
    hit = allocator.lookup(one)
    assert (len(hit.blocks), hit.tokens) == (0, 4 * fetched)
    assert allocator.admit(one, hit, 17 - hit.tokens, 17, 0)
    counts = allocator.offload_counts()
    of_host, of_disk = min(fetched, 2), max(fetched - 2, 0)
    assert counts["host"]["fetched_tokens"] == 4 * of_host
    assert counts["host"]["declined_tokens"] == 8 - 4 * of_host
    assert counts["disk"]["declined_tokens"] == 8 - 4 * of_disk
    assert counts["host"]["transfer_s"] == host_s * of_host
    assert counts["disk"]["transfer_s"] == (latency_s + disk_s * of_disk if of_disk else 0.0)
    booked = allocator.prefix_counts()
    assert booked is not None
    assert booked["hit_tokens"] == 4 * fetched
    assert booked["evicted_tokens"] == 16 - 4 * fetched


# Laws

LENGTHS = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 60)), min_size=1, max_size=25)


def _one_after_the_other(allocator: PagedAllocator, lengths: list[tuple[str, int]]) -> list[int]:
    """Hit tokens of each request; each is computed in chunks of 10 tokens and ends."""
    hits = []
    for index, (stream, tokens) in enumerate(lengths):
        one = sequence(((stream, tokens), (index, 3)))
        hit = allocator.lookup(one)
        hits.append(hit.tokens)
        computed = min(one.tokens, hit.tokens + 10)
        assert allocator.admit(one, hit, computed - hit.tokens, one.tokens, 0)
        one.admissions += 1
        while computed < one.tokens:
            new = min(10, one.tokens - computed)
            assert allocator.append(one, computed, new, one.tokens)
            computed += new
        one.computed = computed
        allocator.check_integrity([one])
        allocator.release(one)
    allocator.check_integrity([])
    return hits


@given(lengths=LENGTHS, device=st.integers(16, 40), capacities=st.lists(st.integers(0, 60)))
def test_one_at_a_time_no_request_finds_less_in_a_larger_tier(
    lengths: list[tuple[str, int]], device: int, capacities: list[int]
) -> None:
    """Least recently used first is a stack: the smaller tier's contents are in the larger one."""
    found = [
        _one_after_the_other(offloading(device, tier("host", blocks)), lengths)
        for blocks in sorted(capacities)
    ]
    for smaller, larger in pairwise(found):
        assert all(few <= many for few, many in zip(smaller, larger, strict=True))


@given(
    lengths=LENGTHS, device=st.integers(16, 40), host=st.integers(0, 40), disk=st.integers(0, 40)
)
def test_two_tiers_find_what_one_of_both_capacities_finds(
    lengths: list[tuple[str, int]], device: int, host: int, disk: int
) -> None:
    two = offloading(device, tier("host", host), tier("disk", disk))
    one = offloading(device, tier("host", host + disk))
    assert _one_after_the_other(two, lengths) == _one_after_the_other(one, lengths)


@given(lengths=LENGTHS, device=st.integers(16, 40))
def test_an_endless_tier_finds_what_a_device_without_end_finds(
    lengths: list[tuple[str, int]], device: int
) -> None:
    endless = PagedAllocator(10_000, SIZE, eviction=LruOrder())
    offloaded = offloading(device, tier("host", 10**6))
    assert _one_after_the_other(offloaded, lengths) == _one_after_the_other(endless, lengths)


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
@pytest.mark.parametrize("order", ["lru", "fifo", "lfu"])
@given(prompts=PROMPTS, blocks=st.integers(16, 40))
@settings(max_examples=40)
def test_tiers_without_room_change_no_decision(
    order: str, ahead: bool, prompts: list[tuple[str, int, int]], blocks: int
) -> None:
    """Free queue and block tables included, though no content is private then."""
    shape: dict[str, Any] = {"seals_ahead": not ahead}
    plain = PagedAllocator(blocks, SIZE, eviction=EVICTION_ORDERS[order](), **shape)
    empty = [tier("host", 0), tier("disk", 0)]
    tiered = OffloadingAllocator(
        blocks, SIZE, eviction=EVICTION_ORDERS[order](), tiers=empty, **shape
    )
    assert decisions(tiered, prompts, ahead=ahead) == decisions(plain, prompts, ahead=ahead)
    assert all(not any(counts.values()) for counts in tiered.offload_counts().values())


@pytest.mark.parametrize("ahead", [False, True], ids=["synchronous", "asynchronous"])
def test_a_step_carries_what_its_admissions_fetch(ahead: bool) -> None:
    """Three prompts take turns in a memory of four blocks; the third is the first one again."""
    allocator = offloading(4, tier("host", 100), seals_ahead=not ahead)
    scheduler = VllmScheduler(
        allocator,
        max_num_seqs=1,
        max_num_batched_tokens=64,
        max_model_len=16,
        async_scheduling=ahead,
    )
    for index, stream in enumerate("aba"):
        scheduler.add(Request(f"r{index}", 0, 14, 1, segments=((stream, 14),)))
    plans: list[StepPlan] = []
    in_flight: list[StepPlan] = []
    while scheduler.has_work():
        in_flight.append(scheduler.schedule())
        plans.append(in_flight[-1])
        if len(in_flight) > ahead:
            scheduler.complete(in_flight.pop(0))
    admitting = [plan for plan in plans if plan.admitted]
    assert [plan.transfers for plan in admitting] == [[], [], [Transfer("host", 12, 3)]]
    assert [plan.hits for plan in admitting] == [[0], [0], [12]]
    assert all(not plan.transfers for plan in plans if not plan.admitted)


# Any order of events

Content = tuple[Token, ...]


class TierMachine(RuleBasedStateMachine):
    """Admissions, chunks, decodes, preemptions and releases; tiers as one list by latest use."""

    @initialize(
        blocks=st.integers(8, 30),
        host=st.integers(0, 12),
        disk=st.integers(0, 12),
        chooses=st.booleans(),
    )
    def build(self, blocks: int, host: int, disk: int, chooses: bool) -> None:
        self.capacities = [host, disk]
        self.compute_s = (lambda prior, new: new * (1.0 + prior / 16)) if chooses else None
        self.times = {"host": (0.5, 1.0), "disk": (3.0, 4.5)}
        tiers = [
            tier(name, capacity, latency_s=self.times[name][0], block_s=self.times[name][1])
            for name, capacity in zip(self.times, self.capacities, strict=True)
        ]
        self.allocator = offloading(blocks, *tiers, compute_s=self.compute_s)
        self.recent: list[Content] = []
        """Contents in the tiers, the one used last at the end."""
        self.held: list[Sequence] = []
        self.waiting: list[Sequence] = []
        self.count = 0

    def contents(self, one: Sequence, first: int, stop: int) -> list[Content]:
        return [tuple(tokens_of(one.request, (i + 1) * SIZE)) for i in range(first, stop)]

    def used(self, contents: list[Content], *, only_known: bool = False) -> None:
        for content in contents:
            if only_known and content not in self.recent:
                continue
            self.recent = [*(other for other in self.recent if other != content), content]
            del self.recent[: max(0, len(self.recent) - sum(self.capacities))]

    def place(self, content: Content) -> str | None:
        if content not in self.recent:
            return None
        newer = len(self.recent) - 1 - self.recent.index(content)
        return "host" if newer < self.capacities[0] else "disk"

    def run(self, one: Sequence, first: int) -> list[str]:
        places = []
        for content in self.contents(one, first, (one.tokens - 1) // SIZE):
            where = self.place(content)
            if where is None:
                break
            places.append(where)
        return places

    def worth(self, run: list[str], prior: int, known: int) -> int:
        """Every allowed length in turn; the shortest of the fastest."""
        if self.compute_s is None:
            return len(run)
        ends = [0]
        for _, part in groupby(run):
            ends.append(ends[-1] + len(list(part)))
        seconds = {}
        for end in ends:
            behind = prior + SIZE * end
            seconds[end] = self.compute_s(behind, known - behind)
            for name, (latency_s, block_s) in self.times.items():
                blocks = run[:end].count(name)
                seconds[end] += latency_s + block_s * blocks if blocks else 0.0
        return min(seconds, key=lambda end: (seconds[end], end))

    @rule(
        shared=st.lists(st.tuples(st.sampled_from("aab"), st.integers(1, 24)), max_size=2),
        own=st.integers(1, 9),
        output=st.integers(1, 12),
        data=st.data(),
    )
    def admit_new(
        self, shared: list[tuple[str, int]], own: int, output: int, data: st.DataObject
    ) -> None:
        self.count += 1
        self.admit(sequence((*shared, (self.count, own)), output, f"r{self.count}"), data)

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        self.admit(self.waiting.pop(0), data)

    def admit(self, one: Sequence, data: st.DataObject) -> None:
        allocator = self.allocator
        device = len(PagedAllocator.lookup(allocator, one).blocks)
        run = self.run(one, device)
        length = self.worth(run, device * SIZE, one.tokens)
        hit = allocator.lookup(one)
        assert (len(hit.blocks), hit.tokens) == (device, (device + length) * SIZE)
        new = data.draw(st.integers(1, one.tokens - hit.tokens))
        before = (snapshot(allocator), allocator.offload_counts())
        if not allocator.admit(one, hit, new, 0, 0):
            assert (snapshot(allocator), allocator.offload_counts()) == before
            self.waiting.append(one)
            return
        moved = {transfer.link: transfer.blocks for transfer in allocator.take_transfers()}
        assert moved == {name: run[:length].count(name) for name in set(run[:length])}
        one.admissions += 1
        one.computed = hit.tokens + new
        self.used(self.contents(one, device, one.computed // SIZE))
        self.held.append(one)

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def compute(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        if one.computed == one.tokens:
            if one.tokens == one.final_tokens - 1:
                return
            one.tokens += 1
        new = data.draw(st.integers(1, one.tokens - one.computed))
        if self.allocator.append(one, one.computed, new, one.tokens):
            before = one.computed
            one.computed += new
            self.used(self.contents(one, before // SIZE, one.computed // SIZE))

    @precondition(lambda self: self.held)
    @rule(resumes=st.booleans(), data=st.data())
    def release(self, resumes: bool, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.held))
        self.held.remove(one)
        self.used(self.contents(one, 0, one.computed // SIZE)[::-1], only_known=True)
        self.allocator.release(one, resumes=resumes)
        one.computed = 0
        if resumes:
            self.waiting.append(one)

    @invariant()
    def tiers_hold_what_was_used_last(self) -> None:
        if not hasattr(self, "allocator"):
            return
        self.allocator.check_integrity(self.held)
        host = min(len(self.recent), self.capacities[0])
        expected = {"host": host, "disk": len(self.recent) - host}
        sizes = {name: blocks for name, blocks in expected.items() if self._has_room(name)}
        assert self.allocator.tiers.sizes() == sizes

    def _has_room(self, name: str) -> bool:
        return self.capacities[list(self.times).index(name)] > 0


TierMachine.TestCase.settings = settings(max_examples=80, stateful_step_count=30)
TestTiers = TierMachine.TestCase
