"""Logs written in every wording that is read, with the figures that must come out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from kvsim.startup_logs import StartupLog, read_startup_log
from tests.startup_logs.logs_other import LLAMA, SGLANG, TENSORRT
from tests.startup_logs.logs_vllm import V0, V1, Case

CASES: list[tuple[str, str, Case]] = [
    (server, name, case)
    for server, cases in (
        ("vllm", V0),
        ("vllm", V1),
        ("sglang", SGLANG),
        ("tensorrt-llm", TENSORRT),
        ("llama.cpp", LLAMA),
    )
    for name, case in cases.items()
]
every_case = pytest.mark.parametrize(
    ("server", "name", "case"), CASES, ids=[f"{server} {name}" for server, name, _ in CASES]
)


def test_more_than_thirty_logs_are_read() -> None:
    assert len(CASES) >= 30


def _matches(log: StartupLog, server: str, case: Case) -> None:
    assert (log.server, log.version, log.engine) == (server, case.version, case.engine)
    for name, value in case.figures.items():
        assert log.figures[name].value == pytest.approx(value, rel=1e-12, abs=1e-12), name
    for name, value in case.settings.items():
        assert log.settings[name].value == value, name
    assert (log.refusal.kind if log.refusal else None) == case.refusal


@every_case
def test_a_log_says_its_figures_and_settings(server: str, name: str, case: Case) -> None:
    log = read_startup_log(case.text.splitlines())
    _matches(log, server, case)
    assert not log.cut
    assert log.lines == case.text.count("\n")


def _docker(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{"log":"{escaped}\\n","stream":"stderr","time":"2026-01-02T03:04:05.6Z"}}'


def _kubernetes(line: str) -> str:
    escaped = line.replace("\\", "\\\\").replace('"', '\\"')
    return f'{{"ts": 1.5, "level": "info", "message": "{escaped}"}}'


WRAPPED: dict[str, Callable[[str], str]] = {
    "docker's JSON": _docker,
    "a JSON logger": _kubernetes,
    "a time and a pod": lambda line: f"2026-01-02T03:04:05.678901234Z stdout F pod-0 | {line}",
    "colours": lambda line: f"\x1b[1;36m{line.replace(' ', chr(27) + '[0m ', 1)}\x1b[0m",
    "a bar before it": lambda line: f"Loading:  50%|#####     | 1/2\rLoading: 100%\r{line}",
    "Windows": lambda line: line + "\r",
    "zero bytes": lambda line: "\x00" + "\x00".join([line[:9], line[9:]]),
}


@pytest.mark.parametrize("wrap", WRAPPED.values(), ids=WRAPPED)
@every_case
def test_what_stands_around_a_line_changes_nothing(
    server: str, name: str, case: Case, wrap: Callable[[str], str]
) -> None:
    log = read_startup_log(wrap(line) for line in case.text.splitlines())
    _matches(log, server, case)
    plain = read_startup_log(case.text.splitlines())
    places = {name: found.line for name, found in plain.figures.items()}
    assert {name: found.line for name, found in log.figures.items()} == places


@every_case
def test_no_log_says_a_figure_that_it_does_not_print(server: str, name: str, case: Case) -> None:
    """Every figure found is one of the case's, so nothing is read where nothing stands."""
    log = read_startup_log(case.text.splitlines())
    also = set(log.figures) - set(case.figures)
    lines = case.text.splitlines()
    for figure in also:
        found = log.figures[figure]
        digits = f"{found.value:g}".replace(",", "")
        assert digits in lines[found.line - 1].replace(",", ""), figure


def _bytes(case: Case) -> Iterator[bytes]:
    yield from (line.encode() + b"\n" for line in case.text.splitlines())


@every_case
def test_lines_may_be_bytes(server: str, name: str, case: Case) -> None:
    _matches(read_startup_log(_bytes(case)), server, case)
