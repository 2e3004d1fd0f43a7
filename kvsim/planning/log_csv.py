"""A start-up log, its checks and the prediction beside it, as CSV."""

from __future__ import annotations

import csv
import io

from kvsim.planning.audit import Audit
from kvsim.planning.beside_log import BesideLog

COLUMNS = ("part", "name", "unit", "line", "printed", "expected", "low", "high", "agrees")


def log_csv(found: Audit, beside: BesideLog | None) -> str:
    """A line for each setting, figure, check and prediction.

    `agrees` says of a check whether the printed value is in `low` to `high`, and of a prediction
    whether its 80 % interval holds it.
    """
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(COLUMNS)
    for part, rows in (("setting", found.log.settings), ("figure", found.log.figures)):
        for name, one in rows.items():
            writer.writerow((part, name, one.unit, one.line, _cell(one.value), "", "", "", ""))
    for check in found.checks:
        ends = (repr(check.low), repr(check.high), str(check.agrees).lower())
        writer.writerow(
            ("check", check.what, check.unit, check.line, repr(check.printed), "", *ends)
        )
    for row in () if beside is None else beside.figures:
        numbers = (row.printed, row.predicted, row.low, row.high)
        cells = (*map(repr, numbers), str(row.inside).lower())
        writer.writerow(("prediction", row.name, row.unit, row.line, *cells))
    return text.getvalue()


def _cell(value: object) -> str:
    """A value of a log; a spreadsheet must not take a text of it for a formula."""
    text = "" if value is None else str(value)
    return f"'{text}" if isinstance(value, str) and text[:1] in ("=", "+", "-", "@") else text
