"""Run folders for the tests of reports: a small real run, and one made by hand."""

from __future__ import annotations

import json
from array import array
from pathlib import Path
from typing import Any

import numpy as np

from kvsim.results import RunFolder
from kvsim.results.rows import REQUEST_COLUMNS, STEP_COLUMNS
from kvsim.scenario import load_scenario
from kvsim.scenario.run import run_scenario

SCENARIO = """\
version: 1
profile: plain
description: A small run that waits for memory
engine:
  max_num_seqs: 8
  max_num_batched_tokens: 64
  max_model_len: 64
memory: {kind: paged, block_size: 4, num_blocks: 41}
clock: {kind: linear, base_s: 0.01, decode_s: 0.001, prefill_token_s: 0.0001}
workload: {path: trace.csv}
slo: {tpot_s: 0.05, ttft_s: 1.0}
compare:
  contiguous-max:
    memory: {kind: contiguous, num_blocks: 40, reserve: max, placement: first_fit}
  contiguous-pow2:
    memory: {kind: contiguous, num_blocks: 40, reserve: pow2, placement: buddy}
"""


def small_run(folder: Path, scenario: str = SCENARIO, requests: int = 80) -> Path:
    """A run folder of three variants under 80 requests, most of which wait for memory."""
    rows = ["arrival_s,prompt_tokens,output_tokens"]
    rows += [f"{i * 0.02:.2f},{1 + i * 7 % 29},{1 + i * i * 5 % 31}" for i in range(requests)]
    (folder / "trace.csv").write_text("\n".join(rows) + "\n")
    (folder / "small.yaml").write_text(scenario)
    run_scenario(load_scenario(str(folder / "small.yaml")), out=folder / "run")
    return folder / "run"


def summary_of(run_dir: Path) -> dict[str, Any]:
    """The summary as it is on disk."""
    summary: dict[str, Any] = json.loads((run_dir / "summary.json").read_text())
    return summary


def edit_json(path: Path, **changes: Any) -> None:
    """Replace keys of a JSON object on disk."""
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def hostile_run(folder: Path, texts: list[str]) -> Path:
    """A real run whose request ids, scenario name, variants and notes are `texts`."""
    run_dir = small_run(folder)
    summary = summary_of(run_dir)
    run = json.loads((run_dir / "run.json").read_text())
    names = dict(zip(summary["variants"], texts, strict=False))
    variants = {names.get(name, name): entry for name, entry in summary["variants"].items()}
    for entry in variants.values():
        entry["setup"]["clock_note"] = texts[0]
        entry["stuck"] = {"at_s": 0.0, "waiting": 1, "running": 0, "reason": texts[0]}
        entry["requests"]["rejected_by_reason"] = {texts[0]: 3}
    workload = {**summary["workload"], "source": texts[0], "notes": texts}
    edit_json(run_dir / "summary.json", variants=variants, scenario=texts[0], workload=workload)
    edit_json(
        run_dir / "run.json",
        variants={names.get(name, name): place for name, place in run["variants"].items()},
    )
    for path in run_dir.glob("variants/*/snapshots.json"):
        snapshots = json.loads(path.read_text())
        for snapshot in snapshots["snapshots"]:
            for index, request in enumerate(snapshot["requests"]):
                request["id"] = texts[index % len(texts)]
        path.write_text(json.dumps(snapshots))
    return run_dir


def large_run(folder: Path, *, requests: int, steps: int, variants: int, maps: bool = True) -> Path:
    """A made-up run of many rows, with the most fragmented maps that a run writes."""
    rng = np.random.default_rng(0)
    source = small_run(folder)
    summary = summary_of(source)
    entry = summary["variants"]["paged"]
    names = [f"variant-{index}" for index in range(variants)]
    with RunFolder(folder / "large") as run:
        for name in names:
            run.write_variant(
                name,
                steps=_steps(rng, steps),
                requests=_requests(rng, requests),
                snapshots=_fragmented() if maps else None,
            )
        run.commit(
            scenario_text=(source / "scenario.yaml").read_text(),
            summary={**summary, "variants": dict.fromkeys(names, entry)},
            versions={},
            seeds=[0],
            trace_digest=None,
        )
    return folder / "large"


def _steps(rng: np.random.Generator, count: int) -> dict[str, Any]:
    times = np.arange(count) * 0.01
    columns: dict[str, Any] = {}
    for name in STEP_COLUMNS:
        if name == "time_s":
            columns[name] = array("d", times.tobytes())
        elif name == "duration_s":
            columns[name] = array("d", rng.uniform(0, 0.01, count).tobytes())
        else:
            columns[name] = array("q", rng.integers(0, 20, count).tobytes())
    return columns


def _requests(rng: np.random.Generator, count: int) -> dict[str, Any]:
    arrival = np.sort(rng.uniform(0, 1000, count))
    queue = rng.exponential(3, count)
    first = arrival + queue + rng.exponential(1, count)
    columns: dict[str, Any] = {name: [0] * count for name in REQUEST_COLUMNS}
    columns.update(
        request_id=[f"request-{index}" for index in range(count)],
        outcome=["finished"] * count,
        reason=[None] * count,
        arrival_s=arrival.tolist(),
        queue_s=queue.tolist(),
        first_token_s=first.tolist(),
        finish_s=(first + rng.exponential(50, count)).tolist(),
        prompt_tokens=rng.integers(1, 4000, count).tolist(),
        output_tokens=rng.integers(1, 900, count).tolist(),
        held_up_by_fragmentation=[False] * count,
    )
    return columns


def _fragmented() -> dict[str, Any]:
    block, blocks = 16, 20_000
    requests = [
        {
            "id": f"request-{index}-" + "x" * 180,
            "live_tokens": 16 * 99 + 3,
            "final_tokens": 16 * 100,
            "extents": [[(index + step * 100) * 2 * block, block] for step in range(100)],
        }
        for index in range(100)
    ]
    snapshot = {
        "waiting": 5,
        "external_slots": 0,
        "requests": requests,
        "free": [[(2 * index + 1) * block, block] for index in range(blocks // 2)],
        "shared": [],
        "left_out": {"requests": 0, "slots": 0},
    }
    whys = ["regular"] * 24 + ["most external", "most allocated", "most waiting"]
    return {
        "kind": "paged",
        "capacity_slots": block * blocks,
        "block_size": block,
        "tolerance": 0.01,
        "snapshots": [
            {"time_s": float(index), "why": why, **snapshot} for index, why in enumerate(whys)
        ],
    }
