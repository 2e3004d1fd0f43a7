"""Static batches: who delivers when, what padding costs, and what happens when memory ends."""

from __future__ import annotations

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.request import Request
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.sim import run_replica
from tests.sim.test_closed_forms import STEP_NS, Fixed, Integrals


def test_a_member_delivers_its_last_token_in_time_but_keeps_its_memory_until_the_batch_ends() -> (
    None
):
    allocator = ContiguousAllocator(100, 16, max_model_len=256, reserve="oracle")
    scheduler = StaticScheduler(allocator, max_num_seqs=2, max_model_len=256)
    for name, output in (("short", 2), ("long", 5)):
        scheduler.add(Request(name, 0, 10, output))
    held, ended, padded = [], [], []
    while scheduler.has_work():
        plan = scheduler.schedule()
        held.append(allocator.usage.allocated)
        padded.append(plan.padded_decodes)
        ended.append([s.request.request_id for s in scheduler.complete(plan)])
    assert ended == [[], ["short"], [], [], ["long"]]
    assert padded == [0, 0, 1, 1, 1]
    assert held == [32] * 5
    assert allocator.usage.allocated == 0


def test_latencies_of_a_static_batch_agree_with_each_other() -> None:
    allocator = ContiguousAllocator(100, 16, max_model_len=256, reserve="oracle")
    scheduler = StaticScheduler(allocator, max_num_seqs=2, max_model_len=256)
    recorder = Integrals()
    run_replica([Request("a", 0, 10, 2), Request("b", 0, 10, 101)], scheduler, Fixed(), recorder)
    times = {
        s.request.request_id: (s.first_token_ns // STEP_NS, s.finished_ns // STEP_NS)
        for s, _ in recorder.ended
    }
    assert times == {"a": (1, 2), "b": (1, 101)}


def test_a_padded_batch_computes_every_row_at_the_width_of_the_longest() -> None:
    """Prompts of 1,000 and 10: the tensor of the second step has 2 x 1,001 cells."""
    scheduler = StaticScheduler(
        GrowAllocator(5000, 1), max_num_seqs=2, max_model_len=2000, pad_prompts=True
    )
    scheduler.add(Request("a", 0, 1000, 3))
    scheduler.add(Request("b", 0, 10, 2))
    plan = scheduler.schedule()
    assert [chunk.new_tokens for chunk in plan.chunks] == [1000, 1000]
    assert plan.prefill_tokens == 1010
    scheduler.complete(plan)
    contexts = []
    while scheduler.has_work():
        plan = scheduler.schedule()
        contexts.append((plan.decode_context_tokens, plan.num_decodes, plan.padded_decodes))
        scheduler.complete(plan)
    assert contexts == [(2 * 1001, 2, 0), (2 * 1002, 1, 1)]


def test_a_batch_that_cannot_grow_is_tried_again_with_half_its_members() -> None:
    """100 slots: four rows of 15 fit once, not twice; two rows can grow up to 25 wide."""
    scheduler = StaticScheduler(GrowAllocator(100, 1), max_num_seqs=4, max_model_len=40)
    for index in range(4):
        scheduler.add(Request(f"r{index}", 0, 10, 9))
    preempted, batches = [], []
    while scheduler.has_work():
        plan = scheduler.schedule()
        preempted.append(len(plan.preempted))
        batches.append(len(plan.admitted))
        scheduler.complete(plan)
    assert [count for count in preempted if count] == [4]
    assert [count for count in batches if count] == [4, 2, 2]
