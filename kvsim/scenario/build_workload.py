"""The section `workload` -> a workload, and what to say when a trace is not there."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import NamedTuple

from kvsim.errors import InputError
from kvsim.scenario.lengths import IndependentLengthSettings, LengthSettings, PairFileSettings
from kvsim.scenario.traffic import FileWorkload, LawWorkload, TraceWorkload, WorkloadSettings
from kvsim.workload import (
    KNOWN_TRACES,
    GeneratedWorkload,
    IndependentLengths,
    Lengths,
    PairLengths,
    ReadRules,
    Workload,
    find_trace,
    preset,
)
from kvsim.workload import TraceWorkload as TraceFile
from kvsim.workload.source import content_sha256


class Traffic(NamedTuple):
    """The requests of a run."""

    workload: Workload
    max_concurrency: int | None
    content_sha256: str | None
    """Digest of the file of the user's own that the requests come from."""
    notes: list[str]
    """What the reader of the results must know, such as that a preset replaced the trace."""


def build_workload(
    settings: WorkloadSettings, *, seed: int, strict_traces: bool = False
) -> Traffic:
    """The workload of a scenario, shared by its variants.

    A published trace that is not in $KVSIM_TRACES is replaced by its `fallback` with a note, or is
    an `InputError` where there is none or with `strict_traces`.
    """
    notes: list[str] = []
    workload: Workload
    own_sha256: str | None = None
    if isinstance(settings, TraceWorkload):
        path = find_trace(settings.trace)
        if path is not None:
            workload = _trace_file(path, "auto", settings, seed)
        else:
            workload = _fallback(settings, seed, strict_traces)
            notes.append(f"{_absent(settings.trace)}; {workload.source} was used instead")
    elif isinstance(settings, FileWorkload):
        path = _own_file(settings.path, settings.sha256, "workload")
        workload = file = _trace_file(path, settings.format, settings, seed)
        own_sha256 = file.content_sha256
    elif isinstance(settings, LawWorkload):
        lengths = _lengths(settings.lengths)
        if isinstance(lengths, PairLengths):
            own_sha256 = lengths.content_sha256
        workload = GeneratedWorkload(
            settings.arrivals.build(),
            lengths,
            num_requests=settings.num_requests,
            rate_scale=settings.rate_scale,
            seed=seed,
        )
    else:
        workload = preset(
            settings.preset,
            num_requests=settings.num_requests,
            rate_scale=settings.rate_scale,
            seed=seed,
        )
    concurrency = settings.max_concurrency or workload.max_concurrency
    return Traffic(workload, concurrency, own_sha256, notes)


def _own_file(path: str, sha256: str | None, section: str) -> Path:
    """A file of the user's own, after its content was compared with the digest, if one is given."""
    if sha256 is not None:
        found = content_sha256(Path(path), ReadRules())
        if found != sha256:
            raise InputError(
                f"{section}.sha256 is {sha256}, the content of {path} has {found}",
                where=f"{section}.sha256",
                fix="Restore the file, or name it on the command line: --set "
                + shlex.quote(f"{section}.path={path}"),
            )
    return Path(path)


def _trace_file(
    path: Path, kind: str, settings: TraceWorkload | FileWorkload, seed: int
) -> TraceFile:
    return TraceFile(
        path,
        format=kind,
        rate_scale=settings.rate_scale,
        limit=settings.limit,
        smear_s=settings.smear_s,
        seed=seed,
        rules=ReadRules(on_bad_row=settings.on_bad_row),
    )


def _fallback(settings: TraceWorkload, seed: int, strict: bool) -> Workload:
    fallback = settings.fallback
    if fallback is None or strict:
        known = KNOWN_TRACES[settings.trace]
        instead = "name a workload.fallback" if fallback is None else "leave out --strict-traces"
        raise InputError(
            _absent(settings.trace),
            where="workload.trace",
            fix=f"Download {known.file_name} from {known.url} into a folder, set $KVSIM_TRACES to"
            f" that folder, or {instead}",
        )
    wanted = [n for n in (fallback.num_requests, settings.limit) if n is not None]
    return preset(
        fallback.preset,
        num_requests=min(wanted, default=None),
        rate_scale=settings.rate_scale,
        seed=seed,
    )


def _absent(trace: str) -> str:
    return f"trace {trace} is not in the folder $KVSIM_TRACES ({KNOWN_TRACES[trace].file_name})"


def _lengths(settings: LengthSettings) -> Lengths:
    if isinstance(settings, IndependentLengthSettings):
        return IndependentLengths(settings.prompt.build(), settings.output.build())
    if isinstance(settings, PairFileSettings):
        file = _own_file(settings.path, settings.sha256, "workload.lengths")
        return PairLengths(file, order=settings.order)
    path = find_trace(settings.trace)
    if path is None:
        raise InputError(
            _absent(settings.trace),
            where="workload.lengths.trace",
            fix=f"Download it from {KNOWN_TRACES[settings.trace].url} into a folder and set"
            " $KVSIM_TRACES to that folder",
        )
    return PairLengths(path, order=settings.order)
