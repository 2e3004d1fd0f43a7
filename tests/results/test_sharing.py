"""What sequences share, counted while groups run."""

from __future__ import annotations

import pytest

from kvsim.core.branches import BranchingAllocator
from kvsim.core.contiguous_branches import ContiguousBranches
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import StepPlan
from kvsim.core.request import Branching, Fork, Request
from kvsim.cost import FixedClock
from kvsim.results import SeriesRecorder, StepsRecorder, Tee
from kvsim.results.sharing import SharingRecorder
from kvsim.sim.replica import run_replica

NS = 1_000_000_000


def run(
    prompt: int,
    output: int,
    n: int,
    *,
    window: tuple[int, int] | None = None,
    arrival_ns: int = 0,
) -> tuple[SharingRecorder, StepsRecorder, SeriesRecorder]:
    """One request in blocks of 4, a second per step."""
    allocator = BranchingAllocator(200, 4, null_block=False)
    scheduler = GroupScheduler(
        allocator, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=64
    )
    sharing = SharingRecorder(allocator, groups=scheduler.groups.values, window=window)
    steps, series = StepsRecorder(allocator), SeriesRecorder(allocator, interval_ns=2 * NS)
    request = Request("r", arrival_ns, prompt, output, branches=Branching("parallel", n))
    run_replica([request], scheduler, FixedClock(1.0), Tee(sharing, steps, series))
    return sharing, steps, series


def closed_form(prompt: int, generated: int, n: int) -> tuple[int, int]:
    """Logical and physical blocks with so many tokens in the memory (FIELD.md, closed form 4)."""
    own = -(-(prompt + generated) // 4)
    if not generated:
        return own, own  # the prompt is computed before it is forked
    return n * own, prompt // 4 + n * (own - prompt // 4)


@pytest.mark.parametrize(("prompt", "output", "n"), [(10, 7, 3), (8, 5, 2), (3, 9, 4), (9, 1, 6)])
def test_averages_and_copies_are_those_of_the_closed_form(prompt: int, output: int, n: int) -> None:
    """A step per token: step j holds the prompt and j generated tokens."""
    sharing, steps, _ = run(prompt, output, n)
    counts = sharing.counts(1000)
    blocks = [closed_form(prompt, j, n) for j in range(output)]
    logical, physical = (sum(column) for column in zip(*blocks, strict=True))
    assert counts["logical_blocks"] == pytest.approx(logical / output, rel=1e-12)
    assert counts["physical_blocks"] == pytest.approx(physical / output, rel=1e-12)
    assert counts["saving"] == pytest.approx(1 - physical / logical, rel=1e-12)
    ratio = sum(a / b for a, b in blocks) / output
    assert counts["saving_by_step"] == pytest.approx(1 - 1 / ratio, rel=1e-12)
    copies = n - 1 if prompt % 4 and output > 1 else 0
    assert counts["copies"] == copies
    assert counts["copied_tokens"] == copies * (prompt % 4)
    assert counts["copied_bytes"] == copies * (prompt % 4) * 1000
    tails = [1 if j == 0 else n for j in range(output)]
    prompts = sum(prompt // 4 + (tail if prompt % 4 else 0) for tail in tails)
    assert counts["prompt_share"] == pytest.approx(prompts / physical, rel=1e-12)
    assert counts["generated_share"] == pytest.approx(1 - prompts / physical, rel=1e-12)
    rows = steps.columns()
    assert list(rows["logical_slots"]) == [4 * logical for logical, _ in blocks]
    assert list(rows["allocated_slots"]) == [4 * physical for _, physical in blocks]


def test_a_series_holds_averages_of_both() -> None:
    """Intervals of two steps."""
    _, steps, series = run(10, 6, 3)
    for name in ("logical_slots", "allocated_slots"):
        single = list(steps.columns()[name])
        pairs = [(a + b) / 2 for a, b in zip(single[::2], single[1::2], strict=True)]
        assert list(series.columns()[name]) == pairs


def test_only_the_window_counts_by_its_overlap() -> None:
    """Steps 2 and 3 of 6, and half of step 4; averages by step take those that start inside."""
    sharing, _, _ = run(10, 6, 3, window=(1 * NS, 3 * NS + NS // 2))
    (l1, p1), (l2, p2), (l3, p3) = (closed_form(10, j, 3) for j in (1, 2, 3))
    counts = sharing.counts(None)
    assert counts["logical_blocks"] == pytest.approx((l1 + l2 + l3 / 2) / 2.5, rel=1e-12)
    assert counts["physical_blocks"] == pytest.approx((p1 + p2 + p3 / 2) / 2.5, rel=1e-12)
    ratio = (l1 / p1 + l2 / p2 + l3 / p3) / 3
    assert counts["saving_by_step"] == pytest.approx(1 - 1 / ratio, rel=1e-12)
    assert counts["copied_bytes"] is None


def test_idle_time_holds_nothing_and_no_time_gives_no_figure() -> None:
    """Three idle seconds before six steps."""
    late, _, _ = run(10, 6, 3, arrival_ns=3 * NS)
    now, _, _ = run(10, 6, 3)
    idle = late.counts(None)["physical_blocks"]
    busy = now.counts(None)["physical_blocks"]
    assert idle is not None
    assert busy is not None
    assert idle == pytest.approx(busy * 6 / 9, rel=1e-12)
    nothing, _, _ = run(10, 6, 3, window=(100 * NS, 101 * NS))
    counts = nothing.counts(None)
    assert counts["logical_blocks"] is counts["saving"] is counts["saving_by_step"] is None
    assert counts["prompt_share"] is None


def test_a_prompt_that_two_requests_of_a_tree_share_counts_once() -> None:
    """Two whole blocks of the parent's prompt, and one that holds the child's ninth token."""
    allocator = BranchingAllocator(200, 4, null_block=False)
    scheduler = GroupScheduler(
        allocator, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=64
    )
    sharing = SharingRecorder(allocator, groups=scheduler.groups.values)
    requests = [Request("p", 0, 8, 6), Request("c", NS, 9, 2, fork=Fork("p", 8))]
    run_replica(requests, scheduler, FixedClock(1.0), sharing)
    physical, prompt = [2, 4, 4, 3, 3, 4], [2, 3, 3, 2, 2, 2]  # the child runs in steps 2 and 3
    counts = sharing.counts(None)
    assert counts["physical_blocks"] == pytest.approx(sum(physical) / 6, rel=1e-12)
    assert counts["prompt_share"] == pytest.approx(sum(prompt) / sum(physical), rel=1e-12)


def test_the_moves_of_compaction_are_not_copies_of_branching() -> None:
    """Three requests copy a prompt of 4 tokens once; the last fits only once others have moved."""
    allocator = ContiguousBranches(
        70, 1, max_model_len=64, reserve="oracle", placement="first_fit", compaction=True
    )
    scheduler = GroupScheduler(
        allocator, max_num_seqs=16, max_num_batched_tokens=64, max_model_len=64
    )
    sharing = SharingRecorder(allocator, groups=scheduler.groups.values)
    outputs = ((0, 3), (0, 20), (4, 7))
    requests = [
        Request(f"r{i}", at_s * NS, 4, output, branches=Branching("parallel", 2))
        for i, (at_s, output) in enumerate(outputs)
    ]
    clock = CopyCounter()
    run_replica(requests, scheduler, clock, sharing)
    assert clock.copies > 3
    counts = sharing.counts(None)
    assert (counts["copies"], counts["copied_tokens"]) == (3, 12)


class CopyCounter(FixedClock):
    """A second per step; counts all copies that steps make."""

    def __init__(self) -> None:
        super().__init__(1.0)
        self.copies = 0

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        self.copies += len(plan.copies)
        return super().step_seconds(plan)
