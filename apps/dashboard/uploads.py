"""Uploaded files, kept by the digest of their content, so that a link can name them."""

from __future__ import annotations

import hashlib
import json
import re
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.results.files import write_whole

MAX_FILES = 200
"""Uploads that are kept; the oldest go."""
MAX_NAMES = 8
"""Of one content, uploaded again under others."""
MAX_TOTAL_BYTES = 1 << 30
"""Of all that are kept together; the oldest go."""
MAX_BYTES: Mapping[str, int] = {
    "config": 4 << 20,
    "scenario": 1 << 20,
    "trace": 50 << 20,
    "log": 20 << 20,
    "bench": 50 << 20,
    "profile": 4_000_000,
    "validation": 8 << 20,
}
"""Kind of an upload -> most bytes of its file."""
TRACE_SUFFIXES = ("csv", "jsonl", "json", "parquet", "gz", "txt")
MAX_TRACE_ROWS = 1_000_000
MAX_TRACE_BYTES = 500 << 20
"""Of a trace once it is decompressed."""
_ID = re.compile(r"(config|scenario|trace|log|bench|profile|validation)-[0-9a-f]{16}", re.ASCII)
_CONTENT, _ABOUT = "content", "about.json"


class Upload(NamedTuple):
    """A file as it was uploaded."""

    upload_id: str
    name: str
    """What its owner called it, without folders; for people only."""
    path: Path
    """Where its content is."""
    names: tuple[str, ...] = ()
    """The newest names that this content was uploaded under."""


def keep(folder: Path, kind: str, name: str, content: bytes) -> Upload:
    """Store an upload; the same content of the same kind has the same id.

    Raises `InputError` for an empty file and for one above the limit of its kind.
    """
    limit = MAX_BYTES[kind]
    label = _label(name)
    if not content:
        raise InputError("the file is empty", where=label, fix="Upload a file with content")
    if len(content) > limit:
        raise InputError(
            f"the file has {len(content):,} bytes, the limit is {limit:,}",
            where=label,
            fix="Cut it, or use the command line, which has wider limits",
        )
    upload_id = f"{kind}-{hashlib.sha256(content).hexdigest()[:16]}"
    place = folder / upload_id
    place.mkdir(parents=True, exist_ok=True)
    write_whole(place / _CONTENT, content, "upload")
    names = [label, *(one for one in _names_of(place) if one != label)][:MAX_NAMES]
    write_whole(place / _ABOUT, json.dumps({"names": names}).encode(), "upload")
    _forget_oldest(folder, place)
    return _upload(place)


def kept(folder: Path, upload_id: str) -> Upload:
    """An upload by its id. Raises `InputError` where there is none."""
    place = folder / upload_id if _ID.fullmatch(upload_id) else None
    if place is None or not (place / _CONTENT).is_file():
        raise InputError(
            f"the upload {upload_id[:40]!r} is not here any more",
            where="upload",
            fix="Upload the file again",
        )
    return _upload(place)


def kept_of_kind(folder: Path, kind: str) -> list[Upload]:
    """All uploads of a kind, the newest first."""
    places = [
        place
        for place in folder.glob(f"{kind}-*")
        if _ID.fullmatch(place.name) and (place / _CONTENT).is_file()
    ]
    places.sort(key=_written, reverse=True)
    return [_upload(place) for place in places]


def _upload(place: Path) -> Upload:
    names = tuple(_names_of(place)) or (place.name,)
    return Upload(place.name, names[0], place / _CONTENT, names)


def _names_of(place: Path) -> list[str]:
    """The newest first; none where it was not noted."""
    try:
        about = json.loads((place / _ABOUT).read_text("utf-8"))
    except (OSError, ValueError):
        about = {}
    names = about.get("names") if isinstance(about, dict) else None
    return [name for name in names if isinstance(name, str)] if isinstance(names, list) else []


def _written(place: Path) -> float:
    """When an upload was last kept; 0 where another session removed it in the meantime."""
    try:
        return place.stat().st_mtime
    except OSError:
        return 0.0


def _label(name: str) -> str:
    """The last part of a name, printable and short."""
    last = re.split(r"[\\/]", name)[-1]
    return "".join(c if c.isprintable() else "?" for c in last)[:80] or "upload"


def _forget_oldest(folder: Path, newest: Path) -> None:
    """Remove the oldest above the limits, never `newest`."""
    places = sorted((one for one in folder.iterdir() if one != newest), key=_written)
    sizes = [_bytes(one) for one in places]
    files, total = len(places) + 1, _bytes(newest) + sum(sizes)
    for place, size in zip(places, sizes, strict=True):
        if files <= MAX_FILES and total <= MAX_TOTAL_BYTES:
            return
        shutil.rmtree(place, ignore_errors=True)
        files, total = files - 1, total - size


def _bytes(place: Path) -> int:
    try:
        return (place / _CONTENT).stat().st_size
    except OSError:
        return 0
