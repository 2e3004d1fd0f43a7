"""Requests with branches through a simulated replica."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.request import Branching, Request, Sequence
from kvsim.cost import FixedClock
from kvsim.cost.transfers import Link, TransferClock
from kvsim.results.recorder import SummaryRecorder
from kvsim.sim.replica import RunEnd, run_replica

S = 1_000_000_000


@pytest.mark.parametrize("branching", [Branching("parallel", 3), Branching("beam", 3)])
@pytest.mark.parametrize("blocks", [60, 16])
def test_a_replica_serves_groups_and_records_one_request_each(
    branching: Branching, blocks: int
) -> None:
    """In little memory groups are preempted, and every request still ends once."""
    allocator = BranchingAllocator(blocks, 4, null_block=False)
    scheduler = GroupScheduler(
        allocator, max_num_seqs=9, max_num_batched_tokens=64, max_model_len=64
    )
    recorder = SummaryRecorder(allocator)
    requests = [Request(f"r{i}", 0, 9, 12, branches=branching) for i in range(6)]
    end = run_replica(requests, scheduler, FixedClock(0.5), recorder)
    assert end.stuck is None
    summary = recorder.summary()
    assert summary["requests"]["finished"] == 6
    assert (summary["preemptions"] > 0) == (blocks == 16)
    assert summary["ttft_s"]["count"] == 6
    if blocks == 60:
        # Two batches of three groups: 12 tokens each, a step per token.
        assert end.duration_ns == 24 * 500_000_000
        assert summary["batch"]["mean"] == 3
    allocator.check_integrity([])


class Recorder(SummaryRecorder):
    """Keeps the sequences that ended."""

    def __init__(self, *arguments: Any, **settings: Any) -> None:
        super().__init__(*arguments, **settings)
        self.ended: list[Sequence] = []

    def request(self, sequence: Sequence, outcome: str) -> None:
        super().request(sequence, outcome)
        self.ended.append(sequence)


def run(
    requests: list[Request],
    blocks: int,
    *,
    host_blocks: int = 100,
    clock: Any = None,
    window: tuple[int, int] | None = None,
    **given: Any,
) -> tuple[RunEnd, Recorder, GroupScheduler]:
    """Blocks of 4 tokens, 0.5 s per step."""
    allocator = BranchingAllocator(blocks, 4, null_block=False, host_blocks=host_blocks)
    common = {"max_num_seqs": 9, "max_num_batched_tokens": 64, "max_model_len": 200}
    scheduler = GroupScheduler(allocator, **(common | {"preemption": "swap"} | given))
    recorder = Recorder(allocator, window=window, max_num_seqs=scheduler.max_num_seqs)
    end = run_replica(requests, scheduler, clock or FixedClock(0.5), recorder)
    return end, recorder, scheduler


def test_a_swapped_group_waits_from_its_last_token_to_the_next() -> None:
    """6 blocks: 'b' gets its fifth token at 2.5 s and, swapped out until step 11, the sixth at 5.5.

    20 tokens, of which 2 are first ones: 17 gaps of a step and one of 3 s.
    """
    requests = [Request(name, 0, 8, 10) for name in "ab"]
    end, recorder, scheduler = run(requests, 6)
    summary = recorder.summary()
    itl = recorder.histograms()["itl_s"]
    assert end.duration_ns == 15 * S // 2
    assert scheduler.swap_counts()["swapped_in_groups"] == 1
    assert (itl.count, itl.max_ns, itl.min_ns, itl.sum_ns) == (18, 3 * S, S // 2, 23 * S // 2)
    assert summary["tokens"] == {"prompt": 16, "output": 20, "scheduled": 34, "recomputed": 0}
    assert summary["measured"]["output_tokens"] == 20
    assert summary["preemptions"] == 1
    # Swapped out in steps 6 to 10: it waits for memory.
    assert (summary["queued_steps"], summary["short_of_memory_steps"]) == (5, 5)


def test_only_deliveries_inside_the_window_count_for_a_group_that_comes_back() -> None:
    """Its token of 5.5 s belongs to the window that ends then, not to the one that starts then."""
    requests = [Request(name, 0, 8, 10) for name in "ab"]
    for window, count, longest in (
        ((5 * S, 11 * S // 2), 1, 3 * S),
        ((11 * S // 2, 15 * S // 2), 4, S // 2),
        ((5 * S, 15 * S // 2), 5, 3 * S),
    ):
        _, recorder, _ = run(requests, 6, window=window)
        itl = recorder.histograms()["itl_s"]
        assert (itl.count, itl.max_ns) == (count, longest)
        assert recorder.summary()["measured"]["output_tokens"] == count


@settings(max_examples=100)
@given(
    rows=st.lists(
        st.tuples(st.integers(0, 4), st.integers(1, 16), st.integers(1, 24), st.integers(1, 4)),
        min_size=2,
        max_size=8,
    ),
    slack=st.integers(0, 6),
    host_blocks=st.sampled_from([0, 8, 100]),
    preemption=st.sampled_from(["swap", "recompute"]),
)
def test_gaps_between_tokens_add_up_and_every_branch_is_counted(
    rows: list[tuple[int, int, int, int]], slack: int, host_blocks: int, preemption: str
) -> None:
    """Per branch the gaps telescope to the time from the first to the last token."""
    requests = [
        Request(f"r{i}", i * gap * S, prompt, output, branches=Branching("parallel", n))
        for i, (gap, prompt, output, n) in enumerate(rows)
    ]
    requests.sort(key=lambda one: one.arrival_ns)
    blocks = max(p // 4 + n * (-(-(p + o) // 4) - p // 4) for _, p, o, n in rows)
    end, recorder, _ = run(requests, blocks + slack, host_blocks=host_blocks, preemption=preemption)
    assert end.stuck is None
    summary, itl = recorder.summary(), recorder.histograms()["itl_s"]
    width = {one.request_id: one.branches.width for one in requests if one.branches}
    output = sum(one.output_tokens * width[one.request_id] for one in requests)
    assert summary["requests"]["finished"] == len(rows)
    assert summary["tokens"]["output"] == summary["measured"]["output_tokens"] == output
    rate = summary["throughput"]["output_tokens_per_s"]
    assert rate == pytest.approx(output * S / end.duration_ns)
    assert itl.count == output - sum(width.values())
    assert itl.sum_ns == sum(
        width[s.request.request_id] * (s.finished_ns - s.first_token_ns) for s in recorder.ended
    )


def test_latencies_per_token_are_those_of_one_branch() -> None:
    """12 tokens in 12 steps of 0.5 s, however many branches there are."""
    for branches in (None, Branching("parallel", 3)):
        _, recorder, _ = run([Request("r", 0, 9, 12, branches=branches)], 60)
        summary = recorder.summary()
        assert summary["tpot_s"]["mean"] == 0.5
        assert summary["normalized_latency_s_per_token"]["mean"] == 0.5


def test_steps_with_a_queue_at_max_num_seqs_count_branches() -> None:
    """Two groups of 3 fill max_num_seqs = 6 for the 8 steps in which the third group waits."""
    requests = [Request(f"r{i}", 0, 4, 8, branches=Branching("parallel", 3)) for i in range(3)]
    _, recorder, _ = run(requests, 100, max_num_seqs=6)
    summary = recorder.summary()
    assert (summary["queued_steps"], summary["queued_steps_at_max_num_seqs"]) == (8, 8)
    assert summary["batch"]["max"] == 2


def test_the_clock_sees_every_transfer() -> None:
    """12 tokens in 3 blocks each way: 12 * 1 B at 1 B/s out, at 2 B/s in, and 1 s per block."""
    links = {
        "swap_out": Link(1, 1.0, copy_s=1.0),
        "swap_in": Link(1, 2.0, copy_s=1.0),
    }
    requests = [Request(name, 0, 8, 10) for name in "ab"]
    end, _, _ = run(requests, 6, clock=TransferClock(FixedClock(0.5), links))
    assert end.duration_ns == round((7.5 + 12 + 3 + 6 + 3) * S)


@pytest.mark.parametrize("later", [False, True])
def test_a_group_that_outgrows_the_memory_is_found_stuck_when_nobody_else_can_advance(
    later: bool,
) -> None:
    """It is not swapped: whoever else fits finishes, whenever it comes, and the run ends."""
    requests = [
        Request("big", 0, 12, 60, branches=Branching("parallel", 2)),
        Request("small", 0, 4, 30),
    ]
    if later:
        requests.append(Request("later", 200 * S, 4, 3))
    end, recorder, _ = run(requests, 14, on_never_fits="block", reserve_full_isl=False)
    assert end.stuck is not None
    assert end.stuck.head_request_id == "big"
    assert "outgrew the whole memory" in end.stuck.reason
    assert recorder.summary()["requests"]["unfinished"] == 1
    assert recorder.summary()["requests"]["finished"] == 1 + later
