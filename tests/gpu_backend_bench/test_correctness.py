from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch

from gpu_backend import ops
from gpu_backend.bench import correctness
from gpu_backend.bench.correctness import Case, attention_cases, tiny_cases
from gpu_backend.bench.poison import (
    FREE_BLOCKS,
    RUBBISH_BLOCK,
    Shape,
    expected,
    judge,
    poisoned_batch,
)
from tests.gpu_backend_bench.benches import CPU, tiny_bench

Change = Callable[[torch.Tensor], torch.Tensor]


def test_every_tiny_case_is_right() -> None:
    rows = list(correctness.measure(tiny_bench()))
    assert [row["case"] for row in rows if not row["correct"]] == []
    words = {row["case"].split()[0] for row in rows}
    assert words == {
        "paged", "contiguous",
        "reshape_and_cache", "copy_blocks", "swap_out_blocks", "swap_in_blocks",
    }  # fmt: skip
    assert len(rows) == len(tiny_cases()) + 4 * 3 * 2


@pytest.mark.parametrize("kind", ["decode", "prefill"])
def test_the_cases_cover_what_the_kernels_promise(kind: str) -> None:
    cases = [case for case in attention_cases() if case.kind == kind]
    paged = [case.shape for case in cases if case.paged]
    assert {shape.dtype for shape in paged} == {torch.float32, torch.float16, torch.bfloat16}
    assert {shape.block_size for shape in paged} >= {1, 5, 16, 128}
    assert {shape.head_dim for shape in paged} >= {64, 80, 128, 256}
    assert {shape.layout for shape in paged} == {"nhd", "hnd"}
    assert {shape.group for shape in paged} >= {1, 4, 7, 20}
    assert any(shape.window for shape in paged)
    assert any(shape.soft_cap for shape in paged)
    assert any(not case.paged and case.shape.window for case in cases)
    assert len({case.name for case in attention_cases()}) == len(attention_cases())


def count_nan(tensor: torch.Tensor, axes: tuple[int, ...]) -> int:
    return int(tensor.isnan().all(dim=axes).sum())


@pytest.mark.parametrize(("layout", "axes"), [("nhd", (2, 3)), ("hnd", (1, 3))])
def test_all_that_is_unused_is_poisoned(layout: str, axes: tuple[int, ...]) -> None:
    batch = poisoned_batch(Shape(layout=layout, block_size=5, head_dim=8), [7, 10, 0], device=CPU)
    blocks, used = 2 + 2 + FREE_BLOCKS + 1, 17
    for cache in batch.cache:
        assert cache.shape[0] == blocks
        assert count_nan(cache, axes) == blocks * 5 - used
    assert batch.block_table.shape == (3, 4)
    assert int((batch.block_table == RUBBISH_BLOCK).sum()) == 12 - 4
    assert int(batch.block_table.min()) == 1  # block 0, what a masked entry reads as, is free
    for arena in batch.arena:
        assert count_nan(arena, (1, 2)) == arena.shape[0] - used
    assert bool(batch.out.isnan().all())


def test_what_lies_before_a_window_is_poisoned_too() -> None:
    batch = poisoned_batch(Shape(block_size=4, head_dim=8, window=3), [10], [2], device=CPU)
    # Queries at 8 and 9 see tokens 6 to 9; the first block is not even named.
    assert count_nan(batch.arena[0], (1, 2)) == batch.arena[0].shape[0] - 4
    assert (batch.block_table[0] == RUBBISH_BLOCK).tolist() == [True, False, False, True, True]


def test_a_result_is_judged_by_the_rounding_of_its_type() -> None:
    wanted, magnitude = torch.tensor([1.0, 0.0, 2.0]).double(), torch.tensor([1.0, 0.0, 4.0])
    right = judge(torch.tensor([1.0, 0.0, 2.00003]), wanted, magnitude)
    assert right["correct"]
    assert right["max_error"] == pytest.approx(0.75e-5, rel=0.02)
    assert not judge(torch.tensor([1.00002, 0.0, 2.0]), wanted, magnitude)["correct"]
    assert not judge(torch.tensor([1.0, 1e-30, 2.0]), wanted, magnitude)["correct"]
    nan = judge(torch.tensor([1.0, 0.0, float("nan")]), wanted, magnitude)
    assert (nan["correct"], nan["nan"]) == (False, 1)
    half = judge(torch.tensor([1.001, 0, 2], dtype=torch.float16), wanted, magnitude)
    assert half["correct"]
    none = judge(torch.zeros(0), torch.zeros(0).double(), torch.zeros(0).double())
    assert none["correct"]


def test_the_magnitude_is_the_mean_of_absolute_values() -> None:
    batch = poisoned_batch(Shape(head_dim=8, dtype=torch.float32), [9], device=CPU)
    plain = expected(batch, "decode", paged=True)
    magnitude = expected(batch.magnitude, "decode", paged=True)
    assert bool((magnitude > plain.abs()).all())
    assert torch.equal(magnitude, expected(batch.magnitude, "decode", paged=False))


CHANGES: dict[str, Change] = {
    "one element": lambda out: out.index_fill(-1, torch.tensor([0]), 3.0),
    "a little": lambda out: out * 1.02,
    "NaN": lambda out: out * float("nan"),
    "nothing written": lambda out: torch.full_like(out, float("nan")),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
@pytest.mark.parametrize("name", ["paged_decode", "contiguous_decode", "paged_prefill"])
def test_a_wrong_kernel_is_noticed(
    name: str, change: Change, monkeypatch: pytest.MonkeyPatch
) -> None:
    right = getattr(ops, name)
    monkeypatch.setattr(ops, name, lambda *a, **k: change(right(*a, **k)))
    kind, paged = name.split("_")[1], name.startswith("paged")
    case = Case(kind, tiny_cases()[2].shape, paged=paged)
    row = correctness.check_attention(case, tiny_bench())
    assert row["correct"] is False


@pytest.mark.parametrize(
    "name", ["reshape_and_cache", "copy_blocks", "swap_out_blocks", "swap_in_blocks"]
)
def test_a_copy_that_does_nothing_is_noticed(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ops, name, lambda *a, **k: None)
    rows = list(correctness.check_cache_ops(tiny_bench(), torch.float16, "hnd", 3))
    wrong = [row["case"].split()[0] for row in rows if not row["correct"]]
    assert name in wrong


@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # numpy on NaN, in the interpreter
def test_a_kernel_that_reads_a_free_block_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    right = ops.paged_decode

    def free_block(
        query: Any, keys: Any, values: Any, table: Any, lens: Any, **options: Any
    ) -> Any:
        return right(query, keys, values, table.clamp(max=0), lens, **options)

    monkeypatch.setattr(ops, "paged_decode", free_block)  # every block is the free block 0
    row = correctness.check_attention(tiny_cases()[0], tiny_bench())
    assert (row["correct"], row["nan"] > 0) == (False, True)


def test_a_kernel_that_cannot_run_is_wrong_and_the_next_case_follows(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: Any, **__: Any) -> torch.Tensor:
        raise RuntimeError("out of resource: shared memory")

    monkeypatch.setattr(ops, "paged_prefill", refuse)
    rows = list(correctness.measure(tiny_bench()))
    wrong = [row for row in rows if not row["correct"]]
    assert {row["error"] for row in wrong} == {"RuntimeError"}
    assert all("paged prefill" in row["case"] for row in wrong)
    assert len(rows) > len(wrong) > 0
