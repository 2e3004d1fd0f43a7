"""`kvsim verify`: does kvsim decide what the real scheduler decided?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from itertools import zip_longest
from pathlib import Path
from typing import Any

from kvsim.errors import InputError
from kvsim.recordings.reader import Recording
from kvsim.recordings.replay import Replay
from kvsim.recordings.rules import first_rule

SUFFIXES = (".jsonl", ".jsonl.gz")


@dataclass
class Result:
    """The outcome for one recording; `difference` describes the first row that differs."""

    path: Path
    outcome: str
    vllm_version: str = ""
    rows: int = 0
    reason: str = ""
    rule: str = ""
    """What the scheduler decides there, by the first field that differs."""
    line: int = 0
    malformed: bool = False
    """The file is no recording; `reason` says where, why, and the way out."""
    difference: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    """Field -> (recorded, replayed); a missing field is None."""


@dataclass
class Report:
    """All results, in the order of the arguments."""

    results: list[Result] = field(default_factory=list)

    def count(self, outcome: str) -> int:
        """Recordings with this outcome: passed, failed or skipped."""
        return sum(result.outcome == outcome for result in self.results)

    @property
    def malformed(self) -> bool:
        """Whether some file is no recording."""
        return any(result.malformed for result in self.results)

    @property
    def ok(self) -> bool:
        """Whether nothing failed."""
        return self.count("failed") == 0

    def last_line(self) -> str:
        """The closing line."""
        passed, failed, skipped = map(self.count, ("passed", "failed", "skipped"))
        return f"{passed} passed, {failed} failed, {skipped} skipped"


def recording_files(arguments: Iterable[Path]) -> list[Path]:
    """Files in order, each once; a folder stands for its own files, not its subfolders."""
    files: dict[Path, Path] = {}
    for argument in arguments:
        if argument.is_dir():
            found = sorted(
                path
                for path in argument.iterdir()
                if path.name.endswith(SUFFIXES) and path.is_file()
            )
            if not found:
                raise InputError(
                    "the folder holds no recording",
                    where=str(argument),
                    fix="Name files, or a folder with *.jsonl or *.jsonl.gz of its own",
                )
        elif argument.is_file():
            found = [argument]
        else:
            what = "is neither a file nor a folder" if argument.exists() else "does not exist"
            raise InputError(what, where=str(argument), fix="Name recordings or their folder")
        for path in found:
            files.setdefault(path.resolve(), path)
    return list(files.values())


def verify(arguments: Iterable[Path], *, only_supported: bool = False) -> Report:
    """Replay recordings and compare every row and the totals.

    A recording that needs what kvsim does not simulate fails, or is skipped with
    `only_supported`.
    """
    report = Report()
    for path in recording_files(arguments):
        try:
            report.results.append(_verify_file(path, only_supported=only_supported))
        except InputError as error:
            report.results.append(Result(path, "failed", reason=str(error), malformed=True))
    return report


def _verify_file(path: Path, *, only_supported: bool) -> Result:
    recording = Recording(path)
    missing = recording.unsupported()
    if missing is None:
        return compare(recording)
    outcome = "skipped" if only_supported else "failed"
    return Result(path, outcome, recording.vllm_version, reason=f"not covered: {missing}")


def compare(recording: Recording) -> Result:
    """Replay one recording up to its first difference."""
    replay = Replay(recording.config, recording.requests)
    result = Result(recording.path, "passed", recording.vllm_version)
    for recorded, replayed in zip_longest(recording.rows(), replay):
        line, want = recorded or (0, None)
        if want != replayed:
            result.outcome = "failed"
            result.line = line
            result.reason = f"step {(want or replayed or {})['step']} differs"
            result.difference = differing(want or {}, replayed or {})
            result.rule = first_rule(result.difference)
            return result
        result.rows += 1
    if replay.totals != recording.totals:
        result.outcome = "failed"
        result.reason = "the totals differ"
        result.difference = differing(recording.totals, replay.totals)
    return result


def differing(want: dict[str, Any], got: dict[str, Any]) -> dict[str, tuple[Any, Any]]:
    """Fields whose values differ, recorded and replayed."""
    return {
        name: (want.get(name), got.get(name))
        for name in [*want, *(name for name in got if name not in want)]
        if want.get(name) != got.get(name)
    }
