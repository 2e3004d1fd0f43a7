from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest

from kvsim.cli import dashboard
from kvsim.errors import InputError


def _start(*words: str) -> subprocess.Popen[str]:
    code = "from kvsim.cli import main; main()"
    command = [sys.executable, "-c", code, "dashboard", "--no-browser", *words]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_it_answers_on_this_machine_until_it_is_told_to_end(tmp_path: Path) -> None:
    pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")
    with _start("--json", "--data", str(tmp_path / "d")) as process:
        try:
            assert process.stdout is not None
            text = "".join(iter(process.stdout.readline, "}\n")) + "}"
            said = json.loads(text)
            assert said["url"].startswith("http://127.0.0.1:85")
            assert said["data"] == str(tmp_path / "d")
            assert _answers(said["url"] + "/_stcore/health") == "ok"
        finally:
            process.send_signal(signal.SIGINT)
        assert process.wait(20) == 130


def _answers(url: str) -> str:
    for _ in range(150):
        try:
            with urllib.request.urlopen(url, timeout=5) as reply:
                return str(reply.read().decode())
        except OSError:
            time.sleep(0.2)
    return "nothing"


def test_without_streamlit_it_names_what_to_install(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(dashboard, "find_spec", lambda name: None)
    with pytest.raises(InputError, match=r"pip install 'kvsim\[dashboard\]'"):
        dashboard.dashboard_command(data=tmp_path)


def test_a_folder_that_is_none_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")
    with pytest.raises(InputError, match="is no folder"):
        dashboard.dashboard_command(runs=[tmp_path / "nothing"], data=tmp_path)


def test_a_data_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be made"):
        dashboard.dashboard_command(data=tmp_path / "file" / "d")


def test_a_port_that_is_taken_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        monkeypatch.setattr(dashboard, "DEFAULT_PORT", port)
        assert port < dashboard._free_port("127.0.0.1") < port + 20


def test_an_address_of_another_machine_is_refused() -> None:
    with pytest.raises(InputError):
        dashboard._free_port("192.0.2.1")
