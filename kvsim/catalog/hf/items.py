"""The largest item that a model's processor makes: places in the prompt, vectors, patches.

The rules are those of the processors of the Hugging Face Hub and of vLLM's profile of each family;
limits that preprocessor_config.json states replace the ones published with the models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.encoder import Item
from kvsim.catalog.hf.fields import Fields
from kvsim.catalog.hf.towers import Shape

QWEN_PIXELS = {"Qwen2-VL's": 12_845_056, "Qwen2.5-VL's": 12_845_056, "Qwen3-VL's": 16_777_216}
"""Pixels of the largest image of the published processors."""
QWEN3_VIDEO_PIXELS = 25_165_824
"""Of all frames of the largest video of the published processor."""
QWEN3_TEXT_PER_FRAME = 12.5
"""Places in the prompt per vector of a video, as servers counted them: times and marks."""
QWEN2_PAIRS = 7
"""Pairs of frames of the longest video that is profiled."""
MAX_PIXELS = 1 << 40
GEMMA3_TEXT, LLAMA4_TEXT, INTERNVL_TEXT = 4, 20, 2
"""Marks and line ends around an image."""
GEMMA4_FRAMES, GEMMA4_FRAME_TOKENS, GEMMA4_FRAME_TEXT = 32, 70, 8


def largest_items(
    outer: Fields, vision: Fields, shape: Shape, processor: Mapping[str, Any] | None
) -> tuple[Item, ...]:
    """By modality, images first; empty for a family whose processor is not known here."""
    name = shape.tower.name
    if name in QWEN_PIXELS:
        return _qwen(shape, _image_pixels(processor) or QWEN_PIXELS[name])
    if name == "Gemma 4's":
        return _gemma4(vision, shape)
    if name == "Llama 4's":
        return (_llama4(vision, shape, processor),)
    if name == "InternViT":
        return (_internvl(outer, vision, shape),)
    if outer.kind in ("gemma3", "gemma3_text"):
        side = vision.count("image_size", most=10_000) // shape.patch
        vectors = outer.count("mm_tokens_per_image", 256, most=1_000_000)
        return (Item("image", vectors + GEMMA3_TEXT, vectors, side**2),)
    if name == "Pixtral":
        return (_pixtral(vision, shape),)
    return _llava(outer, vision, shape)


def _image_pixels(processor: Mapping[str, Any] | None) -> int | None:
    """`max_pixels` or `size.longest_edge` of a Qwen processor; None where it states neither."""
    found = processor or {}
    size = found.get("size")
    longest = size.get("longest_edge") if isinstance(size, Mapping) else None
    for value in (found.get("max_pixels"), longest):
        if type(value) is int and 0 < value <= MAX_PIXELS:
            return value
    return None


def _qwen(shape: Shape, pixels: int) -> tuple[Item, ...]:
    """Images of any shape up to so many pixels; videos of pairs of frames of that size.

    Qwen3's have so many pixels in all frames together instead.
    """
    side = shape.patch * shape.merge
    vectors = max(1, pixels // side**2)
    image = Item("image", vectors, vectors, vectors * shape.merge**2)
    if shape.tower.name != "Qwen3-VL's":
        return image, Item("video", vectors, vectors, image.patches, QWEN2_PAIRS)
    frames = QWEN3_VIDEO_PIXELS // (2 * side**2)
    places = round(frames * QWEN3_TEXT_PER_FRAME)
    return image, Item("video", places, frames, frames * shape.merge**2)


def _pixtral(vision: Fields, shape: Shape) -> Item:
    """A square image; a mark ends each row."""
    image = vision.count("image_size", 1024, most=10_000)
    side = image // (shape.patch * shape.merge)
    return Item("image", side**2 + side, side**2, (side * shape.merge) ** 2)


def _llava(outer: Fields, vision: Fields, shape: Shape) -> tuple[Item, ...]:
    """One size of image; LLaVA-NeXT adds tiles of it, with a vector at the end of each row."""
    side = vision.count("image_size", most=10_000) // shape.patch
    marks = 1 if shape.tower.name == "CLIP" else 0
    whole = outer.text("vision_feature_select_strategy") == "full"
    base = side**2 + (marks if whole else 0)
    if outer.kind == "llava":
        return (Item("image", base, base, side**2 + marks),)
    pinpoints = outer.get("image_grid_pinpoints")
    if outer.kind != "llava_next" or not isinstance(pinpoints, list):
        return ()
    found = []
    for one in pinpoints[:1000]:
        if not (isinstance(one, list) and len(one) == 2 and all(type(n) is int for n in one)):
            raise outer.error("image_grid_pinpoints must be pairs of whole numbers")
        high, wide = (min(max(n, 0), 100_000) // shape.patch for n in one)
        tiles = (high // side) * (wide // side)
        vectors = base + high * wide + high
        found.append(Item("image", vectors, vectors, (1 + tiles) * (side**2 + marks)))
    return (max(found, key=lambda item: item.tokens),) if found else ()


def _llama4(vision: Fields, shape: Shape, processor: Mapping[str, Any] | None) -> Item:
    """Tiles and one more of the whole image."""
    given = (processor or {}).get("max_patches")
    tiles = given if type(given) is int and 0 < given <= 1000 else 16
    side = vision.count("image_size", most=10_000) // shape.patch
    count = tiles + 1 if tiles > 1 else 1
    vectors = count * (side // shape.merge) ** 2
    return Item("image", vectors + LLAMA4_TEXT, vectors, count * (side**2 + 1))


def _internvl(outer: Fields, vision: Fields, shape: Shape) -> Item:
    """Tiles and a small picture of the whole image."""
    tiles = outer.count("max_dynamic_patch", 12, most=1000)
    count = tiles + 1 if outer.flag("use_thumbnail", default=True) and tiles > 1 else tiles
    size = vision.get("image_size")
    size = size[0] if isinstance(size, list | tuple) and size else size
    side = Fields({"image_size": size}, vision.source).count("image_size", most=10_000)
    side //= shape.patch
    vectors = count * (side // shape.merge) ** 2
    return Item("image", vectors + INTERNVL_TEXT, vectors, count * (side**2 + 1))


def _gemma4(vision: Fields, shape: Shape) -> tuple[Item, ...]:
    """Images of so many vectors; 32 frames of 70 with times and marks, counted as vectors too."""
    vectors = vision.count("default_output_length", 280, most=100_000)
    image = Item("image", vectors, vectors, vectors * shape.merge**2)
    places = GEMMA4_FRAMES * (GEMMA4_FRAME_TOKENS + GEMMA4_FRAME_TEXT)
    patches = GEMMA4_FRAMES * GEMMA4_FRAME_TOKENS * shape.merge**2
    return image, Item("video", places, places, patches)
