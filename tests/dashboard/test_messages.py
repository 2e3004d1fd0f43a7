from __future__ import annotations

from pathlib import Path

import pytest

from apps.dashboard.messages import around, cleaned, line_of, without_folders
from kvsim.errors import InputError


def test_a_message_names_files_without_the_folders_of_the_server(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", "/srv/traces")
    job = Path("/srv/data/jobs/a-1/input")
    error = InputError(
        f"{job}/t.csv is odd, it is '/srv/traces'", where=f"{job}/s.yaml:3", fix=f"See {job}/t.csv"
    )
    found = cleaned(error, job)
    assert str(found) == "s.yaml:3: t.csv is odd, it is '$KVSIM_TRACES'. See t.csv"
    assert line_of(found, "s.yaml") == 3


@pytest.mark.parametrize("folder", ["", ".", "/", "traces"])
def test_a_folder_that_is_part_of_any_text_is_left_in_it(
    monkeypatch: pytest.MonkeyPatch, folder: str
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", folder)
    assert without_folders("a/b. traces") == "a/b. traces"


@pytest.mark.parametrize("where", [None, "s.yaml", "other.yaml:3", "--set a.b", "s.yaml:x"])
def test_not_every_message_is_about_a_line(where: str | None) -> None:
    assert line_of(InputError("odd", where=where), "s.yaml") is None


def test_the_line_is_marked_among_those_around_it() -> None:
    text = "".join(f"line {number}\n" for number in range(1, 13))
    assert around(text, 9, before=1, after=1) == "   8 | line 8\n>  9 | line 9\n  10 | line 10"
    assert around("a\nb", 1) == "> 1 | a\n  2 | b"
    assert around("x" * 900, 1) == "> 1 | " + "x" * 200
