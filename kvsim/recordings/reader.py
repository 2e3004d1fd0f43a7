"""Reads a recording: JSON lines with a header, requests, one row per step, and totals.

Format 1, gzip or plain. Caps: 256 MiB uncompressed, 4 MiB per line.
"""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kvsim.errors import InputError

MAX_BYTES = 256 * 2**20
MAX_LINE_BYTES = 4 * 2**20
GZIP_MAGIC = b"\x1f\x8b"

CONFIG_TYPES: dict[str, tuple[type, ...]] = {
    "num_gpu_blocks": (int,),
    "block_size": (int,),
    "max_num_seqs": (int,),
    "max_num_batched_tokens": (int,),
    "max_model_len": (int,),
    "enable_chunked_prefill": (bool,),
    "enable_prefix_caching": (bool,),
    "long_prefill_token_threshold": (int,),
    "policy": (str,),
    "watermark": (int, float),
    "scheduler_reserve_full_isl": (bool,),
    "async_scheduling": (bool,),
}


@dataclass
class Recording:
    """One recorded run. `rows` are as recorded; `lines` holds each row's line number."""

    path: Path
    vllm_version: str
    config: dict[str, Any]
    requests: list[dict[str, Any]] = field(default_factory=list)
    rows: list[dict[str, Any]] = field(default_factory=list)
    lines: list[int] = field(default_factory=list)
    totals: dict[str, Any] = field(default_factory=dict)

    def unsupported(self) -> str | None:
        """What the recording needs that kvsim does not simulate, or None."""
        config = self.config
        needs = [
            (config["enable_prefix_caching"], "prefix caching"),
            (config["policy"] != "fcfs", f"policy {config['policy']}"),
            (config["async_scheduling"], "async scheduling"),
            (config.get("spec"), "speculative decoding"),
            (not _one_full_group(config.get("kv_groups")), "layer groups"),
        ]
        missing = [name for needed, name in needs if needed]
        return ", ".join(missing) or None


def _one_full_group(groups: Any) -> bool:
    return groups is None or (len(groups) == 1 and groups[0].get("type") == "full")


def read_recording(path: Path) -> Recording:
    """Read and check one file; InputError names file and line."""
    recording: Recording | None = None
    number = 0
    for number, item in _objects(path):
        where = f"{path}:{number}"
        if recording is None:
            recording = _header(path, item, where)
        elif "req" in item:
            recording.requests.append(_request(item["req"], where))
        elif "end" in item:
            recording.totals = _object(item["end"], "end", where)
        elif isinstance(item.get("step"), int):
            recording.rows.append(item)
            recording.lines.append(number)
        else:
            raise InputError("neither a request, a step row nor the end", where=where, fix=FIX)
    if recording is None or not recording.totals:
        what = "empty" if recording is None else "no end line"
        raise InputError(f"not a whole recording: {what}", where=f"{path}:{number}", fix=FIX)
    return recording


FIX = "Give a recording of format 1 (JSON lines: header, req..., step rows, end)"


def _objects(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    total = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as stream:
            number = 0
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
                if line.strip():
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


def _header(path: Path, item: dict[str, Any], where: str) -> Recording:
    header = _object(item.get("header"), "header", where)
    if header.get("format") != 1:
        raise InputError(f"format {header.get('format')!r} is not 1", where=where, fix=FIX)
    config = _object(header.get("config"), "header.config", where)
    for name, types in CONFIG_TYPES.items():
        value = config.get(name)
        if not isinstance(value, types) or (isinstance(value, bool) and bool not in types):
            wanted = " or ".join(kind.__name__ for kind in types)
            raise InputError(f"config.{name} must be {wanted}, got {value!r}", where=where, fix=FIX)
    return Recording(path, str(header.get("vllm_version")), config)


def _request(value: Any, where: str) -> dict[str, Any]:
    request = _object(value, "req", where)
    if not isinstance(request.get("id"), str):
        raise InputError(f"req.id must be text, got {request.get('id')!r}", where=where, fix=FIX)
    for name, least in (("arrival_step", 0), ("prompt_tokens", 1), ("output_tokens", 1)):
        number = request.get(name)
        if not isinstance(number, int) or isinstance(number, bool) or number < least:
            raise InputError(
                f"req.{name} must be an integer >= {least}, got {number!r}", where=where, fix=FIX
            )
    return request
