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
MAX_BYTES: Mapping[str, int] = {
    "config": 4 << 20,
    "scenario": 1 << 20,
    "trace": 50 << 20,
    "log": 20 << 20,
    "bench": 50 << 20,
    "profile": 4_000_000,
    "validation": 32 << 20,
}
"""Kind of an upload -> most bytes of its file."""
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
    write_whole(place / _ABOUT, json.dumps({"name": label}).encode(), "upload")
    _forget_oldest(folder)
    return Upload(upload_id, label, place / _CONTENT)


def kept(folder: Path, upload_id: str) -> Upload:
    """An upload by its id. Raises `InputError` where there is none."""
    place = folder / upload_id if _ID.fullmatch(upload_id) else None
    if place is None or not (place / _CONTENT).is_file():
        raise InputError(
            f"the upload {upload_id[:40]!r} is not here any more",
            where="upload",
            fix="Upload the file again",
        )
    return Upload(upload_id, _name_of(place), place / _CONTENT)


def kept_of_kind(folder: Path, kind: str) -> list[Upload]:
    """All uploads of a kind, the newest first."""
    places = [place for place in folder.glob(f"{kind}-*") if _ID.fullmatch(place.name)]
    places.sort(key=lambda place: -place.stat().st_mtime)
    return [Upload(place.name, _name_of(place), place / _CONTENT) for place in places]


def _name_of(place: Path) -> str:
    try:
        about = json.loads((place / _ABOUT).read_text("utf-8"))
    except (OSError, ValueError):
        about = {}
    name = about.get("name") if isinstance(about, dict) else None
    return name if isinstance(name, str) else place.name


def _label(name: str) -> str:
    """The last part of a name, printable and short."""
    last = re.split(r"[\\/]", name)[-1]
    return "".join(c if c.isprintable() else "?" for c in last)[:80] or "upload"


def _forget_oldest(folder: Path) -> None:
    places = sorted(folder.iterdir(), key=lambda place: place.stat().st_mtime)
    for place in places[: max(0, len(places) - MAX_FILES)]:
        shutil.rmtree(place, ignore_errors=True)
