"""`snapshots.json` read back. The file is untrusted: caps first, then every number."""

from __future__ import annotations

import json
import stat
from collections.abc import Mapping
from itertools import chain
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.results.snapshots import MAX_EXTENTS, MAX_MOMENTS, MAX_REQUESTS, WHYS
from kvsim.results.snapshots import SNAPSHOTS_NAME as NAME

_MAX_BYTES = 128 * 1024 * 1024
_KINDS = ("paged", "contiguous", "grow")
_FIX = "Give a run folder written by `kvsim run --out`, unchanged."
_MAX_SLOTS = 10**13
_MAX_ROWS = 1_000_000


def read_snapshots(folder: Path) -> dict[str, Any] | None:
    """The snapshots in the folder of a variant (or of its seed); None when it has none.

    The shape is `SnapshotRecorder.snapshots`. Raises `InputError` for a link, more than 128 MiB and
    anything that no run writes: ranges outside the memory, counts below 0, other types.
    """
    path = folder / NAME
    try:
        if not stat.S_ISREG(path.lstat().st_mode):
            raise _bad(path, "it must be a regular file")
        with path.open("rb") as file:
            content = file.read(_MAX_BYTES + 1)
        if len(content) > _MAX_BYTES:
            raise _bad(path, f"it may have at most {_MAX_BYTES} bytes")
        snapshots = json.loads(content.decode("utf-8"))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _bad(path, f"cannot read it: {error.strerror or type(error).__name__}") from error
    except (ValueError, RecursionError) as error:
        raise _bad(path, f"not JSON: {str(error)[:200]}") from error
    problem = _problem(snapshots)
    if problem:
        raise _bad(path, problem)
    result: dict[str, Any] = snapshots
    return result


def _problem(data: object) -> str | None:
    if not isinstance(data, dict) or data.get("kind") not in _KINDS:
        return f"it must be an object whose `kind` is one of {', '.join(_KINDS)}"
    capacity = data.get("capacity_slots")
    if not (_whole(capacity) and _whole(data.get("block_size"))):
        return "`capacity_slots` and `block_size` must be whole numbers"
    assert isinstance(capacity, int)
    snapshots = data.get("snapshots")
    if not isinstance(snapshots, list) or len(snapshots) > MAX_MOMENTS:
        return f"`snapshots` must be a list of at most {MAX_MOMENTS}"
    for index, snapshot in enumerate(snapshots):
        problem = _snapshot_problem(snapshot, capacity)
        if problem:
            return f"snapshot {index}: {problem}"
    return None


def _snapshot_problem(snapshot: object, capacity: int) -> str | None:
    if not isinstance(snapshot, dict) or snapshot.get("why") not in WHYS:
        return f"it must be an object whose `why` is one of {', '.join(WHYS)}"
    time_s = snapshot.get("time_s")
    if not isinstance(time_s, int | float) or not 0 <= time_s < 1e12:
        return "`time_s` must be a number of seconds"
    if not _whole(snapshot.get("external_slots", 0)) or not _whole(snapshot.get("waiting", 0)):
        return "`external_slots` and `waiting` must be whole numbers"
    left_out = snapshot.get("left_out", {})
    if not isinstance(left_out, dict) or not all(map(_whole, left_out.values())):
        return "`left_out` must hold whole numbers"
    if "tensor" in snapshot and not _is_tensor(snapshot["tensor"], capacity):
        return "`tensor` must be a place and a shape inside the memory"
    requests = snapshot.get("requests")
    if not isinstance(requests, list) or len(requests) > MAX_REQUESTS:
        return f"`requests` must be a list of at most {MAX_REQUESTS}"
    if not all(isinstance(request, dict) and _is_request(request) for request in requests):
        return "a request must have `id`, `live_tokens`, `final_tokens` and `extents`"
    held = list(chain.from_iterable(request["extents"] for request in requests))
    for name, ranges, width in (
        ("extents", held, 2),
        ("free", snapshot.get("free"), 2),
        ("shared", snapshot.get("shared"), 3),
    ):
        if not _are_ranges(ranges, width, capacity):
            return f"`{name}` must be at most {MAX_EXTENTS} ranges inside the memory"
    return None


def _is_request(request: Mapping[str, Any]) -> bool:
    counts = (request.get("live_tokens"), request.get("final_tokens"))
    return (
        isinstance(request.get("id"), str)
        and all(map(_whole, counts))
        and _whole(request.get("reserved_tokens", 0))
        and isinstance(request.get("extents"), list)
    )


def _is_tensor(tensor: object, capacity: int) -> bool:
    if not isinstance(tensor, dict):
        return False
    start, slots, rows, width = map(tensor.get, ("start_slot", "slots", "rows", "width"))
    if not all(map(_whole, (start, slots, rows, width))):
        return False
    assert isinstance(start, int) and isinstance(slots, int)  # noqa: PT018
    assert isinstance(rows, int) and isinstance(width, int)  # noqa: PT018
    return start + slots <= capacity and rows * width <= slots and rows <= _MAX_ROWS


def _are_ranges(ranges: object, width: int, capacity: int) -> bool:
    return (
        isinstance(ranges, list)
        and len(ranges) <= MAX_EXTENTS
        and all(
            isinstance(one, list)
            and len(one) == width
            and all(map(_whole, one))
            and one[1] > 0
            and one[0] + one[1] <= capacity
            for one in ranges
        )
    )


def _whole(value: object) -> bool:
    return type(value) is int and 0 <= value <= _MAX_SLOTS


def _bad(path: Path, problem: str) -> InputError:
    return InputError(problem, where=str(path), fix=_FIX)
