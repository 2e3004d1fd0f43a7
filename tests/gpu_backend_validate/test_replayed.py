"""Plans that go to another machine, and the rows that come back."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")

from gpu_backend.plan_file import PlanFile
from gpu_backend.validate.document import validate
from gpu_backend.validate.replayed import LOCKSTEP_FILE, export_plan, read_rows
from gpu_backend.validate.run import Validation
from kvsim.errors import InputError
from tests.gpu_backend_validate.server import pretend, profile, scenario


def rows_of(plan_file: PlanFile, repeats: int = 2) -> list[dict[str, Any]]:
    return list(plan_file.measure(device="cpu", repeats=repeats, num_threads=1))


def write(folder: Path, rows: list[dict[str, Any]], end: str = "\n") -> Path:
    text = "\n".join(json.dumps(row) for row in rows) + end
    (folder / LOCKSTEP_FILE).write_text(text)
    return folder


def judged(folder: Path, rows: list[dict[str, Any]], *overrides: str) -> dict[str, Any]:
    validation = Validation(
        scenario(folder, *overrides), profile(), device="cpu", follow_speed=False
    )
    return validate(validation, write(folder, rows))


@pytest.fixture
def pretended(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch)


@pytest.mark.usefixtures("pretended")
def test_rows_of_a_device_that_does_what_the_profile_says_are_validated(tmp_path: Path) -> None:
    plan_file = export_plan(scenario(tmp_path), "contiguous-max", "cpu")
    document = judged(tmp_path, rows_of(plan_file))
    assert document["failures"] == []
    (variant,) = document["variants"]
    assert variant == "contiguous-max"
    lockstep = document["variants"][variant]["lockstep"]
    assert (lockstep["steps"], lockstep["repeats"]) == (len(plan_file.steps), 2)
    assert document["variants"][variant]["free"] == {}
    assert document["slowness"] == []
    # There is no block size to be wrong about.
    names = [control["name"] for control in document["controls"]]
    assert names == ["slow clock", "no prefill"]


@pytest.mark.usefixtures("pretended")
def test_every_control_that_applies_is_noticed_without_free_runs(tmp_path: Path) -> None:
    document = judged(tmp_path, rows_of(export_plan(scenario(tmp_path), None, "cpu")))
    assert document["failures"] == []
    # A wrong block size shows in the memory of free runs, not in the times of given steps.
    noticed = {control["name"]: control["noticed"] for control in document["controls"]}
    assert noticed == {"slow clock": True, "no prefill": True}


@pytest.mark.usefixtures("pretended")
def test_other_counts_or_times_fail(tmp_path: Path) -> None:
    rows = rows_of(export_plan(scenario(tmp_path), None, "cpu"))
    for row in rows:
        row["wall_s"] *= 1.2
    rows[3]["decodes"] += 1
    failed = {c["name"] for c in judged(tmp_path, rows)["checks"] if not c["ok"]}
    assert {"counts", "step time (all), median"} <= failed


@pytest.mark.usefixtures("pretended")
def test_which_steps_a_plan_has_does_not_depend_on_the_clock(tmp_path: Path) -> None:
    plans = [
        export_plan(scenario(tmp_path, f"clock={clock}"), None, "cpu").as_dict()["sha256"]
        for clock in ("{kind: fixed, step_s: 0.01}", "{kind: linear, base_s: 2.0, decode_s: 0.1}")
    ]
    assert plans[0] == plans[1]


@pytest.mark.usefixtures("pretended")
def test_rows_of_another_plan_are_refused(tmp_path: Path) -> None:
    rows = rows_of(export_plan(scenario(tmp_path), None, "cpu"))
    with pytest.raises(InputError, match="another plan than any variant"):
        judged(tmp_path, rows, "workload.num_requests=19")


@pytest.mark.usefixtures("pretended")
def test_a_repeat_that_was_cut_off_is_left_out(tmp_path: Path) -> None:
    rows = rows_of(export_plan(scenario(tmp_path), None, "cpu"), repeats=3)
    whole = read_rows(write(tmp_path, rows))
    cut = read_rows(write(tmp_path, rows[:-4], end='\n{"plan": "'))
    assert len(whole.seconds) == 3
    assert cut == whole._replace(seconds=whole.seconds[:2], counts=whole.counts[:2])
    with pytest.raises(InputError, match="holds 1 whole repeats"):
        read_rows(write(tmp_path, rows[: len(whole.seconds[0]) + 3]))


@pytest.mark.parametrize(
    ("text", "message"),
    [("{}\n", "KeyError"), ("[]\n", "TypeError"), ("{\n", "JSONDecodeError"), ("", "0 whole")],
)
def test_a_file_of_something_else_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / LOCKSTEP_FILE).write_text(text)
    with pytest.raises(InputError, match=message):
        read_rows(tmp_path)


def test_a_variant_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="'other' is no variant"):
        export_plan(scenario(tmp_path), "other", "cpu")


@pytest.mark.usefixtures("pretended")
@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_a_time_that_cannot_be_is_refused_with_its_line(tmp_path: Path, value: float) -> None:
    rows = rows_of(export_plan(scenario(tmp_path), None, "cpu"))
    rows[2]["wall_s"] = value
    with pytest.raises(InputError, match="wall_s must be above 0") as caught:
        read_rows(write(tmp_path, rows))
    assert str(caught.value.where).endswith(f"{LOCKSTEP_FILE}:3")


@pytest.mark.usefixtures("pretended")
def test_rows_of_another_device_than_the_profile_are_refused(tmp_path: Path) -> None:
    rows = rows_of(export_plan(scenario(tmp_path), None, "cpu"))
    for row in rows:
        row["device_name"] = "another"
    with pytest.raises(InputError, match="holds rows of 'another', the profile is of 'made up'"):
        judged(tmp_path, rows)


def test_a_plan_says_what_of_the_model_is_run(tmp_path: Path) -> None:
    whole = export_plan(scenario(tmp_path), None, "cpu")
    part = export_plan(scenario(tmp_path, "device.attention_only=true"), None, "cpu")
    assert (whole.dtype, whole.attention_only, part.attention_only) == ("fp32", False, True)
    assert whole.as_dict()["sha256"] != part.as_dict()["sha256"]
