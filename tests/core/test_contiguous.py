"""Contiguous memory: reservation rules, placement through sequences, accounting, compaction."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.contiguous import RESERVATIONS, ContiguousAllocator, Extent
from kvsim.core.plan import Copy
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler

EXACT = {"reserve": "oracle", "placement": "first_fit"}


def sequence(
    prompt: int,
    output: int,
    *,
    max_tokens: int | None = None,
    max_model_len: int = 2048,
    name: str = "r",
) -> Sequence:
    return Sequence(Request(name, 0, prompt, output, max_tokens), max_model_len)


def admit(allocator: ContiguousAllocator, row: Sequence, keep_free: int = 0) -> bool:
    return allocator.admit(row, NO_HIT, row.request.prompt_tokens, 0, keep_free)


def state(allocator: ContiguousAllocator) -> Any:
    usage = allocator.usage
    return allocator.dump(), [getattr(usage, name) for name in usage.__slots__]


def addresses(rows: list[Sequence]) -> list[int]:
    return [row.extent.start_slot for row in rows]


@pytest.mark.parametrize(
    ("rule_name", "prompt", "output", "max_tokens", "reserved"),
    [
        ("max", 100, 50, None, 2048),
        ("pow2", 100, 1, None, 101),
        ("pow2", 100, 2, None, 102),
        ("pow2", 100, 50, None, 164),
        ("pow2", 100, 64, None, 164),
        ("pow2", 100, 65, None, 228),
        ("pow2", 1500, 500, None, 2012),
        ("pow2", 1500, 513, None, 2048),
        ("oracle", 100, 50, None, 150),
        ("oracle", 2000, 500, None, 2048),
        ("requested", 100, 50, 300, 400),
        ("requested", 100, 50, 1948, 2048),
        ("requested", 100, 50, 4000, 2048),
        ("requested", 100, 50, None, 2048),
        ("requested", 100, 50, 20, 150),
    ],
)
def test_reserved_tokens_by_rule(
    rule_name: str, prompt: int, output: int, max_tokens: int | None, reserved: int
) -> None:
    allocator = ContiguousAllocator(
        2048, 1, max_model_len=2048, reserve=rule_name, placement="first_fit"
    )
    row = sequence(prompt, output, max_tokens=max_tokens)
    assert admit(allocator, row)
    assert row.extent == Extent(0, reserved, reserved, min(prompt + output, 2048))
    assert row.table == []


def test_8192_slots_reserved_for_350_tokens_leave_95_7_percent_empty() -> None:
    """FIELD section 5: 8,192 slots reserved, 350 used, 7,842 empty."""
    allocator = ContiguousAllocator(8192, 1, max_model_len=8192, reserve="max")
    row = sequence(100, 251, max_model_len=8192)
    assert row.final_kv_tokens == 350
    assert admit(allocator, row)
    terms = split(
        allocator.usage, live_tokens=350, capacity=8192, reserves_ahead=True, held_up=False
    )
    assert (terms.live, terms.over_reservation, terms.usable_free) == (350, 7842, 0)
    assert round(100 * terms.internal / terms.total, 1) == 95.7


def test_an_extent_splits_into_live_ahead_over_reservation_and_roundup() -> None:
    """P 20, O 30, pow2 32: 52 reserved, 4 blocks of 16 = 64 slots, 49 will be filled."""
    allocator = ContiguousAllocator(10, 16, max_model_len=2048, reserve="pow2")
    assert admit(allocator, sequence(20, 30))
    usage = allocator.usage
    assert (usage.allocated, usage.over_reservation, usage.roundup) == (64, 3, 12)
    assert (usage.reserved_tokens, usage.final_tokens) == (52, 50)
    terms = split(usage, live_tokens=20, capacity=160, reserves_ahead=True, held_up=False)
    assert (terms.reservation_ahead, terms.reservation_tail, terms.internal_tail) == (29, 0, 0)
    assert (terms.usable_free, terms.total) == (96, 160)


def test_oracles_never_filled_last_slot_is_over_reservation() -> None:
    allocator = ContiguousAllocator(150, 1, max_model_len=2048, **EXACT)
    assert admit(allocator, sequence(100, 50))
    assert (allocator.usage.over_reservation, allocator.usage.roundup) == (1, 0)


def test_buddy_rounds_the_reservation_up_twice() -> None:
    """33 tokens: 3 blocks of 16, a chunk of 4: 64 - 33 = 31 slots."""
    allocator = ContiguousAllocator(8, 16, max_model_len=2048, reserve="oracle")
    row = sequence(30, 3)
    assert admit(allocator, row)
    assert (row.extent.slots, allocator.usage.roundup) == (64, 31)


@pytest.mark.parametrize("limit", [None, 2048])
def test_the_papers_pool_holds_seven_requests_of_maximal_length(limit: int | None) -> None:
    """SOSP'23 Fig. 13a, Orca (Max): floor(983 / 128) = 7.00."""
    allocator = ContiguousAllocator(983, 16, max_model_len=2048, max_chunk_tokens=limit)
    admitted = [admit(allocator, sequence(150, 300)) for _ in range(9)]
    assert admitted == [True] * 7 + [False] * 2
    assert allocator.free_count() == 983 - 7 * 128


def test_release_reverses_an_admission_whatever_the_sequence_says_by_then() -> None:
    allocator = ContiguousAllocator(64, 16, max_model_len=2048, reserve="pow2")
    empty = state(allocator)
    rows = [sequence(20, 30), sequence(100, 9)]
    for row in rows:
        assert admit(allocator, row)
    allocator.check_integrity(rows)
    for row in rows:
        row.final_tokens = 7
        allocator.release(row)
        assert row.extent is None
    allocator.check_integrity([])
    assert state(allocator) == empty


def test_releasing_nothing_changes_nothing_and_releasing_anothers_extent_is_a_bug() -> None:
    allocator = ContiguousAllocator(64, 16, max_model_len=2048, **EXACT)
    holder, stranger = sequence(20, 30), sequence(20, 30)
    assert admit(allocator, holder)
    before = state(allocator)
    allocator.release(stranger)
    assert state(allocator) == before
    stranger.extent = holder.extent
    with pytest.raises(AssertionError, match="does not hold the extent"):
        allocator.release(stranger)
    assert state(allocator) == before


def test_blocks_kept_free_are_not_handed_out_and_a_refusal_changes_nothing() -> None:
    allocator = ContiguousAllocator(10, 16, max_model_len=2048, **EXACT)
    row = sequence(60, 4)
    before = state(allocator)
    assert not admit(allocator, row, keep_free=7)
    assert state(allocator) == before
    assert row.extent is None
    assert admit(allocator, row, keep_free=6)


def test_nothing_grows_and_a_length_beyond_the_reservation_is_a_bug() -> None:
    allocator = ContiguousAllocator(10, 16, max_model_len=2048, **EXACT)
    row = sequence(60, 4)
    assert admit(allocator, row)
    before = state(allocator)
    assert allocator.reserves_ahead
    assert allocator.append_period() == 0
    assert allocator.append(row, 60, 4, 60 + 4)
    assert allocator.append_bulk([row])
    assert state(allocator) == before
    with pytest.raises(AssertionError, match=r"60 \+ 5 tokens > 64"):
        allocator.append(row, 60, 5, 60 + 5)


def test_a_model_length_beyond_the_reservation_is_a_bug() -> None:
    allocator = ContiguousAllocator(256, 16, max_model_len=1024)
    with pytest.raises(AssertionError, match="needs 2000 tokens, reserves 1024"):
        admit(allocator, sequence(1500, 500))


@pytest.mark.parametrize(
    ("placement", "limit", "fits", "never"),
    [("first_fit", None, 96, 97), ("buddy", None, 64, 65), ("buddy", 256, 16, 17)],
)
def test_what_an_empty_memory_could_never_give(
    placement: str, limit: int | None, fits: int, never: int
) -> None:
    """96 blocks of 16: buddy chunks reach 64 blocks, or the limit of 256 tokens."""
    allocator = ContiguousAllocator(
        96, 16, max_model_len=4096, reserve="oracle", placement=placement, max_chunk_tokens=limit
    )
    good, bad = Request("g", 0, 10, fits * 16 - 10), Request("b", 0, 10, fits * 16 - 9)
    assert allocator.never_fits(good, fits * 16 - 1) is None
    assert admit(allocator, Sequence(good, 4096))
    reason = allocator.never_fits(bad, fits * 16)
    extent = never if placement == "first_fit" else 2 * fits
    assert reason == (
        f"reserves {fits * 16 + 1} tokens, an extent of {extent} blocks of 16; "
        f"the largest that an empty memory gives is {fits} blocks"
    )


def holed(compaction: bool = False, placement: str = "first_fit") -> Any:
    """100 slots: holes 0..20 and 50..70, extents of 30 at 20 and at 70."""
    allocator = ContiguousAllocator(
        100, 1, max_model_len=2048, reserve="oracle", placement=placement, compaction=compaction
    )
    rows = [sequence(size - 5, 5, name=f"r{size}") for size in (20, 30, 20, 30)]
    for row in rows:
        assert admit(allocator, row)
    allocator.release(rows[0])
    allocator.release(rows[2])
    return allocator, [rows[1], rows[3]]


def test_a_head_that_fits_the_sum_of_the_holes_only_is_held_up() -> None:
    allocator, _ = holed()
    fits, held, short = sequence(15, 5), sequence(35, 5), sequence(36, 5)
    assert (allocator.fits_sum(fits), allocator.held_up(fits)) == (True, False)
    assert (allocator.fits_sum(held), allocator.held_up(held)) == (True, True)
    assert (allocator.fits_sum(short), allocator.held_up(short)) == (False, False)
    assert not admit(allocator, held)
    assert (allocator.free_count(), allocator.largest_free_extent()) == (40, 20)


def test_a_buddy_chunk_that_is_missing_holds_a_request_up() -> None:
    """5 blocks are free as 4 + 1; a reservation of 5 blocks wants a chunk of 8."""
    allocator = ContiguousAllocator(5, 16, max_model_len=2048, reserve="oracle")
    row = sequence(70, 10)
    assert allocator.fits_sum(row)
    assert allocator.held_up(row)
    assert allocator.largest_free_extent() == 64


def test_compaction_moves_extents_down_until_the_head_fits() -> None:
    allocator, rows = holed(compaction=True)
    allocator.live_tokens = {rows[0]: 27, rows[1]: 12}.__getitem__
    head = sequence(35, 5)
    assert allocator.fits_sum(head)
    assert not allocator.held_up(head)
    assert admit(allocator, head)
    assert addresses([*rows, head]) == [0, 70, 30]
    assert allocator.take_copies() == [Copy(20, 0, 27)]
    assert allocator.take_copies() == []
    allocator.check_integrity([*rows, head])


def test_compaction_needs_every_extent_when_the_holes_are_needed_in_full() -> None:
    allocator, rows = holed(compaction=True)
    other = sequence(5, 5)
    assert admit(allocator, other)
    assert addresses([other]) == [0]
    head = sequence(25, 5)
    assert admit(allocator, head)
    assert addresses([other, *rows, head]) == [0, 10, 70, 40]
    assert allocator.take_copies() == [Copy(20, 10, 30)]


def test_a_sequence_without_kv_moves_without_a_copy() -> None:
    allocator, rows = holed(compaction=True)
    allocator.live_tokens = lambda row: row.computed
    assert admit(allocator, sequence(35, 5))
    assert addresses(rows) == [0, 70]
    assert allocator.take_copies() == []


def test_compaction_does_not_help_a_head_that_exceeds_the_sum() -> None:
    allocator, rows = holed(compaction=True)
    before = state(allocator)
    assert not admit(allocator, sequence(36, 5))
    assert not admit(allocator, sequence(35, 5), keep_free=1)
    assert state(allocator) == before
    assert addresses(rows) == [20, 70]


def test_the_dump_lists_extents_and_holes_in_address_order() -> None:
    allocator, _ = holed()
    assert allocator.dump() == {
        "capacity_slots": 100,
        "extents": [
            {"request_id": "r30", "start": 20, "slots": 30, "reserved": 30},
            {"request_id": "r30", "start": 70, "slots": 30, "reserved": 30},
        ],
        "holes": [{"start": 0, "slots": 20}, {"start": 50, "slots": 20}],
    }


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda a, rows: rows.pop(), "given to the sequences"),
        (lambda a, rows: rows.append(rows[0]), "given to the sequences"),
        (lambda a, rows: setattr(a.usage, "roundup", 3), r"usage.roundup 3 != recomputed 0"),
        (lambda a, rows: a._arena.release(30, 2), "next owner starts at"),
        (lambda a, rows: a._arena.place(20), "owned up to slot 0, next owner starts at"),
        (
            lambda a, rows: setattr(a._arena, "free_blocks", 41),
            "free_blocks 41 != sum of the holes 40",
        ),
    ],
)
def test_the_integrity_check_names_both_sides_of_what_is_wrong(damage: Any, message: str) -> None:
    allocator, rows = holed()
    allocator.check_integrity(rows)
    damage(allocator, rows)
    with pytest.raises(AssertionError, match=message):
        allocator.check_integrity(rows)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"num_blocks": 0}, r"num_blocks \(=0\) must be >= 1"),
        ({"block_size": 0}, r"block_size \(=0\) must be >= 1"),
        ({"max_model_len": 0}, r"max_model_len \(=0\) must be >= 1"),
        ({"reserve": "min"}, r"reserve \(='min'\) must be one of max, pow2, oracle, requested"),
        (
            {"placement": "worst_fit"},
            r"placement \(='worst_fit'\) must be one of buddy, first_fit, best_fit, next_fit",
        ),
        ({"max_chunk_tokens": 96}, r"max_chunk_tokens \(=96\) must be block_size \(=16\) times"),
        ({"max_chunk_tokens": 40}, r"max_chunk_tokens \(=40\) must be"),
        ({"max_chunk_tokens": 0}, r"max_chunk_tokens \(=0\) must be"),
        ({"max_chunk_tokens": 64, "placement": "best_fit"}, "needs placement buddy"),
        ({"compaction": True}, r"compaction \(=True\) cannot move placement 'buddy'"),
    ],
)
def test_settings_that_cannot_work_are_refused(settings: dict[str, Any], message: str) -> None:
    arguments: dict[str, Any] = {"num_blocks": 10, "block_size": 16, "max_model_len": 64}
    arguments |= settings
    with pytest.raises(ValueError, match=message):
        ContiguousAllocator(arguments.pop("num_blocks"), arguments.pop("block_size"), **arguments)


class ContiguousMachine(RuleBasedStateMachine):
    """The allocator beside a map of slot owners; device content follows the queued copies."""

    placement = "buddy"
    compaction = False
    block_size = 4
    num_blocks = 41
    max_model_len = 60

    def __init__(self) -> None:
        super().__init__()
        self.build("oracle")

    def build(self, reserve: str) -> None:
        self.allocator = ContiguousAllocator(
            self.num_blocks,
            self.block_size,
            max_model_len=self.max_model_len,
            reserve=reserve,
            placement=self.placement,
            compaction=self.compaction,
        )
        self.allocator.live_tokens = lambda row: row.computed
        self.reserve = reserve
        self.owner: list[Sequence | None] = [None] * self.allocator.capacity_slots
        self.content: list[Any] = [None] * self.allocator.capacity_slots
        self.rows: list[Sequence] = []
        self.blocked: Sequence | None = None
        self.names = 0

    @precondition(lambda self: not self.rows and not self.names)
    @rule(reserve=st.sampled_from(sorted(RESERVATIONS)))
    def choose_rule(self, reserve: str) -> None:
        self.build(reserve)

    @rule(
        prompt=st.integers(1, 40),
        output=st.integers(1, 30),
        limit=st.none() | st.integers(1, 40),
        keep_free=st.sampled_from([0, 0, 3]),
    )
    def admit(self, prompt: int, output: int, limit: int | None, keep_free: int) -> None:
        self.names += 1
        row = sequence(
            prompt,
            output,
            max_tokens=limit,
            max_model_len=self.max_model_len,
            name=str(self.names),
        )
        before = self.allocator.dump()
        held_up, fits_sum = self.allocator.held_up(row), self.allocator.fits_sum(row)
        free = self.allocator.free_count()
        assert fits_sum == (self.naive_blocks(row) <= free)
        admitted = admit(self.allocator, row, keep_free)
        if not admitted:
            assert self.allocator.dump() == before
            assert row.extent is None
            if not keep_free:
                assert held_up or not fits_sum
                self.blocked = row
            return
        assert fits_sum
        assert not held_up
        assert self.allocator.free_count() >= keep_free
        self.move_owners()
        self.rows.append(row)
        extent = row.extent
        for slot in range(extent.start_slot, extent.start_slot + extent.slots):
            assert self.owner[slot] is None, "a slot is handed out twice"
            self.owner[slot] = row

    def naive_blocks(self, row: Sequence) -> int:
        prompt, output, limit = row.request[2:5]
        power = 1
        while power < output:
            power *= 2
        wanted = {
            "max": self.max_model_len,
            "pow2": prompt + power,
            "oracle": prompt + output,
            "requested": self.max_model_len if limit is None else prompt + max(limit, output),
        }[self.reserve]
        return -(-min(wanted, self.max_model_len) // self.block_size)

    def move_owners(self) -> None:
        """Replay the copies on the device content; moved extents keep their size."""
        for copy in self.allocator.take_copies():
            assert self.compaction
            assert copy.target_slot < copy.source_slot
            source = self.content[copy.source_slot : copy.source_slot + copy.tokens]
            self.content[copy.target_slot : copy.target_slot + copy.tokens] = source
        if self.compaction:
            self.owner = [None] * self.allocator.capacity_slots
            for row in self.rows:
                start, slots = row.extent.start_slot, row.extent.slots
                assert self.owner[start : start + slots] == [None] * slots
                self.owner[start : start + slots] = [row] * slots

    @precondition(lambda self: self.rows)
    @rule(data=st.data(), tokens=st.integers(1, 20))
    def compute(self, data: st.DataObject, tokens: int) -> None:
        row = data.draw(st.sampled_from(self.rows))
        tokens = min(tokens, row.final_kv_tokens - row.computed)
        assert self.allocator.append(row, row.computed, tokens, row.computed + tokens)
        for position in range(row.computed, row.computed + tokens):
            self.content[row.extent.start_slot + position] = (row.request.request_id, position)
        row.computed += tokens

    @precondition(lambda self: self.rows)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        row = data.draw(st.sampled_from(self.rows))
        extent = row.extent
        self.rows.remove(row)
        self.allocator.release(row)
        for slot in range(extent.start_slot, extent.start_slot + extent.slots):
            assert self.owner[slot] is row
            self.owner[slot] = None
        self.blocked = None

    @precondition(lambda self: self.blocked is not None)
    @rule()
    def retry(self) -> None:
        assert self.blocked is not None
        assert not admit(self.allocator, self.blocked)

    @invariant()
    def no_slot_is_lost_or_owned_twice(self) -> None:
        self.allocator.check_integrity(self.rows)
        free = sum(owner is None for owner in self.owner)
        assert self.allocator.free_count() * self.block_size == free
        for row in self.rows:
            start = row.extent.start_slot
            expected = [(row.request.request_id, place) for place in range(row.computed)]
            assert self.content[start : start + row.computed] == expected

    @invariant()
    def the_terms_add_up_to_the_capacity(self) -> None:
        live = sum(row.computed for row in self.rows)
        terms = split(
            self.allocator.usage,
            live_tokens=live,
            capacity=self.allocator.capacity_slots,
            reserves_ahead=True,
            held_up=self.blocked is not None and self.allocator.held_up(self.blocked),
        )
        assert terms.total == self.allocator.capacity_slots
        assert terms.live == live
        assert terms.reservation == sum(row.final_kv_tokens - row.computed for row in self.rows)
        assert terms.internal == sum(row.extent.slots - row.final_kv_tokens for row in self.rows)
        assert min(terms) >= 0


class FirstFitMachine(ContiguousMachine):
    placement = "first_fit"


class CompactingFirstFitMachine(ContiguousMachine):
    placement = "first_fit"
    compaction = True


class CompactingBestFitMachine(ContiguousMachine):
    placement = "best_fit"
    compaction = True
    block_size = 1
    num_blocks = 150


class CompactingNextFitMachine(ContiguousMachine):
    placement = "next_fit"
    compaction = True


TestBuddy = ContiguousMachine.TestCase
TestFirstFit = FirstFitMachine.TestCase
TestCompactingFirstFit = CompactingFirstFitMachine.TestCase
TestCompactingBestFit = CompactingBestFitMachine.TestCase
TestCompactingNextFit = CompactingNextFitMachine.TestCase


def test_compaction_copies_what_has_kv_when_the_step_begins() -> None:
    """A decode moves without the token of this step; what was admitted in it has nothing yet."""
    allocator = ContiguousAllocator(
        12, 4, max_model_len=48, reserve="oracle", placement="next_fit", compaction=True
    )
    scheduler = VllmScheduler(
        allocator, max_num_seqs=8, max_num_batched_tokens=100, max_model_len=48
    )
    for name, prompt, output in (("gone", 3, 1), ("decode", 10, 9), ("also gone", 3, 1)):
        scheduler.add(Request(name, 0, prompt, output))
    for _ in range(2):
        scheduler.complete(scheduler.schedule())
    scheduler.add(Request("new, in the way", 0, 7, 1))
    scheduler.add(Request("big", 0, 16, 4))
    plan = scheduler.schedule()
    assert len(plan.admitted) == 2
    assert plan.copies == [Copy(source_slot=4, target_slot=0, tokens=11)]
    assert [s.extent.start_slot for s in scheduler.running()] == [0, 20, 28]
