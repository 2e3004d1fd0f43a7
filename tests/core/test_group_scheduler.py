"""Requests with branches: scheduled, preempted and recomputed together."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.accounting import split
from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Branching, Request, Sequence, State
from kvsim.core.vllm_scheduler import VllmScheduler
from tests.core.group_runs import (
    MODEL_LEN,
    Device,
    request,
    scheduler,
    seeded_draw,
    serve_side_by_side,
    steps,
)

# One branch


def view(engine: Any, plan: StepPlan, running: list[Sequence], pool: Any) -> dict[str, Any]:
    def names(sequences: list[Sequence]) -> list[str]:
        return [s.request.request_id for s in sequences]

    return {
        "counts": (plan.num_decodes, plan.decode_context_tokens, plan.live_tokens),
        "queues": (plan.num_running, plan.num_waiting, plan.head_short_of_memory),
        "chunks": (names(plan.prefills), plan.chunks),
        "tokens": (plan.prefill_tokens, plan.recomputed_tokens, plan.scheduled_tokens),
        "events": (names(plan.admitted), names(plan.preempted), names(plan.joined)),
        "scheduled": sorted((s.order, tokens) for s, tokens in plan.scheduled()),
        "tables": [(s.request.request_id, s.table) for s in running],
        "computed": [engine.computed_tokens(s) for s in running],
        "free": pool.free_ids(),
    }


@settings(max_examples=300)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 60), st.integers(1, 40), st.integers(0, 2)),
        min_size=1,
        max_size=12,
    ),
    blocks=st.integers(6, 40),
    block_size=st.sampled_from([1, 4, 16]),
    seqs=st.integers(1, 8),
    budget=st.integers(8, 90),
    threshold=st.sampled_from([0, 0, 5]),
    watermark=st.sampled_from([0.0, 0.3]),
    flags=st.tuples(st.booleans(), st.booleans()),
)
def test_requests_with_one_branch_are_served_as_by_the_vllm_scheduler(
    rows: list[tuple[int, int, int, int]],
    blocks: int,
    block_size: int,
    seqs: int,
    budget: int,
    threshold: int,
    watermark: float,
    flags: tuple[bool, bool],
) -> None:
    """Every decision, block ids included."""
    common: dict[str, Any] = {
        "max_num_seqs": seqs,
        "max_num_batched_tokens": budget,
        "max_model_len": MODEL_LEN,
        "enable_chunked_prefill": flags[0],
        "reserve_full_isl": flags[1],
        "long_prefill_token_threshold": threshold,
        "watermark": watermark,
    }
    plain = VllmScheduler(PagedAllocator(blocks, block_size), **common)
    groups = GroupScheduler(BranchingAllocator(blocks, block_size), draw=seeded_draw(1), **common)

    def alike(expected: StepPlan, plan: StepPlan) -> None:
        assert view(plain, expected, plain.running(), plain.allocator.pool) == view(
            groups, plan, groups.running(), groups.memory.pool
        )

    serve_side_by_side(plain, groups, rows, alike)


# Many branches

branchings = st.one_of(
    st.none(),
    st.integers(1, 5).map(lambda n: Branching("parallel", n)),
    st.integers(1, 5).map(lambda k: Branching("beam", k)),
    st.integers(1, 5).map(lambda k: Branching("beam", k, "wright_fisher")),
)


@settings(max_examples=200)
@given(
    rows=st.lists(
        st.tuples(st.integers(1, 50), st.integers(1, 40), branchings),
        min_size=1,
        max_size=10,
    ),
    blocks=st.integers(6, 60),
    block_size=st.sampled_from([1, 3, 4, 16]),
    seqs=st.integers(1, 10),
    budget=st.integers(10, 90),
    gate=st.booleans(),
)
def test_every_branch_reads_its_own_tokens_and_every_slot_is_in_one_term(
    rows: list[tuple[int, int, Branching | None]],
    blocks: int,
    block_size: int,
    seqs: int,
    budget: int,
    gate: bool,
) -> None:
    engine = scheduler(
        blocks,
        block_size,
        max_num_seqs=seqs,
        max_num_batched_tokens=budget,
        reserve_full_isl=gate,
    )
    device = Device(engine)
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
        engine.memory.check_integrity(running)
        terms = split(
            engine.memory.usage,
            live_tokens=plan.live_tokens,
            capacity=engine.memory.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        assert terms.total == engine.memory.capacity_slots
        assert min(terms) >= 0
        size = block_size
        distinct = {
            b.table[p // size] * size + p % size for b in running for p in range(b.computed)
        }
        assert terms.live == len(distinct)
        assert sum(group.width for group in engine.groups.values()) <= seqs
        assert plan.scheduled_tokens <= budget
        assert not (plan.preempted and plan.admitted)
        assert plan.scheduled_tokens or plan.preempted, "a step advances nothing"
        for group in engine.groups.values():
            together = {(b.tokens, b.computed) for b in group.active}
            assert not group.decoding or len(together) == 1
        plans.append(plan)
    assert sum(len(plan.finished) for plan in plans) == sent


@pytest.mark.parametrize("block_size", [1, 4, 7, 16])
@pytest.mark.parametrize("n", [1, 2, 4, 6])
def test_parallel_samples_hold_and_copy_as_the_closed_form_says(n: int, block_size: int) -> None:
    """Closed form 4 in every step of a run, over whole and partial prompt blocks."""
    for prompt in {1, block_size, 2 * block_size + 1, 3 * block_size - 1}:
        engine = scheduler(600, block_size)
        root = engine.add(request("r", prompt, 30, "parallel", n))
        copies = []
        full = prompt // block_size
        for generated, plan in enumerate(steps(engine)):
            branches = engine.running()
            copies += plan.copies
            own = -(-(prompt + generated) // block_size)
            if generated == 0:
                assert (len(branches), plan.chunks[0].new_tokens) == (1, prompt)
                assert plan.joined == [root]
                continue
            assert (len(branches), plan.num_decodes) == (n, n)
            assert plan.decode_context_tokens == n * (prompt + generated)
            counts = engine.memory.sharing_counts()
            assert counts["logical_blocks"] == n * own
            assert counts["physical_blocks"] == full + n * (own - full)
            assert len(copies) == (n - 1 if prompt % block_size else 0)
        assert generated == 29
        assert root.state is State.FINISHED
        assert {copy.tokens for copy in copies} <= {prompt % block_size}


def test_branches_of_one_token_need_no_memory_but_the_prompt() -> None:
    engine = scheduler(4, 4)
    engine.add(request("r", 6, 1, "parallel", 6))
    assert [(plan.num_decodes, len(engine.running())) for plan in steps(engine)] == [(0, 1)]


def test_a_group_is_preempted_and_recomputed_together() -> None:
    """The last group loses all branches; its prompt is computed again, then its own tokens."""
    engine = scheduler(15, 4, max_num_batched_tokens=64)
    first = engine.add(request("first", 8, 20, "parallel", 2))
    last = engine.add(request("last", 6, 12, "parallel", 3))
    device = Device(engine)
    seen = []
    for plan in steps(engine):
        device.run(plan)
        if plan.preempted:
            assert plan.preempted == [last]
            assert {b.request.request_id for b in engine.running()} == {"first"}
            generated = last.tokens - 6
            lost = engine._queued[last].beams
            assert [(b.tokens, b.computed, b.table) for b in lost] == [(6 + generated, 0, [])] * 3
            seen.append(("preempted", generated))
        if last.preemptions:
            seen += [
                (b.request.request_id, *c) for b, c in zip(plan.prefills, plan.chunks, strict=True)
            ]
        if plan.joined and last.preemptions:
            assert plan.recomputed_tokens == 3 * (generated - 1)
    assert seen == [
        ("preempted", generated),
        ("last", 6, 0),
        *[("last", generated, 6)] * 3,
    ]
    assert (first.preemptions, last.preemptions, last.admissions) == (0, 1, 2)


def test_nothing_is_admitted_in_a_step_that_preempts() -> None:
    """Not even by a first chunk that would fit at once."""
    engine = scheduler(15, 4, reserve_full_isl=False, long_prefill_token_threshold=4)
    engine.add(request("first", 8, 20, "parallel", 2))
    engine.add(request("last", 6, 12, "parallel", 3))
    admitted = [plan.admitted for plan in steps(engine) if plan.preempted]
    assert admitted
    assert not any(admitted)


def test_max_num_seqs_counts_branches_from_admission_on() -> None:
    engine = scheduler(100, 4, max_num_seqs=5)
    engine.add(request("a", 4, 5, "parallel", 3))
    engine.add(request("b", 4, 5, "parallel", 3))
    engine.add(request("c", 4, 5))
    admitted = [[s.request.request_id for s in plan.admitted] for plan in steps(engine)]
    assert [names for names in admitted if names] == [["a"], ["b", "c"]]
    why = engine.refuse(request("d", 4, 5, "beam", 6))
    assert why == "never_fits: 6 branches, max_num_seqs (=5) counts each"


def test_a_group_that_can_never_fit_is_known_at_arrival() -> None:
    """4 whole prompt blocks and 3 branches of 2 more need 10 blocks."""
    one = request("r", 18, 7, "parallel", 3)
    assert scheduler(10, 4).refuse(one) is None
    assert "needs 10 blocks" in str(scheduler(9, 4).refuse(one))
    engine = scheduler(10, 4)
    engine.add(one)
    assert max(engine.memory.usage.allocated for _ in steps(engine)) == 40


def test_an_aborted_group_gives_everything_back() -> None:
    engine = scheduler(50, 4)
    engine.add(request("runs", 6, 9, "parallel", 3))
    engine.add(request("stays", 6, 9, "beam", 2))
    waits = engine.add(request("waits", 150, 9, "parallel", 60))
    for _ in range(3):
        engine.complete(engine.schedule())
    assert engine.unfinished()[0] == [waits]
    assert engine.abort("waits") is waits
    gone = engine.abort("runs")
    assert gone is not None
    assert gone.state is State.ABORTED
    assert engine.abort("unknown") is None
    engine.memory.check_integrity(engine.running())
    assert [s.request.request_id for s in engine.unfinished()[1]] == ["stays"]
    assert sum(plan.num_decodes for plan in steps(engine)) == 2 * 6


def test_other_schedulers_refuse_branches() -> None:
    plain = VllmScheduler(
        PagedAllocator(9, 4), max_num_seqs=9, max_num_batched_tokens=9, max_model_len=9
    )
    with pytest.raises(ValueError, match="only the group scheduler"):
        plain.add(request("r", 4, 4, "parallel", 2))


@pytest.mark.parametrize(
    ("branching", "message"),
    [
        (("tree", 2), "kind"),
        (("parallel", 0), "width"),
        (("beam", 2, "unknown"), "ancestry"),
        (("parallel", 2, "wright_fisher"), "no ancestry"),
        (("beam", 2, "trace", ((0, 0),)), "1 rows of parents, 5 output tokens need 3"),
        (("beam", 2, "trace", ((0, 0), (0, 2), (0, 1))), "are not 2 of 0..1"),
        (("beam", 2, "trace", ((0, 0), (0,), (0, 1))), "are not 2 of 0..1"),
    ],
)
def test_branches_that_cannot_be_served_are_errors(branching: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        scheduler(9, 4).add(request("r", 4, 5, *branching))


def test_settings_are_checked() -> None:
    with pytest.raises(ValueError, match="max_num_batched_tokens"):
        scheduler(9, 4, max_num_seqs=8, max_num_batched_tokens=7)
    with pytest.raises(ValueError, match="watermark"):
        scheduler(9, 4, watermark=1.0)
    engine = GroupScheduler(
        BranchingAllocator(9, 4), max_num_seqs=8, max_num_batched_tokens=8, max_model_len=8
    )
    with pytest.raises(ValueError, match="needs a draw function"):
        engine.add(request("r", 4, 5, "beam", 2, "wright_fisher"))
