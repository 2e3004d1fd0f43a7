"""Memory over virtual addresses decides as paged memory does, whole runs long."""

from __future__ import annotations

from typing import Any

from hypothesis import event, given, settings
from hypothesis import strategies as st

from kvsim.core.accounting import split
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.vmm import VmmAllocator
from tests.core.test_vmm import scheduler


def decisions(engine: VllmScheduler, queue: list[Request]) -> list[tuple[Any, ...]]:
    """What every step of a run decided and left behind."""
    rows, step, queue = [], 0, list(queue)
    while queue or engine.has_work():
        while queue and queue[0].arrival_ns <= step:
            request = queue.pop(0)
            reason = engine.refuse(request)
            rows.append((request.request_id, None if reason is None else reason.split(":")[0]))
            if reason is None:
                engine.add(request)
        step += 1
        assert step < 20_000, "the run does not end"
        if not engine.has_work():
            continue
        plan = engine.schedule()
        memory = engine.allocator
        memory.check_integrity(engine.running())
        terms = split(
            memory.usage,
            live_tokens=plan.live_tokens,
            capacity=memory.capacity_slots,
            reserves_ahead=memory.reserves_ahead,
            held_up=plan.head_held_up,
        )
        assert terms.total == memory.capacity_slots
        tables = [(one.request.request_id, tuple(one.table)) for one in engine.running()]
        names = [
            [one.request.request_id for one in group]
            for group in (plan.admitted, plan.preempted, plan.prefills, plan.joined)
        ]
        counts = (plan.num_decodes, plan.prefill_tokens, plan.recomputed_tokens, plan.num_waiting)
        rows.append((terms, tables, names, counts, plan.chunks, plan.head_short_of_memory))
        rows.append(tuple(one.request.request_id for one in engine.complete(plan)))
    return rows


ROWS = st.lists(
    st.tuples(st.integers(0, 6), st.integers(1, 90), st.integers(1, 60)), min_size=1, max_size=14
)


@settings(max_examples=150)
@given(
    rows=ROWS,
    page_sets=st.integers(2, 40),
    tokens_per_page=st.sampled_from([1, 4, 16, 32]),
    seqs=st.integers(1, 8),
    watermark=st.sampled_from([0.0, 0.1]),
    full_prompts=st.booleans(),
    keep=st.booleans(),
)
def test_it_decides_every_step_as_paged_memory_with_page_sets_for_blocks(
    rows: list[tuple[int, int, int]],
    page_sets: int,
    tokens_per_page: int,
    seqs: int,
    watermark: float,
    full_prompts: bool,
    keep: bool,
) -> None:
    queue, arrival = [], 0
    for index, (gap, prompt, output) in enumerate(rows):
        arrival += gap
        queue.append(Request(f"r{index}", arrival, prompt, output))
    flags = {"max_num_seqs": seqs, "watermark": watermark, "reserve_full_isl": full_prompts}
    paged = PagedAllocator(page_sets, tokens_per_page, null_block=False)
    vmm = VmmAllocator(page_sets, tokens_per_page, keep_mapped_pages=keep)
    expected = decisions(scheduler(paged, **flags), queue)
    assert decisions(scheduler(vmm, **flags), queue) == expected
    preempted = any(len(row) == 6 and row[2][1] for row in expected)
    event(f"preempts: {preempted}")
