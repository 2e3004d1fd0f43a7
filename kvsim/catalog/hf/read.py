"""config.json of the Hugging Face Hub -> Model."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from kvsim.catalog.hf.adapters import ADAPTERS
from kvsim.catalog.hf.checkpoint import with_checkpoint
from kvsim.catalog.hf.compressed import compressed_types
from kvsim.catalog.hf.cross import with_image_tokens
from kvsim.catalog.hf.encoders import encoder_of
from kvsim.catalog.hf.extras import extra_weights
from kvsim.catalog.hf.families import ALIASES, FAMILIES, Family, family_name
from kvsim.catalog.hf.feed_forward import feed_forwards
from kvsim.catalog.hf.fields import LARGEST_POSITION, Fields, shown
from kvsim.catalog.hf.guards import GUARDED
from kvsim.catalog.hf.layers import switch
from kvsim.catalog.hf.mamba import MIXED
from kvsim.catalog.hf.nesting import language_config
from kvsim.catalog.hf.quantization import element_types
from kvsim.catalog.hf.special import layer_list
from kvsim.catalog.model import LayerGroup, Model
from kvsim.errors import InputError

KNOWN_TYPES = tuple(sorted({*FAMILIES, *ALIASES}))


def model_from_config(
    config: Mapping[str, Any],
    *,
    name: str,
    source: str,
    quantization: Mapping[str, Any] | None = None,
    index: Mapping[str, Any] | None = None,
    processor: Mapping[str, Any] | None = None,
) -> Model:
    """The model a config.json describes.

    `quantization` is the content of hf_quant_config.json, `processor` that of
    preprocessor_config.json, `index` that of model.safetensors.index.json, whose size replaces the
    weights by shape. The files are not trusted. Modules for multi-token prediction are left out.
    Raises `InputError` for a family, a field or a value that is not understood.
    """
    inner, model_type = language_config(config, source)
    kind = family_name(model_type)
    fields = Fields(inner, source, model_type)
    family = FAMILIES.get(kind)
    if family is None:
        known = ", ".join(KNOWN_TYPES)
        raise InputError(
            f"model_type {shown(model_type)} is not known", where=source, fix=f"Known: {known}"
        )
    fields, family = _adapted(fields, inner, family, kind)
    model = _model(fields, family, kind, name, quantization)
    if kind == "mllama":
        model = with_image_tokens(model, config, source)
    encoder = encoder_of(config, hidden=model.hidden, source=source, processor=processor)
    model = replace(model, encoder=encoder)
    return model if index is None else with_checkpoint(model, index, source=source)


def _adapted(
    fields: Fields, inner: dict[str, Any], family: Family, kind: str
) -> tuple[Fields, Family]:
    """The usual fields, and the family, where files of the family have fields of their own."""
    values = {**(family.defaults or {}), **inner}
    for key, value in (family.defaults or {}).items():
        if values[key] is None:
            values[key] = value
    usual = Fields(values, fields.source, kind)
    usual.kind = fields.kind
    if kind in ADAPTERS:
        asked = Fields(values, fields.source, kind)
        changed, family = ADAPTERS[kind](asked, family)
        usual = Fields({**values, **changed}, fields.source, fields.kind)
        usual.read |= asked.read
    return usual, family


def _model(
    fields: Fields,
    family: Family,
    kind: str,
    name: str,
    quantization: Mapping[str, Any] | None,
) -> Model:
    types = element_types(fields, quantization)
    if kind == "deepseek_v4":
        types = compressed_types(fields, types, quantization)
    one_by_one = MIXED[kind](fields, family) if kind in MIXED else layer_list(fields, family, kind)
    mlps = feed_forwards(fields, family, kind, types)
    positions = fields.count("max_position_embeddings", most=LARGEST_POSITION)
    model = Model(
        name=name,
        source=fields.source,
        groups=_grouped(one_by_one),
        hidden=fields.count("hidden_size"),
        intermediate=mlps.intermediate,
        vocab=fields.count("vocab_size"),
        max_position=positions,
        weight_dtype=types.weight_dtype,
        kv_dtype_bytes=types.kv_dtype_bytes,
        tied_embeddings=fields.flag("tie_word_embeddings", default=family.tied),
        gated_mlp=family.gated,
        mlp_bias=switch(fields, family.mlp_bias),
        norm_bias=family.norm_bias,
        norms_per_layer=family.norms,
        learned_positions=0 if family.positions is None else positions + family.positions,
        moe=mlps.moe,
        mlp_layers=mlps.mlp_layers,
        extra_weights=extra_weights(fields, family, kind),
        weight_scale_bytes=types.scale_bytes,
        attention_dtype=types.attention_dtype,
        assumptions=types.assumptions + _left_out(fields),
    )
    fields.check_unread(GUARDED)
    if not any(group.keeps_text for group in model.groups):
        raise fields.error(
            f"{model.layers} layers of model_type {shown(fields.kind)} have no layer that keeps"
            " keys and values",
            "Use a model with attention",
        )
    return model


def _left_out(fields: Fields) -> tuple[str, ...]:
    """Parts that keep nothing and whose weights are not counted."""
    known = {
        "attn_res_block_size": "attention over the residuals of earlier layers",
    }
    return tuple(
        f"{key} {shown(fields.get(key))}: weights of {part} are not counted"
        for key, part in known.items()
        if fields.has(key)
    )


def _grouped(layers: list[LayerGroup]) -> tuple[LayerGroup, ...]:
    """Equal layers together, in the order of their first ones."""
    counts: dict[LayerGroup, int] = {}
    for layer in layers:
        counts[layer] = counts.get(layer, 0) + 1
    return tuple(replace(layer, layers=count) for layer, count in counts.items())
