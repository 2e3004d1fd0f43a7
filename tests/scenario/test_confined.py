"""Scenarios of strangers: `load_scenario(..., confined=True)`."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario import load_scenario, run_scenario
from tests.scenario.small import SCENARIO, TRACE, write_small
from tests.scenario.test_profile_clock import SCENARIO as PROFILED
from tests.scenario.test_profile_clock import write as write_profiled

LENGTHS = "workload: {num_requests: 1, arrivals: {kind: all_at_once}, lengths: {path: trace.csv}}"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A scenario's folder; beside it lies a trace that is none of its business."""
    inside = tmp_path / "inside"
    inside.mkdir()
    (tmp_path / "secret.csv").write_text(TRACE)
    return inside


def refused(path: Path, *options: str) -> InputError:
    with pytest.raises(InputError, match="leads out of the scenario's folder") as caught:
        load_scenario(str(path), options, confined=True)
    return caught.value


@pytest.mark.parametrize("stated", [False, True], ids=["", "digest"])
@pytest.mark.parametrize("workload", ["workload: {path: trace.csv}", LENGTHS])
def test_no_traffic_comes_from_outside_even_with_the_digest_of_what_is_there(
    folder: Path, workload: str, stated: bool
) -> None:
    secret = folder.parent / "secret.csv"
    digest = f", sha256: {hashlib.sha256(secret.read_bytes()).hexdigest()}" if stated else ""
    (folder / "link.csv").symlink_to(secret)
    (folder / "linked").symlink_to(folder.parent)
    for place in (str(secret), "../secret.csv", "link.csv", "linked/secret.csv", "/dev/stdin"):
        text = SCENARIO.replace(
            "workload: {path: trace.csv}", workload.replace("trace.csv", place + digest)
        )
        error = refused(write_small(folder, text))
        assert error.where == f"{folder / 'small.yaml'}:8"


def test_an_option_leads_outside_as_little_as_the_scenario(folder: Path) -> None:
    secret = folder.parent / "secret.csv"
    path = write_small(folder)
    for option in (
        f"workload.path={secret}",
        "workload.path=../secret.csv",
        f"workload={{path: {secret}}}",
        f"workload={{path: {secret}, sha256: {'0' * 64}}}",
        f"clock={{kind: profile, path: {secret}}}",
        f"compare.a={{clock: {{kind: profile, path: {secret}}}}}",
        f"compare.a.clock.path={secret}",
    ):
        assert refused(path, option).where == f"--set {option.partition('=')[0]}"


@pytest.mark.parametrize("digest", ["", f", sha256: {'0' * 64}"])
def test_no_profile_of_a_clock_is_read_from_outside(folder: Path, digest: str) -> None:
    write_profiled(folder.parent)
    path = folder / "s.yaml"
    path.write_text(PROFILED.replace("path: p.json", f"path: ../p.json{digest}"))
    assert "clock.path" in refused(path).problem
    path.write_text(
        PROFILED.replace("kind: profile, path: p.json", "kind: fixed, step_s: 1")
        + f"compare: {{other: {{clock: {{kind: profile, path: ../p.json{digest}}}}}}}\n"
    )
    assert "compare.other.clock.path" in refused(path).problem


def test_what_lies_beside_the_scenario_is_read_wherever_the_process_is(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(folder.parent)
    path = write_small(folder)
    (folder / "other.csv").write_text(TRACE + "1,4,3\n")
    summary = run_scenario(load_scenario(str(path), confined=True)).summary
    assert summary["workload"]["rows"]["kept"] == 1
    named = load_scenario(str(path), ["workload={path: other.csv}"], confined=True)
    assert run_scenario(named).summary["workload"]["rows"]["kept"] == 2
    assert load_scenario(str(write_profiled(folder)), confined=True).clock.kind == "profile"
