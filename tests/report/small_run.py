"""Run folders small enough to know every figure by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from kvsim.results import RunFolder
from kvsim.results.read_run import Run, read_run
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from kvsim.scenario import load_scenario, run_scenario
from tests.scenario.small import write_small

TRACE = """\
arrival_s,prompt_tokens,output_tokens
0,4,3
0.5,4,1
0.75,20,1
"""
"""One second a step. r0 gets tokens at 1, 2, 3 s; r1 waits until 1 s and gets its token at 2 s; r2
is longer than the 16 tokens of a request."""


def small_run(folder: Path, *overrides: str, trace: str = TRACE) -> Run:
    """The run of the small scenario with `TRACE`, in `folder/run`."""
    scenario = load_scenario(str(write_small(folder, trace=trace)), overrides)
    run_scenario(scenario, out=folder / "run", workers=1)
    return read_run(folder / "run")


def step(**values: float) -> dict[str, float]:
    """A row of steps."""
    return dict.fromkeys(STEP_COLUMNS, 0) | {"duration_s": 1.0, "steps": 1} | values


def request(name: str = "r0", **values: object) -> dict[str, object]:
    """A row of requests: one that finishes."""
    return {
        "request_id": name,
        "outcome": "finished",
        "reason": None,
        "arrival_s": 0.0,
        "queue_s": 0.5,
        "first_token_s": 1.0,
        "finish_s": 3.0,
        "prompt_tokens": 4,
        "output_tokens": 3,
        "cached_tokens": 0,
        "preemptions": 0,
        "held_up_by_fragmentation": False,
        **values,
    }


def columns(names: tuple[str, ...], rows: list[dict[str, Any]]) -> dict[str, list[Any]]:
    """Rows as columns."""
    return {name: [row[name] for row in rows] for name in names}


def made_run(
    folder: Path,
    *,
    requests: list[dict[str, Any]] | None = None,
    steps: list[dict[str, Any]] | None = None,
    variant: str = "paged",
    entry: dict[str, Any] | None = None,
) -> Run:
    """A run of one variant with these rows, in `folder/made`."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    real = small_run(folder)
    with RunFolder(folder / "made") as writer:
        writer.write_variant(
            variant, requests=columns(REQUEST_COLUMNS, requests if requests else [])
        )
        summary = {
            "scenario": "made",
            "kvsim_version": "0",
            "workload": {"source": "made", "digest": "0"},
            "variants": {variant: entry or {}},
        }
        path = writer.commit(
            scenario_text=real.scenario_text,
            summary=summary,
            versions={},
            seeds=[0],
            trace_digest=None,
        )
    run = read_run(path)
    table = pa.table(columns(STEP_COLUMNS, steps if steps else [step(time_s=0.0)]))
    pq.write_table(table, path / "variants" / run.folders[variant] / "steps.parquet")
    return run
