"""Rows of tests/catalog/data/model_configs.jsonl.

`kv` is the KV bytes per token by hand: layers * KV heads * (key + value elements) * bytes for each
kind of layer, or layers * (latent + rotary elements) * bytes; `kv_bytes_per_token` is its value.
`parameters` is the published size, `exact` says that it is published to the last digit, `note` why
there is none or which one it is.
`kept_8_bits` is the bytes of a request of `kept_tokens` where there are no bytes per token.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import Any

from kvsim.catalog import Model, model_from_config

DATA = Path(__file__).parent / "data" / "model_configs.jsonl"
ROWS: list[dict[str, Any]] = [json.loads(line) for line in DATA.read_text().splitlines()]


def by_hand(formula: str) -> int:
    """The value of a sum of products of whole numbers; a factor may be a sum of two."""
    flat = re.sub(r"\((\d+) \+ (\d+)\)", lambda two: str(int(two[1]) + int(two[2])), formula)
    return sum(math.prod(map(int, term.split(" * "))) for term in flat.split(" + "))


def row(model: str) -> dict[str, Any]:
    """The row of this name."""
    return next(one for one in ROWS if one["model"] == model)


def read_row(one: dict[str, Any], **changes: Any) -> Model:
    """The model of a row, its config changed at the top level."""
    return model_from_config(
        one["config"] | changes,
        name=one["model"],
        source=one["source"],
        quantization=one.get("hf_quant_config"),
    )


def read(model: str, **changes: Any) -> Model:
    """The model of the row of this name, its config changed at the top level."""
    return read_row(row(model), **changes)
