"""The ancestry of beams: who shares what with whom."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.request import Request
from tests.core.group_runs import MODEL_LEN, Device, request, scheduler, seeded_draw, steps


def held(engine: GroupScheduler) -> list[list[int]]:
    return [list(branch.table) for branch in engine.running()]


def test_beams_that_each_continue_themselves_are_parallel_samples() -> None:
    runs = []
    for branching in (("parallel", 4), ("beam", 4, "independent")):
        engine = scheduler(200, 4)
        engine.add(request("r", 10, 20, *branching))
        runs.append([(held(engine), plan.copies) for plan in steps(engine)])
    assert runs[0] == runs[1]


def test_a_trace_of_parents_is_followed() -> None:
    """Blocks of one token show the ancestry: survivor i holds what its parent held."""
    parents = ((2, 2, 0), (1, 0, 0), (2, 2, 2))
    engine = scheduler(40, 1)
    engine.add(request("r", 1, 5, "beam", 3, "trace", parents))
    tables = [held(engine) for _ in steps(engine)]
    assert len(tables) == 5
    for before, after, row in zip(tables[1:-1], tables[2:], parents, strict=True):
        for survivor, parent in enumerate(row):
            assert after[survivor][:-1] == before[parent]
    assert [len({block for t in table for block in t}) for table in tables] == [1, 4, 6, 7, 7]


def test_survivors_are_drawn_once_per_generation_even_when_the_group_is_recomputed() -> None:
    """After the second token, the third, ... but not after the last."""
    asked: list[tuple[str, int, int]] = []
    draw = seeded_draw(3)

    def noting_draw(request: Request, generation: int, survivor: int) -> int:
        asked.append((request.request_id, generation, survivor))
        return draw(request, generation, survivor)

    engine = GroupScheduler(
        BranchingAllocator(16, 2, null_block=False),
        max_num_seqs=9,
        max_num_batched_tokens=50,
        max_model_len=MODEL_LEN,
        draw=noting_draw,
    )
    roots = [engine.add(request(name, 3, 9, "beam", 2, "wright_fisher")) for name in "abc"]
    for _ in steps(engine):
        pass
    assert sum(root.preemptions for root in roots)
    expected = [(name, g, i) for name in "abc" for g in range(1, 8) for i in range(2)]
    assert sorted(asked) == expected


@pytest.mark.parametrize(
    ("k", "expected"),
    [
        (2, [2.0, 1.5, 1.25, 1.125]),
        (4, [4.0, 2.734, 2.147, 1.806]),
        (6, [6.0, 3.991, 3.072, 2.538]),
    ],
)
def test_neutral_ancestry_leaves_the_expected_number_of_distinct_ancestors(
    k: int, expected: list[float]
) -> None:
    """Closed form 5: copies of a block are the ancestors, t generations back, of the k beams.

    3,000 independent requests; five standard errors of a mean whose terms lie in 1..k.
    """
    draws = 3000
    engine = scheduler(20 * k, 1, max_num_seqs=k)
    for index in range(draws):
        engine.add(request(f"r{index}", 1, 6, "beam", k, "wright_fisher"))
    found = [0, 0, 0, 0]
    for _ in steps(engine):
        tables = held(engine)
        if len(tables[0]) == 6:
            for back in range(4):
                found[back] += len({table[-1 - back] for table in tables})
    tolerance = 5 * (k - 1) / 2 / math.sqrt(draws) + 0.0005
    assert found[0] == k * draws
    for back, mean in enumerate(expected):
        assert abs(found[back] / draws - mean) < tolerance
        if k == 2:
            assert mean == 1 + 2**-back


@settings(max_examples=60)
@given(
    k=st.integers(2, 6),
    prompt=st.integers(1, 40),
    output=st.integers(2, 60),
    block_size=st.sampled_from([1, 4, 16]),
    seed=st.integers(0, 10**6),
)
def test_beams_save_at_least_as_much_as_parallel_samples_and_at_most_all_but_the_last_block(
    k: int, prompt: int, output: int, block_size: int, seed: int
) -> None:
    """Bounds of closed form 5: parallel(n=k) <= saving <= (1-1/k)(1-1/nb)."""
    engine = GroupScheduler(
        BranchingAllocator(900, block_size),
        max_num_seqs=k,
        max_num_batched_tokens=100,
        max_model_len=MODEL_LEN,
        draw=seeded_draw(seed),
    )
    engine.add(request("r", prompt, output, "beam", k, "wright_fisher"))
    device = Device(engine)
    for generated, plan in enumerate(steps(engine)):
        device.run(plan)
        own = -(-(prompt + generated) // block_size)
        if generated:
            counts = engine.memory.sharing_counts()
            full = prompt // block_size
            assert counts["logical_blocks"] == k * own
            assert own - 1 + k <= counts["physical_blocks"] <= full + k * (own - full)
