"""Branches in contiguous memory: an extent each, copies instead of sharing."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import Copy, StepPlan
from kvsim.core.request import Branching, Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler
from tests.core.group_runs import MODEL_LEN, request, seeded_draw, serve_side_by_side, steps

PLACEMENTS = ["buddy", "first_fit", "best_fit", "next_fit"]


def memory(blocks: int, block_size: int, **settings: Any) -> ContiguousBranches:
    given = {"max_model_len": MODEL_LEN, "reserve": "oracle", "placement": "first_fit"}
    return ContiguousBranches(blocks, block_size, **(given | settings))


def scheduler(allocator: ContiguousBranches, **settings: Any) -> GroupScheduler:
    given = {"max_num_seqs": 64, "max_num_batched_tokens": 4000, "max_model_len": MODEL_LEN}
    return GroupScheduler(allocator, draw=seeded_draw(0), **(given | settings))


def group(prompt: int, output: int, width: int, name: str = "r") -> list[Sequence]:
    one = Request(name, 0, prompt, output)
    return [Sequence(one, MODEL_LEN) for _ in range(width)]


def admit(allocator: ContiguousBranches, branches: list[Sequence], keep_free: int = 0) -> bool:
    prompt = branches[0].request.prompt_tokens
    return allocator.admit_group(branches, 0, prompt, gate=True, keep_free=keep_free)


def starts(rows: list[Sequence]) -> list[int]:
    return [row.extent.start_slot for row in rows]


def state(allocator: ContiguousBranches) -> Any:
    usage = allocator.usage
    return allocator.dump(), [getattr(usage, name) for name in usage.__slots__]


# Closed forms


@pytest.mark.parametrize("n", [1, 2, 4, 6])
@pytest.mark.parametrize(
    ("placement", "block_size", "blocks"),
    [("first_fit", 1, 43), ("first_fit", 16, 3), ("buddy", 1, 64), ("buddy", 16, 4)],
)
def test_n_branches_hold_n_extents_and_copy_the_prompt_n_minus_1_times(
    placement: str, block_size: int, blocks: int, n: int
) -> None:
    """P 13, O 30: 43 tokens are reserved, ceil(43 / B) blocks, buddies the next power of two."""
    engine = scheduler(memory(512, block_size, placement=placement))
    engine.add(request("r", 13, 30, "parallel", n))
    copies: list[Copy] = []
    for generated, plan in enumerate(steps(engine)):
        copies += plan.copies
        counts = engine.memory.sharing_counts()
        assert counts["logical_blocks"] == counts["physical_blocks"] == n * blocks
        assert engine.memory.usage.allocated == n * blocks * block_size
        assert engine.memory.usage.shared == 0
        assert [copy.tokens for copy in copies] == ([13] * (n - 1) if generated else [])
        assert plan.live_tokens == 13 + (n * (13 + generated) - 13 if generated else 0)
    assert generated == 29
    assert (counts["copies"], counts["copied_tokens"]) == (n - 1, 13 * (n - 1))
    size = blocks * block_size
    assert copies == [Copy(0, i * size, 13) for i in range(1, n)]


def test_beams_are_copied_over_those_that_end_and_keep_their_places() -> None:
    """Three beams of a prompt of 5: survivors 2, 2, 0 of the second token copy 5 + 1 tokens."""
    parents = ((2, 2, 0), (0, 1, 2))
    engine = scheduler(memory(30, 1))
    engine.add(request("r", 5, 4, "beam", 3, "trace", parents))
    places, copies = [], []
    for plan in steps(engine):
        places.append(starts(engine.running()))
        copies.append(plan.copies)
    assert places == [[0], [0, 9, 18], [18, 9, 0], [18, 9, 0]]
    assert copies == [[], [Copy(0, 9, 5), Copy(0, 18, 5)], [Copy(18, 9, 6)], []]
    counts = engine.memory.sharing_counts()
    assert (counts["copies"], counts["copied_tokens"]) == (3, 16)


def test_a_group_of_one_token_ends_before_its_prompt_is_copied() -> None:
    engine = scheduler(memory(30, 1))
    engine.add(request("r", 5, 1, "parallel", 3))
    assert [plan.copies for plan in steps(engine)] == [[]]
    assert engine.memory.take_copies() == []
    assert engine.memory.sharing_counts()["copies"] == 0


def test_a_copy_is_kept_while_a_later_one_reads_its_target() -> None:
    allocator = memory(30, 1)
    branches = group(5, 4, 3)
    root, second, third = branches
    assert admit(allocator, branches)
    allocator.fork(root, second, 5)
    allocator.fork(root, third, 5)
    allocator.replace(third, second, 5)
    allocator.release(second)
    assert allocator.take_copies() == [Copy(0, 9, 5), Copy(0, 18, 5), Copy(9, 18, 5)]
    assert allocator.sharing_counts()["copies"] == 3
    allocator.check_integrity([root, third])


# All or nothing


@pytest.mark.parametrize("placement", PLACEMENTS)
def test_extents_that_cannot_all_be_placed_change_nothing(placement: str) -> None:
    """Holes of 16, 16 and 8 give two extents of 16; the third one has no place."""
    allocator = memory(64, 1, placement=placement)
    rows = [group(16 - 1, 1, 1, f"r{i}") for i in range(3)] + [group(7, 1, 1, "small")]
    for row in rows:
        assert admit(allocator, row)
    for row in rows[1:]:
        allocator.release(row[0])
    blocker = group(8 - 1, 1, 1)
    assert admit(allocator, blocker)
    before = state(allocator)
    free = allocator.free_count()
    assert free == 40
    three = group(13, 3, 3)
    assert not admit(allocator, three)
    assert not admit(allocator, group(9, 1, 2), keep_free=free - 20 + 1)
    assert state(allocator) == before
    assert [row.extent for row in three] == [None] * 3
    allocator.check_integrity([rows[0][0], blocker[0]])
    assert admit(allocator, group(13, 3, 2))


def test_the_place_of_the_latest_extent_is_remembered_through_a_refusal() -> None:
    """Next fit goes on behind its latest extent, not behind one that a refusal gave back."""
    allocator = memory(100, 1, placement="next_fit")
    first, gone, last = (group(size - 1, 1, 1) for size in (10, 30, 20))
    for row in (first, gone, last):
        assert admit(allocator, row)
    allocator.release(gone[0])
    assert not admit(allocator, group(20, 10, 3))
    after = group(4, 1, 1)
    assert admit(allocator, after)
    assert starts(after) == [60]


def test_a_group_that_fits_the_sum_of_the_holes_only_is_held_up() -> None:
    """100 slots with holes of 20 and 20: two extents of 15 fit, not two of 12 and none of 21."""
    allocator = memory(100, 1)
    rows = [group(size - 1, 1, 1) for size in (20, 30, 20, 30)]
    for row in rows:
        assert admit(allocator, row)
    allocator.release(rows[0][0])
    allocator.release(rows[2][0])
    for width, size, fits, held in [
        (2, 15, True, False),
        (2, 20, True, False),
        (1, 21, True, True),
        (3, 11, True, True),
        (3, 13, True, True),
        (3, 14, False, False),
        (4, 10, True, False),
    ]:
        waits = group(size - 1, 1, width)
        assert allocator.group_fits_sum(waits, 0) == fits
        assert allocator.group_held_up(waits, 0) == held
        assert admit(allocator, waits) == (fits and not held)
        if waits[0].extent is not None:
            for branch in waits:
                allocator.release(branch)


def test_the_scheduler_sees_a_group_held_up_by_external_fragmentation() -> None:
    """`b` ends first and leaves 16 slots between `a` and `c`; with the rest behind, 24 are free.

    The group of two wants extents of 11: the sum suffices, the second extent has no place.
    """
    allocator = memory(60, 1)
    engine = scheduler(allocator)
    for name, prompt, output in (("a", 10, 10), ("b", 14, 2), ("c", 6, 10)):
        engine.add(request(name, prompt, output))
    engine.complete(engine.schedule())
    engine.complete(engine.schedule())
    held_up = engine.add(request("d", 9, 2, "parallel", 2))
    assert [(h["start"], h["slots"]) for h in allocator.dump()["holes"]] == [(20, 16), (52, 8)]
    plan = engine.schedule()
    assert plan.head_held_up
    assert not plan.head_short_of_memory
    assert held_up.held_up_by_fragmentation
    terms = split(
        allocator.usage,
        live_tokens=plan.live_tokens,
        capacity=60,
        reserves_ahead=True,
        held_up=True,
    )
    assert (terms.external, terms.usable_free) == (24, 0)
    engine.complete(plan)
    plans = list(steps(engine))
    assert sum(len(plan.finished) for plan in plans) == 3


@pytest.mark.parametrize(
    ("placement", "chunk", "fits", "reason"),
    [
        ("first_fit", None, 9, "10 branches reserve 40 tokens each, extents of 10 blocks of 4; "),
        ("buddy", None, 6, "7 branches reserve 40 tokens each, extents of 16 blocks of 4; "),
        ("buddy", 32, 0, "reserves 40 tokens, an extent of 16 blocks of 4; the largest"),
    ],
)
def test_a_group_that_can_never_fit_is_known(
    placement: str, chunk: int | None, fits: int, reason: str
) -> None:
    """99 blocks hold 9 extents of 10 blocks, or 6 buddies of 16; chunks of 8 hold none."""
    allocator = memory(99, 4, placement=placement, max_chunk_tokens=chunk)
    one = Request("r", 0, 30, 10)
    for width in range(1, fits + 1):
        assert allocator.group_never_fits(one, width, 39) is None
    assert str(allocator.group_never_fits(one, fits + 1, 39)).startswith(reason)
    if fits:
        assert admit(allocator, group(30, 10, fits))


# What a fork may not be


def test_only_branches_that_were_reserved_with_the_parent_are_forked() -> None:
    allocator = memory(40, 1)
    root, child = branches = group(5, 4, 2)
    assert admit(allocator, branches)
    (stranger,) = group(5, 4, 1)
    assert admit(allocator, [stranger])
    with pytest.raises(ValueError, match="no extent that was reserved with"):
        allocator.fork(root, stranger, 5)
    with pytest.raises(ValueError, match=r"reserves 9 tokens \(< 10\)"):
        allocator.fork(root, child, 10)
    allocator.fork(root, child, 5)
    with pytest.raises(ValueError, match="no extent that was reserved with"):
        allocator.fork(root, child, 5)
    with pytest.raises(ValueError, match=r"reserves 9 tokens \(< 10\)"):
        allocator.replace(child, root, 10)
    child.computed = 8
    with pytest.raises(AssertionError, match=r"8 \+ 2 tokens > 9"):
        allocator.append_group([root, child], [1, 2])


def test_branches_yet_to_be_forked_belong_to_their_root() -> None:
    allocator = memory(40, 1)
    branches = group(5, 4, 3)
    assert admit(allocator, branches)
    allocator.check_integrity(branches[:1])
    with pytest.raises(AssertionError, match="2 branches are reserved for"):
        allocator.check_integrity([])
    allocator.fork(branches[0], branches[2], 5)
    allocator.check_integrity([branches[0], branches[2]])
    allocator.release(branches[0])
    allocator.check_integrity([branches[2]])
    assert [branch.extent is None for branch in branches] == [True, True, False]
    assert allocator.take_copies() == [Copy(0, 18, 5)]


def test_an_aborted_group_gives_everything_back() -> None:
    engine = scheduler(memory(100, 1), max_num_batched_tokens=64, long_prefill_token_threshold=3)
    engine.add(request("half a prompt", 10, 4, "parallel", 3))
    engine.add(request("stays", 4, 4, "beam", 2))
    engine.complete(engine.schedule())
    assert engine.memory.usage.allocated == 3 * 14 + 2 * 8
    engine.abort("half a prompt")
    assert engine.memory.usage.allocated == 2 * 8
    engine.memory.check_integrity(engine.running())
    plans = list(steps(engine))
    assert sum(len(plan.finished) for plan in plans) == 1


# A state machine


class ContiguousBranchesMachine(RuleBasedStateMachine):
    """Random groups against a list of tokens per branch and a device that carries out copies."""

    @initialize(
        blocks=st.integers(4, 40),
        block_size=st.sampled_from([1, 3, 8]),
        placement=st.sampled_from(PLACEMENTS),
        compaction=st.booleans(),
    )
    def build(self, blocks: int, block_size: int, placement: str, compaction: bool) -> None:
        self.allocator = memory(
            blocks,
            block_size,
            placement=placement,
            compaction=compaction and placement != "buddy",
        )
        self.slots: dict[int, object] = {}
        self.groups: list[list[Sequence]] = []
        self.forked: list[bool] = []
        self.content: dict[Sequence, list[object]] = {}
        self.names = 0

    def held(self) -> list[Sequence]:
        return [
            branch
            for branches, forked in zip(self.groups, self.forked, strict=True)
            for branch in (branches if forked else branches[:1])
        ]

    def step(self, served: list[Sequence], tokens: int) -> None:
        """Carry out the copies, then compute fresh tokens of the branches."""
        for source, target, count in self.allocator.take_copies():
            moved = [self.slots[source + i] for i in range(count)]
            self.slots.update(zip(range(target, target + count), moved, strict=True))
        for branch in served:
            for _ in range(tokens):
                fresh = object()
                self.slots[branch.extent.start_slot + branch.computed] = fresh
                self.content[branch].append(fresh)
                branch.computed += 1

    @rule(
        prompt=st.integers(1, 20),
        output=st.integers(1, 12),
        width=st.integers(1, 4),
        keep_free=st.sampled_from([0, 0, 5]),
    )
    def admit(self, prompt: int, output: int, width: int, keep_free: int) -> None:
        self.names += 1
        allocator, branches = self.allocator, group(prompt, output, width, str(self.names))
        before, free = state(allocator), allocator.free_count()
        fits_sum = allocator.group_fits_sum(branches, 0)
        held_up = allocator.group_held_up(branches, 0)
        assert fits_sum == (width * -(-(prompt + output) // allocator.block_size) <= free)
        if not admit(allocator, branches, keep_free):
            assert state(allocator) == before
            assert held_up or not fits_sum or keep_free
            return
        assert fits_sum
        assert not held_up
        assert allocator.free_count() >= keep_free
        self.groups.append(branches)
        self.forked.append(width == 1)
        self.content.update((branch, []) for branch in branches)
        self.step(branches[:1], 0)

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), tokens=st.integers(1, 6))
    def compute(self, data: st.DataObject, tokens: int) -> None:
        place = data.draw(st.integers(0, len(self.groups) - 1))
        branches, forked = self.groups[place], self.forked[place]
        served = branches if forked else branches[:1]
        root = branches[0]
        end = root.final_kv_tokens if forked else root.request.prompt_tokens
        tokens = max(min(tokens, end - max(branch.computed for branch in served)), 0)
        assert self.allocator.append_group(served, [tokens] * len(served))
        self.step(served, tokens)
        if not forked and root.computed == root.request.prompt_tokens:
            for child in branches[1:]:
                self.allocator.fork(root, child, root.computed)
                child.computed = root.computed
                self.content[child] = list(self.content[root])
            self.forked[place] = True

    @precondition(lambda self: any(map(len, self.groups)))
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        place = data.draw(st.integers(0, len(self.groups) - 1))
        branches = self.groups[place]
        if len(branches) < 2 or not self.forked[place]:
            return
        branch, parent = data.draw(st.permutations(branches))[:2]
        self.allocator.replace(branch, parent, parent.computed)
        branch.computed = parent.computed
        self.content[branch] = list(self.content[parent])

    @precondition(lambda self: self.groups)
    @rule(data=st.data(), all_of_it=st.booleans())
    def release(self, data: st.DataObject, all_of_it: bool) -> None:
        place = data.draw(st.integers(0, len(self.groups) - 1))
        branches = self.groups[place]
        served = list(branches) if self.forked[place] else branches[:1]
        if not all_of_it and self.forked[place] and len(branches) > 1:
            self.allocator.release(branches.pop())
            return
        for branch in served:
            self.allocator.release(branch)
        assert all(branch.extent is None for branch in branches)
        del self.groups[place], self.forked[place]

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        allocator, held = self.allocator, self.held()
        allocator.check_integrity(held)
        terms = split(
            allocator.usage,
            live_tokens=sum(branch.computed for branch in held),
            capacity=allocator.capacity_slots,
            reserves_ahead=True,
            held_up=False,
        )
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        size = allocator.block_size
        extents = [-(-b.final_tokens // size) for branches in self.groups for b in branches]
        if not hasattr(allocator._arena, "_orders"):
            assert allocator.sharing_counts()["physical_blocks"] == sum(extents)

    @invariant()
    def every_token_is_where_its_extent_says_once_copies_are_made(self) -> None:
        slots = dict(self.slots)
        for source, target, count in [*self.allocator._copies, *self.allocator._branch_copies]:
            moved = [slots[source + i] for i in range(count)]
            slots.update(zip(range(target, target + count), moved, strict=True))
        for branch in self.held():
            start = branch.extent.start_slot
            read = [slots[start + i] for i in range(branch.computed)]
            assert read == self.content[branch]


ContiguousBranchesMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestContiguousBranchesMachine = ContiguousBranchesMachine.TestCase


# Through the scheduler


class ExtentDevice:
    """KV memory slot by slot: executes copies and writes, and reads every extent back."""

    def __init__(self, engine: GroupScheduler) -> None:
        memory = engine.memory
        self.engine = engine
        self.slots: dict[int, object] = {}
        self.content: dict[Sequence, list[object]] = {}
        self.fork, self.replace = memory.fork, memory.replace
        for name in ("fork", "replace"):
            setattr(memory, name, getattr(self, f"note_{name}"))

    def note_fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        self.fork(parent, child, computed)
        self.content[child] = self.content[parent][:computed]

    def note_replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        self.replace(branch, parent, computed)
        self.content[branch] = self.content[parent][:computed]

    def known(self, branch: Sequence) -> list[object]:
        """The branch's tokens, each unique."""
        content = self.content.setdefault(branch, [])
        while len(content) < branch.tokens:
            content.append(object())
        return content

    def run(self, plan: StepPlan) -> None:
        for source, target, tokens in plan.copies:
            moved = [self.slots[source + offset] for offset in range(tokens)]
            self.slots.update(zip(range(target, target + tokens), moved, strict=True))
        for branch, count in plan.scheduled():
            known, start = self.known(branch), branch.extent.start_slot
            for p in range(branch.computed - count, branch.computed):
                self.slots[start + p] = known[p]
        for branch in self.engine.running():
            start = branch.extent.start_slot
            read = [self.slots[start + p] for p in range(branch.computed)]
            assert read == self.known(branch)[: branch.computed]


branchings = st.one_of(
    st.none(),
    st.integers(1, 5).map(lambda n: Branching("parallel", n)),
    st.integers(1, 5).map(lambda k: Branching("beam", k)),
    st.integers(1, 5).map(lambda k: Branching("beam", k, "wright_fisher")),
)


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 40), branchings), min_size=1, max_size=10
    ),
    blocks=st.integers(20, 200),
    block_size=st.sampled_from([1, 4, 16]),
    placement=st.sampled_from([*PLACEMENTS, "first_fit+", "next_fit+", "best_fit+"]),
    reserve=st.sampled_from(["oracle", "pow2", "max"]),
    seqs=st.integers(1, 10),
    budget=st.integers(10, 90),
)
def test_every_branch_reads_its_own_tokens_and_every_slot_is_in_one_term(
    rows: list[tuple[int, int, Branching | None]],
    blocks: int,
    block_size: int,
    placement: str,
    reserve: str,
    seqs: int,
    budget: int,
) -> None:
    """A `+` stands for compaction; copies then move exactly what had KV before the step."""
    allocator = memory(
        blocks,
        block_size,
        placement=placement.rstrip("+"),
        compaction=placement.endswith("+"),
        reserve=reserve,
    )
    engine = scheduler(allocator, max_num_seqs=seqs, max_num_batched_tokens=budget)
    device = ExtentDevice(engine)
    sent = 0
    for index, (prompt, output, branches) in enumerate(rows):
        one = Request(f"r{index}", 0, prompt, output, branches=branches)
        if engine.refuse(one) is None:
            engine.add(one)
            sent += 1
    plans = []
    for plan in steps(engine):
        device.run(plan)
        running = engine.running()
        allocator.check_integrity(running)
        terms = split(
            allocator.usage,
            live_tokens=plan.live_tokens,
            capacity=allocator.capacity_slots,
            reserves_ahead=True,
            held_up=plan.head_held_up,
        )
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        assert terms.live == sum(branch.computed for branch in running)
        assert plan.scheduled_tokens, "a step advances nothing"
        assert not plan.preempted
        plans.append(plan)
    assert sum(len(plan.finished) for plan in plans) == sent


def test_compaction_copies_what_has_kv_when_the_step_begins() -> None:
    """`b` leaves 12 slots in the middle; the branches behind move with their 11 tokens each.

    `d` wants 16 + 16 slots and finds 12 + 14: the extents of `c` move down by 12.
    """
    allocator = memory(78, 1, compaction=True)
    engine = scheduler(allocator)
    for one in (
        request("a", 10, 6),
        request("b", 10, 2),
        request("c", 10, 8, "parallel", 2),
    ):
        engine.add(one)
    engine.complete(engine.schedule())
    plan = engine.schedule()
    assert plan.copies == [Copy(28, 46, 10)]
    engine.complete(plan)
    assert [(h["start"], h["slots"]) for h in allocator.dump()["holes"]] == [(16, 12), (64, 14)]
    engine.add(request("d", 6, 7, "parallel", 2))
    plan = engine.schedule()
    assert [s.request.request_id for s in plan.admitted] == ["d"]
    assert plan.copies == [Copy(28, 16, 11), Copy(46, 34, 11)]
    assert sorted(h["start"] for h in allocator.dump()["extents"]) == [0, 16, 34, 52, 65]


def test_a_prompt_is_copied_before_compaction_moves_its_extents() -> None:
    """`c` is forked at the end of the step before the one that moves it: 10 tokens each time."""
    allocator = memory(78, 1, compaction=True)
    engine = scheduler(allocator)
    for one in (
        request("a", 10, 6),
        request("b", 10, 1),
        request("c", 10, 8, "parallel", 2),
        request("d", 6, 7, "parallel", 2),
    ):
        engine.add(one)
    engine.complete(engine.schedule())
    plan = engine.schedule()
    assert [s.request.request_id for s in plan.admitted] == ["d"]
    assert plan.copies == [Copy(27, 45, 10), Copy(27, 16, 10), Copy(45, 34, 10)]


# One branch


def view(engine: Any, plan: StepPlan, running: list[Sequence], allocator: Any) -> dict[str, Any]:
    def names(sequences: list[Sequence]) -> list[str]:
        return [s.request.request_id for s in sequences]

    return {
        "counts": (plan.num_decodes, plan.decode_context_tokens, plan.live_tokens),
        "queues": (plan.num_running, plan.num_waiting),
        "head": (plan.head_short_of_memory, plan.head_held_up),
        "chunks": (names(plan.prefills), plan.chunks),
        "events": (names(plan.admitted), names(plan.preempted), names(plan.joined)),
        "scheduled": sorted((s.order, tokens) for s, tokens in plan.scheduled()),
        "copies": plan.copies,
        "computed": [engine.computed_tokens(s) for s in running],
        "memory": state(allocator),
    }


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 60), st.integers(1, 40), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(10, 60),
    block_size=st.sampled_from([1, 4, 16]),
    placement=st.sampled_from([*PLACEMENTS, "first_fit+", "next_fit+"]),
    reserve=st.sampled_from(["oracle", "pow2", "max"]),
    seqs=st.integers(1, 8),
    budget=st.integers(8, 90),
    watermark=st.sampled_from([0.0, 0.3]),
)
def test_requests_with_one_branch_are_served_as_by_the_vllm_scheduler(
    rows: list[tuple[int, int, int, int]],
    blocks: int,
    block_size: int,
    placement: str,
    reserve: str,
    seqs: int,
    budget: int,
    watermark: float,
) -> None:
    """Every decision, addresses and the copies of compaction included."""
    arena: dict[str, Any] = {
        "max_model_len": MODEL_LEN,
        "reserve": reserve,
        "placement": placement.rstrip("+"),
        "compaction": placement.endswith("+"),
    }
    common: dict[str, Any] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "watermark": watermark,
    }
    plain = VllmScheduler(
        ContiguousAllocator(blocks, block_size, **arena), max_model_len=MODEL_LEN, **common
    )
    groups = scheduler(ContiguousBranches(blocks, block_size, **arena), **common)

    def alike(expected: StepPlan, plan: StepPlan) -> None:
        assert view(plain, expected, plain.running(), plain.allocator) == view(
            groups, plan, groups.running(), groups.memory
        )

    serve_side_by_side(plain, groups, rows, alike)
