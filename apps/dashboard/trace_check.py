"""Reads an uploaded trace once, in a process of its own: `python -m apps.dashboard.trace_check`."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any, NamedTuple

from apps.dashboard import uploads
from apps.dashboard.limits import GIB, limit_process
from apps.dashboard.messages import without_folders
from apps.dashboard.uploads import Upload
from kvsim.errors import InputError

MAX_CHECK_S = 120
"""Of a clock on a wall."""
MAX_CPU_S = 20
"""Of the processor: a page that reads the file again takes as long at most."""
_MEMORY_BYTES = GIB
_TOO_MUCH = "takes more memory or time to read than a trace of the dashboard may"
_CUT = "Cut it, or use the command line, which has wider limits"


class TraceFacts(NamedTuple):
    """What an uploaded trace holds."""

    kind: str
    """Its format, a key of `kvsim.workload.FORMATS`."""
    kept: int
    """Rows that are requests."""
    dropped: dict[str, int]
    """Rows that are none, by reason."""
    pieces: int
    """Segments of prompts and beam parents, of all rows."""


def check_trace(
    upload: Upload, *, kind: str = "auto", drop_bad_rows: bool = False, lengths: bool = False
) -> TraceFacts:
    """Read an upload to its end within the limits of rows, bytes, memory and time.

    `kind` is its format, a key of `kvsim.workload.FORMATS`, or auto; with `lengths` one without
    arrivals will do. Nothing else may open an upload in the server before it has passed.
    Raises `InputError`, which names the file as its owner does.
    """
    asked = {
        "path": str(upload.path),
        "kind": kind,
        "lengths": lengths,
        "max_rows": uploads.MAX_TRACE_ROWS,
        "max_bytes": uploads.MAX_TRACE_BYTES,
        "on_bad_row": "drop" if drop_bad_rows else "error",
    }
    command = [sys.executable, "-P", "-m", "apps.dashboard.trace_check", json.dumps(asked)]
    try:
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=MAX_CHECK_S
        )
        killed = done.returncode < 0
    except subprocess.TimeoutExpired:
        killed = True
    if killed:
        raise InputError(_TOO_MUCH, where=upload.name, fix=_CUT)
    if done.returncode:  # its traceback is in the server's log
        raise InputError("cannot be read: an error inside kvsim", where=upload.name, fix=_CUT)
    found = json.loads(done.stdout)
    if "problem" in found:
        error = InputError(found["problem"], where=found["where"], fix=found["fix"])
        where = (error.where or "").replace(str(upload.path), upload.name) or upload.name
        raise InputError(
            without_folders(error.problem, upload.path.parent), where=where, fix=error.fix
        )
    return TraceFacts(**found)


def _read(path: str, kind: str, lengths: bool, **rules: Any) -> dict[str, Any]:
    from kvsim.workload import FORMATS, PairLengths, ReadRules, TraceWorkload
    from kvsim.workload.sniff import trace_kind

    pieces = 0
    try:
        checked = ReadRules(way_to_drop="the box Drop bad rows", **rules)
        kind = trace_kind(Path(path), kind, checked)
        if lengths and not FORMATS[kind].has_arrivals:
            counts = PairLengths(path, format=kind, rules=checked).counts
        else:
            trace = TraceWorkload(path, format=kind, rules=checked)
            counts, pieces = trace.counts, trace.pieces
    except InputError as error:
        return {"problem": error.problem, "where": error.where, "fix": error.fix}
    except MemoryError:
        return {"problem": _TOO_MUCH, "where": path, "fix": _CUT}
    return {"kind": kind, "kept": counts.kept, "dropped": dict(counts.dropped), "pieces": pieces}


if __name__ == "__main__":
    limit_process(memory_bytes=_MEMORY_BYTES, cpu_s=MAX_CPU_S)
    sys.stdout.write(json.dumps(_read(**json.loads(sys.argv[1]))))
