"""The reference model decides what the real vLLM 0.33.0 decided, row for row."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from tests.reference import ReferenceReplay

DATA = Path(__file__).parent / "data"


def assert_reproduced(path: Path) -> None:
    header, *lines = [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]
    requests: list[dict[str, Any]] = [line["req"] for line in lines if "req" in line]
    rows: list[dict[str, Any]] = [line for line in lines if "step" in line]
    replay = ReferenceReplay(header["header"]["config"], requests)
    for row, expected in zip(replay, rows, strict=True):
        assert row == expected, f"{path.name}: step {expected['step']}"
    assert replay.totals == lines[-1]["end"], path.name


@pytest.mark.parametrize("path", sorted(DATA.glob("*.gz")), ids=lambda path: path.name)
def test_the_reference_reproduces_every_kept_recording(path: Path) -> None:
    assert_reproduced(path)


@pytest.mark.slow
def test_the_reference_reproduces_every_recording_of_the_shared_folder(shared: Path) -> None:
    golden = shared / "vllm" / "golden"
    paths = [*sorted(golden.glob("*.gz")), *sorted(golden.glob("fuzz/*.gz"))]
    assert len(paths) == 148
    for path in paths:
        assert_reproduced(path)
