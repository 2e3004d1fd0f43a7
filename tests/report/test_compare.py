from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.report.compare import Comparison, Figure, Source, compare
from kvsim.report.metrics import METRICS, better
from kvsim.report.setting_differences import setting_differences
from kvsim.report.text import OPTIONAL_PATHS
from kvsim.results.intervals import t_quantile
from kvsim.results.merge import leaves
from kvsim.scenario import load_scenario, run_scenario
from tests.report.comparable import entry, seeded, source, summary
from tests.scenario.small import SCENARIO, write_small


def figures(comparison: Comparison) -> dict[str, Figure]:
    (pair,) = comparison.pairs
    return {figure.path: figure for figure in pair.figures}


def two(base: dict[str, Any], candidate: dict[str, Any], **options: bool) -> Comparison:
    return compare([source("a", base), source("b", candidate)], **options)


def test_differences_are_signed_relative_and_judged_by_the_metrics_direction() -> None:
    other = entry(
        preemptions=5,
        memory={"by_time": {"live": 0.75, "external": 0.125}},
        throughput={"requests_per_s": 6.0},
        ttft_s={"mean": 1.0, "p99": 1.0, "max": 3.0, "count": 10},
    )
    found = figures(two(summary(), summary(paged=other)))
    told = {
        path: (figure.base, figure.candidate, figure.difference, figure.relative, figure.verdict)
        for path, figure in found.items()
    }
    assert told == {
        "preemptions": (4, 5, 1, 0.25, "worse"),
        "memory.by_time.live": (0.5, 0.75, 0.25, 0.5, "changed"),
        "memory.by_time.external": (0.25, 0.125, -0.125, -0.5, "better"),
        "throughput.requests_per_s": (8.0, 6.0, -2.0, -0.25, "worse"),
        "ttft_s.mean": (1.0, 1.0, 0.0, 0.0, "same"),
        "ttft_s.p99": (2.0, 1.0, -1.0, -0.5, "better"),
        "ttft_s.max": (3.0, 3.0, 0.0, 0.0, "same"),
        "ttft_s.count": (10, 10, 0, 0.0, "same"),
    }


def test_the_direction_of_every_metric_that_has_one() -> None:
    assert {path for path, metric in METRICS.items() if metric.better == "higher"} == {
        "throughput.requests_per_s",
        "throughput.output_tokens_per_s",
        "throughput.total_tokens_per_s",
        "throughput.goodput_rps",
        "requests.finished",
        "prefix_cache.hit_rate",
        "prefix_cache.hit_tokens",
        "pages.freed_by_half_page_sets",
        "sharing.saving",
        "sharing.saving_by_step",
        "speculation.acceptance_rate",
        "speculation.tokens_per_decode",
    }
    assert better("ttft_s.p99") == better("memory.by_iteration.external") == "lower"
    for neutral in ("memory.by_time.live", "batch.mean", "memory.by_time.usable_free", "unknown"):
        assert better(neutral) is None


def test_every_metric_shown_is_a_figure_of_a_run(tmp_path: Path) -> None:
    entry = run_scenario(load_scenario(str(write_small(tmp_path)))).summary["variants"]["paged"]
    always = {path for path in METRICS if not path.startswith(OPTIONAL_PATHS)}
    assert always <= dict(leaves(entry)).keys()


def test_an_undefined_figure_is_no_change_for_the_better() -> None:
    found = figures(two(summary(), summary(paged=entry(preemptions=None))))
    assert found["preemptions"].verdict == "undefined"
    assert found["preemptions"].difference is None
    zero = figures(two(summary(paged=entry(preemptions=0)), summary()))["preemptions"]
    assert (zero.difference, zero.relative, zero.verdict) == (4, None, "worse")


def test_a_change_that_no_printed_digit_shows_is_neither_better_nor_worse() -> None:
    for candidate, verdict in ((4 * (1 + 9e-7), "changed"), (4 * (1 + 2e-6), "worse")):
        found = figures(two(summary(), summary(paged=entry(preemptions=candidate))))
        assert found["preemptions"].verdict == verdict


def test_a_run_compared_with_itself_has_no_difference(tmp_path: Path) -> None:
    scenario = load_scenario(str(write_small(tmp_path)))
    run = Source("a", run_scenario(scenario).summary, scenario)
    comparison = compare([run, run])
    assert [pair.base.variant for pair in comparison.pairs] == ["paged", "contiguous-max"]
    for pair in comparison.pairs:
        assert pair.differences == ()
        assert pair.settings == ()
        assert pair.settings_known


@pytest.mark.parametrize(
    ("override", "named"),
    [
        ("memory.num_blocks=8", {"memory.num_blocks": (9, 8)}),
        ("engine.max_num_seqs=2", {"engine.max_num_seqs": (4, 2)}),
        ("clock.step_s=2.0", {"clock.step_s": (1.0, 2.0)}),
        ("measure.from_s=1.0", {"measure.from_s": (0.0, 1.0)}),
        ("workload.max_concurrency=3", {"workload.max_concurrency": (None, 3)}),
        ("slo.ttft_s=1.5", {"slo.ttft_s": (None, 1.5)}),
        (
            "clock={kind: linear, base_s: 1.0}",
            {
                "clock.kind": ("fixed", "linear"),
                "clock.step_s": (1.0, None),
                "clock.base_s": (None, 1.0),
            },
        ),
        ("name=other", {}),
        ("description=other", {}),
    ],
)
def test_runs_that_differ_in_one_setting_name_it_and_nothing_else(
    tmp_path: Path, override: str, named: dict[str, tuple[Any, Any]]
) -> None:
    path = str(write_small(tmp_path))
    runs = []
    for overrides in ([], [override]):
        scenario = load_scenario(path, overrides)
        runs.append(Source("r", run_scenario(scenario).summary, scenario))
    for pair in compare(runs).pairs:
        found = {setting.path: (setting.base, setting.candidate) for setting in pair.settings}
        assert found == named


def test_the_place_of_a_file_with_the_same_content_is_no_difference(tmp_path: Path) -> None:
    runs = []
    for name in ("here", "there"):
        (tmp_path / name).mkdir()
        scenario = load_scenario(str(write_small(tmp_path / name)))
        runs.append(Source(name, run_scenario(scenario).summary, scenario))
    assert [pair.settings for pair in compare(runs).pairs] == [(), ()]


FALLBACK = "fallback: {preset: azure-conv-2023, num_requests: 9}"


@pytest.mark.parametrize(
    ("base", "candidate", "named"),
    [
        (
            "{preset: azure-conv-2023}",
            "{preset: azure-conv-2023, instead_of: azure-conv-2023}",
            "workload.instead_of",
        ),
        (
            "{trace: azure-conv-2023}",
            f"{{trace: azure-conv-2023, {FALLBACK}}}",
            "workload.fallback",
        ),
        (
            f"{{trace: azure-conv-2023, {FALLBACK}}}",
            f"{{trace: azure-conv-2023, {FALLBACK.replace(': 9', ': 8')}}}",
            "workload.fallback.num_requests",
        ),
    ],
)
def test_what_stands_in_for_a_trace_is_a_difference_only_under_other_requests(
    tmp_path: Path, base: str, candidate: str, named: str
) -> None:
    ours, theirs = (
        load_scenario(str(write_small(tmp_path, SCENARIO.replace("{path: trace.csv}", workload))))
        for workload in (base, candidate)
    )
    assert setting_differences(ours, theirs, same_requests=True) == ()
    found = setting_differences(ours, theirs, same_requests=False)
    assert [setting.path for setting in found] == [named]


def test_the_variants_of_one_run_differ_in_their_own_settings(tmp_path: Path) -> None:
    """Another kind of memory is named with what it changes from that kind's defaults."""
    scenario = load_scenario(str(write_small(tmp_path)))
    comparison = compare([Source("a", run_scenario(scenario).summary, scenario)])
    (pair,) = comparison.pairs
    assert (pair.base.title, pair.candidate.title) == ("paged", "contiguous-max")
    assert [tuple(setting) for setting in pair.settings] == [
        ("memory.kind", "paged", "contiguous"),
        ("memory.placement", None, "first_fit"),
    ]


def test_without_scenarios_the_set_up_is_compared_and_that_is_said() -> None:
    changed = entry(setup={"model": "opt-13b", "block_size": 32})
    (pair,) = two(summary(), summary(paged=changed)).pairs
    assert not pair.settings_known
    assert [tuple(setting) for setting in pair.settings] == [("setup.block_size", 16, 32)]


def test_variants_are_matched_by_name_and_bases_otherwise() -> None:
    base = summary(paged=entry(), small=entry(), only_here=entry())
    candidate = summary(contiguous=entry(), small=entry(), only_there=entry())
    comparison = two(base, candidate)
    assert [(p.base.title, p.candidate.title) for p in comparison.pairs] == [
        ("A: paged", "B: contiguous"),
        ("A: small", "B: small"),
    ]
    assert [side.title for side in comparison.unmatched] == ["A: only_here", "B: only_there"]


def test_three_runs_are_each_compared_with_the_first() -> None:
    runs = [source(name, summary()) for name in "abc"]
    pairs = compare(runs).pairs
    assert [(p.base.title, p.candidate.title) for p in pairs] == [
        ("A: paged", "B: paged"),
        ("A: paged", "C: paged"),
    ]


@pytest.mark.parametrize(
    ("sources", "problem"),
    [
        ([summary()], "a has a single variant"),
        ([summary(paged=entry(), x=entry()), summary(y=entry(), paged=entry())], None),
        ([{**summary(), "variants": {}}], "nothing to compare"),
        ([summary(), {**summary(), "variants": {}}], "no two sides"),
        ([summary()] * 27, "at most 26 runs"),
    ],
)
def test_nothing_to_compare_is_bad_input(
    sources: list[dict[str, Any]], problem: str | None
) -> None:
    runs = [source("a", content) for content in sources]
    if problem is None:
        assert compare(runs).pairs
        return
    with pytest.raises(InputError, match=problem):
        compare(runs)


def test_other_requests_are_refused_with_both_names_and_flagged_by_force() -> None:
    other = summary(digest="e" * 64, source="b.csv")
    with pytest.raises(InputError) as caught:
        two(summary(), other)
    assert caught.value.problem == (
        "cannot be compared: different requests:"
        " a (trace.csv, digest d) and b (b.csv, digest eeeeeeeeeeee)"
    )
    comparison = two(summary(), other, force=True)
    assert [mismatch.what for mismatch in comparison.mismatches] == ["requests"]


def test_other_models_are_refused_with_both_names_and_flagged_by_force() -> None:
    other = summary(paged=entry(setup={"model": "opt-66b", "block_size": 16}))
    with pytest.raises(InputError, match=r"different model: a \(opt-13b\) and b \(opt-66b\)"):
        two(summary(), other)
    assert [m.what for m in two(summary(), other, force=True).mismatches] == ["model"]
    with pytest.raises(InputError, match=r"different model: x \(opt-13b\) and y \(no model\)"):
        compare([source("a", summary(x=entry(), y=entry(setup={})))])


def test_the_same_seeds_are_paired() -> None:
    """Differences 1, 2, 3: mean 2, half-width t(2) / sqrt(3), far narrower than either side's."""
    base, candidate = seeded({0: 10, 1: 20, 2: 30}), seeded({0: 11, 1: 22, 2: 33})
    (pair,) = two(base, candidate).pairs
    (figure,) = pair.figures
    assert pair.method == "paired"
    assert (figure.base, figure.candidate, figure.difference) == (20, 22, 2)
    half = t_quantile(2) / 3**0.5
    assert figure.interval == pytest.approx((2 - half, 2 + half))
    assert figure.verdict == "within noise"


def test_a_difference_beyond_the_noise_is_told_apart() -> None:
    (pair,) = two(seeded({0: 10, 1: 20}), seeded({0: 15, 1: 25.1})).pairs
    (figure,) = pair.figures
    assert figure.interval is not None
    assert figure.interval[0] > 0
    assert figure.verdict == "changed"


def test_a_difference_that_every_seed_has_is_exact() -> None:
    (pair,) = two(seeded({0: 10, 1: 20}), seeded({0: 15, 1: 25})).pairs
    (figure,) = pair.figures
    assert (figure.difference, figure.interval, figure.verdict) == (5, None, "changed")


def test_other_seeds_of_the_same_law_are_compared_by_welch() -> None:
    """Variances 2 and 2, standard error sqrt(2), 2 degrees of freedom."""
    (pair,) = two(seeded({0: 0, 1: 2}), seeded({2: 4, 3: 6})).pairs
    (figure,) = pair.figures
    assert pair.method == "welch"
    half = t_quantile(2) * 2**0.5
    assert figure.interval == pytest.approx((4 - half, 4 + half))


def test_runs_that_share_two_seeds_are_paired_on_these_alone() -> None:
    """Seeds 1 and 2: means 3 and 5.5, differences 3 and 2, so 2.5 +- t(1) / 2."""
    base, candidate = seeded({0: 100, 1: 2, 2: 4}), seeded({2: 6, 1: 5, 3: 9, 4: 9})
    (pair,) = two(base, candidate).pairs
    (figure,) = pair.figures
    assert (pair.method, pair.common_seeds) == ("paired", (1, 2))
    assert (figure.base, figure.candidate, figure.difference) == (3, 5.5, 2.5)
    half = t_quantile(1) / 2
    assert figure.interval == pytest.approx((2.5 - half, 2.5 + half))
    assert figure.verdict == "within noise"
    (same,) = two(base, seeded({1: 2, 2: 4})).pairs
    assert (same.common_seeds, same.differences) == ((1, 2), ())


def test_runs_that_share_one_seed_or_all_of_them_are_compared_on_all_seeds() -> None:
    (pair,) = two(seeded({0: 0, 1: 2}), seeded({1: 4, 2: 6})).pairs
    assert (pair.method, pair.common_seeds, pair.figures[0].difference) == ("welch", None, 4)
    (pair,) = two(seeded({0: 0, 1: 2}), seeded({1: 4, 0: 6})).pairs
    assert (pair.method, pair.common_seeds, pair.figures[0].difference) == ("paired", None, 4)


def test_a_maximum_of_runs_that_share_two_seeds_stays_that_of_all() -> None:
    runs = []
    for values in ({0: 9.0, 1: 1.0, 2: 3.0}, {1: 2.0, 2: 4.0, 3: 8.0}):
        content = seeded(dict.fromkeys(values, 0.0))
        merged = content["variants"]["paged"]
        merged["ttft_s"] = {"p99": 7.0, "max": max(values.values())}
        for one, value in zip(merged["per_seed"], values.values(), strict=True):
            one["ttft_s"] = {"p99": value, "max": value}
        runs.append(content)
    found = figures(two(*runs))
    assert (found["ttft_s.p99"].base, found["ttft_s.p99"].candidate) == (2.0, 3.0)
    assert (found["ttft_s.max"].base, found["ttft_s.max"].candidate) == (9.0, 8.0)


def test_another_law_or_the_same_seed_with_other_requests_is_refused() -> None:
    for other in (seeded({2: 1, 3: 2}, law="m"), seeded({1: 1, 2: 2}, digests="e")):
        with pytest.raises(InputError, match="different requests"):
            two(seeded({0: 1, 1: 2}), other)
    assert two(seeded({0: 1, 1: 2}), seeded({1: 2, 2: 3})).pairs


def test_a_maximum_over_seeds_is_no_verdict() -> None:
    """Its spread says nothing about it, so whether the change is chance cannot be told."""
    runs = []
    for value in (1.0, 2.0):
        content = seeded({0: value, 1: value})
        for one in (content["variants"]["paged"], *content["variants"]["paged"]["per_seed"]):
            one["ttft_s"] = {"p99": value, "max": value}
        runs.append(content)
    found = figures(two(*runs))
    assert found["ttft_s.p99"].verdict == "worse"
    assert found["ttft_s.max"].verdict == "changed"


NUMBERS = st.none() | st.integers(0, 1000) | st.floats(0, 1e18)
ENTRIES = st.fixed_dictionaries(
    {
        "preemptions": NUMBERS,
        "ttft_s": st.fixed_dictionaries({"p99": NUMBERS}),
        "throughput": st.fixed_dictionaries({"requests_per_s": NUMBERS}),
        "batch": st.fixed_dictionaries({"mean": NUMBERS}),
    }
)
OPPOSITE = {"better": "worse", "worse": "better"}
NEGLIGIBLE = 1e-5


@given(ENTRIES, ENTRIES)
def test_the_other_way_round_every_sign_and_verdict_turns(
    a: dict[str, Any], b: dict[str, Any]
) -> None:
    there, back = (figures(two(summary(paged=x), summary(paged=y))) for x, y in ((a, b), (b, a)))
    for path, figure in there.items():
        turned = back[path]
        assert turned.difference == (None if figure.difference is None else -figure.difference)
        if figure.relative is None or abs(figure.relative) > NEGLIGIBLE:
            assert turned.verdict == OPPOSITE.get(figure.verdict, figure.verdict)


@given(
    st.lists(st.tuples(st.floats(-1e9, 1e9), st.floats(-1e9, 1e9)), min_size=2, max_size=6),
    st.booleans(),
)
def test_the_other_way_round_every_interval_turns(
    values: list[tuple[float, float]], paired: bool
) -> None:
    shift = 0 if paired else len(values)
    base = seeded({seed: value for seed, (value, _) in enumerate(values)})
    candidate = seeded({seed + shift: value for seed, (_, value) in enumerate(values)})
    ((there,),) = (pair.figures for pair in two(base, candidate).pairs)
    ((back,),) = (pair.figures for pair in two(candidate, base).pairs)
    if there.interval is None:
        assert back.interval is None
        return
    assert back.interval == (-there.interval[1], -there.interval[0])


@given(ENTRIES)
def test_nothing_differs_from_itself(a: dict[str, Any]) -> None:
    (pair,) = two(summary(paged=a), summary(paged=copy.deepcopy(a))).pairs
    assert pair.differences == ()


def test_a_run_differs_from_itself_in_nothing_with_seeds_too(tmp_path: Path) -> None:
    text = SCENARIO.replace(
        "workload: {path: trace.csv}",
        "workload: {arrivals: {kind: poisson, rate_rps: 1}, num_requests: 9, lengths: {prompt:"
        " {kind: uniform, low: 1, high: 9}, output: {kind: uniform, low: 1, high: 6}}}",
    )
    scenario = load_scenario(str(write_small(tmp_path, text)), ["seeds=[0, 1, 2]"])
    run = Source("a", run_scenario(scenario, workers=1).summary, scenario)
    for pair in compare([run, run]).pairs:
        assert pair.method == "paired"
        assert pair.differences == ()
        assert {figure.interval for figure in pair.figures} == {None}
