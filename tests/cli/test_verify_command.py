from __future__ import annotations

import gzip
import json
from pathlib import Path

import pytest

from tests.cli.conftest import Command

DATA = Path(__file__).parents[1] / "recordings" / "data"
GOOD = DATA / "b5_watermark_idle_big.jsonl.gz"


@pytest.fixture
def uncovered(tmp_path: Path) -> Path:
    """A recording of a model with state-space layers."""
    lines = gzip.decompress(GOOD.read_bytes()).decode().splitlines()
    header = json.loads(lines[0])
    header["header"]["config"]["kv_groups"] = [{"type": "mamba"}]
    path = tmp_path / "uncovered.jsonl"
    path.write_text("\n".join([json.dumps(header), *lines[1:]]) + "\n")
    return path


@pytest.fixture
def altered(tmp_path: Path) -> Path:
    """A recording whose first row with a number of free blocks has one more."""
    lines = gzip.decompress(GOOD.read_bytes()).decode().splitlines()
    for index, line in enumerate(lines):
        row = json.loads(line)
        if "step" in row and isinstance(row.get("free"), int):
            row["free"] += 1
            lines[index] = json.dumps(row)
            break
    path = tmp_path / "altered.jsonl"
    path.write_text("\n".join(lines) + "\n")
    return path


def test_a_reproduced_recording_passes_and_the_last_line_counts(kvsim: Command) -> None:
    status, out, err = kvsim("verify", str(GOOD))
    assert (status, err) == (0, "")
    assert out.splitlines()[-1] == "1 passed, 0 failed, 0 skipped"


def test_what_is_not_covered_fails_or_is_skipped_on_request(
    kvsim: Command, uncovered: Path
) -> None:
    failed = kvsim("verify", str(uncovered))
    assert failed.status == 1
    assert "not covered: layer group 'mamba'" in failed.out
    skipped = kvsim("verify", "--only-supported", str(uncovered), str(GOOD), str(GOOD))
    assert skipped.status == 0
    assert skipped.out.splitlines()[-1] == "1 passed, 0 failed, 1 skipped"


def test_the_first_differing_row_is_shown_with_both_sides(kvsim: Command, altered: Path) -> None:
    status, out, _ = kvsim("verify", str(altered))
    assert status == 1
    assert out.splitlines()[-1] == "0 passed, 1 failed, 0 skipped"
    assert f"{altered}:" in out
    assert "(vLLM 0.33.0): step" in out
    assert "  first rule that differs: block allocation: what is free after scheduling" in out
    assert "    recorded " in out
    assert "    replayed " in out


def test_json_has_the_counts_and_both_sides(kvsim: Command, altered: Path) -> None:
    report = json.loads(kvsim("verify", "--json", str(altered), str(GOOD)).out)
    assert (report["passed"], report["failed"], report["skipped"]) == (1, 1, 0)
    failed, passed = report["results"]
    assert set(failed["difference"]) == {"free"}
    assert failed["difference"]["free"]["recorded"] == failed["difference"]["free"]["replayed"] + 1
    assert passed["difference"] == {}


def test_a_path_that_does_not_exist_ends_with_status_2(kvsim: Command, tmp_path: Path) -> None:
    outcome = kvsim("verify", str(tmp_path / "missing.jsonl"))
    assert (outcome.status, outcome.out) == (2, "")
    assert "missing.jsonl: does not exist" in outcome.err


@pytest.mark.parametrize(("content", "place"), [("{", "x.jsonl:1: "), ("", "x.jsonl: ")])
def test_a_file_that_is_no_recording_ends_with_status_2_after_the_others(
    kvsim: Command, tmp_path: Path, content: str, place: str
) -> None:
    path = tmp_path / "x.jsonl"
    path.write_text(content)
    outcome = kvsim("verify", str(path), str(GOOD))
    assert outcome.status == 2
    assert place in outcome.out
    assert outcome.out.endswith("1 passed, 1 failed, 0 skipped\n")
    assert "Traceback" not in outcome.err
