"""Requests with branches through a simulated replica."""

from __future__ import annotations

import pytest

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.request import Branching, Request
from kvsim.cost import FixedClock
from kvsim.results.recorder import SummaryRecorder
from kvsim.sim.replica import run_replica


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
