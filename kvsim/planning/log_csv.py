"""A start-up log, its checks and the prediction beside it, as tables."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.planning.audit import Audit
from kvsim.planning.beside_log import BesideLog
from kvsim.report.export_csv import csv_lines
from kvsim.report.export_parquet import rows_parquet

COLUMNS = ("part", "name", "unit", "line", "printed", "expected", "low", "high", "agrees")


def log_csv(found: Audit, beside: BesideLog | None) -> str:
    """A line for each setting, figure, check and prediction.

    `agrees` says of a check whether the printed value is in `low` to `high`, and of a prediction
    whether its 80 % interval holds it. Texts are disarmed as `csv_lines` does.
    """
    return b"".join(csv_lines(COLUMNS, _rows(found, beside))).decode("utf-8")


def log_parquet(found: Audit, beside: BesideLog | None) -> bytes:
    """The rows of `log_csv` as a Parquet file; `text` is what was printed and is no number."""
    kinds = ("string",) * 3 + ("int64", "float64", "float64", "float64", "float64", "bool")
    columns = dict(zip(COLUMNS, kinds, strict=True))
    place = COLUMNS.index("printed")

    def split() -> Iterator[tuple[object, ...]]:
        for row in _rows(found, beside):
            value = row[place]
            number, text = None, str(value)
            if isinstance(value, int | float) and not isinstance(value, bool):
                number, text = float(value), ""
            yield *row[:place], number, *row[place + 1 :], text

    return rows_parquet({**columns, "text": "string"}, split())


def _rows(found: Audit, beside: BesideLog | None) -> Iterator[tuple[object, ...]]:
    for part, rows in (("setting", found.log.settings), ("figure", found.log.figures)):
        for name, one in rows.items():
            yield part, name, one.unit, one.line, one.value, "", "", "", ""
    for check in found.checks:
        ends = (check.low, check.high, check.agrees)
        yield "check", check.what, check.unit, check.line, check.printed, "", *ends
    for row in () if beside is None else beside.figures:
        numbers = (row.printed, row.predicted, row.low, row.high)
        yield "prediction", row.name, row.unit, row.line, *numbers, row.inside
