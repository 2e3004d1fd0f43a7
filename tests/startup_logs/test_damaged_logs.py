"""Whatever happens to a log's text, reading it ends in figures or in an `InputError`."""

from __future__ import annotations

import math

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.errors import InputError
from kvsim.startup_logs import StartupLog, read_startup_log
from kvsim.startup_logs.names import FIGURES, SETTINGS
from tests.startup_logs.test_wordings import CASES

LINES = [line for _, _, case in CASES for line in case.text.splitlines()]
damage = st.lists(
    st.tuples(st.integers(0, 400), st.integers(0, 40), st.text(max_size=6)), max_size=4
)


def _outcome(lines: list[str] | list[bytes], server: str | None) -> StartupLog | str:
    try:
        return read_startup_log(lines, server=server)
    except InputError as error:
        return str(error)


def _is_sound(log: StartupLog) -> None:
    for name, found in log.figures.items():
        assert found.unit == FIGURES[name][0]
        assert isinstance(found.value, int | float)
        assert math.isfinite(found.value)
        assert 1 <= found.line <= log.lines
        assert found.rounding >= 0
        values = [one.value for one in found.readings if isinstance(one.value, int | float)]
        if found.rule in ("smallest", "largest"):
            assert min(values) - found.rounding <= found.value <= max(values) + found.rounding
    for name, found in log.settings.items():
        assert found.unit == SETTINGS[name][0]
        assert found.value is None or isinstance(found.value, SETTINGS[name][1])
        assert not isinstance(found.value, str) or found.value.isprintable()


@settings(max_examples=400, deadline=None)
@given(st.lists(st.tuples(st.sampled_from(LINES), damage), min_size=1, max_size=12))
def test_lines_of_any_server_in_any_order_and_damaged_anywhere(
    drawn: list[tuple[str, list[tuple[int, int, str]]]],
) -> None:
    lines = []
    for line, cuts in drawn:
        for begin, length, text in cuts:
            line = line[:begin] + text + line[begin + length :]
        lines.append(line)
    for server in (None, "vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        outcome = _outcome(lines, server)
        if isinstance(outcome, StartupLog):
            _is_sound(outcome)
        else:
            assert outcome.isprintable()


@settings(max_examples=200, deadline=None)
@given(st.lists(st.binary(max_size=80), max_size=8))
def test_bytes_of_any_kind(lines: list[bytes]) -> None:
    outcome = _outcome(lines, None)
    if isinstance(outcome, StartupLog):
        _is_sound(outcome)
    else:
        assert "no start-up line" in outcome
