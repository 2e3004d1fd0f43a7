"""The timed sections with times that are given: what they make of them."""

from __future__ import annotations

import pytest
import torch

from gpu_backend.bench import cache_ops, decode, paging, prefill
from gpu_backend.bench.bench import OutOfTime
from gpu_backend.bench.ceiling import TINY_CONFIGS, MatmulCeiling, ReadCeiling
from gpu_backend.bench.pool import MAX_REPETITIONS, Point, Pool
from tests.gpu_backend_bench.benches import FixedStopwatch, tiny_bench

TOKEN_BYTES = 2 * 2 * 16 * 2  # K and V, 2 heads of 16, bfloat16


@pytest.mark.parametrize("config", TINY_CONFIGS)
def test_the_read_ceiling_reads_every_element(config: tuple[int, int, int]) -> None:
    bench = tiny_bench(4.0, 2.0, 2.0)
    buffer = torch.randint(-(2**31), 2**30, (8192,), dtype=torch.int32)
    ceiling = ReadCeiling(bench, buffer)
    size = config[0] * config[1]
    for at in (0, 255, 256, size - 1, 8191):
        buffer[at] = 2**31 - 1 - at
        largest = ceiling.read(config)
        assert torch.equal(largest, buffer.view(-1, size).max(1).values)


def test_the_read_ceiling_is_that_of_the_best_settings() -> None:
    ceiling = ReadCeiling(tiny_bench(4.0, 2.0), torch.zeros(8192, dtype=torch.int32))
    assert ceiling.config == TINY_CONFIGS[1]
    assert ceiling.gb_per_s() == pytest.approx(4 * 8192 / 2.0 / 1e3)
    assert ceiling.row()["kind"] == "ceiling"


def test_a_read_ceiling_needs_more_than_the_cache() -> None:
    with pytest.raises(ValueError, match="is below 16384"):
        ReadCeiling(tiny_bench(), torch.zeros(4000, dtype=torch.int32))


def test_the_matrix_ceiling_is_the_best_size() -> None:
    assert MatmulCeiling(tiny_bench(1.0, 2.0)).tflop_per_s() == pytest.approx(
        max(2 * 32**3 / 1.0, 2 * 64**3 / 2.0) / 1e6
    )


@pytest.mark.parametrize("block_size", [1, 5, 16])
def test_no_block_is_in_two_tables_and_the_cache_is_exceeded(block_size: int) -> None:
    pool = Pool(tiny_bench(l2_bytes=16 << 10), 4000)
    point = Point(2, 33, block_size)
    tables = pool.tables(point, shuffled=True)
    ids = torch.cat([table.flatten() for table in tables])
    assert ids.unique().numel() == ids.numel()
    assert int(ids.max()) < pool.slots // block_size
    assert len(tables) * point.tokens * TOKEN_BYTES >= 64 << 10
    assert (len(tables) - 1) * point.tokens * TOKEN_BYTES < 64 << 10
    assert not torch.equal(ids.sort().values, ids)


def test_an_ordered_table_and_starts_are_the_same_places() -> None:
    pool = Pool(tiny_bench(l2_bytes=16 << 10), 2000)
    point = Point(3, 33, 5)
    query = pool.queries(point)
    ordered = pool.paged_calls(point, pool.tables(point, shuffled=False), query)
    contiguous = pool.contiguous_calls(point, query)
    assert len(ordered) == len(contiguous) > 1
    for paged, plain in zip(ordered[:2], contiguous[:2], strict=True):
        assert torch.equal(paged(), plain())
    scattered = pool.paged_calls(point, pool.tables(point, shuffled=True), query)
    assert not torch.equal(scattered[0](), ordered[0]())


def test_a_memory_is_as_large_as_asked_for_where_that_fits() -> None:
    assert Pool(tiny_bench(), 1000).slots == 1024
    small = Pool(tiny_bench(memory_bytes=100_000), 10**6)
    assert small.slots * TOKEN_BYTES <= 0.6 * 100_000 + 128 * TOKEN_BYTES
    assert not small.fits(Point(1, small.slots + 1))
    cold = Pool(tiny_bench(l2_bytes=1 << 16), 10)
    assert cold.slots * TOKEN_BYTES >= 4 << 16
    assert cold.repetitions(Point(1, 1, 1)) == MAX_REPETITIONS


def test_the_bytes_of_a_decode() -> None:
    pool = Pool(tiny_bench(), 2000)
    # 2 sequences of 40 tokens in 3 blocks of 16; the interpreter's chunks are 32 tokens.
    partial = 2 * 4 * 2 * 4 * 2 * (16 + 1)
    assert pool.moved_bytes(Point(2, 40)) == 80 * TOKEN_BYTES + 24 + 2 * 2 * 4 * 16 * 2 + partial
    assert pool.moved_bytes(Point(2, 32)) == 64 * TOKEN_BYTES + 16 + 2 * 2 * 4 * 16 * 2


def test_a_decode_row() -> None:
    pool = Pool(tiny_bench(5.0), 2000)
    row = decode.decode_row(pool, Point(2, 40), ceiling_gb_per_s=10.0)
    assert row["us"] == pytest.approx(5)
    assert row["gb_per_s"] == pytest.approx(pool.moved_bytes(Point(2, 40)) / 5e3)
    assert row["share"] == pytest.approx(row["gb_per_s"] / 10)
    assert row["kv_bytes"] == 80 * TOKEN_BYTES
    assert row["goal_met"] is None
    assert row["cold"] is True
    assert "skipped" in decode.decode_row(pool, Point(64, 4096), 10.0)


@pytest.mark.parametrize(("us", "met"), [(1.0, True), (1e9, False)])
def test_the_goal_is_for_large_batches_in_blocks_of_16(
    us: float, met: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(decode, "GOAL_BYTES", 80 * TOKEN_BYTES)
    pool = Pool(tiny_bench(us), 2000)
    assert decode.decode_row(pool, Point(2, 40, 16), 1.0)["goal_met"] is met
    assert decode.decode_row(pool, Point(2, 40, 5), 1.0)["goal_met"] is None
    assert decode.decode_row(pool, Point(2, 39, 16), 1.0)["goal_met"] is None


def test_the_ceiling_comes_before_each_group() -> None:
    rows = list(decode.measure(tiny_bench()))
    assert [row["kind"] for row in rows] == ["ceiling", "decode"] * 2
    assert rows[1]["ceiling_gb_per_s"] == rows[0]["gb_per_s"]


def test_the_full_grid_is_what_was_asked_for() -> None:
    every = [point for group in decode.points(tiny_bench(tiny=False)) for point in group]
    assert len(set(every)) == len(every) == 4 * 4 * 5
    assert {point.batch for point in every} == {1, 8, 64, 256}
    assert {point.context for point in every} == {512, 2048, 8192, 32768}
    assert {point.block_size for point in every} == {8, 16, 32, 64, 128}


def test_the_cost_of_paging() -> None:
    pool = Pool(tiny_bench(100.0, 104.0, 130.0), 2000)
    row = paging.paging_row(pool, Point(2, 40))
    assert row["table_cost"] == pytest.approx(0.04)
    assert row["order_cost"] == pytest.approx(0.25)
    assert row["paging_cost"] == pytest.approx(0.30)
    assert len(list(paging.measure(tiny_bench()))) == 2


@pytest.mark.parametrize(("chunk", "prior"), [(1, 0), (4, 3), (9, 20)])
def test_a_causal_chunk_sees_so_many_pairs(chunk: int, prior: int) -> None:
    expected = sum(prior + query + 1 for query in range(chunk))
    assert prefill.pairs_seen(chunk, prior) == expected


def test_a_prefill_row() -> None:
    pool = Pool(tiny_bench(50.0), 2000)
    row = prefill.prefill_row(pool, 4, 3, ceiling_tflop_per_s=2.0)
    assert row["operations"] == 4 * 4 * 16 * (3 + 1 + 3 + 2 + 3 + 3 + 3 + 4)
    assert row["tflop_per_s"] == pytest.approx(row["operations"] / 50e6)
    assert row["share"] == pytest.approx(row["tflop_per_s"] / 2)


def test_cache_operations_count_what_is_read_and_written() -> None:
    rows = list(cache_ops.measure(tiny_bench(2.0)))
    assert [row["operation"] for row in rows] == [
        "reshape_and_cache", "copy_blocks", "swap_out_blocks", "swap_in_blocks",
    ]  # fmt: skip
    assert rows[0]["bytes"] == 2 * 4 * TOKEN_BYTES
    assert rows[1]["bytes"] == 2 * 3 * 5 * TOKEN_BYTES
    assert rows[1]["gb_per_s"] == pytest.approx(rows[1]["bytes"] / 2e3)


def test_blocks_that_do_not_fit_are_not_moved(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_ops, "TINY_BLOCKS", (3, 900))
    rows = list(cache_ops.measure(tiny_bench(memory_bytes=100_000)))
    assert len(rows) == 5
    assert rows[-1]["skipped"].startswith("2 * 900 blocks")


def test_places_of_a_copy_are_disjoint() -> None:
    pool = Pool(tiny_bench(), 2000)
    ids = torch.cat(cache_ops._places(pool, 7, 60))
    assert ids.unique().numel() == ids.numel() == 56


@pytest.mark.parametrize("section", [decode, paging, prefill, cache_ops])
def test_every_section_stops_between_points(section: object) -> None:
    left = iter([1.0, 0.0])
    bench = tiny_bench(seconds_left=lambda: next(left))
    rows = section.measure(bench)  # type: ignore[attr-defined]
    with pytest.raises(OutOfTime):
        for _ in rows:
            pass
    assert isinstance(bench.stopwatch, FixedStopwatch)
    assert bench.stopwatch.prepared
