"""Finding a known trace in the user's folder, and the SOSP'23 recipe on pairs written by hand."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.workload import KNOWN_TRACES, find_trace

CONV = KNOWN_TRACES["azure-conv-2023"]
HELLO = "5891b5b522d5df086d0ff0b110fbd9d21bb4fc7163af34d08286a2e846f6be03"
"""SHA-256 of b"hello\\n", as `echo hello | sha256sum` prints it."""


def test_without_the_variable_or_the_file_a_known_trace_is_not_there(tmp_path: Path) -> None:
    assert find_trace("azure-conv-2023", {}) is None
    assert find_trace("azure-conv-2023", {"KVSIM_TRACES": ""}) is None
    assert find_trace("azure-conv-2023", {"KVSIM_TRACES": str(tmp_path)}) is None
    assert find_trace("azure-conv-2023", {"KVSIM_TRACES": str(tmp_path / "no")}) is None


def test_the_environment_is_read_at_the_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / CONV.file_name).write_text("other\n")
    monkeypatch.setenv("KVSIM_TRACES", str(tmp_path))
    with pytest.raises(InputError, match="SHA-256"):
        find_trace("azure-conv-2023")


@pytest.mark.parametrize("packed", [False, True])
def test_another_content_is_refused_with_both_digests(tmp_path: Path, packed: bool) -> None:
    path = tmp_path / (CONV.file_name + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(b"hello\n") if packed else b"hello\n")
    with pytest.raises(InputError) as error:
        find_trace("azure-conv-2023", {"KVSIM_TRACES": str(tmp_path)})
    message = (
        f"{path}: the content's SHA-256 is {HELLO}, expected {CONV.sha256}. Fetch the original"
    )
    assert str(error.value).startswith(message)


@pytest.mark.parametrize("packed", [False, True])
def test_the_right_content_is_found_plain_or_packed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, packed: bool
) -> None:
    monkeypatch.setitem(KNOWN_TRACES, "azure-conv-2023", CONV._replace(sha256=HELLO))
    path = tmp_path / (CONV.file_name + (".gz" if packed else ""))
    path.write_bytes(gzip.compress(b"hello\n") if packed else b"hello\n")
    assert find_trace("azure-conv-2023", {"KVSIM_TRACES": str(tmp_path)}) == path


def test_an_unknown_name_lists_the_known_ones() -> None:
    with pytest.raises(InputError, match=r"trace: 'azure' is no known trace.*azure-conv-2023"):
        find_trace("azure", {})


def test_every_known_trace_has_a_digest_rows_and_a_source() -> None:
    for known in KNOWN_TRACES.values():
        assert len(bytes.fromhex(known.sha256)) == 32
        assert known.rows > 0
        assert known.url.startswith("https://github.com/")
