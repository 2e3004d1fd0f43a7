"""The section `workload` -> a workload, and what to say when a trace is not there."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Any, Literal, NamedTuple

from kvsim.errors import InputError
from kvsim.scenario.lengths import (
    IndependentLengthSettings,
    LengthSettings,
    PairFileSettings,
    PairPresetSettings,
)
from kvsim.scenario.traffic import (
    ChatFallback,
    ChatSettings,
    FileWorkload,
    LawWorkload,
    PresetWorkload,
    Sosp23Workload,
    TraceWorkload,
    WorkloadSettings,
)
from kvsim.workload import (
    KNOWN_TRACES,
    GeneratedWorkload,
    IndependentLengths,
    Lengths,
    PairLengths,
    ReadRules,
    Workload,
    find_trace,
    length_preset,
    preset,
)
from kvsim.workload import Sosp23Workload as Sosp23Recipe
from kvsim.workload import TraceWorkload as TraceFile
from kvsim.workload.source import content_sha256
from kvsim.workload.store import TRACES_VARIABLE


class Traffic(NamedTuple):
    """The requests of a run."""

    workload: Workload
    max_concurrency: int | None
    content_sha256: str | None
    """Digest of the file of the user's own that the requests come from."""
    notes: list[str]
    """What the reader of the results must know, such as that a preset replaced the trace."""
    settings: WorkloadSettings
    """What the requests came from: without a fallback, the preset where it was used."""


def build_workload(
    settings: WorkloadSettings, *, seed: int, strict_traces: bool = False
) -> Traffic:
    """The workload of a scenario, shared by its variants.

    A published trace that is not in $KVSIM_TRACES is replaced by its `fallback` with a note, or is
    an `InputError` where there is none or with `strict_traces`.
    """
    workload: Workload
    own_sha256: str | None = None
    settings, path = _present(settings, strict_traces)
    if isinstance(settings, TraceWorkload):
        assert path is not None
        workload = _trace_file(path, "auto", settings, seed)
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
    elif isinstance(settings, Sosp23Workload):
        workload = _sosp23(settings, path, seed)
    elif isinstance(settings, ChatSettings):
        workload = settings.chat.build(settings.arrivals, rate_scale=settings.rate_scale, seed=seed)
    else:
        workload = preset(
            settings.preset,
            num_requests=settings.num_requests,
            rate_scale=settings.rate_scale,
            seed=seed,
        )
    concurrency = settings.max_concurrency or workload.max_concurrency
    return Traffic(workload, concurrency, own_sha256, _notes(settings), settings)


def _present(settings: WorkloadSettings, strict: bool) -> tuple[WorkloadSettings, Path | None]:
    """The settings without a fallback, and the published trace they name.

    Where the trace is not there they become those of the preset that replaces it.
    """
    if isinstance(settings, TraceWorkload):
        path = find_trace(settings.trace)
        if path is None:
            return _fallback(settings, strict), None
        return settings.model_copy(update={"fallback": None}), path
    if isinstance(settings, Sosp23Workload):
        return _present_lengths(settings, strict)
    return settings, None


def _notes(settings: WorkloadSettings) -> list[str]:
    if isinstance(settings, ChatSettings) and settings.instead_of is not None:
        return [f"{_absent(settings.instead_of)}; generated conversations were used instead"]
    if isinstance(settings, PresetWorkload) and settings.instead_of is not None:
        used = settings.preset
    elif isinstance(settings, Sosp23Workload) and settings.instead_of is not None:
        used = settings.sosp23.preset or ""
    else:
        return []
    return [f"{_absent(settings.instead_of)}; preset {used} was used instead"]


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
        chunk_tokens=settings.chunk_tokens if isinstance(settings, FileWorkload) else None,
        rules=ReadRules(
            on_bad_row=settings.on_bad_row, way_to_drop="--set workload.on_bad_row=drop"
        ),
    )


def _fallback(settings: TraceWorkload, strict: bool) -> PresetWorkload | ChatSettings:
    fallback = settings.fallback
    if fallback is None or strict:
        raise _missing(settings.trace, "workload.trace", has_fallback=fallback is not None)
    if isinstance(fallback, ChatFallback):
        return ChatSettings(
            chat=fallback.chat,
            arrivals=fallback.arrivals,
            rate_scale=settings.rate_scale,
            max_concurrency=settings.max_concurrency,
            instead_of=settings.trace,
        )
    wanted = [n for n in (fallback.num_requests, settings.limit) if n is not None]
    return PresetWorkload(
        preset=fallback.preset,
        num_requests=min(wanted, default=None),
        rate_scale=settings.rate_scale,
        max_concurrency=settings.max_concurrency,
        instead_of=settings.trace,
    )


def _present_lengths(settings: Sosp23Workload, strict: bool) -> tuple[Sosp23Workload, Path | None]:
    recipe, fallback = settings.sosp23, settings.fallback
    change: dict[str, Any] = {"fallback": None}
    path = None if recipe.trace is None else find_trace(recipe.trace)
    if recipe.trace is not None and path is None:
        if fallback is None or strict:
            raise _missing(recipe.trace, "workload.sosp23.trace", has_fallback=fallback is not None)
        drawn = recipe.model_copy(update={"trace": None, "preset": fallback.preset})
        change |= {"sosp23": drawn, "instead_of": recipe.trace}
    return settings.model_copy(update=change), path


def _sosp23(settings: Sosp23Workload, path: Path | None, seed: int) -> Workload:
    recipe = settings.sosp23
    return Sosp23Recipe(
        length_preset(recipe.preset or "") if path is None else _pairs(path, "file"),
        rate_rps=recipe.rate_rps,
        duration_s=recipe.duration_s,
        seed=seed,
        source=f"preset {recipe.preset}" if path is None else None,
    )


def _missing(trace: str, where: str, *, has_fallback: bool) -> InputError:
    known = KNOWN_TRACES[trace]
    instead = ", or leave out --strict-traces" if has_fallback else ""
    if not has_fallback and not where.startswith("workload.lengths"):
        instead = ", or name a workload.fallback"
    folder = os.environ.get(TRACES_VARIABLE)
    state = f"it is {folder!r}" if folder else "the variable is not set"
    return InputError(
        f"{_absent(trace)}: {state}",
        where=where,
        fix=f"{known.how_to_get} into a folder and set $KVSIM_TRACES to it{instead}",
    )


def _absent(trace: str) -> str:
    return f"trace {trace} is not in the folder $KVSIM_TRACES ({KNOWN_TRACES[trace].file_name})"


def _lengths(settings: LengthSettings) -> Lengths:
    if isinstance(settings, IndependentLengthSettings):
        return IndependentLengths(settings.prompt.build(), settings.output.build())
    if isinstance(settings, PairFileSettings):
        file = _own_file(settings.path, settings.sha256, "workload.lengths")
        return _pairs(file, settings.order)
    if isinstance(settings, PairPresetSettings):
        return length_preset(settings.preset)
    path = find_trace(settings.trace)
    if path is None:
        raise _missing(settings.trace, "workload.lengths.trace", has_fallback=False)
    return _pairs(path, settings.order)


def _pairs(path: Path, order: Literal["file", "sample"]) -> PairLengths:
    return PairLengths(path, order=order, rules=ReadRules(way_to_drop=""))
