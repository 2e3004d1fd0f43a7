"""Processes that outlive a page: started in a group of their own, known again, ended together."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import BinaryIO

_PROC = Path("/proc")
_children: dict[int, subprocess.Popen[bytes]] = {}
"""Those that were started here, so that they are waited for when they end."""


def start_group(command: Sequence[str], log: BinaryIO) -> tuple[int, str]:
    """Start a process that leads a group of its own; its number, and what tells it from others."""
    process = subprocess.Popen(
        command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
    )
    _children[process.pid] = process
    return process.pid, identity(process.pid)


def identity(pid: int) -> str:
    """Boot and time of a process's start; empty where it has ended or the system does not say.

    After a process has ended its number is given to another one, with another identity.
    """
    try:
        boot = (_PROC / "sys/kernel/random/boot_id").read_text("ascii").strip()
    except OSError:
        return ""
    found = _stat(pid)
    return f"{boot}/{found[19]}" if found and found[0] != "Z" else ""


def lives(pid: int, known_as: str) -> bool:
    """Whether the process runs that `identity` called so.

    Where the system does not tell identities, only a child of this process is taken for it.
    """
    child = _children.get(pid)
    if child is not None:
        if child.poll() is None:
            return True
        _children.pop(pid, None)
        return False
    return bool(known_as) and identity(pid) == known_as


def end_group(pid: int) -> None:
    """End a process and the group it leads: SIGTERM, after two seconds SIGKILL."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(pid, number)
        until = time.monotonic() + 2.0
        while time.monotonic() < until:
            child = _children.get(pid)
            if child is not None:
                child.poll()
            if not any(_group(pid)):
                return
            time.sleep(0.02)


def _group(leader: int) -> Iterator[int]:
    """Processes of a group that still run."""
    if not _PROC.is_dir():
        with suppress(ProcessLookupError, PermissionError):
            os.killpg(leader, 0)
            yield leader
        return
    for entry in _PROC.iterdir():
        if entry.name.isdecimal():
            found = _stat(int(entry.name))
            if found and found[0] != "Z" and int(found[2]) == leader:
                yield int(entry.name)


def _stat(pid: int) -> list[str]:
    """State, parent, group and so on of a process; empty where there is none."""
    try:
        return (_PROC / f"{pid}/stat").read_text("ascii", "replace").rsplit(")", 1)[1].split()
    except (OSError, IndexError):
        return []
