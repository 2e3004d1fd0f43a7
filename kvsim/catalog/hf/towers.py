"""vision_config and audio_config of a config.json -> parameters of the towers, by shape.

Each function follows the family's modules: CLIP and SigLIP (arXiv 2103.00020, 2303.15343), Pixtral
(2410.07073), the Qwen-VL towers (2409.12191, 2502.13923), InternViT (2312.14238), Llama 4. The
counts are tested against published checkpoints.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

from kvsim.catalog.encoder import Tower
from kvsim.catalog.hf.fields import Fields

HIDDEN_STATES, PIXELS = 5, 2
"""Hidden states and copies of the pixels alive at the peak of a step, beside the feed-forward."""
PIXTRAL = {"hidden_size": 1024, "intermediate_size": 4096, "num_hidden_layers": 24}
"""Values of the family's configuration class, which files leave out."""


class Shape(NamedTuple):
    """A tower of images, and what its step needs."""

    tower: Tower
    inner: int
    kept: int
    width: int
    """Elements of one vector for the decoder."""
    patch: int
    """Pixels of a patch's side."""
    merge: int = 1
    """Patches of a side that become one vector."""
    buffer_width: int = 0


class Sizes(NamedTuple):
    """The usual three."""

    layers: int
    hidden: int
    inner: int

    def products(self, *, gated: bool = False) -> int:
        """Elements of the matrices of all layers."""
        mlp = (3 if gated else 2) * self.hidden * self.inner
        return self.layers * (4 * self.hidden**2 + mlp)

    def biases(self, *, gated: bool = False) -> int:
        """Elements of the biases of all products, divided as these are, near enough."""
        return self.layers * (5 * self.hidden + (2 if gated else 1) * self.inner)


def _sizes(fields: Fields, defaults: Mapping[str, int] | None = None) -> Sizes:
    known = defaults or {}
    return Sizes(
        fields.count("num_hidden_layers", known.get("num_hidden_layers"), most=1000),
        fields.count("hidden_size", known.get("hidden_size"), most=100_000),
        fields.count("intermediate_size", known.get("intermediate_size"), most=1_000_000),
    )


def _shape(
    name: str,
    sizes: Sizes,
    divided: int,
    whole: int,
    *,
    patch: int,
    pixels: int,
    width: int,
    merge: int = 1,
    gated: bool = False,
    levels: int = 0,
) -> Shape:
    total = divided + whole
    return Shape(
        Tower(name, "image", divided, whole, total, total),
        (3 if gated else 2) * sizes.inner,
        HIDDEN_STATES * sizes.hidden + PIXELS * pixels,
        (1 + levels) * width,
        patch,
        merge,
        levels * width,
    )


def _loaded(outer: Fields, layers: int) -> int:
    """Layers up to the one whose output is read: servers leave out those behind it."""
    chosen = outer.get("vision_feature_layer")
    if type(chosen) is not int:
        return layers
    return layers + chosen + 1 if -layers <= chosen < 0 else min(max(chosen, 1), layers)


def clip(outer: Fields, fields: Fields, hidden: int) -> Shape:
    """CLIP with LLaVA's projector of two products."""
    every = _sizes(fields)
    sizes = every._replace(layers=_loaded(outer, every.layers))
    image, patch = fields.count("image_size", most=10_000), fields.count("patch_size", most=1000)
    places = (image // patch) ** 2 + 1
    norms = 4 * sizes.layers * sizes.hidden + 2 * sizes.hidden
    norms += 2 * sizes.hidden if sizes.layers == every.layers else 0
    whole = 3 * patch**2 * sizes.hidden + sizes.hidden * (1 + places) + norms
    return _shape(
        "CLIP",
        sizes,
        sizes.products() + sizes.biases() + _two_products(outer, sizes.hidden, hidden),
        whole + _newline(outer, hidden),
        patch=patch,
        pixels=3 * patch**2,
        width=hidden,
    )


def _two_products(outer: Fields, ends: int, hidden: int) -> int:
    biases = 2 * hidden if outer.flag("multimodal_projector_bias", default=True) else 0
    return ends * hidden + hidden**2 + biases


def _newline(outer: Fields, hidden: int) -> int:
    return hidden if outer.kind == "llava_next" else 0


def siglip(outer: Fields, fields: Fields, hidden: int) -> Shape:
    """SigLIP, with Gemma 3's projector or LLaVA's."""
    every = _sizes(fields)
    sizes = every._replace(layers=_loaded(outer, every.layers))
    image, patch = fields.count("image_size", most=10_000), fields.count("patch_size", most=1000)
    wide = sizes.hidden
    whole = 3 * patch**2 * wide + wide + (image // patch) ** 2 * wide + 4 * sizes.layers * wide
    whole += 2 * wide if sizes.layers == every.layers else 0
    divided = sizes.products() + sizes.biases()
    if fields.flag("vision_use_head", default=outer.kind not in ("gemma3", "gemma3_text")):
        whole += 3 * wide + 4 * wide**2 + 4 * wide + 2 * wide * sizes.inner + sizes.inner + wide
    if outer.kind in ("gemma3", "gemma3_text"):
        whole += wide * hidden + wide
    else:
        divided += _two_products(outer, wide, hidden)
    return _shape(
        "SigLIP", sizes, divided, whole + _newline(outer, hidden),
        patch=patch, pixels=3 * patch**2, width=hidden,
    )  # fmt: skip


def pixtral(outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Pixtral, with LLaVA's projector, behind Mistral 3's merger of patches."""
    sizes = _sizes(fields, PIXTRAL)
    patch = fields.count("patch_size", 16, most=1000)
    wide = sizes.hidden
    merge = outer.count("spatial_merge_size", 2, most=100) if outer.kind == "mistral3" else 1
    whole = 3 * patch**2 * wide + wide + 2 * wide * sizes.layers
    if outer.kind == "mistral3":
        whole += merge**2 * wide * wide + wide
    divided = sizes.products(gated=True) + _two_products(outer, wide, hidden)
    return _shape(
        "Pixtral", sizes, divided, whole,
        patch=patch, pixels=3 * patch**2, width=hidden, merge=merge, gated=True,
    )  # fmt: skip


def qwen2_vl(_outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Qwen2-VL: frames in pairs, four patches merged to one vector."""
    wide = fields.count("embed_dim", 1280, most=100_000)
    inner = round(fields.number("mlp_ratio", 4, most=100) * wide)
    sizes = Sizes(fields.count("depth", 32, most=1000), wide, inner)
    patch, merge, pixels = _pairs(fields)
    ends = merge**2 * wide
    merger = ends**2 + ends + ends * hidden + hidden
    whole = pixels * wide + 4 * sizes.layers * wide + 2 * wide
    return _shape(
        "Qwen2-VL's", sizes, sizes.products() + sizes.biases() + merger, whole,
        patch=patch, pixels=pixels, width=hidden, merge=merge,
    )  # fmt: skip


def _pairs(fields: Fields) -> tuple[int, int, int]:
    """Side of a patch, patches of a merged side, numbers in a patch of a pair of frames."""
    patch = fields.count("patch_size", 14, most=1000)
    channels = 3 if not fields.has("in_channels") else fields.count("in_channels", most=100)
    pixels = channels * fields.count("temporal_patch_size", 2, most=100) * patch**2
    return patch, fields.count("spatial_merge_size", 2, most=100), pixels


def qwen2_5_vl(_outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Qwen2.5-VL: gated feed-forward with biases, norms without."""
    sizes = Sizes(
        fields.count("depth", 32, most=1000),
        fields.count("hidden_size", 1280, most=100_000),
        fields.count("intermediate_size", 3420, most=1_000_000),
    )
    patch, merge, pixels = _pairs(fields)
    ends = merge**2 * sizes.hidden
    merger = ends**2 + ends + ends * hidden + hidden
    divided = sizes.products(gated=True) + sizes.biases(gated=True) + merger
    whole = pixels * sizes.hidden + 2 * sizes.layers * sizes.hidden + sizes.hidden
    return _shape(
        "Qwen2.5-VL's", sizes, divided, whole,
        patch=patch, pixels=pixels, width=hidden, merge=merge, gated=True,
    )  # fmt: skip


def qwen3_vl(_outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Qwen3-VL and Qwen3.5: learned places, and a merger for each level of deepstack."""
    sizes = Sizes(
        fields.count("depth", 27, most=1000),
        fields.count("hidden_size", 1152, most=100_000),
        fields.count("intermediate_size", 4304, most=1_000_000),
    )
    patch = fields.count("patch_size", 16, most=1000)
    merge, pixels = _pairs(fields)[1], 6 * patch**2
    indexes = fields.get("deepstack_visual_indexes")
    levels = len(indexes) if isinstance(indexes, list) and len(indexes) <= sizes.layers else 0
    wide, ends = sizes.hidden, merge**2 * sizes.hidden
    merger = ends**2 + ends + ends * hidden + hidden
    places = fields.count("num_position_embeddings", 2304, most=10_000_000)
    whole = pixels * wide + wide + places * wide + 4 * sizes.layers * wide
    whole += 2 * wide + levels * 2 * ends
    divided = sizes.products() + sizes.biases() + (1 + levels) * merger
    return _shape(
        "Qwen3-VL's", sizes, divided, whole,
        patch=patch, pixels=pixels, width=hidden, merge=merge, levels=levels,
    )  # fmt: skip


def llama4(_outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Llama 4: four patches shuffled to one, an adapter of two products, a projector of one."""
    sizes = _sizes(fields)
    image, patch = fields.count("image_size", most=10_000), fields.count("patch_size", most=1000)
    ends = fields.count("projector_input_dim", 4096, most=100_000)
    given = fields.count("projector_output_dim", 4096, most=100_000)
    given = fields.count("vision_output_dim", given, most=100_000)
    wide, places = sizes.hidden, (image // patch) ** 2 + 1
    whole = 3 * patch**2 * wide + wide + places * wide + 4 * wide + 4 * sizes.layers * wide
    divided = sizes.products() + sizes.biases() + sizes.inner * ends + ends * given + given * hidden
    merge = round(1 / fields.number("pixel_shuffle_ratio", 0.5, most=1))
    return _shape(
        "Llama 4's", sizes, divided, whole,
        patch=patch, pixels=3 * patch**2, width=hidden, merge=merge,
    )  # fmt: skip


def intern_vit(outer: Fields, fields: Fields, hidden: int) -> Shape:
    """InternViT, with InternVL's projector of a norm and two products."""
    every = _sizes(fields)
    chosen = outer.get("select_layer")
    cut = chosen + 1 if type(chosen) is int and -every.layers < chosen < 0 else 0
    sizes = every._replace(layers=every.layers + cut)
    image, patch = _side(fields, "image_size"), _side(fields, "patch_size")
    wide = sizes.hidden
    rms = fields.text("norm_type") == "rms_norm"
    merge = round(1 / outer.number("downsample_ratio", 0.5, most=1))
    ends = merge**2 * wide
    per_layer = (2 if rms else 4) * wide + 2 * wide
    per_layer += 2 * wide if fields.flag("qk_normalization") else 0
    biases = sizes.biases() - (0 if _has_qkv_bias(fields) else 3 * sizes.layers * wide)
    whole = 3 * patch**2 * wide + wide + wide + ((image // patch) ** 2 + 1) * wide
    whole += per_layer * sizes.layers + 2 * ends + ends * hidden + hidden**2 + 2 * hidden
    return _shape(
        "InternViT", sizes, sizes.products() + biases, whole,
        patch=patch, pixels=3 * patch**2, width=hidden, merge=merge,
    )  # fmt: skip


def _has_qkv_bias(fields: Fields) -> bool:
    return fields.flag("qkv_bias", default=fields.flag("attention_bias", default=True))


def _side(fields: Fields, key: str) -> int:
    """A side, or both of them as a list."""
    value = fields.get(key)
    if isinstance(value, list | tuple) and value:
        return Fields({key: value[0]}, fields.source).count(key, most=10_000)
    return fields.count(key, most=10_000)


def gemma4(_outer: Fields, fields: Fields, hidden: int) -> Shape:
    """Gemma 4: gated, two tables of places; its norms and scales are few. Published: 550M."""
    sizes = _sizes(fields)
    patch = fields.count("patch_size", 16, most=1000)
    pixels = 3 * patch**2
    wide, table = sizes.hidden, fields.count("position_embedding_size", 10_240, most=10_000_000)
    whole = pixels * wide + 2 * table * wide + 4 * sizes.layers * wide + wide * hidden
    shape = _shape(
        "Gemma 4's", sizes, sizes.products(gated=True), whole,
        patch=patch, pixels=pixels, width=hidden,
        merge=fields.count("pooling_kernel_size", 3, most=100), gated=True,
    )  # fmt: skip
    total = shape.tower.elements
    tower = shape.tower._replace(low=round(0.95 * total), high=round(1.02 * total))
    return shape._replace(tower=tower)


def whisper(fields: Fields, hidden: int) -> Tower:
    """Towers of sound built as Whisper's (arXiv 2212.04356), and a projector."""
    sizes = Sizes(
        fields.count("encoder_layers", most=1000),
        fields.count("d_model", most=100_000),
        fields.count("encoder_ffn_dim", most=1_000_000),
    )
    wide, bins = sizes.hidden, fields.count("num_mel_bins", 128, most=10_000)
    whole = 3 * bins * wide + 3 * wide**2 + 2 * wide + 4 * sizes.layers * wide + 2 * wide
    divided = sizes.products() + sizes.biases() - sizes.layers * wide + wide * hidden + hidden
    total = divided + whole
    return Tower("sound", "audio", divided, whole, round(0.98 * total), round(1.02 * total))


TOWERS: Mapping[str, Callable[[Fields, Fields, int], Shape]] = {
    "clip_vision_model": clip,
    "siglip_vision_model": siglip,
    "pixtral": pixtral,
    "llama4_vision_model": llama4,
    "intern_vit_6b": intern_vit,
    "internvl_vision": intern_vit,
    "gemma4_vision": gemma4,
    "qwen2_vl": qwen2_vl,
    "qwen2_5_vl": qwen2_5_vl,
    "qwen2_5_vl_vision": qwen2_5_vl,
    "qwen2_5_omni_vision_encoder": qwen2_5_vl,
    "qwen3_vl": qwen3_vl,
    "qwen3_vl_vision": qwen3_vl,
    "qwen3_vl_moe": qwen3_vl,
    "qwen3_vl_moe_vision": qwen3_vl,
    "qwen3_5": qwen3_vl,
    "qwen3_5_vision": qwen3_vl,
    "qwen3_5_moe": qwen3_vl,
    "qwen3_5_moe_vision": qwen3_vl,
}
"""By model_type of the vision_config, or of the file where that names none."""
OUTER_TOWERS = {
    "internvl_chat": "intern_vit_6b",
    "qwen2_vl": "qwen2_vl",
    "qwen2_5_vl": "qwen2_5_vl",
    "qwen3_vl": "qwen3_vl",
    "qwen3_vl_moe": "qwen3_vl",
    "qwen3_5": "qwen3_5",
    "qwen3_5_moe": "qwen3_5",
}
"""Families with one kind of tower, whose files may not name it."""
