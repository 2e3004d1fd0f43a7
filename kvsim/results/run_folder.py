"""The folder of one run: everything needed to read it, compare it and run it again."""

from __future__ import annotations

import hashlib
import json
import re
import secrets
import shutil
from array import array
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from types import TracebackType
from typing import Any

from kvsim.errors import InputError
from kvsim.results.rows import Columns
from kvsim.results.snapshots import SNAPSHOTS_NAME, snapshots_text
from kvsim.results.summary_file import SUMMARY_NAME, summary_text

_OPTIONAL_TYPES = {
    "request_id": "string",
    "outcome": "string",
    "reason": "string",
    "queue_s": "float64",
    "arrival_s": "float64",
    "first_token_s": "float64",
    "finish_s": "float64",
    "held_up_by_fragmentation": "bool",
}
"""Types of columns kept as lists; the others are int64. Fixed, so that an empty run fits too."""


class RunFolder:
    """Writes a run beside its target and renames it into place when it is complete.

    Use as a context manager: `write_variant` any number of times, then `commit`. Leaving it without
    a commit removes what was written. The same input gives the same bytes in every file but
    `created.json`, which `files.json` (SHA-256 of all others) leaves out.

    Layout: `scenario.yaml`, `run.json`, `summary.json`, `files.json`, and for each variant
    `variants/<folder>/steps.parquet`, `requests.parquet` and `snapshots.json`; `run.json` maps
    names to folders. With several seeds they are in a folder `seed-<n>` each.
    """

    def __init__(self, target: Path) -> None:
        self._target = target
        self._folders: dict[str, str] = {}
        self._written: set[tuple[str, int | None]] = set()
        self._made: list[Path] = []
        """Folders above the target that were made for it."""
        self._refuse_existing()
        token = secrets.token_hex(4)
        self._partial = target.parent / f".{target.name[:100]}.{token}.partial"

    def _refuse_existing(self) -> None:
        with self._disk_errors():
            exists = self._target.exists() or self._target.is_symlink()
        if exists:
            is_run = (self._target / "run.json").is_file()
            raise InputError(
                "the run folder exists already",
                where=str(self._target),
                fix="Choose a folder that does not exist yet with --out"
                + (", or remove this run" if is_run else ""),
            )

    @contextmanager
    def _disk_errors(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            raise InputError(
                f"cannot write the run folder: {error.strerror or type(error).__name__}",
                where=str(self._target),
                fix="Choose a folder you can write to, on a disk with room, with --out.",
            ) from error

    def __enter__(self) -> RunFolder:
        above = [path for path in self._partial.parents if not path.exists()]
        with self._disk_errors():
            try:
                self._partial.mkdir(parents=True)
            finally:
                self._made = [path for path in above if path.is_dir()]
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        shutil.rmtree(self._partial, ignore_errors=True)
        for path in self._made:  # innermost first; one that holds something stays
            with suppress(OSError):
                path.rmdir()

    def write_variant(
        self,
        name: str,
        *,
        steps: Columns | None = None,
        requests: Columns | None = None,
        snapshots: Mapping[str, Any] | None = None,
        seed: int | None = None,
    ) -> None:
        """Write the rows of one variant; its folder is the name made safe for file systems.

        `seed` is given where the run has several.
        """
        if (name, seed) in self._written:
            raise ValueError(f"variant {name!r} was written already")
        self._written.add((name, seed))
        if name not in self._folders:
            taken = {folder.lower() for folder in self._folders.values()}
            self._folders[name] = safe_folder_name(name, taken)
        path = self._partial / "variants" / self._folders[name]
        if seed is not None:
            path = path / f"seed-{seed}"
        with self._disk_errors():
            path.mkdir(parents=True)
            for file_name, columns in (("steps", steps), ("requests", requests)):
                if columns is not None:
                    _write_parquet(columns, path / f"{file_name}.parquet")
            if snapshots is not None:
                (path / SNAPSHOTS_NAME).write_bytes(snapshots_text(snapshots).encode("ascii"))

    def commit(
        self,
        *,
        scenario_text: str,
        summary: Mapping[str, Any],
        versions: Mapping[str, str],
        seeds: Sequence[int],
        trace_digest: str | None,
        created_at: str | None = None,
    ) -> Path:
        """Complete the folder and move it to its target, which must still be absent.

        `scenario_text` is the resolved scenario; `created_at` goes to `created.json` only.
        """
        run = {
            "versions": dict(sorted(versions.items())),
            "seeds": list(seeds),
            "trace_digest": trace_digest,
            "variants": self._folders,
        }
        texts = {
            "scenario.yaml": scenario_text,
            SUMMARY_NAME: summary_text(summary),
            "run.json": json.dumps(run, indent=2) + "\n",
        }
        with self._disk_errors():
            for name, text in texts.items():
                self._write(name, text)
            self._write("files.json", json.dumps(self._digests(), indent=2) + "\n")
            if created_at is not None:
                self._write("created.json", json.dumps({"created_at": created_at}) + "\n")
            self._refuse_existing()
            self._partial.rename(self._target)
        return self._target

    def _digests(self) -> dict[str, str]:
        files = sorted(path for path in self._partial.rglob("*") if path.is_file())
        return {path.relative_to(self._partial).as_posix(): _sha256(path) for path in files}

    def _write(self, name: str, text: str) -> None:
        (self._partial / name).write_bytes(text.encode("utf-8", "backslashreplace"))


def safe_folder_name(name: str, taken: set[str]) -> str:
    """A folder name for any variant name: letters, digits, `.`, `_`, `-`; never a path.

    A name that had to be changed, or that differs from one of `taken` (lower case) by nothing but
    case, ends in eight hex digits of its SHA-256.
    """
    safe = re.sub(r"[^A-Za-z0-9._-]", "_", name[:60]).strip(".")
    device = safe.split(".")[0].lower()
    reserved = re.fullmatch(r"con|prn|aux|nul|com\d|lpt\d", device) is not None
    if safe == name and safe and not reserved and safe.lower() not in taken:
        return safe
    digest = hashlib.sha256(name.encode("utf-8", "surrogatepass")).hexdigest()
    folder = f"variant-{safe}-{digest[:8]}" if reserved or not safe else f"{safe}-{digest[:8]}"
    while folder.lower() in taken:
        folder += "_"
    return folder


def _write_parquet(columns: Columns, path: Path) -> None:
    import pyarrow as pa  # slow to import: only runs that keep rows need it
    import pyarrow.parquet as pq

    table = pa.table({name: _to_arrow(name, column) for name, column in columns.items()})
    pq.write_table(table, path, compression="zstd")


def _to_arrow(name: str, column: array[Any] | list[Any]) -> Any:
    import pyarrow as pa

    if isinstance(column, array):
        kind = pa.int64() if column.typecode == "q" else pa.float64()
        return pa.Array.from_buffers(kind, len(column), [None, pa.py_buffer(column)])
    kind = _OPTIONAL_TYPES.get(name, "int64")
    if kind == "string":
        column = [None if text is None else _storable(text) for text in column]
    return pa.array(column, type=pa.type_for_alias(kind))


def _storable(text: str) -> str:
    """Text from a trace may hold lone surrogates, which UTF-8 cannot; they become escapes."""
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
