"""Breaking a rule of the scheduler makes a recording fail: the recordings pin the rules."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.recordings import verify
from tests.recordings.mutations import MUTATIONS

DATA = Path(__file__).parent / "data"


@pytest.mark.parametrize("name", MUTATIONS)
def test_a_broken_rule_fails_a_recording(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    recording, mutate = MUTATIONS[name]
    (path,) = DATA.rglob(f"{recording}.jsonl.gz")
    assert verify([path]).ok
    mutate(monkeypatch)
    assert not verify([path]).ok
