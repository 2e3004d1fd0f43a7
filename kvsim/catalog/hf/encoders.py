"""The encoder of a config.json, known by shape or with an interval and a name."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kvsim.catalog.encoder import Encoder, Tower
from kvsim.catalog.hf.fields import Fields, shown
from kvsim.catalog.hf.items import largest_items
from kvsim.catalog.hf.towers import OUTER_TOWERS, TOWERS, whisper
from kvsim.errors import InputError

VISION = ("vision_config", "vision_tower_config", "visual")
SOUND = ("audio_config",)
NESTED = "thinker_config"
SMALLEST, USUAL, LARGEST = 90_000_000, 450_000_000, 6_000_000_000
"""Parameters of towers in use: SigLIP base, the usual ones, InternViT-6B."""
SOUND_SMALLEST, SOUND_USUAL, SOUND_LARGEST = 75_000_000, 460_000_000, 700_000_000
"""Of towers of sound: a Conformer of 12 layers, Phi-4-multimodal's, Whisper-large's."""

PROJECTORS: Mapping[str, tuple[str, ...]] = {
    "CLIP": ("llava", "llava_next"),
    "SigLIP": ("gemma3", "gemma3_text", "llava", "llava_next"),
    "Pixtral": ("llava", "mistral3"),
    "InternViT": ("internvl_chat", "internvl"),
}
"""Families whose projector behind a tower is known; other towers have one kind of it."""
PROJECTOR_ERROR = (0.95, 1.15)
"""Ends of the parameters where the projector is another one."""


def encoder_of(
    config: Mapping[str, Any],
    *,
    hidden: int,
    source: str,
    processor: Mapping[str, Any] | None = None,
) -> Encoder | None:
    """The encoder beside a decoder of `hidden` elements; None for a text model.

    `processor` is the content of preprocessor_config.json. What is not understood is not refused:
    the towers then have an interval, and `unknown` says what is missing.
    """
    inner = config.get(NESTED)
    whole = {**config, **inner} if isinstance(inner, Mapping) else config
    kind = config.get("model_type")
    outer = Fields(whole, source, kind if isinstance(kind, str) else "")
    vision, sound = (_first(whole, keys) for keys in (VISION, SOUND))
    if vision is None and sound is None:
        return None
    found = Encoder(())
    if vision is not None:
        found = _images(outer, vision, hidden, processor)
    if sound is None:
        return found
    tower, unknown = _sound(Fields(sound, source), hidden)
    return Encoder(
        (*found.towers, tower),
        found.items,
        found.inner,
        found.kept,
        found.width,
        found.buffer_width,
        (*found.unknown, *unknown),
    )


def _first(config: Mapping[str, Any], keys: tuple[str, ...]) -> Mapping[str, Any] | None:
    return next((config[key] for key in keys if isinstance(config.get(key), Mapping)), None)


def _images(
    outer: Fields, vision: Mapping[str, Any], hidden: int, processor: Mapping[str, Any] | None
) -> Encoder:
    named = vision.get("model_type")
    kind = named if isinstance(named, str) and named in TOWERS else OUTER_TOWERS.get(outer.kind)
    fields = Fields(vision, outer.source, outer.kind)
    if kind is None:
        return _unknown(f"the tower of images {shown(named)}", fields)
    try:
        shape = TOWERS[kind](outer, fields, hidden)
        items = largest_items(outer, fields, shape, processor)
        items = tuple(one for one in items if min(one.tokens, one.embeds, one.patches) > 0)
    except (InputError, ZeroDivisionError) as error:
        return _unknown(f"the tower of images {shown(named)} ({str(error)[:80]})", fields)
    tower, unknown = shape.tower, () if items else ("the largest image of its processor",)
    if tower.name == "InternViT":
        unknown = ("the largest video, where it reads them",)
    if outer.kind not in PROJECTORS.get(tower.name, (outer.kind,)):
        unknown = (f"the projector of model_type {shown(outer.kind)}", *unknown)
        low, high = (round(one * tower.elements) for one in PROJECTOR_ERROR)
        tower = tower._replace(low=low, high=high)
    return Encoder(
        (tower,), items, shape.inner, shape.kept, shape.width, shape.buffer_width, unknown
    )


def _unknown(what: str, fields: Fields) -> Encoder:
    """From its layers where they can be read, else as large as any."""
    low, middle, high = SMALLEST, USUAL, LARGEST
    try:
        layers, wide = fields.count("num_hidden_layers", most=1000), fields.count("hidden_size")
        inner = fields.count("intermediate_size", 4 * wide)
        low = layers * (4 * wide**2 + 2 * wide * inner)
        middle = round(1.08 * low)
        high = round(1.2 * layers * (4 * wide**2 + 3 * wide * inner)) + SMALLEST
    except InputError:
        pass
    low = max(low, SMALLEST // 2)
    middle = max(middle, low + 1)
    tower = Tower("unknown", "image", middle, 0, low, max(high, middle + 1))
    return Encoder((tower,), unknown=(what, "the largest item of its processor"))


def _sound(fields: Fields, hidden: int) -> tuple[Tower, tuple[str, ...]]:
    """The tower, and that its recordings are not profiled here."""
    profiled = "the largest recording of its tower of sound"
    try:
        return whisper(fields, hidden), (profiled,)
    except InputError:
        unknown = Tower("sound", "audio", SOUND_USUAL, 0, SOUND_SMALLEST, SOUND_LARGEST)
        return unknown, (f"the tower of sound {shown(fields.get('model_type'))}", profiled)
