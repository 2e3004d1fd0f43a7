from __future__ import annotations

import threading
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

pytest.importorskip("numba")

from gpu_backend.cpu import bandwidth
from gpu_backend.cpu.micro import AttentionMeter, measure_step
from gpu_backend.cpu.threads import available_threads, run_on_threads
from tests.gpu_backend_cpu.batches import Array


@pytest.fixture(scope="module")
def meter() -> AttentionMeter:
    return AttentionMeter(8, 2, 64, slots=1000, num_threads=1)


@pytest.mark.parametrize("threads", [1, 2])
def test_the_ceiling_reads_everything_once(threads: int) -> None:
    values = np.zeros(3 * bandwidth.PIECE, np.float32)
    values[[0, 70_000, -1]] = 1, 2, 4
    assert bandwidth.read_once(values, num_threads=threads) == 7


def test_the_last_level_cache_is_the_largest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bandwidth, "_CACHES", tmp_path)
    assert bandwidth.last_level_cache_bytes() == 64 << 20
    for index, size in enumerate(["48K", "2048K", "30M"]):
        (tmp_path / f"index{index}").mkdir()
        (tmp_path / f"index{index}" / "size").write_text(size + "\n")
    assert bandwidth.last_level_cache_bytes() == 30 << 20


def test_the_kernel_runs_on_this_thread_and_on_helpers() -> None:
    seen = set()
    gate = threading.Barrier(2, timeout=20)

    def kernel(offset: int, counter: Array) -> None:
        assert (offset, counter[0]) == (5, 0)
        seen.add(threading.get_ident())
        gate.wait()

    run_on_threads(kernel, 5, num_threads=2)
    assert len(seen) == 2
    assert threading.get_ident() in seen
    assert available_threads() >= 1
    with pytest.raises(ValueError, match="num_threads must be >= 1, got 0"):
        run_on_threads(kernel, 5, num_threads=0)


@pytest.mark.parametrize("block_size", [16, 7, None])
@pytest.mark.parametrize("queries", [None, [1, 20, 3]])
def test_a_step_of_any_batch_is_timed(
    meter: AttentionMeter, block_size: int | None, queries: list[int] | None
) -> None:
    seconds = measure_step(meter, [300, 20, 33], block_size=block_size, queries=queries, repeats=2)
    assert 0 < seconds.wall < 10
    assert 0 < seconds.cpu < 10
    assert meter.step_bytes([300, 20, 33]) == 2 * 4 * 2 * 64 * 353


def test_a_step_with_far_more_context_takes_longer() -> None:
    """250 times the tokens: more than what a busy machine adds to a step of microseconds."""
    meter = AttentionMeter(8, 2, 64, slots=20_000, num_threads=1)
    short, long = (
        min(meter.step([length] * 8, block_size=16).cpu for _ in range(5)) for length in (8, 2000)
    )
    assert long > 3 * short


def test_extents_lie_apart_within_the_arena(meter: AttentionMeter) -> None:
    lens = np.array([300, 1, 0, 200])
    for _ in range(20):
        _, _, starts = meter._contiguous(lens)
        spans = sorted(zip(starts, starts + lens, strict=True))
        assert spans[0][0] >= 0
        assert spans[-1][1] <= 1000
        assert all(a[1] <= b[0] for a, b in pairwise(spans))


def test_a_batch_larger_than_the_memory_is_refused(meter: AttentionMeter) -> None:
    with pytest.raises(ValueError, match="needs 63 blocks of 16, got 62"):
        meter.step([1000], block_size=16)
    with pytest.raises(ValueError, match="needs 1001 slots, got 1000"):
        meter.step([1001], block_size=None)
