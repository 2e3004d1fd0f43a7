"""Generators: laws of arrivals and lengths, determinism, and what they refuse."""

from __future__ import annotations

import itertools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import (
    AllAtOnce,
    Arrivals,
    ClosedLoop,
    Constant,
    ConstantTokens,
    EmpiricalArrivals,
    Gamma,
    GeneratedWorkload,
    IndependentLengths,
    JointQuantiles,
    Lengths,
    LognormalTokens,
    PairLengths,
    Poisson,
    QuantileTokens,
    TokenLaw,
    UniformTokens,
    describe,
)

ONE = IndependentLengths(ConstantTokens(10), ConstantTokens(5))
EMPIRICAL = EmpiricalArrivals((0.0, 0.9, 1.0), (0.0, 1.0, 9.0), (30, 0, 10), 10.0, 25.0)
JOINT = JointQuantiles(
    QuantileTokens((0, 0.5, 1), (1, 100, 1000)), (0, 0.5, 1), ((1, 2, 3), (50, 60, 70))
)


def generated(arrivals: Arrivals, lengths: Lengths = ONE, **options: Any) -> GeneratedWorkload:
    return GeneratedWorkload(arrivals, lengths, **({"num_requests": 100, "seed": 0} | options))


def arrivals_ns(arrivals: Arrivals, **options: Any) -> list[int]:
    return [request.arrival_ns for request in generated(arrivals, **options)]


def test_constant_arrivals_are_i_over_rate_rounded_down() -> None:
    assert arrivals_ns(Constant(3.0), num_requests=4) == [0, 333_333_333, 666_666_666, 10**9]


def test_all_at_once_is_zero_and_open() -> None:
    assert arrivals_ns(AllAtOnce(), num_requests=3) == [0, 0, 0]
    assert generated(AllAtOnce()).max_concurrency is None


def test_a_closed_loop_offers_everything_at_once_and_states_its_clients() -> None:
    workload = generated(ClosedLoop(8), num_requests=3)
    assert [r.arrival_ns for r in workload] == [0, 0, 0]
    assert workload.max_concurrency == 8
    assert workload.digest != generated(ClosedLoop(9), num_requests=3).digest


@pytest.mark.parametrize(
    ("arrivals", "cv"), [(Poisson(5.0), 1), (Gamma(5.0, 0.25), 2), (Gamma(5.0, 4.0), 0.5)]
)
def test_gaps_have_mean_one_over_rate_and_cv_one_over_root_burstiness(
    arrivals: Arrivals, cv: float
) -> None:
    facts = describe(generated(arrivals, num_requests=100_001))
    assert facts["rate_rps"] == pytest.approx(5.0, rel=0.02)
    assert facts["gap_cv"] == pytest.approx(cv, rel=0.02)


def test_poisson_counts_have_variance_equal_to_mean() -> None:
    times = np.array(arrivals_ns(Poisson(20.0), num_requests=100_000)) // 10**9
    counts = np.bincount(times)[:-1]
    assert counts.var() / counts.mean() == pytest.approx(1.0, abs=0.07)


def test_the_first_request_arrives_at_zero_under_every_law() -> None:
    laws: list[Arrivals] = [Poisson(1.0), Gamma(1.0, 0.5), Constant(1.0), AllAtOnce(), EMPIRICAL]
    assert [arrivals_ns(law)[0] for law in laws] == [0] * 5


def test_even_gaps_fill_each_window_evenly_with_its_count_span_after_span() -> None:
    """Windows of 10 s: 30 arrivals; none, so that the 30th may stand at either end; 10 in 5 s."""
    law = EmpiricalArrivals((0.0, 1.0), (1.0, 1.0), (30, 0, 10), 10.0, 25.0)
    times = [ns / 1e9 for ns in arrivals_ns(law, num_requests=81)]
    first = [i / 3 for i in range(30)] + [20.0] + [20 + i / 2 for i in range(1, 11)]
    assert times == pytest.approx(first + [25 + time for time in first[1:]])


def test_uneven_gaps_keep_the_span_and_leave_the_empty_window_empty() -> None:
    for seed in range(5):
        times = [ns / 1e9 for ns in arrivals_ns(EMPIRICAL, num_requests=81, seed=seed)]
        assert not any(10 < time < 20 or 35 < time < 45 for time in times)
        assert times[40] == 25
        assert times[80] == 50


def test_empirical_gaps_have_the_table_s_cv() -> None:
    """Uniform gaps have CV 1/sqrt(3)."""
    law = EmpiricalArrivals((0.0, 1.0), (0.0, 2.0), (10_000,), 500.0, 500.0)
    facts = describe(generated(law, num_requests=10_001))
    assert facts["span_s"] == 500.0
    assert facts["gap_cv"] == pytest.approx(1 / math.sqrt(3), rel=1e-3)


@pytest.mark.parametrize(
    "lengths",
    [
        ONE,
        JOINT,
        IndependentLengths(LognormalTokens(100, 1.0), UniformTokens(3, 9)),
        IndependentLengths(UniformTokens(1, 2**40 // 2**20), QuantileTokens((0, 1), (1, 5))),
    ],
)
@pytest.mark.parametrize(
    "arrivals", [Poisson(3.0), Gamma(3.0, 0.5), Constant(3.0), AllAtOnce(), EMPIRICAL]
)
def test_rows_do_not_depend_on_the_chunk_size(arrivals: Arrivals, lengths: Lengths) -> None:
    workloads = [
        generated(arrivals, lengths, num_requests=150, seed=3, chunk_rows=chunk)
        for chunk in (1, 7, 150, 65_536)
    ]
    rows = [list(workload) for workload in workloads]
    assert rows[0] == rows[1] == rows[2] == rows[3]
    assert len({workload.digest for workload in workloads}) == 1
    assert [r.request_id for r in rows[0]] == [f"r{i}" for i in range(150)]
    assert len(rows[0]) == 150


def test_the_seed_decides_the_rows_and_every_iteration_repeats_them() -> None:
    lengths = IndependentLengths(UniformTokens(1, 99), UniformTokens(1, 99))
    first, same, other = (generated(Poisson(1.0), lengths, seed=seed) for seed in (1, 1, 2))
    assert list(first) == list(first) == list(same) != list(other)
    assert first.digest == same.digest != other.digest


def test_arrivals_prompts_and_outputs_draw_from_separate_streams() -> None:
    base = IndependentLengths(UniformTokens(1, 99), UniformTokens(1, 99))
    changed = IndependentLengths(LognormalTokens(50, 1.0), UniformTokens(1, 99))
    first, second = list(generated(Poisson(1.0), base)), list(generated(Gamma(2.0), changed))
    assert [r.output_tokens for r in first] == [r.output_tokens for r in second]
    assert [r.prompt_tokens for r in first] != [r.prompt_tokens for r in second]
    assert [r.prompt_tokens for r in first] != [r.output_tokens for r in first]


def test_the_streams_are_numpy_s_pcg64_spawned_from_the_seed() -> None:
    """Anyone can make the same rows: SeedSequence(seed).spawn(3) for arrivals, prompts, outputs."""
    children = np.random.SeedSequence(42).spawn(3)
    gaps = np.random.Generator(np.random.PCG64(children[0])).exponential(0.5, 2)
    prompts = np.random.Generator(np.random.PCG64(children[1])).integers(5, 20, 3, endpoint=True)
    lengths = IndependentLengths(UniformTokens(5, 20), ConstantTokens(1))
    rows = list(generated(Poisson(2.0), lengths, num_requests=3, seed=42))
    assert [r.prompt_tokens for r in rows] == prompts.tolist()
    steps = [round(gap * 1e9) for gap in gaps.tolist()]
    assert [r.arrival_ns for r in rows] == [0, steps[0], steps[0] + steps[1]]


def test_rate_scale_divides_arrivals() -> None:
    slow, fast = arrivals_ns(Poisson(1.0)), arrivals_ns(Poisson(1.0), rate_scale=4)
    assert fast == [arrival // 4 for arrival in slow]


def draw(law: TokenLaw, count: int = 100_000) -> np.ndarray[Any, np.dtype[np.int64]]:
    return law.draw(np.random.Generator(np.random.PCG64(0)), count)


def test_uniform_lengths_reach_both_ends_equally_often() -> None:
    counts = np.bincount(draw(UniformTokens(3, 6)))
    assert counts[:3].tolist() == [0, 0, 0]
    assert len(counts) == 7
    assert counts[3:] == pytest.approx(np.full(4, 25_000), rel=0.03)


def test_mean_and_range_ratio_make_vllm_s_bounds() -> None:
    """`vllm bench serve --random-range-ratio`: floor of the low end, ceiling of the high one."""
    assert UniformTokens.around(1024, 0.1) == UniformTokens(921, 1127)
    assert UniformTokens.around(5, 1.0) == UniformTokens(1, 10)
    assert UniformTokens.around(128, 0.0) == UniformTokens(128, 128)


def test_a_lognormal_has_its_mean_and_median() -> None:
    values = draw(LognormalTokens.of_mean(800, p50=300))
    assert np.median(values) == pytest.approx(300, rel=0.02)
    assert values.mean() == pytest.approx(800, rel=0.05)
    assert LognormalTokens.of_mean(800, sigma=1.0).p50 == pytest.approx(800 / math.sqrt(math.e))


def test_a_lognormal_is_held_within_its_bounds() -> None:
    values = draw(LognormalTokens(100, 3.0, low=10, high=200))
    assert (values.min(), values.max()) == (10, 200)


def test_quantile_lengths_return_their_table() -> None:
    values = draw(QuantileTokens((0, 0.25, 0.5, 1), (10, 100, 1_000, 2_000)))
    quantiles = np.quantile(values, (0, 0.125, 0.25, 0.5, 0.75, 1))
    assert quantiles == pytest.approx([10, 55, 100, 1_000, 1_500, 2_000], rel=0.03)


def test_joint_lengths_draw_the_output_from_the_prompt_s_class() -> None:
    rows = list(generated(AllAtOnce(), JOINT, num_requests=20_000))
    assert {r.output_tokens for r in rows if r.prompt_tokens < 100} == {1, 2, 3}
    long = [r.output_tokens for r in rows if r.prompt_tokens > 100]
    assert (min(long), max(long)) == (50, 70)
    assert len(long) == pytest.approx(10_000, rel=0.03)


def test_pairs_are_taken_in_file_order_and_again_from_the_top(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n1,10\n2,20\n3,30\n")
    rows = generated(AllAtOnce(), PairLengths(path), num_requests=5, chunk_rows=2)
    expected = [(1, 10), (2, 20), (3, 30), (1, 10), (2, 20)]
    assert [(r.prompt_tokens, r.output_tokens) for r in rows] == expected


def test_sampled_pairs_stay_pairs_and_are_all_drawn(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n1,10\n2,20\n3,30\n")
    lengths = PairLengths(path, order="sample")
    rows = list(generated(AllAtOnce(), lengths, num_requests=3_000))
    assert all(r.output_tokens == 10 * r.prompt_tokens for r in rows)
    counts = np.bincount([r.prompt_tokens for r in rows])
    assert counts[1:] == pytest.approx([1_000] * 3, rel=0.1)


def test_generating_is_lazy() -> None:
    workload = generated(Poisson(1.0), num_requests=1_000_000_000)
    first = list(itertools.islice(workload, 3))
    assert first[0] == Request("r0", 0, 10, 5)
    assert workload.counts.kept == 1_000_000_000


def test_describe_states_exact_statistics(tmp_path: Path) -> None:
    path = tmp_path / "pairs.csv"
    path.write_text("prompt_tokens,output_tokens\n1,40\n2,30\n3,20\n4,10\n")
    facts = describe(generated(Constant(2.0), PairLengths(path), num_requests=4))
    assert facts["requests"] == 4
    assert facts["span_s"] == 1.5
    assert facts["rate_rps"] == 2.0
    assert facts["gap_cv"] == 0.0
    assert facts["correlation"] == pytest.approx(-1.0)
    assert facts["prompt_tokens"] == {
        "total": 10,
        "mean": 2.5,
        "std": pytest.approx(math.sqrt(1.25)),
        "min": 1,
        "p50": 2.5,
        "p90": pytest.approx(3.7),
        "p99": pytest.approx(3.97),
        "max": 4,
    }
    assert facts["rows"] == {"read": 4, "kept": 4, "dropped": {}, "reordered": 0}


def test_describe_leaves_undefined_statistics_out() -> None:
    facts = describe(generated(AllAtOnce(), num_requests=1))
    assert facts["rate_rps"] is facts["gap_cv"] is facts["correlation"] is None


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Poisson(0), "rate: must be from 1e-06 to 1e+09 requests per second, got 0"),
        (lambda: Poisson(float("nan")), "rate: must be"),
        (lambda: Constant(float("inf")), "rate: must be"),
        (lambda: Gamma(1.0, 0), "burstiness: must be from 0.001 to 1e+06, got 0"),
        (lambda: ClosedLoop(0), "max_concurrency: must be an integer from 1"),
        (lambda: ConstantTokens(0), "tokens: must be an integer from 1 to 100,000,000, got 0"),
        (lambda: ConstantTokens(1.5), "tokens: must be an integer"),  # type: ignore[arg-type]
        (lambda: UniformTokens(5, 4), "high: must be an integer from 5 to 100,000,000, got 4"),
        (lambda: UniformTokens.around(10, 1.5), "range_ratio: must be from 0 to 1, got 1.5"),
        (lambda: LognormalTokens(10, -1), "sigma: must be from 0 to 10, got -1"),
        (lambda: LognormalTokens.of_mean(10), "lognormal: needs a mean and either sigma or p50"),
        (lambda: LognormalTokens.of_mean(10, p50=11), "p50: must be from 1e-06 to 10 tokens"),
        (lambda: QuantileTokens((0, 1), (1,)), "quantiles: 2 probabilities for 1 values"),
        (lambda: QuantileTokens((0, 1), (5, 1)), "values: must never fall, got 5 then 1"),
        (lambda: QuantileTokens((0, 0.9), (1, 5)), "probabilities: must rise from 0 to 1"),
        (lambda: QuantileTokens((0, 0, 1), (1, 2, 5)), "probabilities: must rise from 0 to 1"),
        (lambda: QuantileTokens((0, 1), (0, 5)), "values: must be from 1 to 1e+08 tokens, got 0"),
        (lambda: QuantileTokens((0, 1), (1, math.inf)), "values: must be a list of finite"),
        (lambda: JointQuantiles(QuantileTokens((0, 1), (1, 2)), (0, 1), ()), "outputs: must have"),
        (lambda: EmpiricalArrivals((0, 1), (0, 0), (1,), 1, 1), "gaps: must be one gap >= 0"),
        (lambda: EmpiricalArrivals((0, 1), (0, 1), (0,), 1, 1), "window_arrivals: must be counts"),
        (lambda: generated(Poisson(1.0), num_requests=0), "num_requests: must be an integer"),
        (lambda: generated(Poisson(1.0), seed=-1), "seed: must be an integer from 0"),
        (lambda: generated(Poisson(1.0), rate_scale=0), "rate_scale: must be from"),
        (lambda: list(generated(Constant(1e-6), num_requests=20_000)), "rate: the last request"),
        (lambda: list(generated(Poisson(1e-6), num_requests=20_000)), "rate: the last request"),
        (
            lambda: list(generated(Constant(1e-5), rate_scale=1e-5)),
            "rate_scale: the last request would arrive after",
        ),
    ],
)
def test_a_parameter_out_of_range_is_named_with_value_and_limit(make: Any, message: str) -> None:
    with pytest.raises(InputError) as error:
        make()
    assert str(error.value).startswith(message)
    assert error.value.fix
