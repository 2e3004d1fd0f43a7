from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import pytest

from kvsim.cli import main


class Outcome(NamedTuple):
    """What a command left behind."""

    status: int
    out: str
    err: str


Command = Callable[..., Outcome]


@pytest.fixture
def kvsim(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Command:
    """Runs `kvsim` with these arguments in this process."""

    def run(*arguments: str) -> Outcome:
        monkeypatch.setattr("sys.argv", ["kvsim", *arguments])
        with pytest.raises(SystemExit) as caught:
            main()
        captured = capsys.readouterr()
        return Outcome(int(caught.value.code or 0), captured.out, captured.err)

    return run
