"""Requests that fork from a running one: what they share, and what they compute."""

from __future__ import annotations

import pytest

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import Chunk, Copy, StepPlan
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Branching, Request, Sequence
from tests.core.group_runs import MODEL_LEN, Device, child, request, scheduler, steps


def run_until(engine: GroupScheduler, device: Device, computed: int, root: Sequence) -> None:
    """Steps until the root has so many tokens with KV."""
    while root.computed < computed:
        step(engine, device)


def step(engine: GroupScheduler, device: Device) -> StepPlan:
    plan = engine.schedule()
    device.run(plan)
    engine.memory.check_integrity(engine.running())
    engine.complete(plan)
    return plan


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("children", [1, 3])
def test_a_tree_holds_the_whole_blocks_of_each_path_once(children: int, block_size: int) -> None:
    """Physical blocks: the parent's, and of each child those behind its shared whole blocks."""
    for shared in {1, block_size, 2 * block_size + 1, 3 * block_size - 1}:
        engine = scheduler(2000, block_size)
        device = Device(engine)
        root = engine.add(request("root", 3 * block_size, 40))
        run_until(engine, device, 3 * block_size + 2, root)
        prompt = shared + 5
        kids = [engine.add(child(f"c{i}", prompt, 9, "root", shared)) for i in range(children)]
        plan = step(engine, device)
        assert plan.admitted == kids
        assert plan.hits == [shared] * children
        assert [kid.cached_tokens for kid in kids] == [shared] * children
        assert plan.chunks == [Chunk(5, shared)] * children
        rest = shared % block_size
        assert [copy.tokens for copy in plan.copies] == ([rest] * children if rest else [])
        counts = engine.memory.sharing_counts()
        own = -(-prompt // block_size) - shared // block_size
        assert counts["physical_blocks"] == len(root.table) + children * own
        saved = counts["logical_blocks"] - counts["physical_blocks"]
        assert saved == children * (shared // block_size)
        assert engine.memory.usage.shared == saved * block_size
        for plan in steps(engine):
            device.run(plan)
            engine.memory.check_integrity(engine.running())


def test_a_child_copies_the_filled_slots_of_a_partial_block() -> None:
    """6 of the parent's 8 tokens: block 0 by reference, 2 slots of block 1 into a fresh block."""
    allocator = BranchingAllocator(9, 4, null_block=False)
    parent = Sequence(Request("p", 0, 8, 9), MODEL_LEN)
    assert allocator.admit(parent, NO_HIT, 8, 8, 0)
    kid = Sequence(Request("k", 0, 9, 9), MODEL_LEN)
    assert allocator.admit_fork(parent, [kid], 6, 3, gate=True, keep_free=5)
    assert (parent.table, kid.table) == ([0, 1], [0, 2, 3])
    assert allocator.take_copies() == [Copy(source_slot=4, target_slot=8, tokens=2)]
    assert allocator.usage.shared == 4
    allocator.check_integrity([parent, kid])
    allocator.release(parent)
    allocator.check_integrity([kid])
    assert (allocator.usage.shared, allocator.usage.allocated) == (0, 12)


@pytest.mark.parametrize(
    ("gate", "new_tokens", "keep_free", "fits"),
    [(False, 3, 5, True), (False, 3, 6, False), (True, 1, 5, True), (True, 1, 6, False)],
)
def test_admission_asks_for_the_blocks_behind_the_shared_ones(
    gate: bool, new_tokens: int, keep_free: int, fits: bool
) -> None:
    """A prompt of 9 behind 6 shared tokens needs 2 blocks of 4 more; 7 are free."""
    allocator = BranchingAllocator(9, 4, null_block=False)
    parent = Sequence(Request("p", 0, 8, 9), MODEL_LEN)
    assert allocator.admit(parent, NO_HIT, 8, 8, 0)
    kid = Sequence(Request("k", 0, 9, 9), MODEL_LEN)
    done = allocator.admit_fork(parent, [kid], 6, new_tokens, gate=gate, keep_free=keep_free)
    assert done == fits
    assert bool(kid.table) == fits
    assert bool(allocator.take_copies()) == fits
    assert allocator.fork_fits_sum([kid], 6)
    allocator.check_integrity([parent, kid])


def test_fork_at_refuses_what_the_parent_does_not_hold() -> None:
    allocator = BranchingAllocator(3, 4, null_block=False)
    parent = Sequence(Request("p", 0, 8, 9), MODEL_LEN)
    assert allocator.admit(parent, NO_HIT, 8, 8, 0)
    with pytest.raises(ValueError, match="does not hold 9 tokens"):
        allocator.fork_at(parent, Sequence(Request("k", 0, 10, 2), MODEL_LEN), 9)
    with pytest.raises(ValueError, match="ends at 5 tokens"):
        allocator.fork_at(parent, Sequence(Request("k", 0, 5, 1), MODEL_LEN), 6)
    with pytest.raises(ValueError, match="holds blocks already"):
        allocator.fork_at(parent, parent, 4)
    one, other = (Sequence(Request(name, 0, 7, 2), MODEL_LEN) for name in "ab")
    assert allocator.fork_at(parent, one, 7)
    assert not allocator.fork_at(parent, other, 7)
    assert other.table == []
    assert allocator.fork_at(parent, other, 4)
    allocator.check_integrity([parent, one, other])


def test_the_last_prompt_token_is_always_computed() -> None:
    """A prompt that is all the parent's computes one token; its block of 4 is a copy of 3 slots."""
    engine = scheduler(20, 4)
    device = Device(engine)
    root = engine.add(request("root", 8, 20))
    run_until(engine, device, 9, root)
    engine.add(child("c", 8, 3, "root", 8))
    plan = step(engine, device)
    assert (plan.hits, plan.chunks) == ([7], [Chunk(1, 7)])
    assert [copy.tokens for copy in plan.copies] == [3]


def test_slots_of_a_partial_block_that_are_filled_in_this_step_are_not_copied() -> None:
    """Of 11 shared tokens the parent computes the last in the step itself: 10 are shared.

    Whole blocks may be filled in the step: of 12, all are shared.
    """
    for tokens, had_kv, shared in ((11, 10, 10), (12, 11, 12), (11, 11, 11)):
        engine = scheduler(20, 4)
        device = Device(engine)
        root = engine.add(request("root", 8, 20))
        run_until(engine, device, had_kv, root)
        engine.add(child("c", 15, 3, "root", tokens))
        plan = step(engine, device)
        assert root.computed == had_kv + 1
        assert plan.hits == [shared]


def test_a_grandchild_admitted_in_the_same_step_shares_whole_blocks_only() -> None:
    """'b' holds two blocks that 'a' fills in this step; of its 7 tokens 'c' can share 4."""
    engine = scheduler(40, 4)
    device = Device(engine)
    engine.add(request("a", 12, 9))
    engine.add(child("b", 11, 9, "a", 8))
    engine.add(child("c", 9, 9, "b", 7))
    plan = step(engine, device)
    assert (plan.hits, plan.copies) == ([0, 8, 4], [])
    assert plan.chunks == [Chunk(12, 0), Chunk(3, 8), Chunk(5, 4)]
    for plan in steps(engine):
        device.run(plan)
        engine.memory.check_integrity(engine.running())


@pytest.mark.parametrize("state", ["waits", "too short", "ended", "unknown"])
def test_without_a_running_parent_that_computed_the_tokens_everything_is_computed(
    state: str,
) -> None:
    engine = scheduler(40, 4, max_num_batched_tokens=100)
    device = Device(engine)
    if state != "waits":
        root = engine.add(request("root", 8, 20))
        run_until(engine, device, 27 if state == "ended" else 9, root)
    tokens = {"too short": 11, "unknown": 6}.get(state, 10)
    kid = engine.add(child("c", 14, 3, "nobody" if state == "unknown" else "root", tokens))
    if state == "waits":
        engine.add(request("root", 8, 20))
    plan = step(engine, device)
    assert plan.admitted[0] == kid
    assert (plan.hits[0], plan.chunks[0]) == (0, Chunk(14, 0))
    assert kid.cached_tokens == 0


def test_a_child_waits_for_a_swapped_parent_and_shares_when_it_is_back() -> None:
    """Nothing is admitted before the parent runs again; then both compute in one step."""
    engine = scheduler(40, 4, host_blocks=40, preemption="swap")
    device = Device(engine)
    root = engine.add(request("root", 8, 20))
    run_until(engine, device, 11, root)
    engine._preempt_group(engine.groups[root], StepPlan(0, {}))
    kid = engine.add(child("c", 14, 9, "root", 11))
    plan = step(engine, device)
    assert (plan.swapped_in, plan.admitted, plan.hits) == ([root], [kid], [11])
    assert kid.table[:2] == root.table[:2]
    for plan in steps(engine):
        device.run(plan)
        engine.memory.check_integrity(engine.running())


def test_a_parent_may_end_before_its_child_and_trees_may_be_deep() -> None:
    """Each child forks from the one before it; every table reads its own tokens to the end."""
    engine = scheduler(60, 4)
    device = Device(engine)
    root = engine.add(request("c0", 6, 8))
    run_until(engine, device, 10, root)
    hits = []
    for depth, (prompt, tokens) in enumerate(((15, 10), (21, 17), (27, 23)), 1):
        kid = engine.add(child(f"c{depth}", prompt, 30, f"c{depth - 1}", tokens))
        hits += step(engine, device).hits
        run_until(engine, device, prompt + 3, kid)
    assert hits == [10, 17, 23]
    assert root not in engine.groups
    # Whole blocks on the path to the last: 23 // 4 of 'c2', 17 // 4 of 'c1'.
    last = kid.table
    alive = {s.request.request_id: s.table for s in engine.running()}
    assert last[:5] == alive["c2"][:5]
    assert alive["c2"][:4] == alive["c1"][:4]
    for plan in steps(engine):
        device.run(plan)
        engine.memory.check_integrity(engine.running())


def test_a_group_forks_from_a_beam_and_shares_among_its_branches() -> None:
    """The root of a beam search is the parent; three samples go on from its first 9 tokens."""
    engine = scheduler(80, 4)
    device = Device(engine)
    root = engine.add(request("beam", 6, 20, "beam", 2, "wright_fisher"))
    run_until(engine, device, 11, root)
    kid = engine.add(child("c", 14, 5, "beam", 9)._replace(branches=Branching("parallel", 3)))
    plan = step(engine, device)
    assert (plan.hits, plan.chunks) == ([9], [Chunk(5, 9)])
    assert kid.table[:2] == root.table[:2]
    for plan in steps(engine):
        device.run(plan)
        engine.memory.check_integrity(engine.running())


def test_a_preempted_child_computes_its_whole_prompt_again() -> None:
    """6 blocks of 4; the child holds 2 of its own when its parent needs the last free one."""
    engine = scheduler(6, 4)
    device = Device(engine)
    root = engine.add(request("root", 8, 14))
    run_until(engine, device, 9, root)
    kid = engine.add(child("c", 11, 9, "root", 8))
    chunks = []
    for plan in steps(engine):
        device.run(plan)
        engine.memory.check_integrity(engine.running())
        chunks += [c for s, c in zip(plan.prefills, plan.chunks, strict=True) if s is kid]
    assert kid.preemptions == 1
    assert chunks[0] == Chunk(3, 8)
    assert chunks[1].prior_tokens == 0
    assert kid.cached_tokens == 8


def test_the_head_is_short_of_memory_only_by_what_it_would_not_share() -> None:
    """max_num_seqs holds a child up whose own 2 blocks are free, but not all its 5."""
    engine = scheduler(8, 4, max_num_seqs=1)
    device = Device(engine)
    root = engine.add(request("root", 12, 9))
    run_until(engine, device, 13, root)
    engine.add(child("c", 20, 3, "root", 12))
    plan = step(engine, device)
    assert (plan.num_waiting, plan.head_short_of_memory) == (1, False)
    engine.abort("c")
    engine.add(request("c", 20, 3))
    assert step(engine, device).head_short_of_memory


@pytest.mark.parametrize("tokens", [0, 12])
def test_a_fork_lies_within_the_prompt(tokens: int) -> None:
    with pytest.raises(ValueError, match=r"fork tokens \(=\d+\) must be in 1..11"):
        scheduler(9, 4).add(child("c", 11, 3, "root", tokens))
