from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

from kvsim.errors import InputError
from kvsim.results import LogHistogram, read_summary
from kvsim.results.intervals import t_interval, t_quantile
from kvsim.results.read_run import read_run
from kvsim.scenario import load_scenario, run_scenario
from tests.scenario.small import SCENARIO, TRACE, write_small
from tests.scenario.test_run import Notebook

RANDOM = SCENARIO.replace(
    "workload: {path: trace.csv}",
    """\
workload:
  arrivals: {kind: poisson, rate_rps: 0.4}
  lengths:
    prompt: {kind: uniform, low: 1, high: 8}
    output: {kind: uniform, low: 1, high: 8}
  num_requests: 30""",
)


def run(folder: Path, *overrides: str, text: str = RANDOM, **options: Any) -> dict[str, Any]:
    scenario = load_scenario(str(write_small(folder, text)), overrides)
    return run_scenario(scenario, **options).summary


def content(folder: Path) -> dict[str, bytes]:
    paths = [path for path in folder.rglob("*") if path.is_file() and path.name != "created.json"]
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


def test_the_number_of_processes_changes_no_byte(tmp_path: Path) -> None:
    for workers in (1, 3):
        out = tmp_path / f"by-{workers}"
        run(tmp_path, "seeds=[4, 0, 7]", out=out, workers=workers)
    files = content(tmp_path / "by-3")
    assert files == content(tmp_path / "by-1")
    assert "variants/contiguous-max/seed-7/requests.parquet" in files
    assert "variants/paged/seed-0/steps.parquet" in files
    assert not [name for name in files if name.startswith("variants/paged/steps")]
    assert json.loads(files["run.json"])["seeds"] == [4, 0, 7]
    assert read_run(tmp_path / "by-3").seeds == (4, 0, 7)
    assert read_summary(tmp_path / "by-3")["seeds"] == [4, 0, 7]


def test_each_seed_is_what_it_is_alone(tmp_path: Path) -> None:
    both = run(tmp_path, "seeds=[3, 8]", workers=1)
    assert list(both) == ["scenario", "kvsim_version", "seeds", "workload", "variants"]
    for rank, seed in enumerate((3, 8)):
        alone = run(tmp_path, f"seeds=[{seed}]")
        assert "seeds" not in alone
        for name, entry in alone["variants"].items():
            assert both["variants"][name]["per_seed"][rank] == {"seed": seed, **entry}
            assert "intervals" not in entry
        assert both["workload"]["per_seed"][rank] == {
            "seed": seed,
            "digest": alone["workload"]["digest"],
            "rows": alone["workload"]["rows"],
        }
    entry = both["variants"]["paged"]
    means = [seed["batch"]["mean"] for seed in entry["per_seed"]]
    assert entry["batch"]["mean"] == sum(means) / 2
    half = t_quantile(1) * abs(means[0] - means[1]) / 2
    low, high = entry["intervals"]["batch.mean"]
    assert (high - low) / 2 == pytest.approx(half, rel=1e-9)


def test_percentiles_are_those_of_the_requests_of_all_seeds(tmp_path: Path) -> None:
    summary = run(tmp_path, "seeds=[1, 2, 3]", out=tmp_path / "run", workers=1)
    pooled = LogHistogram()
    for seed in (1, 2, 3):
        rows = pq.read_table(tmp_path / f"run/variants/paged/seed-{seed}/requests.parquet")
        for queue_s in rows.column("queue_s").to_pylist():
            pooled.add(round(queue_s * 1e9))
    assert pooled.count == 90
    assert summary["variants"]["paged"]["queue_s"] == pytest.approx(pooled.seconds(), rel=1e-9)


def test_the_variants_of_a_seed_see_the_same_requests(tmp_path: Path) -> None:
    run(tmp_path, "seeds=[1, 2]", out=tmp_path / "run", workers=1)
    arrivals = {}
    for variant in ("paged", "contiguous-max"):
        for seed in (1, 2):
            rows = pq.read_table(tmp_path / f"run/variants/{variant}/seed-{seed}/requests.parquet")
            ordered = sorted(
                zip(
                    rows.column("request_id").to_pylist(),
                    rows.column("arrival_s").to_pylist(),
                    rows.column("prompt_tokens").to_pylist(),
                    strict=True,
                )
            )
            arrivals[variant, seed] = ordered
    assert arrivals["paged", 1] == arrivals["contiguous-max", 1]
    assert arrivals["paged", 2] == arrivals["contiguous-max", 2]
    assert arrivals["paged", 1] != arrivals["paged", 2]


def test_a_trace_without_chance_says_so_and_has_no_interval(tmp_path: Path) -> None:
    notebook = Notebook()
    summary = run(tmp_path, "seeds=[0, 1]", text=SCENARIO, watcher=notebook, workers=1)
    note = "seeds make no difference: the workload has nothing random"
    assert notebook.notes == summary["workload"]["notes"] == [note]
    assert summary["workload"]["digest"] == run(tmp_path, text=SCENARIO)["workload"]["digest"]
    entry = summary["variants"]["paged"]
    assert entry["intervals"] == {}
    assert (entry["steps"], entry["ttft_s"]["mean"], entry["ttft_s"]["count"]) == (3, 1.0, 2)


def test_a_trace_that_is_smeared_differs_by_seed(tmp_path: Path) -> None:
    trace = TRACE + "0,4,3\n0,4,3\n"
    scenario = load_scenario(
        str(write_small(tmp_path, trace=trace)), ["seeds=[0, 1]", "workload.smear_s=5"]
    )
    summary = run_scenario(scenario, workers=1).summary
    assert summary["workload"]["notes"] == []
    assert "ttft_s.mean" in summary["variants"]["paged"]["intervals"]


def test_the_same_law_is_recognised_whatever_the_seeds(tmp_path: Path) -> None:
    first = run(tmp_path, "seeds=[0, 1]", workers=1)["workload"]
    second = run(tmp_path, "seeds=[2, 3]", workers=1)["workload"]
    other = run(tmp_path, "seeds=[0, 1]", "workload.rate_scale=2", workers=1)["workload"]
    assert first["law"] == second["law"] != other["law"]
    assert first["digest"] != second["digest"]


def test_progress_is_reported_for_all_seeds_together(tmp_path: Path) -> None:
    notebook = Notebook()
    run(tmp_path, "seeds=[0, 1, 2]", watcher=notebook, workers=1)
    assert notebook.bars == [["3 seeds", 180, 180]]


def test_more_replicas_than_a_summary_holds_are_refused(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, RANDOM))
    with pytest.raises(InputError, match=r"must be <= 2000, got 1000 seeds for 3 variants"):
        load_scenario(path, [f"seeds={list(range(1000))}", "compare.more={clock: {step_s: 2.0}}"])


def test_a_bad_trace_is_an_input_error_with_its_line(tmp_path: Path) -> None:
    path = write_small(tmp_path, trace=TRACE + "1,x,3\n")
    with pytest.raises(InputError, match=r"trace\.csv:3"):
        run_scenario(load_scenario(str(path), ["seeds=[0, 1]"]), workers=2)


def test_of_many_intervals_95_percent_hold_the_truth(tmp_path: Path) -> None:
    """Requests too far apart to meet, outputs uniform on 1..9: each takes as many steps of 1 s.

    So 20 requests generate 100 tokens on average, a request stays 5 s, and its queueing is none.
    200 intervals of five seeds each: two standard deviations of the share inside are 3.1 %.
    """
    summary = run(
        tmp_path,
        "workload.arrivals={kind: constant, rate_rps: 0.01}",
        "workload.lengths.output={kind: uniform, low: 1, high: 9}",
        "workload.num_requests=20",
        "compare={}",
        f"seeds={list(range(1000))}",
        workers=1,
    )
    per_seed = summary["variants"]["paged"]["per_seed"]
    tokens = [entry["tokens"]["output"] for entry in per_seed]
    stays_s = [entry["e2e_s"]["mean"] for entry in per_seed]
    t = t_quantile(4)
    for values, truth in ((tokens, 100), (stays_s, 5.0)):
        inside = 0
        for first in range(0, 1000, 5):
            group = values[first : first + 5]
            low, high = t_interval(group, sum(group) / 5, t) or (0, 0)
            inside += low <= truth <= high
        assert inside / 200 == pytest.approx(0.95, abs=0.031)
    low, high = summary["variants"]["paged"]["intervals"]["tokens.output"]
    assert low < 100 < high
