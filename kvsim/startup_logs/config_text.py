"""Values out of the printed form of Python arguments: `name=value, ...` or `{'name': value, ...}`.

The text is never evaluated. One pass over its characters splits it at the outer commas.
"""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.startup_logs.found import Value

MAX_TEXT = 200
"""Characters kept of a value that is text."""
_OPEN, _CLOSE, _QUOTES = frozenset("([{"), frozenset(")]}"), frozenset("'\"")


def named_values(text: str, start: int) -> dict[str, str]:
    """Names and printed values from `start` to the bracket that closes them or the end."""
    found: dict[str, str] = {}
    for item in _items(text, start):
        name, separator, value = item.strip().partition("=")
        if not separator or not name.isidentifier():
            name, separator, value = item.strip().partition(":")
            name = name.strip().strip("'\"")
        if separator and name.isidentifier():
            found[name] = value.strip()
    return found


def _items(text: str, start: int) -> Iterator[str]:
    depth, quote, begin, skip = 0, "", start, False
    for index in range(start, len(text)):
        char = text[index]
        if skip:
            skip = False
        elif quote:
            skip = char == "\\"
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote = char
        elif char in _OPEN:
            depth += 1
        elif char in _CLOSE:
            depth -= 1
            if depth < 0:
                yield text[begin:index]
                return
        elif char == "," and not depth:
            yield text[begin:index]
            begin = index + 1
    yield text[begin:]


def literal(printed: str, kind: type) -> Value:
    """The value of type `kind`, or None if the text says None or is of another type."""
    if printed == "None":
        return None
    if kind is bool:
        return {"True": True, "False": False, "true": True, "false": False}.get(printed)
    if kind is str:
        return _text(printed)
    try:
        number = float(printed) if len(printed) <= 24 else float("nan")
    except ValueError:
        return None
    if not abs(number) <= 1e15:  # also not a number
        return None
    if kind is float:
        return number
    return int(number) if number == int(number) and number >= 0 else None


def _text(printed: str) -> str:
    if len(printed) >= 2 and printed[0] in _QUOTES and printed[-1] == printed[0]:
        printed = printed[1:-1]
    printed = printed.removeprefix("torch.")
    if len(printed) > MAX_TEXT:
        printed = printed[: MAX_TEXT - 3] + "..."
    return "".join(char if char.isprintable() else "\ufffd" for char in printed)
