"""`kvsim export`: a run in the formats of other tools."""

from __future__ import annotations

import secrets
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path, PurePosixPath
from types import MappingProxyType
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.report.export_csv import csv_export
from kvsim.report.export_openmetrics import openmetrics_export
from kvsim.report.export_parquet import parquet_export
from kvsim.report.export_perfetto import perfetto_export
from kvsim.report.export_source import Export
from kvsim.report.export_vllm_json import vllm_json_export
from kvsim.results.read_run import Run

EXPORTS: Mapping[str, Callable[[Run, Sequence[str]], Export]] = MappingProxyType(
    {
        "csv": csv_export,
        "parquet": parquet_export,
        "openmetrics": openmetrics_export,
        "perfetto": perfetto_export,
        "vllm-json": vllm_json_export,
    }
)


class Written(NamedTuple):
    """What an export left on disk."""

    files: dict[Path, int]
    """Size in bytes, by path."""
    notes: tuple[str, ...]
    """What the reader must know."""


def export_run(
    run: Run, kind: str, target: Path, *, variants: Sequence[str] = (), force: bool = False
) -> Written:
    """Write `run` as `kind`: one file at `target`, or a folder for CSV.

    `variants` chooses some of them, in the given order; none means all. What is at `target` is left
    alone unless `force`; then a file is replaced, and in a folder the files of the same names are.
    Raises `InputError` for an unknown kind or variant, for a target that cannot be written or
    exists, and for a run that lacks what the kind needs; then nothing was written.
    """
    if kind not in EXPORTS:
        raise InputError(
            f"there is no format {kind[:80]!r}", where="--format", fix=f"One of: {_list(EXPORTS)}."
        )
    for name in variants:
        if name not in run.folders:
            raise InputError(
                f"the run has no variant {name[:80]!r}",
                where="--variant",
                fix=f"It has: {_list(run.folders)}.",
            )
    _refuse(target, force)
    export = EXPORTS[kind](run, list(dict.fromkeys(variants)) or list(run.folders))
    files = _write(export, target, force)
    return Written(files, tuple(export.notes))


def _list(names: Iterable[str]) -> str:
    text = ", ".join(names)
    return text if len(text) <= 1000 else text[:1000] + " …"


def _refuse(target: Path, force: bool) -> None:
    if target.is_symlink():
        raise InputError(
            "the target is a link, which is not followed",
            where=str(target),
            fix="Give --out a path of its own.",
        )
    if target.exists() and not force:
        raise InputError(
            "the target exists already",
            where=str(target),
            fix="Choose another path with --out, or replace it with --force.",
        )


def _write(export: Export, target: Path, force: bool) -> dict[Path, int]:
    """Write beside the target, then move: a reader never sees half a file."""
    partial = target.parent / f".{target.name[:100]}.{secrets.token_hex(4)}.partial"
    sizes: dict[str, int] = {}
    try:
        partial.mkdir(parents=True)
        for name, chunks in export.files:
            path = partial / (name or "file")
            path.parent.mkdir(parents=True, exist_ok=True)
            with path.open("xb") as file:
                sizes[name] = sum(file.write(chunk) for chunk in chunks)
        _refuse(target, force)
        _move(partial, target, list(sizes))
    except OSError as error:
        raise InputError(
            f"cannot write the export: {error.strerror or type(error).__name__}",
            where=str(target),
            fix="Give --out a path you can write to, on a disk with room.",
        ) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return {target / name if name else target: size for name, size in sizes.items()}


def _move(partial: Path, target: Path, names: Sequence[str]) -> None:
    if names == [""]:
        (partial / "file").replace(target)
        return
    if not target.exists():
        partial.rename(target)
        return
    folders = {target / parent for name in names for parent in PurePosixPath(name).parents}
    for folder in sorted(folders):
        if folder.is_symlink():
            raise InputError(
                "a folder of the target is a link, which is not followed",
                where=str(folder),
                fix="Give --out a path of its own.",
            )
        folder.mkdir(exist_ok=True)
    for name in names:
        (partial / name).replace(target / name)
