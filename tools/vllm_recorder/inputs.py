"""Reads and checks what is to be recorded: a config and its requests."""

from __future__ import annotations

import gzip
import json
import zlib
from collections.abc import Iterator
from math import ceil
from pathlib import Path
from typing import Any, NamedTuple

from tools.vllm_recorder.errors import RecordError

FORMAT = 1
GZIP_MAGIC = b"\x1f\x8b"
MAX_BYTES = 256 * 2**20
MAX_LINE_BYTES = 4 * 2**20
MAX_REQUESTS = 1_000_000
MAX_GROUPS = 64
MAX_STEP = 100_000_000
MAX_TOKENS = 100_000_000
DRAFTERS = ("ngram", "draft_model", "eagle")

INTEGERS = {
    "num_gpu_blocks": (2, 10_000_000),
    "block_size": (1, 1_000_000),
    "max_num_seqs": (1, 1_000_000),
    "max_num_batched_tokens": (1, MAX_TOKENS),
    "max_model_len": (2, MAX_TOKENS),
    "long_prefill_token_threshold": (0, MAX_TOKENS),
    "hash_id_tokens": (1, MAX_TOKENS),
}
FLAGS = (
    "enable_chunked_prefill",
    "enable_prefix_caching",
    "scheduler_reserve_full_isl",
    "async_scheduling",
)
DEFAULTS: dict[str, Any] = {
    "kv_groups": None,
    "retention_interval": 0,
    "spec": None,
    "step_time_s": None,
    "hash_id_tokens": 512,
}
"""Entries that a config may leave out."""
CONFIG_KEYS = {*INTEGERS, *FLAGS, *DEFAULTS, "policy", "watermark", "name", "note"}
REQUEST_KEYS = {
    "id",
    "arrival_step",
    "prompt_tokens",
    "output_tokens",
    "segments",
    "hash_ids",
    "prefix_group",
    "prefix_tokens",
    "priority",
    "abort_step",
}


class Case(NamedTuple):
    """What to record."""

    config: dict[str, Any]
    requests: list[dict[str, Any]]


def case_of_recording(path: Path) -> Case:
    """Config and requests of an existing recording; its rows are not read."""
    lines = _lines(path)
    number, first = next(lines, (0, {}))
    where = f"{path}:{number or 1}"
    header = first.get("header")
    if not isinstance(header, dict) or header.get("format") != FORMAT:
        raise RecordError(f"{where}: not a recording of format {FORMAT}: no such header")
    config = checked_config(header.get("config"), where)
    requests: list[dict[str, Any]] = []
    for number, item in lines:
        if "req" not in item:
            break
        requests.append(_checked_request(item["req"], config, f"{path}:{number}"))
    _check_all(requests, str(path))
    return Case(config, requests)


def case_of_files(config_path: Path, requests_path: Path) -> Case:
    """A config (JSON) and requests (JSON lines, each a request or {"req": request})."""
    try:
        value = json.loads(config_path.read_bytes())
    except OSError as error:
        raise RecordError(f"{config_path}: cannot be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{config_path}: not JSON: {error}") from error
    config = checked_config(value, str(config_path))
    requests = [
        _checked_request(item.get("req", item), config, f"{requests_path}:{number}")
        for number, item in _lines(requests_path)
    ]
    _check_all(requests, str(requests_path))
    return Case(config, requests)


def checked_case(config: dict[str, Any], requests: list[dict[str, Any]]) -> Case:
    """The same checks for a case made in memory."""
    config = checked_config(config, "config")
    requests = [_checked_request(item, config, "request") for item in requests]
    _check_all(requests, "requests")
    return Case(config, requests)


def _lines(path: Path) -> Iterator[tuple[int, dict[str, Any]]]:
    total = number = 0
    try:
        with path.open("rb") as raw:
            packed = raw.read(2) == GZIP_MAGIC
        with gzip.open(path) if packed else path.open("rb") as stream:
            while line := stream.readline(MAX_LINE_BYTES + 1):
                number += 1
                total += len(line)
                if len(line) > MAX_LINE_BYTES or total > MAX_BYTES:
                    raise RecordError(f"{path}:{number}: line or file too long")
                if line.strip():
                    yield number, _object(line, f"{path}:{number}")
    except (OSError, EOFError, zlib.error) as error:
        raise RecordError(f"{path}: cannot be read: {error}") from error


def _object(line: bytes, where: str) -> dict[str, Any]:
    try:
        value = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise RecordError(f"{where}: not JSON: {error}") from error
    if not isinstance(value, dict):
        raise RecordError(f"{where}: not a JSON object")
    return value


def _is_int(value: Any, low: int, high: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and low <= value <= high


def _need(fine: bool, where: str, problem: str) -> None:
    if not fine:
        raise RecordError(f"{where}: {problem}")


def _need_int(value: Any, limits: tuple[int, int], where: str, name: str) -> None:
    low, high = limits
    _need(_is_int(value, low, high), where, f"{name} must be {low} to {high}, got {value!r}")


def _need_keys(value: dict[str, Any], known: set[str], where: str) -> None:
    unknown = sorted(set(value) - known)
    _need(not unknown, where, f"unknown entries {', '.join(unknown)}")


def checked_config(value: Any, where: str) -> dict[str, Any]:
    """The config with its defaults filled in; RecordError names what is wrong."""
    _need(isinstance(value, dict), where, "the config is not a JSON object")
    config: dict[str, Any] = {**value}
    for name, default in DEFAULTS.items():
        config.setdefault(name, default)
    _need_keys(config, CONFIG_KEYS, where)
    for name, limits in INTEGERS.items():
        _need_int(config.get(name), limits, where, name)
    for name in FLAGS:
        _need(isinstance(config.get(name), bool), where, f"{name} must be true or false")
    mark = config.get("watermark")
    _need(
        isinstance(mark, int | float) and not isinstance(mark, bool) and 0 <= mark < 1,
        where,
        f"watermark must be in [0, 1), got {mark!r}",
    )
    _need(config.get("policy") in ("fcfs", "priority"), where, "policy must be fcfs or priority")
    _need(config["step_time_s"] is None, where, "step_time_s must be null: time is the step")
    if config["retention_interval"] is not None:
        _need_int(config["retention_interval"], (0, MAX_TOKENS), where, "retention_interval")
    _check_groups(config["kv_groups"], where)
    _check_spec(config, where)
    return config


def _check_groups(groups: Any, where: str) -> None:
    if groups is None:
        return
    _need(
        isinstance(groups, list) and 1 <= len(groups) <= MAX_GROUPS,
        where,
        f"kv_groups must be null or a list of 1 to {MAX_GROUPS} groups",
    )
    for group in groups:
        _need(isinstance(group, dict), where, "a group of kv_groups must be an object")
        kind = group.get("type")
        _need(kind in ("full", "sliding"), where, "a group's type must be full or sliding")
        _need_keys(group, {"type", "window", "block_size"}, where)
        if kind == "sliding":
            _need_int(group.get("window"), (1, MAX_TOKENS), where, "a sliding group's window")
        if "block_size" in group:
            _need_int(group["block_size"], INTEGERS["block_size"], where, "a group's block_size")


def _check_spec(config: dict[str, Any], where: str) -> None:
    spec = config["spec"]
    if spec is None:
        return
    _need(isinstance(spec, dict), where, "spec must be null or an object")
    _need_keys(spec, {"method", "num_speculative_tokens", "accept_pattern"}, where)
    _need(spec.get("method") in DRAFTERS, where, f"spec.method must be one of {DRAFTERS}")
    _need_int(spec.get("num_speculative_tokens"), (1, 1000), where, "num_speculative_tokens")
    pattern = spec.get("accept_pattern")
    _need(
        isinstance(pattern, list) and pattern != [] and all(_is_int(n, 0, 1000) for n in pattern),
        where,
        "spec.accept_pattern must be a list of counts",
    )
    _need(not config["async_scheduling"], where, "spec with async_scheduling is not recorded")
    sliding = any(group["type"] == "sliding" for group in config["kv_groups"] or ())
    _need(
        not (sliding and spec["method"] == "eagle"),
        where,
        "eagle with sliding-window groups is not recorded",
    )


def _checked_request(value: Any, config: dict[str, Any], where: str) -> dict[str, Any]:
    _need(isinstance(value, dict), where, "the request is not a JSON object")
    request: dict[str, Any] = value
    _need_keys(request, REQUEST_KEYS, where)
    name = request.get("id")
    _need(
        isinstance(name, str) and name != "" and name.isprintable(),
        where,
        f"id must be printable text, got {name!r}",
    )
    for field in ("prompt_tokens", "output_tokens"):
        _need_int(request.get(field), (1, MAX_TOKENS), where, field)
    _need_int(request.get("arrival_step"), (0, MAX_STEP), where, "arrival_step")
    if request.get("abort_step") is not None:
        _need_int(request["abort_step"], (0, MAX_STEP), where, "abort_step")
    if request.get("priority") is not None:
        _need_int(request["priority"], (-(2**31), 2**31), where, "priority")
    _check_sharing(request, config["hash_id_tokens"], where)
    return request


def _check_sharing(request: dict[str, Any], hash_id_tokens: int, where: str) -> None:
    length = request["prompt_tokens"]
    given = [name for name in ("segments", "hash_ids", "prefix_group") if request.get(name)]
    _need(len(given) <= 1, where, f"one of {', '.join(given)} is enough")
    if request.get("segments") is not None:
        segments = request["segments"]
        _need(
            isinstance(segments, list)
            and all(
                isinstance(one, list)
                and len(one) == 2
                and isinstance(one[0], str)
                and _is_int(one[1], 0, MAX_TOKENS)
                for one in segments
            )
            and sum(one[1] for one in segments) == length,
            where,
            f"segments must be [stream, length] pairs of {length} tokens in all",
        )
    if request.get("hash_ids") is not None:
        numbers = request["hash_ids"]
        _need(
            isinstance(numbers, list)
            and all(_is_int(one, -(2**63), 2**63) for one in numbers)
            and len(numbers) == ceil(length / hash_id_tokens),
            where,
            f"hash_ids must be {ceil(length / hash_id_tokens)} integers",
        )
    if request.get("prefix_group") is not None:
        _need(isinstance(request["prefix_group"], str | int), where, "prefix_group must be a name")
        _need_int(request.get("prefix_tokens"), (0, length), where, "prefix_tokens")


def _check_all(requests: list[dict[str, Any]], where: str) -> None:
    _need(0 < len(requests) <= MAX_REQUESTS, where, f"needs 1 to {MAX_REQUESTS} requests")
    names: set[str] = set()
    for request in requests:
        _need(request["id"] not in names, where, f"id {request['id']!r} occurs twice")
        names.add(request["id"])
