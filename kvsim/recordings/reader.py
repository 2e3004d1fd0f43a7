"""Reads a recording: JSON lines with a header, requests, one row per step, and totals.

Format 1, gzip or plain. Rows are read one by one as they are compared. Caps: 256 MiB
uncompressed, 4 MiB per line, 1,000,000 requests.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kvsim.core.speculative_scheduler import METHODS
from kvsim.core.vllm_scheduler import POLICIES
from kvsim.errors import InputError
from kvsim.recordings.prompts import segments_of

MAX_BYTES = 256 * 2**20
MAX_LINE_BYTES = 4 * 2**20
MAX_REQUESTS = 1_000_000
MAX_STEP = 100_000_000
MAX_BLANK_LINES = 10_000
GZIP_MAGIC = b"\x1f\x8b"
FIX = "Give a recording of format 1 (JSON lines: header, req..., step rows, end)"

_TOKENS = 100_000_000
CONFIG_LIMITS: dict[str, tuple[int, int]] = {
    "num_gpu_blocks": (2, 10_000_000),
    "block_size": (1, 1_000_000),
    "max_num_seqs": (1, 1_000_000),
    "max_num_batched_tokens": (1, _TOKENS),
    "max_model_len": (2, _TOKENS),
    "long_prefill_token_threshold": (0, _TOKENS),
}
"""Integers of a config, smallest and largest value."""
CONFIG_FLAGS = (
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
    "async_scheduling",
)
GROUP_KINDS = ("full", "sliding")
MAX_GROUPS = 32
MAX_DRAFT_TOKENS = 1024
MAX_PATTERN = 100_000
REQUEST_LIMITS = {
    "arrival_step": (0, MAX_STEP),
    "prompt_tokens": (1, _TOKENS),
    "output_tokens": (1, _TOKENS),
}


class Recording:
    """One recorded run: header and requests at once, rows as they are asked for.

    `totals` is the end line; it is known once `rows()` is exhausted.
    """

    def __init__(self, path: Path) -> None:
        """Open and check the file up to its first row. InputError names file and line."""
        self.path = path
        self._lines = _objects(path)
        self._first_row: tuple[int, dict[str, Any]] | None = None
        self.requests: list[dict[str, Any]] = []
        self.totals: dict[str, Any] = {}
        number, item = next(self._lines, (0, {}))
        where = f"{path}:{number}" if number else str(path)
        self.vllm_version, self.config = _header(item, where)
        self._read_requests()

    def _read_requests(self) -> None:
        names: set[str] = set()
        for number, item in self._lines:
            if "req" not in item:
                self._first_row = number, item
                return
            where = f"{self.path}:{number}"
            request = _request(item["req"], where)
            if request["id"] in names or len(names) >= MAX_REQUESTS:
                raise InputError(
                    f"req.id {request['id']!r} occurs twice, or more than {MAX_REQUESTS} requests",
                    where=where,
                    fix=FIX,
                )
            names.add(request["id"])
            segments_of(request, self.config.get("hash_id_tokens") or 1, where)
            self.requests.append(request)

    def rows(self) -> Iterator[tuple[int, dict[str, Any]]]:
        """Step rows with their line numbers, once."""
        item = self._first_row
        number = 0
        while item is not None:
            number, row = item
            where = f"{self.path}:{number}"
            if "end" in row and not self.totals:
                self.totals = _object(row["end"], "end", where)
            elif self.totals or not _is_int(row.get("step"), 0, MAX_STEP):
                raise InputError("neither a step row nor the end", where=where, fix=FIX)
            else:
                yield number, row
            item = next(self._lines, None)
        if not self.totals:
            where = f"{self.path}:{number}" if number else str(self.path)
            raise InputError("not a whole recording: no end line", where=where, fix=FIX)

    def unsupported(self) -> str | None:
        """What the recording needs that is not covered by the rules, by name, or None."""
        config = self.config
        groups = config.get("kv_groups") or []
        kinds = [str(group.get("type")) for group in groups]
        spec = config.get("spec") or {}
        method = spec.get("method")
        needs = [f"layer group {kind!r}" for kind in kinds if kind not in GROUP_KINDS]
        if spec and method not in METHODS:
            needs.append(f"speculation method {method!r}")
        if spec and config["async_scheduling"]:
            needs.append("speculative decoding with asynchronous scheduling")
        if method == "eagle" and len(groups) > 1:
            needs.append("eagle with several layer groups")
        return ", ".join(needs) or None


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    total = number = blank = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                total += len(line)
                where = f"{path}:{number}"
                if len(line) > MAX_LINE_BYTES or total > MAX_BYTES:
                    raise InputError(
                        f"line or file too long (limits {MAX_LINE_BYTES} and {MAX_BYTES} bytes)",
                        where=where,
                        fix=FIX,
                    )
                blank = 0 if line.strip() else blank + 1
                if blank > MAX_BLANK_LINES:
                    raise InputError("too many blank lines in a row", where=where, fix=FIX)
                if not blank:
                    yield number, _object(_parse(line, where), "line", where)
    except (OSError, EOFError, zlib.error) as error:
        raise InputError(f"cannot be read: {error}", where=str(path), fix=FIX) from error


def _parse(line: bytes, where: str) -> Any:
    try:
        return json.loads(line)
    except (ValueError, RecursionError) as error:
        raise InputError(f"not JSON: {error}", where=where, fix=FIX) from error


def _object(value: Any, name: str, where: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{name} is not a JSON object", where=where, fix=FIX)
    return value


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _check_int(value: Any, name: str, limits: tuple[int, int], where: str) -> None:
    if not _is_int(value, *limits):
        raise InputError(
            f"{name} must be an integer from {limits[0]} to {limits[1]}, got {value!r}",
            where=where,
            fix=FIX,
        )


def _header(item: dict[str, Any], where: str) -> tuple[str, dict[str, Any]]:
    if not item:
        raise InputError("not a whole recording: empty", where=where, fix=FIX)
    header = _object(item.get("header"), "header", where)
    if header.get("format") != 1:
        raise InputError(f"format {header.get('format')!r} is not 1", where=where, fix=FIX)
    config = _object(header.get("config"), "header.config", where)
    for name, limits in CONFIG_LIMITS.items():
        _check_int(config.get(name), f"config.{name}", limits, where)
    for name in CONFIG_FLAGS:
        if not isinstance(config.get(name), bool):
            raise InputError(
                f"config.{name} must be true or false, got {config.get(name)!r}",
                where=where,
                fix=FIX,
            )
    watermark = config.get("watermark")
    if not isinstance(watermark, int | float) or not 0 <= watermark < 1:
        raise InputError(
            f"config.watermark must be in [0, 1), got {watermark!r}", where=where, fix=FIX
        )
    if config.get("policy") not in POLICIES:
        raise InputError(
            f"config.policy must be one of {', '.join(POLICIES)}, got {config.get('policy')!r}",
            where=where,
            fix=FIX,
        )
    _check_groups(config, where)
    _check_spec(config.get("spec"), where)
    if config.get("hash_id_tokens") is not None:
        _check_int(config["hash_id_tokens"], "config.hash_id_tokens", (1, _TOKENS), where)
    return str(header.get("vllm_version")), config


def _check_groups(config: dict[str, Any], where: str) -> None:
    retention = config.get("retention_interval")
    if retention is not None:
        _check_int(retention, "config.retention_interval", (0, _TOKENS), where)
    groups = config.get("kv_groups")
    if groups is None:
        return
    if not isinstance(groups, list) or not 1 <= len(groups) <= MAX_GROUPS:
        raise InputError(
            f"config.kv_groups must be null or a list of 1 to {MAX_GROUPS} objects",
            where=where,
            fix=FIX,
        )
    for group in groups:
        kind = _object(group, "config.kv_groups[]", where).get("type")
        if kind == "sliding":
            _check_int(group.get("window"), "config.kv_groups[].window", (1, _TOKENS), where)
        elif group.get("window") is not None:
            raise InputError(
                f"config.kv_groups[].window is not for a group of type {kind!r}",
                where=where,
                fix="Only groups of type 'sliding' have a window",
            )
        if group.get("block_size") is not None:
            _check_int(group["block_size"], "config.kv_groups[].block_size", (1, 1_000_000), where)


def _check_spec(spec: Any, where: str) -> None:
    if spec is None:
        return
    count = _object(spec, "config.spec", where).get("num_speculative_tokens")
    _check_int(count, "config.spec.num_speculative_tokens", (1, MAX_DRAFT_TOKENS), where)
    pattern = spec.get("accept_pattern")
    if not isinstance(pattern, list) or not 1 <= len(pattern) <= MAX_PATTERN:
        raise InputError("config.spec.accept_pattern must be a list", where=where, fix=FIX)
    for accepted in pattern:
        _check_int(accepted, "config.spec.accept_pattern[]", (0, MAX_DRAFT_TOKENS), where)


def _request(value: Any, where: str) -> dict[str, Any]:
    request = _object(value, "req", where)
    name = request.get("id")
    if not isinstance(name, str) or not name.isprintable():
        raise InputError(f"req.id must be printable text, got {name!r}", where=where, fix=FIX)
    for field, limits in REQUEST_LIMITS.items():
        _check_int(request.get(field), f"req.{field}", limits, where)
    if request.get("abort_step") is not None:
        _check_int(request["abort_step"], "req.abort_step", (0, MAX_STEP), where)
    if request.get("priority") is not None:
        _check_int(request["priority"], "req.priority", (-_TOKENS, _TOKENS), where)
    return request
