"""Preemption by swap: groups go to host memory, keep their tokens and come back together."""

from __future__ import annotations

from collections import deque
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.accounting import split
from kvsim.core.branches import BranchingAllocator, group_blocks
from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import Chunk, StepPlan, Transfer
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Branching, Fork, Request, Sequence, State
from tests.core.group_runs import MODEL_LEN, Device, request, scheduler, steps

# Memory


def group_of(allocator: BranchingAllocator, prompt: int, width: int) -> list[Sequence]:
    """Branches that share a computed prompt."""
    branches = [Sequence(Request("r", 0, prompt, 60), MODEL_LEN) for _ in range(width)]
    assert allocator.admit(branches[0], NO_HIT, prompt, prompt, 0)
    for branch in branches:
        branch.computed = prompt
    for branch in branches[1:]:
        allocator.fork(branches[0], branch, prompt)
    return branches


@pytest.mark.parametrize("block_size", [1, 4, 7])
@pytest.mark.parametrize("n", [1, 2, 4])
def test_a_swap_moves_every_physical_block_once_and_keeps_what_is_shared(
    n: int, block_size: int
) -> None:
    """Closed form 4 on either side of the way, for whole and partial prompt blocks.

    The prompt's whole blocks move once, its rest and the generated tokens once per branch; before
    the first generated token the branches share the rest too.
    """
    for prompt in (1, block_size, 2 * block_size + 1, 3 * block_size - 1):
        for generated in (0, 1, block_size, block_size + 2):
            allocator = BranchingAllocator(200, block_size, host_blocks=200)
            branches = group_of(allocator, prompt, n)
            for _ in range(generated):
                assert allocator.append_group(branches, [1] * n)
                for branch in branches:
                    branch.computed += 1
            full, own = prompt // block_size, -(-(prompt + generated) // block_size)
            blocks, tokens = full + n * (own - full), n * (prompt + generated)
            tokens -= (n - 1) * full * block_size
            if not generated:
                blocks, tokens = own, prompt
            before = allocator.sharing_counts(), vars_of(allocator)
            assert allocator.swap_out(branches) == Transfer("swap_out", tokens, blocks)
            allocator.check_integrity([])
            assert (allocator.free_count(), allocator.host.num_held) == (199, blocks)
            assert allocator.host.num_entries() == n * own
            assert allocator.swap_in(branches) == Transfer("swap_in", tokens, blocks)
            allocator.check_integrity(branches)
            assert (allocator.sharing_counts(), vars_of(allocator)) == before
            assert (allocator.host.num_held, allocator.host.peak_blocks) == (0, blocks)
            assert allocator.append_group(branches, [1] * n)
            first = generated == 0 and prompt % block_size != 0
            assert len(allocator.take_copies()) == (n - 1 if first or generated else 0) * (
                prompt % block_size != 0
            )


def vars_of(allocator: BranchingAllocator) -> dict[str, int]:
    usage = allocator.usage
    return {name: getattr(usage, name) for name in usage.__slots__}


def test_a_swap_that_does_not_fit_changes_nothing() -> None:
    """5 blocks do not fit 4 host blocks; nor 4 free device blocks on the way back."""
    allocator = BranchingAllocator(7, 4, host_blocks=4)
    big = group_of(allocator, 20, 1)
    tables = [list(branch.table) for branch in big]
    assert allocator.swap_out(big) is None
    assert ([branch.table for branch in big], allocator.host.num_free) == (tables, 4)
    allocator.release(big[0])
    pair = group_of(allocator, 14, 2)
    assert allocator.swap_out(pair) == Transfer("swap_out", 14, 4)
    other = group_of(allocator, 9, 1)
    assert allocator.swap_in(pair) is None
    assert ([branch.table for branch in pair], allocator.free_count()) == ([[], []], 3)
    allocator.check_integrity(other)
    assert allocator.host.num_held == 4
    allocator.release(pair[0])
    assert allocator.host.num_held == 4
    allocator.release(pair[1])
    assert allocator.host.num_held == 0
    allocator.check_integrity(other)


def test_a_block_that_another_group_holds_is_copied_out_and_stays() -> None:
    """The parent keeps its two blocks; the child's copies come back as blocks of its own."""
    allocator = BranchingAllocator(9, 4, host_blocks=9)
    (parent,) = group_of(allocator, 8, 1)
    child = Sequence(Request("child", 0, 8, 9), MODEL_LEN)
    assert allocator.fork_at(parent, child, 8)
    child.computed = 8
    assert (child.table, allocator.free_count(), allocator.usage.shared) == ([1, 2], 6, 8)
    assert allocator.swap_out([child]) == Transfer("swap_out", 8, 2)
    assert (parent.table, allocator.free_count(), allocator.usage.shared) == ([1, 2], 6, 0)
    assert allocator.swap_in([child]) == Transfer("swap_in", 8, 2)
    assert (parent.table, child.table) == ([1, 2], [3, 4])
    allocator.check_integrity([parent, child])


# Scheduler


def two_of(host_blocks: int = 10, **given: Any) -> tuple[GroupScheduler, Sequence, Sequence]:
    """6 blocks of 4: both prompts and 4 tokens more fit; then 'b' has to go, with 3 blocks."""
    engine = scheduler(6, 4, host_blocks=host_blocks, **({"preemption": "swap"} | given))
    return engine, engine.add(request("a", 8, 10)), engine.add(request("b", 8, 10))


def names(sequences: list[Sequence]) -> list[str]:
    return [sequence.request.request_id for sequence in sequences]


def test_a_swapped_group_keeps_its_tokens_and_is_back_as_soon_as_it_fits() -> None:
    """'b' goes after 5 steps with 12 tokens and needs 3 blocks and 1: not free while 'a' runs.

    'a' ends in step 10; then 'b' computes in the step in which it is back, and 'c', which waited
    although a block was free, is admitted behind it.
    """
    engine, a, b = two_of()
    device = Device(engine)
    events: list[Any] = []
    for index, plan in enumerate(steps(engine), 1):
        device.run(plan)
        if index == 6:
            engine.add(request("c", 2, 2))
        if plan.preempted or plan.swapped_in or (plan.admitted and index > 1):
            events.append(
                (index, names(plan.swapped_out), names(plan.swapped_in), names(plan.admitted))
            )
            assert list(plan.swapped_out) == plan.preempted
            events += plan.transfers
        if 6 <= index < 11:
            assert engine.unfinished() == ([b, *engine.waiting], [a])
            assert engine.running() == [a]
            assert (b.state, b.computed, b.tokens, b.table) == (State.WAITING, 12, 13, [])
            assert (plan.num_decodes, plan.num_running) == (1, 1)
            assert plan.num_waiting == (1 if index == 6 else 2)
            assert plan.head_short_of_memory
        if index == 11:
            assert (b.state, b.computed, plan.num_decodes) == (State.DECODING, 13, 1)
        assert plan.recomputed_tokens == 0
    assert events == [
        (6, ["b"], [], []),
        Transfer("swap_out", 12, 3),
        (11, [], ["b"], ["c"]),
        Transfer("swap_in", 12, 3),
    ]
    assert index == 15
    assert (b.preemptions, b.admissions, b.order) == (1, 1, 1)
    assert engine.swap_counts() == {
        "swapped_out_groups": 1,
        "swapped_in_groups": 1,
        "swapped_out_blocks": 3,
        "swapped_in_blocks": 3,
        "swapped_out_tokens": 12,
        "swapped_in_tokens": 12,
        "peak_host_blocks": 3,
        "recomputed_for_lack_of_host_blocks": 0,
    }


def test_without_room_on_the_host_a_group_is_recomputed() -> None:
    """2 host blocks do not take the 3 of 'b', whose 13 known tokens are computed again."""
    engine, _, b = two_of(host_blocks=2)
    recomputed = 0
    for plan in steps(engine):
        assert [*plan.swapped_out, *plan.swapped_in, *plan.transfers] == []
        recomputed += plan.recomputed_tokens
    assert (b.preemptions, b.admissions, recomputed) == (1, 2, 12)
    counts = engine.swap_counts()
    assert counts["recomputed_for_lack_of_host_blocks"] == 1
    assert sum(counts.values()) == 1


@pytest.mark.parametrize("cheaper", [True, False])
def test_auto_swaps_the_groups_whose_way_out_and_back_is_cheaper(cheaper: bool) -> None:
    """Two branches with 8 prompt tokens in 2 blocks and 4 tokens each in a block of their own."""
    asked: list[tuple[int, int, int]] = []

    def swap_is_cheaper(tokens: int, blocks: int, recompute_tokens: int) -> bool:
        asked.append((tokens, blocks, recompute_tokens))
        return cheaper

    engine = scheduler(8, 4, host_blocks=9, preemption="auto", swap_is_cheaper=swap_is_cheaper)
    engine.add(request("a", 8, 10))
    b = engine.add(request("b", 8, 10, "parallel", 2))
    swapped = sum(len(plan.swapped_out) for plan in steps(engine))
    assert (asked, b.preemptions, swapped) == ([(16, 4, 16)], 1, int(cheaper))
    counts = engine.swap_counts()
    assert counts["swapped_out_blocks"] == (4 if cheaper else 0)
    assert counts["recomputed_for_lack_of_host_blocks"] == 0


@pytest.mark.parametrize(("watermark", "back"), [(0.0, 2), (0.34, 2), (0.42, 21)])
def test_the_watermark_stays_free_when_a_group_comes_back_beside_others(
    watermark: float, back: int
) -> None:
    """Of 12 blocks 9 are free; 'b' needs 4 and 1 for its next token, which leaves 4 but not 5.

    After step 20 'a' has ended and nothing runs: the watermark does not count.
    """
    engine = scheduler(12, 4, host_blocks=9, preemption="swap", watermark=watermark)
    engine.add(request("a", 8, 20))
    b = engine.add(request("b", 16, 5))
    engine.complete(engine.schedule())
    assert force_out(engine, b) == Transfer("swap_out", 16, 4)
    found = [index for index, plan in enumerate(steps(engine), 2) if plan.swapped_in == [b]]
    assert found == [back]


def test_a_group_comes_back_when_the_budget_has_a_token_for_each_branch() -> None:
    """'late' prefills 6 tokens beside the pair, then 8, 8 and 6 of a budget of 8."""
    engine = scheduler(
        60, 4, host_blocks=60, preemption="swap", max_num_seqs=4, max_num_batched_tokens=8
    )
    pair = engine.add(request("pair", 8, 9, "parallel", 2))
    engine.complete(engine.schedule())
    late = engine.add(request("late", 28, 2))
    engine.complete(engine.schedule())
    assert late.computed == 6
    force_out(engine, pair)
    back = []
    for plan in steps(engine):
        assert plan.scheduled_tokens <= 8
        back.append((late.computed, len(plan.swapped_in)))
    assert back[:3] == [(14, 0), (22, 0), (28, 1)]


def force_out(engine: GroupScheduler, root: Sequence) -> Transfer:
    """Preempt a running group between steps."""
    plan = StepPlan(0, {})
    engine._preempt_group(engine.groups[root], plan)
    assert plan.swapped_out == [root]
    return plan.transfers[0]


def test_branches_of_swapped_groups_count_when_they_come_back() -> None:
    """3 of 4 branches run: the pair has to wait for the end of one of them."""
    engine = scheduler(60, 4, host_blocks=60, preemption="swap", max_num_seqs=5)
    three = engine.add(request("three", 8, 4, "parallel", 3))
    pair = engine.add(request("pair", 8, 9, "parallel", 2))
    engine.complete(engine.schedule())
    force_out(engine, pair)
    engine.max_num_seqs = 4
    for plan in steps(engine):
        if plan.swapped_in:
            break
        assert three in engine.groups
    assert three.state is State.FINISHED


def test_a_prefilling_group_keeps_what_it_has_computed() -> None:
    """Chunks of 4: 'b' goes with 8 of its 16 prompt tokens and comes back for the other 8."""
    engine = scheduler(
        9,
        4,
        host_blocks=9,
        preemption="swap",
        max_num_seqs=4,
        max_num_batched_tokens=5,
        reserve_full_isl=False,
    )
    engine.add(request("a", 4, 25))
    b = engine.add(request("b", 30, 3))
    device = Device(engine)
    chunks: list[Any] = []
    for plan in steps(engine):
        device.run(plan)
        chunks += [(*c,) for s, c in zip(plan.prefills, plan.chunks, strict=True) if s is b]
        chunks += [("out", t.tokens) for t in plan.transfers if t.link == "swap_out"]
        assert plan.recomputed_tokens == 0
    assert b.preemptions == 1
    gone = chunks.index(next(c for c in chunks if c[0] == "out"))
    assert chunks[gone] == ("out", sum(new for new, _ in chunks[:gone]))
    computed = [c for c in chunks if c[0] != "out"]
    assert sum(new for new, _ in computed) == 30
    assert all(prior + new == after for (new, prior), (_, after) in pairwise(computed))


def test_an_aborted_swapped_group_gives_its_host_blocks_back() -> None:
    engine, a, b = two_of()
    for _ in range(6):
        engine.complete(engine.schedule())
    assert engine.memory.host.num_held == 3
    assert engine.abort("b") is b
    assert (b.state, engine.memory.host.num_held, engine.unfinished()) == (
        State.ABORTED,
        0,
        ([], [a]),
    )
    engine.memory.check_integrity(engine.running())
    assert sum(len(plan.swapped_in) for plan in steps(engine)) == 0
    assert engine.swap_counts()["swapped_in_groups"] == 0


def test_a_group_that_outgrows_the_whole_memory_is_not_swapped() -> None:
    """It could never come back, and nobody else would be admitted while it is away."""
    engine = scheduler(6, 4, host_blocks=20, preemption="swap", on_never_fits="block")
    big = engine.add(request("big", 16, 30))
    engine.add(request("small", 4, 6))
    ended: list[str] = []
    for _ in range(60):
        plan = engine.schedule()
        assert big not in plan.swapped_out
        ended += names(engine.complete(plan))
        engine.memory.check_integrity(engine.running())
    assert ended == ["small"]
    assert (big.preemptions, engine.swapped, engine.unfinished()) == (1, deque(), ([big], []))
    assert "does not fit the empty memory" in engine.blocked_reason()


def test_transfers_of_a_step_that_computes_nothing_are_made_with_the_next() -> None:
    """7 blocks of 4: two branches hold 6 and want 2 more, which 'small' cannot free.

    It is swapped out in vain, then 'big' loses its own memory and nothing is left to compute.
    """
    engine = scheduler(7, 4, host_blocks=20, preemption="swap", on_never_fits="block")
    big = engine.add(request("big", 8, 30, "parallel", 2))
    for _ in range(7):
        engine.complete(engine.schedule())
    small = engine.add(request("small", 2, 20))
    plans = []
    for _ in range(4):
        plans.append(engine.schedule())
        engine.complete(plans[-1])
    assert [plan.scheduled_tokens for plan in plans] == [4, 3, 0, 1]
    assert (plans[2].preempted, plans[2].swapped_out) == ([small, big], [small])
    assert [plan.transfers for plan in plans[:3]] == [[], [], []]
    assert plans[3].transfers == [Transfer("swap_out", 3, 1), Transfer("swap_in", 3, 1)]


def test_the_peak_of_host_blocks_is_kept() -> None:
    allocator = BranchingAllocator(9, 4, host_blocks=9)
    for prompt in (4, 12, 8):
        branches = group_of(allocator, prompt, 1)
        allocator.swap_out(branches)
        allocator.release(branches[0])
    assert allocator.peak_host_blocks() == 3


def test_swapped_groups_are_among_the_requests_that_prefills_are_cut_for() -> None:
    """Of two requests in the system, both swapped out, the prefill comes back with a chunk of 5."""
    engine = scheduler(40, 4, host_blocks=40, preemption="swap", long_prefill_token_threshold=5)
    long, short = engine.add(request("long", 30, 4)), engine.add(request("short", 4, 9))
    engine.complete(engine.schedule())
    force_out(engine, short)
    force_out(engine, long)
    plan = engine.schedule()
    assert (plan.swapped_in, plan.chunks) == ([long, short], [Chunk(5, 5)])


branchings = st.one_of(
    st.none(),
    st.integers(1, 4).map(lambda n: Branching("parallel", n)),
    st.integers(2, 4).map(lambda k: Branching("beam", k, "wright_fisher")),
)
rows = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 1, 5]),
        st.integers(1, 20),
        st.integers(1, 40),
        branchings,
        st.integers(1, 3),
        st.floats(0, 1),
    ),
    min_size=2,
    max_size=10,
)


def most_blocks(requests: list[tuple[int, Request]], block_size: int) -> int:
    """Blocks that the largest of some requests needs."""
    needs = [
        group_blocks(
            one.prompt_tokens,
            one.output_tokens - 1,
            one.branches.width if one.branches else 1,
            block_size,
        )
        for _, one in requests
    ]
    return max(needs)


def requests_of(drawn: list[Any]) -> list[tuple[int, Request]]:
    """Requests with the step before which they arrive; most fork from one before them."""
    step, found = 0, []
    for index, (gap, prompt, output, branches, back, share) in enumerate(drawn):
        step += gap
        one = Request(f"r{index}", 0, prompt, output, branches=branches)
        if index >= back:
            one = one._replace(fork=Fork(f"r{index - back}", 1 + int(share * (prompt - 1))))
        found.append((step, one))
    return found


@settings(max_examples=300)
@given(
    drawn=rows,
    pools=st.tuples(st.integers(0, 8), st.sampled_from([0, 6, 100, 100])),
    block_size=st.sampled_from([1, 3, 4]),
    limits=st.tuples(st.integers(4, 12), st.integers(12, 60), st.sampled_from([0, 5])),
    watermark=st.sampled_from([0.0, 0.2]),
    preemption=st.sampled_from(["swap", "swap", "auto", "recompute"]),
    gate=st.booleans(),
)
def test_whatever_is_swapped_every_branch_reads_its_own_tokens_and_every_step_advances(
    drawn: list[Any],
    pools: tuple[int, int],
    block_size: int,
    limits: tuple[int, int, int],
    watermark: float,
    preemption: str,
    gate: bool,
) -> None:
    """Trees, groups and swapping together, in pools that the largest request just fits."""
    queue = requests_of(drawn)
    engine = scheduler(
        most_blocks(queue, block_size) + pools[0],
        block_size,
        host_blocks=pools[1],
        max_num_seqs=limits[0],
        max_num_batched_tokens=limits[1],
        long_prefill_token_threshold=limits[2],
        watermark=watermark,
        preemption=preemption,
        swap_is_cheaper=lambda tokens, blocks, recompute: (tokens + blocks) % 3 > 0,
        reserve_full_isl=gate,
    )
    device = Device(engine)
    sent = finished = preempted = step = 0
    moved: list[Transfer] = []
    while queue or engine.has_work():
        while queue and (queue[0][0] <= step or not engine.has_work()):
            one = queue.pop(0)[1]
            if engine.refuse(one) is None:
                engine.add(one)
                sent += 1
        if not engine.has_work():
            continue
        step += 1
        assert step < 5000, "the run does not end"
        away = list(engine.swapped)
        plan = engine.schedule()
        device.run(plan)
        check_step(engine, plan, away, limits[1])
        preempted += len(plan.preempted)
        moved += plan.transfers
        finished += len(engine.complete(plan))
        engine.memory.check_integrity(engine.running())
    assert finished == sent
    engine.memory.check_integrity([])
    assert (engine.memory.usage.allocated, engine.memory.host.num_held) == (0, 0)
    check_counts(engine, moved, device.moved, preempted)


def check_step(engine: GroupScheduler, plan: StepPlan, away: list[Any], budget: int) -> None:
    memory, running = engine.memory, engine.running()
    memory.check_integrity(running)
    terms = split(
        memory.usage,
        live_tokens=plan.live_tokens,
        capacity=memory.capacity_slots,
        reserves_ahead=False,
        held_up=False,
    )
    size = memory.block_size
    slots = {b.table[p // size] * size + p % size for b in running for p in range(b.computed)}
    assert terms.live == len(slots)
    assert terms.total == memory.capacity_slots
    assert min(terms) >= 0
    assert plan.scheduled_tokens or plan.preempted, "a step advances nothing"
    assert plan.scheduled_tokens <= budget
    widths = sum(group.width for group in engine.groups.values())
    assert plan.num_running + plan.further_branches == widths <= engine.max_num_seqs
    assert not (plan.preempted and (plan.admitted or plan.swapped_in))
    assert not (plan.admitted and engine.swapped)
    assert set(plan.swapped_out) <= set(plan.preempted)
    assert [g.root for g in away][: len(plan.swapped_in)] == list(plan.swapped_in)
    computing = {branch for branch, _ in plan.scheduled()}
    for root in plan.swapped_in:
        assert computing & set(engine.groups[root].active)
    for root in plan.swapped_out:
        assert root.computed > 0
    beside_others = len(engine.groups) > 1
    if plan.swapped_in and beside_others and not plan.admitted:
        assert memory.free_count() >= engine.watermark_blocks
    orders = [group.root.order for group in [*engine.groups.values(), *engine.swapped]]
    assert orders == sorted(orders)


def check_counts(
    engine: GroupScheduler, planned: list[Transfer], moved: list[Transfer], preempted: int
) -> None:
    """Plans hold every transfer that was made, and the counts are those of the transfers."""
    assert planned == moved
    counts = engine.swap_counts()
    if not counts:
        assert moved == []
        return
    for way in ("out", "in"):
        of_way = [transfer for transfer in moved if transfer.link == f"swap_{way}"]
        assert counts[f"swapped_{way}_groups"] == len(of_way)
        assert counts[f"swapped_{way}_blocks"] == sum(t.blocks for t in of_way)
        assert counts[f"swapped_{way}_tokens"] == sum(t.tokens for t in of_way)
        assert counts[f"swapped_{way}_tokens"] == sum(t.tokens for t in of_way)
    assert counts["swapped_out_groups"] == counts["swapped_in_groups"]
    swapped, lacked = counts["swapped_out_groups"], counts["recomputed_for_lack_of_host_blocks"]
    assert swapped + lacked <= preempted
    assert 0 <= counts["peak_host_blocks"] <= engine.memory.host.num_blocks


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="preemption"):
        scheduler(9, 4, preemption="sometimes")
    with pytest.raises(ValueError, match="needs swap_is_cheaper"):
        scheduler(9, 4, preemption="auto")
    with pytest.raises(ValueError, match="host_blocks"):
        scheduler(9, 4, host_blocks=-1)
    with pytest.raises(ValueError, match="memory that can swap"):
        GroupScheduler(
            ContiguousBranches(9, 4, max_model_len=8),
            max_num_seqs=8,
            max_num_batched_tokens=8,
            max_model_len=8,
            preemption="swap",
        )
    assert scheduler(9, 4).swap_counts() == {}
