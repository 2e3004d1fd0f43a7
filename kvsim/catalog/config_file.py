"""The bytes of a model's JSON files -> an object, within limits."""

from __future__ import annotations

import json
from typing import Any

from kvsim.catalog.json_size import check_json_size
from kvsim.errors import InputError

MAX_CONFIG_BYTES = 4 * 1024 * 1024
MAX_LISTS = 20_000
MAX_VALUES = 500_000


def parse_config(content: bytes, label: str, limit: int = MAX_CONFIG_BYTES) -> dict[str, Any]:
    """The JSON object in `content`; `label` names it in messages.

    Raises `InputError` for more than `limit` bytes and for anything but a JSON object.
    """
    fix = "Give the model's own file"
    if len(content) > limit:
        raise InputError(f"has more than {limit:,} bytes, the limit", where=label, fix=fix)
    check_json_size(content, label, max_lists=MAX_LISTS, max_values=MAX_VALUES, fix=fix)
    try:
        config = json.loads(content.decode("utf-8"))
    except (ValueError, RecursionError) as error:
        problem = f"is not a JSON document: {str(error)[:100]}"
        raise InputError(problem, where=label, fix=fix) from None
    if not isinstance(config, dict):
        raise InputError("must be a JSON object", where=label, fix=fix)
    return config
