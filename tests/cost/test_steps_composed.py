from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kvsim.catalog import get_gpu, get_model, list_models
from kvsim.core.plan import StepPlan
from kvsim.cost import CalibratedClock, RooflineClock
from tests.cost.plans import plan


@pytest.fixture(scope="module")
def rows(shared: Path) -> list[dict[str, Any]]:
    """Steps composed of measured operators (AIConfigurator 0.12), dense models."""
    text = (shared / "cost" / "steps_measured.jsonl").read_text(encoding="utf-8")
    found = [row for row in map(json.loads, text.splitlines()) if row["op"] == "step_composed"]
    dense = [name for name in list_models() if get_model(name).moe is None]
    return [row for row in found if row["model"] in dense]


def step_of(row: dict[str, Any]) -> StepPlan:
    if row["kind"] == "prefill":
        return plan(chunks=[(row["len"], 0)] * row["chunks"])
    chunks = [(row["ctx_tokens"], 0)] if row["kind"] == "mixed" else []
    return plan(row["n_decode"], row["n_decode"] * row["ctx"], chunks)


def errors(
    clock: type[CalibratedClock] | type[RooflineClock], rows: list[dict[str, Any]], dtype: str
) -> Iterator[float]:
    for row in rows:
        if row["dtype"] == dtype:
            model = replace(get_model(row["model"]), weight_dtype=dtype)
            width = 1 if row["kv_dtype"] == "fp8" else 2
            ours = clock(model, get_gpu(row["gpu"]), tp=row["tp"], kv_dtype_bytes=width)
            yield ours.step_seconds(step_of(row)) * 1e6 / row["us"] - 1


def test_the_clock_reproduces_the_steps_its_constants_come_from(
    rows: list[dict[str, Any]],
) -> None:
    """All rows are of the half that the constants were fitted on: a wrong shape or constant shows,
    how well the formula extrapolates does not."""
    assert {row["split"] for row in rows} == {"fit"}
    for dtype, middle, largest in (("bf16", 0.04, 0.15), ("fp8", 0.08, 0.22)):
        missed = [abs(error) for error in errors(CalibratedClock, rows, dtype)]
        assert len(missed) >= 20
        assert median(missed) <= middle
        assert max(missed) <= largest


def test_the_roofline_is_faster_than_every_composed_step(rows: list[dict[str, Any]]) -> None:
    missed = [*errors(RooflineClock, rows, "bf16"), *errors(RooflineClock, rows, "fp8")]
    assert max(missed) < 0.0
    assert median(missed) < -0.25
