"""A comparison as text and tables, before any output format; nothing in it is escaped yet."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from kvsim.report.compare import VERDICTS, Comparison, Figure, Mismatch, Pair, Side, Source
from kvsim.report.metrics import MEMORY_METRICS, METRICS, Metric
from kvsim.report.text import figure, half_width, plain
from kvsim.report.thresholds import Check

_NONE = "-"
_SETTING_LIMIT = 120


class Table(NamedTuple):
    """Rows of text; the first column names the row, the others are aligned to the right."""

    title: str
    header: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]


class Document(NamedTuple):
    """What every output format shows, in this order."""

    title: str
    warnings: tuple[str, ...]
    lines: tuple[str, ...]
    """What was compared."""
    blocks: tuple[str | Table, ...]


def comparison_document(comparison: Comparison, checks: Sequence[Check] = ()) -> Document:
    """Settings that differ, memory side by side, the figures that changed, and the checks."""
    bases = list(dict.fromkeys(pair.base.title for pair in comparison.pairs))
    blocks: list[str | Table] = list(_checks(checks))
    for base in bases:
        pairs = [pair for pair in comparison.pairs if pair.base.title == base]
        blocks.append(_memory_table([pairs[0].base, *(pair.candidate for pair in pairs)]))
        for pair in pairs:
            blocks += _pair_blocks(pair)
    return Document(
        title="kvsim compare",
        warnings=tuple(mismatch_text(mismatch) for mismatch in comparison.mismatches),
        lines=tuple(_legend(comparison)),
        blocks=tuple(blocks),
    )


def mismatch_text(mismatch: Mismatch) -> str:
    """The warning of a comparison that was insisted on."""
    return f"Not comparable, shown because of --force: {plain(mismatch, 400)}."


def check_text(check: Check) -> str:
    """A check with its figures."""
    word = "FAILED" if check.breached else "passed"
    noise = ", within noise" if check.figure.verdict == "within noise" else ""
    return (
        f"{word} {check.rule.text}: {_title(check.pair.candidate)} against"
        f" {_title(check.pair.base)}: {number(check.figure.base)} -> "
        f"{number(check.figure.candidate)} ({change_text(check.figure)}{noise})"
    )


def number(value: float | None) -> str:
    """Whole numbers with all digits, others with six; a dash for what is undefined."""
    if value is None:
        return _NONE
    return f"{value:.0f}" if _is_whole(value, 6) else f"{value:.6g}"


def change_text(figure: Figure) -> str:
    """Signed difference, its 95 % interval where it has one, and the relative change."""
    if figure.difference is None:
        return _NONE
    text = _signed(figure.difference)
    if figure.interval is not None:
        text += f" [{_signed(figure.interval[0], 4)}, {_signed(figure.interval[1], 4)}]"
    relative = relative_text(figure)
    return text if relative == _NONE else f"{text}, {relative}"


def relative_text(figure: Figure) -> str:
    """Change relative to the base, in percent."""
    if figure.relative is None:
        return "+0 %" if figure.difference == 0 else _NONE
    percent = 100 * figure.relative
    return f"{percent:+,.0f} %" if _is_whole(percent, 3) else f"{percent:+.3g} %"


def _signed(value: float, digits: int = 6) -> str:
    return f"{value:+.0f}" if _is_whole(value, digits) else f"{value:+.{digits}g}"


def _is_whole(value: float, digits: int) -> bool:
    """Whether a figure is shown without decimals; `g` would round it to a power of ten."""
    return isinstance(value, int) or abs(value) >= 10**digits - 0.5


def _legend(comparison: Comparison) -> Iterator[str]:
    several = len(comparison.sources) > 1
    for rank, source in enumerate(comparison.sources):
        letter = f"{chr(ord('A') + rank)}: " if several else ""
        yield letter + _source_line(source)
    versions = dict.fromkeys(plain(s.summary["kvsim_version"]) for s in comparison.sources)
    if len(versions) > 1:
        yield f"The runs were made by different versions of kvsim: {', '.join(versions)}."
    if comparison.unmatched:
        names = ", ".join(_title(side) for side in comparison.unmatched)
        yield f"Not compared, because only one run has them: {names}."
    methods = {pair.method for pair in comparison.pairs}
    if "paired" in methods:
        yield "Intervals hold with 95 %: Student's t on differences paired by seed."
    if "welch" in methods:
        yield (
            "Intervals hold with 95 %: Welch's t, which takes the replicas of both runs as"
            " unrelated; fewer than two seeds are common to both."
        )
    for seeds in dict.fromkeys(pair.common_seeds for pair in comparison.pairs):
        if seeds:
            yield (
                f"Paired are the seeds common to both runs: {_seeds(seeds)}. Differences, and the"
                " figures next to them, are means over these alone; maxima and counts of requests"
                " are those of all seeds."
            )


def _seeds(seeds: Sequence[int]) -> str:
    return plain(", ".join(map(str, seeds)), 200)


def _source_line(source: Source) -> str:
    workload, seeds = source.summary["workload"], source.summary.get("seeds")
    rows = workload.get("rows")
    kept = rows.get("kept") if isinstance(rows, dict) else None
    parts = [plain(workload["source"])]
    if isinstance(kept, int):
        parts.append(f"{kept} requests")
    if seeds:
        parts.append(f"{len(seeds)} seeds")
    name = plain(source.summary["scenario"])
    return f"{plain(source.label, 200)} (scenario {name}; {', '.join(parts)})"


def _checks(checks: Sequence[Check]) -> Iterator[str]:
    if checks:
        failed = sum(check.breached for check in checks)
        yield f"{failed} of {len(checks)} checks failed." if failed else "All checks passed."
    yield from map(check_text, checks)


def _memory_table(sides: Sequence[Side]) -> Table:
    def cell(side: Side, metric: Metric) -> str:
        half = half_width(side.entry, metric.path)
        spread = "" if half is None else f" ± {half:.3g}"
        return number(figure(side.entry, metric.path)) + spread

    return Table(
        "KV memory, shares of capacity averaged over time (memory.paper: over steps)",
        ("figure", *(_title(side) for side in sides), "unit"),
        tuple(
            (metric.path, *(cell(side, metric) for side in sides), metric.unit)
            for metric in MEMORY_METRICS
        ),
    )


def _pair_blocks(pair: Pair) -> Iterator[str | Table]:
    base, candidate = _title(pair.base), _title(pair.candidate)
    columns = (pair.base.letter or base, pair.candidate.letter or candidate)
    if pair.settings:
        rows = tuple(
            (plain(setting.path), _setting(setting.base), _setting(setting.candidate))
            for setting in pair.settings
        )
        yield Table(
            f"{candidate} against {base}: settings that differ", ("setting", *columns), rows
        )
    elif pair.settings_known:
        yield f"{candidate} against {base}: no setting differs."
    if not pair.settings_known:
        yield (
            f"{candidate} against {base}: a summary alone does not hold all settings;"
            " compare run folders to see them."
        )
    changed = [figure for figure in pair.differences if figure.path in METRICS]
    if not pair.differences:
        yield f"{candidate} against {base}: no difference in any figure."
        return
    yield Table(
        f"{candidate} against {base}: {_tally(changed)}",
        ("figure", *columns, "difference", "relative", "verdict", "unit"),
        tuple(
            _figure_row(figure, METRICS[figure.path].unit)
            for figure in sorted(changed, key=lambda figure: list(METRICS).index(figure.path))
        ),
    )


def _tally(figures: Sequence[Figure]) -> str:
    counts = Counter(figure.verdict for figure in figures)
    return ", ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])


def _figure_row(figure: Figure, unit: str) -> tuple[str, ...]:
    difference = change_text(figure).removesuffix(f", {relative_text(figure)}")
    return (
        figure.path,
        number(figure.base),
        number(figure.candidate),
        difference,
        relative_text(figure),
        figure.verdict,
        unit,
    )


def _setting(value: Any) -> str:
    if value is None:
        return "not set"
    text = value if isinstance(value, str) else json.dumps(value)
    return plain(text, _SETTING_LIMIT)


def _title(side: Side) -> str:
    return plain(side.title, 60)
