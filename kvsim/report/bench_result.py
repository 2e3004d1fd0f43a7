"""Reads the result files of `vllm bench serve`: one JSON object, or one on each line."""

from __future__ import annotations

import io
import json
import math
import re
import stat
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.catalog.json_size import check_json_size
from kvsim.errors import InputError

MAX_BYTES = 50 * 1024 * 1024
MAX_RESULTS = 1_000
MAX_LISTS = 1_000_000
"""Lists and objects of a file: `--save-detailed` writes one for each request."""
MAX_VALUES = 6_000_000
MAX_NUMBER = 1e15
UNITS: Mapping[str, str] = {
    "duration": "s",
    "completed": "requests",
    "failed": "requests",
    "num_prompts": "requests",
    "max_concurrency": "requests",
    "request_rate": "requests/s",
    "total_input_tokens": "tokens",
    "total_output_tokens": "tokens",
    "request_throughput": "requests/s",
    "request_goodput": "requests/s",
    "output_throughput": "tokens/s",
    "total_token_throughput": "tokens/s",
    "max_output_tokens_per_s": "tokens/s",
    "max_concurrent_requests": "requests",
}
"""Figures besides the latencies -> unit."""
LATENCY = re.compile(
    r"(?:mean|median|std|p\d{1,2}(?:\.\d{1,3})?)_(?:ttft|tpot|itl|e2el)_ms", re.ASCII
)
"""Names of the latencies; all are in ms."""
_NEEDED = ("duration", "completed", "total_input_tokens", "total_output_tokens")
_TEXTS = ("label", "model_id", "backend", "endpoint_type", "date", "kvsim_variant")
_FIX = "Give what `vllm bench serve --save-result` or `kvsim export --format vllm-json` wrote"


class BenchResult(NamedTuple):
    """One run of the benchmark."""

    figures: Mapping[str, float]
    """Name in the file -> finite number, in the unit of `unit_of`; what is null is left out."""
    texts: Mapping[str, str]
    """Label, model, backend and date, printable and short, where the file has them."""
    at_once: bool
    """Whether all requests were sent at once: a request rate of infinity."""


def unit_of(name: str) -> str:
    """The unit of a figure."""
    return "ms" if LATENCY.fullmatch(name) else UNITS[name]


def read_bench(path: Path, *, label: str | None = None) -> tuple[BenchResult, ...]:
    """The results in a file; `label` names it in messages instead of its path.

    Arrays of single requests are not looked at. Raises `InputError` for a file that is too large,
    no JSON, or without the figures of a benchmark, and for a figure that is no finite number.
    """
    where = label or str(path)
    documents = list(_documents(_content(path, where), where))
    if len(documents) > MAX_RESULTS:
        raise InputError(
            f"holds more than {MAX_RESULTS:,} results, the limit", where=where, fix=_FIX
        )
    several = len(documents) > 1
    return tuple(
        bench_result(one, f"{where}, result {number}" if several else where)
        for number, one in enumerate(documents, 1)
    )


def _content(path: Path, where: str) -> bytes:
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("must be a regular file", where=where, fix=_FIX)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, fix=_FIX) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"has more than {MAX_BYTES:,} bytes, the limit", where=where, fix=_FIX)
    check_json_size(
        content,
        where,
        max_lists=MAX_LISTS,
        max_values=MAX_VALUES,
        fix="Save the result without --save-detailed",
    )
    return content


def _documents(content: bytes, where: str) -> Iterator[dict[str, Any]]:
    try:
        text = content.decode("utf-8-sig")
        values = _parsed(text)
    except (ValueError, RecursionError):
        raise InputError("is neither JSON nor JSON lines", where=where, fix=_FIX) from None
    if not values:
        raise InputError("holds no result", where=where, fix=_FIX)
    for value in values:
        if not isinstance(value, dict):
            raise InputError("must hold JSON objects", where=where, fix=_FIX)
        yield value


def _parsed(text: str) -> list[Any]:
    """One value over several lines, or one on each."""
    begin = text.lstrip()
    first, _, rest = begin.partition("\n")
    if rest.strip():
        try:
            values = [json.loads(first)]
        except ValueError:  # an object that goes on after its first line
            return [json.loads(begin)]
        for line in io.StringIO(rest):
            if line.strip() and len(values) <= MAX_RESULTS:
                values.append(json.loads(line))
        return values
    return [json.loads(begin)] if begin else []


def bench_result(document: Mapping[str, Any], where: str) -> BenchResult:
    """One result from its fields. Raises `InputError` as `read_bench` does."""
    missing = [name for name in _NEEDED if document.get(name) is None]
    if missing:
        raise InputError(
            f"is no result of `vllm bench serve`: it has no {missing[0]}", where=where, fix=_FIX
        )
    at_once = document.get("request_rate") in ("inf", math.inf)
    figures = {
        name: _number(value, name, where)
        for name, value in document.items()
        if (name in UNITS or LATENCY.fullmatch(name))
        and value is not None
        and not (name == "request_rate" and at_once)
    }
    texts = {name: _text(document[name]) for name in _TEXTS if isinstance(document.get(name), str)}
    return BenchResult(figures, texts, at_once)


def _number(value: object, name: str, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise InputError(f"{name} must be a number", where=where, fix=_FIX)
    if not 0 <= value <= MAX_NUMBER:  # NaN fails too
        raise InputError(f"{name} must be from 0 to {MAX_NUMBER:g}", where=where, fix=_FIX)
    return float(value)


def _text(value: str) -> str:
    return "".join(one if one.isprintable() else "?" for one in value[:100])
