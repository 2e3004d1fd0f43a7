from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from apps.dashboard import uploads
from apps.dashboard.cached import written_ns
from apps.dashboard.launch import server_command, server_environment
from apps.dashboard.places import Places, places, run_folder, run_folders, validation_files
from kvsim.errors import InputError


def _run(folder: Path) -> Path:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    return folder


def test_runs_made_here_and_in_named_folders_are_listed_by_ids(tmp_path: Path) -> None:
    made = _run(tmp_path / "data" / "runs" / "mine-1")
    named = _run(tmp_path / "given" / "other")
    where = Places(tmp_path / "data", (tmp_path / "given",))
    found = run_folders(where)
    assert found["mine-1"] == made
    (other,) = found.keys() - {"mine-1"}
    assert other.startswith("other~")
    assert run_folder(where, other) == named


def test_a_named_folder_may_be_a_run_itself(tmp_path: Path) -> None:
    where = Places(tmp_path / "data", (_run(tmp_path / "one"),))
    assert list(run_folders(where).values()) == [tmp_path / "one"]


@pytest.mark.parametrize("run_id", ["../secret", "/etc", "mine-1/../../secret", "", "a\0b", ".."])
def test_an_id_that_is_not_listed_opens_nothing(tmp_path: Path, run_id: str) -> None:
    _run(tmp_path / "secret")
    _run(tmp_path / "data" / "runs" / "mine-1")
    with pytest.raises(InputError, match="there is no run"):
        run_folder(Places(tmp_path / "data"), run_id)


def test_links_and_half_written_folders_are_not_listed(tmp_path: Path) -> None:
    runs = tmp_path / "data" / "runs"
    _run(runs / ".half.partial")
    (runs / "link").symlink_to(_run(tmp_path / "elsewhere"))
    assert run_folders(Places(tmp_path / "data")) == {}


def test_the_server_is_told_its_folders_by_the_environment(tmp_path: Path) -> None:
    where = Places(tmp_path / "d", (tmp_path / "a", tmp_path / "b"), 60.0)
    assert places(server_environment(where, {})) == where


def test_the_server_listens_here_only_and_says_nothing_to_anyone() -> None:
    flags = server_command("127.0.0.1", 8501, browser=False)
    for flag in (
        "--server.address=127.0.0.1",
        "--server.enableXsrfProtection=true",
        "--browser.gatherUsageStats=false",
        "--runner.magicEnabled=false",
        "--client.showErrorDetails=none",
        "--server.allowedHosts=127.0.0.1",
    ):
        assert flag in flags
    assert not any("allowedHosts" in flag for flag in server_command("0.0.0.0", 1, browser=False))


@pytest.mark.parametrize("host", ["::1", "127.0.0.2", "localhost"])
def test_every_address_of_this_machine_is_one_that_pages_may_be_asked_by(host: str) -> None:
    assert f"--server.allowedHosts={host}" in server_command(host, 8501, browser=False)


def test_the_same_content_has_the_same_id_and_its_name_has_no_folders(tmp_path: Path) -> None:
    first = uploads.keep(tmp_path, "log", "..\\..\\a/b\x1b.log", b"x")
    assert first.name == "b?.log"
    assert uploads.keep(tmp_path, "log", "c.log", b"x").upload_id == first.upload_id
    assert uploads.kept(tmp_path, first.upload_id).path.read_bytes() == b"x"
    assert [one.name for one in uploads.kept_of_kind(tmp_path, "log")] == ["c.log"]


@pytest.mark.parametrize("upload_id", ["log-1", "../log-0123456789abcdef", "x", "log-" + "a" * 16])
def test_an_upload_that_is_not_there_is_said_so(tmp_path: Path, upload_id: str) -> None:
    with pytest.raises(InputError, match="is not here any more"):
        uploads.kept(tmp_path, upload_id)


def test_uploads_are_capped_in_size_and_number(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(InputError, match="the limit is 4,194,304"):
        uploads.keep(tmp_path, "config", "a", b"x" * (4 << 20) + b"x")
    with pytest.raises(InputError, match="is empty"):
        uploads.keep(tmp_path, "config", "a", b"")
    monkeypatch.setattr(uploads, "MAX_FILES", 2)
    for content in (b"1", b"2", b"3"):
        uploads.keep(tmp_path, "config", "a", content)
    assert len(uploads.kept_of_kind(tmp_path, "config")) == 2


def test_uploads_are_capped_in_all_their_bytes_and_the_new_one_stays(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "MAX_TOTAL_BYTES", 100)
    for place, name in enumerate(("a", "b")):
        one = uploads.keep(tmp_path, "log", name, name.encode() * 40)
        os.utime(one.path.parent, (place, place))
    os.utime(uploads.keep(tmp_path, "log", "c", b"c" * 40).path.parent, (2, 2))
    assert [one.name for one in uploads.kept_of_kind(tmp_path, "log")] == ["c", "b"]
    uploads.keep(tmp_path, "trace", "d", b"d" * 60)
    assert [one.name for one in uploads.kept_of_kind(tmp_path, "log")] == ["c"]
    uploads.keep(tmp_path, "trace", "e", b"e" * 120)
    assert [one.name for one in uploads.kept_of_kind(tmp_path, "trace")] == ["e"]
    assert uploads.kept_of_kind(tmp_path, "log") == []


def test_a_name_that_was_tampered_with_costs_the_name_only(tmp_path: Path) -> None:
    one = uploads.keep(tmp_path, "log", "a.log", b"x")
    (one.path.parent / "about.json").write_text(json.dumps({"name": 5}))
    assert uploads.kept(tmp_path, one.upload_id).name == one.upload_id


def test_what_another_session_removes_in_between_is_left_out(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stays = uploads.keep(tmp_path / "uploads", "log", "a.log", b"x")
    (tmp_path / "uploads" / f"log-{'a' * 16}").symlink_to(tmp_path / "gone")
    assert uploads.kept_of_kind(tmp_path / "uploads", "log") == [stays]
    uploads.keep(tmp_path / "uploads", "log", "b.log", b"y")  # looks for the oldest
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs" / "v.json").write_text('{"format": "kvsim-validation-1"}')
    monkeypatch.setattr("apps.dashboard.places._is_validation", lambda path: path.unlink() is None)
    assert list(validation_files(Places(tmp_path, (tmp_path / "runs",)))) != []


def test_a_run_that_is_removed_while_it_is_looked_at_is_said_so(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="mine: the run is not here any more"):
        written_ns(tmp_path / "mine")
