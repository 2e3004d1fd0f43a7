"""Tokens of an image that layers with cross-attention keep (Llama 3.2 Vision)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.catalog.hf.fields import Fields
from kvsim.catalog.model import Model

IMAGE_PIXELS, PATCH_PIXELS, MOST_TILES = 560, 14, 4
"""Of the published instruction-tuned files."""
ASSUMED = (
    "vision_config is missing: tiles of 560 pixels in patches of 14 are assumed, 1,601 tokens"
    " each, up to 4 of an image"
)


def with_image_tokens(model: Model, config: Mapping[str, Any], source: str) -> Model:
    """The model whose cross-attention layers know an image: one tile at least, all at most.

    A tile has `(image_size / patch_size)^2 + 1` tokens, one of them for the tile as a whole.
    """
    vision = config.get("vision_config")
    given = isinstance(vision, Mapping)
    fields = Fields(vision if isinstance(vision, Mapping) else {}, source, "mllama")
    side = fields.count("image_size", IMAGE_PIXELS) // fields.count("patch_size", PATCH_PIXELS)
    tile = side**2 + 1
    span = (tile, tile * fields.count("max_num_tiles", MOST_TILES, most=1000))
    groups = (replace(one, image_tokens=span) if one.cross else one for one in model.groups)
    more = () if given else (ASSUMED,)
    return replace(model, groups=tuple(groups), assumptions=(*model.assumptions, *more))
