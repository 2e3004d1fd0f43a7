"""Reads single values of a row. A value that will not do raises `BadRowError`."""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import date
from decimal import Decimal
from typing import Any

from kvsim.workload.base import MAX_NS, NS_PER_S

Record = Mapping[str, Any]
"""A row by column name: strings (CSV), or int, Decimal, str, bool, None, list, dict (JSON)."""

_PLAIN = re.compile(r"([0-9]{1,12})(?:\.([0-9]{0,9}))?")
_NUMBER = re.compile(r"-?[0-9]{1,60}(?:\.[0-9]{0,60})?(?:[eE][+-]?[0-9]{1,4})?")
_ISO = re.compile(
    r"([0-9]{4}-[0-9]{2}-[0-9]{2})[ T]([0-9]{2}):([0-9]{2}):([0-9]{2})"
    r"(?:\.([0-9]{1,9}))?(?:Z|([+-])([0-9]{2}):([0-9]{2}))?"
)
_EPOCH = date(1970, 1, 1).toordinal()
_MAX_ID = 256
MAX_ARRIVAL_NS = MAX_NS - 1_000_000 * NS_PER_S
"""Leaves room to smear arrivals over a million seconds in 64 bits."""


class BadRowError(Exception):
    """A row that cannot be used; `reason` is the word it is counted under when dropped."""

    def __init__(self, reason: str, problem: str) -> None:
        super().__init__(problem)
        self.reason = reason
        self.problem = problem


def bad_value(column: str, value: object, wanted: str) -> BadRowError:
    """The row's value, shortened, is not what is wanted."""
    try:
        text = repr(value) if not isinstance(value, Decimal) else str(value)
    except RecursionError:  # JSON may just have been read at a depth that cannot be written
        text = f"a {type(value).__name__} nested too deeply"
    text = text if len(text) <= 60 else text[:57] + "..."
    return BadRowError("bad_value", f"column {column}: {text} is not {wanted}")


def present(record: Record, column: str) -> Any:
    """The value of a column the row must have."""
    value = record.get(column)
    if value is None or value == "":
        raise BadRowError("missing_value", f"column {column}: the value is missing")
    return value


def tokens(record: Record, column: str, most: int) -> int:
    """A number of tokens, 0 to `most`. `5.0` and "5" are 5; 5.5, `5e3` and True are refused."""
    value = record.get(column)
    if type(value) is str and value.isdecimal() and value.isascii() and len(value) < 20:
        count = int(value)
    elif type(value) is int:
        count = value
    else:
        count = _unusual_tokens(present(record, column), column)
    if count < 0:
        raise bad_value(column, value, "an integer >= 0")
    if count > most:
        raise BadRowError("bad_value", f"column {column}: {count:,} is more than {most:,} tokens")
    return count


def _unusual_tokens(value: Any, column: str) -> int:
    if isinstance(value, str):
        match = re.fullmatch(r" *([0-9]{1,19})(?:\.0{0,9})? *", value)
        if match:
            return int(match[1])
    elif isinstance(value, Decimal) and _is_whole(value):
        return int(value)
    raise bad_value(column, value, "an integer >= 0")


def _is_whole(value: Decimal) -> bool:
    # The exponent first: arithmetic on numbers like 1e999999999 or 1e-999999999 has no end.
    if not value.is_finite():
        return False
    return value.is_zero() or (0 <= value.adjusted() < 19 and value == int(value))


def optional_integer(record: Record, column: str, low: int, high: int) -> int | None:
    """An integer in `low..high`, or None where the row has none."""
    value = record.get(column)
    if value is None or value == "":
        return None
    if isinstance(value, str) and re.fullmatch(r" *-?[0-9]{1,19} *", value):
        value = int(value)
    if isinstance(value, Decimal) and _is_whole(value):
        value = int(value)
    if type(value) is not int or not low <= value <= high:
        raise bad_value(column, value, f"an integer from {low} to {high}")
    return value


def identifier(record: Record, column: str) -> str:
    """A request's name: text or an integer, printable, at most 256 characters."""
    value = present(record, column)
    text = str(value) if type(value) is int else value
    if not isinstance(text, str) or len(text) > _MAX_ID or not text.isprintable():
        raise bad_value(column, value, f"printable text of at most {_MAX_ID} characters")
    return text


def decimal_ns(record: Record, column: str, unit_ns: int) -> int:
    """A time >= 0 in units of `unit_ns` nanoseconds, exact where it has at most 9 decimals."""
    value = present(record, column)
    if type(value) is int:
        ticks = value * unit_ns
    else:
        match = _PLAIN.fullmatch(value) if isinstance(value, str) else None
        if match and unit_ns == NS_PER_S:
            ticks = int(match[1]) * NS_PER_S + int((match[2] or "").ljust(9, "0"))
        else:
            ticks = _rounded(value, column, unit_ns)
    if not 0 <= ticks <= MAX_ARRIVAL_NS:
        raise bad_value(column, value, "a time from 0 to 292 years")
    return ticks


def _rounded(value: Any, column: str, unit_ns: int) -> int:
    number = value if isinstance(value, Decimal) else Decimal("NaN")
    if isinstance(value, str) and _NUMBER.fullmatch(value):
        number = Decimal(value)
    if not number.is_finite() or number < 0:
        raise bad_value(column, value, "a number >= 0")
    if number > MAX_NS:
        raise bad_value(column, value, "a time from 0 to 292 years")
    if number < Decimal("1e-15"):
        return 0
    return round(number * unit_ns)


class DateTimes:
    """ISO date-times to integer nanoseconds since 1970, without a float in between.

    Up to 9 fraction digits; `Z`, an offset or nothing, which means UTC. The date last seen is kept,
    because a trace repeats it row after row.
    """

    def __init__(self) -> None:
        self._date = ""
        self._midnight = 0

    def ns(self, record: Record, column: str) -> int:
        """Nanoseconds since 1970-01-01 UTC."""
        value = present(record, column)
        match = _ISO.fullmatch(value) if isinstance(value, str) else None
        if not match:
            raise bad_value(column, value, "a time like 2023-11-16 18:17:03.9799600")
        day, hour, minute, second, fraction, sign, off_hour, off_minute = match.groups()
        if day != self._date:
            self._midnight = _midnight_ns(day, column, value)
            self._date = day
        if hour > "23" or minute > "59" or second > "59":
            raise bad_value(column, value, "a time of day")
        seconds = int(hour) * 3600 + int(minute) * 60 + int(second)
        if sign:
            if off_hour > "23" or off_minute > "59":
                raise bad_value(column, value, "a time with an offset of at most 23:59 (RFC 3339)")
            offset = int(off_hour) * 3600 + int(off_minute) * 60
            seconds += -offset if sign == "+" else offset
        return self._midnight + seconds * NS_PER_S + int((fraction or "").ljust(9, "0"))


def _midnight_ns(day: str, column: str, value: str) -> int:
    try:
        days = date.fromisoformat(day).toordinal() - _EPOCH
    except ValueError:
        raise bad_value(column, value, "a date of the calendar") from None
    if not 1 <= days <= 106_000:
        raise bad_value(column, value, "a date from 1970-01-02 to 2260")
    return days * 86_400 * NS_PER_S
