"""Parameters of some families outside attention, feed-forward, norms and embeddings."""

from __future__ import annotations

from collections.abc import Callable, Mapping

from kvsim.catalog.hf.compressed import compressed_extras
from kvsim.catalog.hf.families import Family
from kvsim.catalog.hf.fields import Fields
from kvsim.catalog.hf.layers import switch
from kvsim.catalog.hf.special import block_part
from kvsim.catalog.model import ExtraWeights

MLLAMA_IMAGE_ROWS = 8


def extra_weights(fields: Fields, family: Family, kind: str) -> tuple[ExtraWeights, ...]:
    """All that the family has besides the usual parts."""
    found = []
    if switch(fields, family.head_bias):
        found.append(ExtraWeights("lm_head_bias", fields.count("vocab_size")))
    if family.embedding_norm:
        found.append(ExtraWeights("norms", 2 * fields.count("hidden_size")))
    if not family.final_norm:
        found.append(ExtraWeights("norms", -fields.count("hidden_size")))
    if kind == "deepseek_v4":
        found += compressed_extras(fields, family)
    if kind in EXTRAS:
        found += EXTRAS[kind](fields)
    return tuple(found)


def _per_layer_inputs(fields: Fields) -> list[ExtraWeights]:
    """Gemma 3n and 4: an embedding per layer, and its gate and projection in each layer."""
    width = fields.count("hidden_size_per_layer_input", 0, least=0)
    if not width:
        return []
    layers, hidden = fields.layers(), fields.count("hidden_size")
    vocab = fields.count("vocab_size_per_layer_input", fields.count("vocab_size"))
    table = vocab * layers * width
    projection = hidden * layers * width + width
    inside = layers * (2 * hidden * width + hidden)
    return [
        ExtraWeights("per_layer_embeddings", table),
        ExtraWeights("per_layer_projections", projection + inside),
    ]


def _gemma3n(fields: Fields) -> list[ExtraWeights]:
    """Besides, several residual streams (altup) and a low-rank residual (laurel)."""
    layers, hidden = fields.layers(), fields.count("hidden_size")
    streams = fields.count("altup_num_inputs", 4, most=100)
    rank = fields.count("laurel_rank", 64)
    mixing = streams**3 + streams**2 + hidden * streams + 2 * hidden
    laurel = 2 * hidden * rank + hidden
    ends = 2 * (streams - 1) * hidden * hidden
    found = _per_layer_inputs(fields)
    return [
        *found,
        ExtraWeights("altup", layers * mixing + ends),
        ExtraWeights("laurel", layers * laurel),
    ]


def _gemma4(fields: Fields) -> list[ExtraWeights]:
    """Besides, a number per layer; with experts three more norms and scales of the router."""
    layers, hidden = fields.layers(), fields.count("hidden_size")
    size = layers
    if fields.flag("enable_moe_block"):
        size += layers * (4 * hidden + fields.count("experts"))
    return [*_per_layer_inputs(fields), ExtraWeights("norms", size)]


def _mllama(fields: Fields) -> list[ExtraWeights]:
    """Rows of the embedding for images; two gates in each cross-attention layer."""
    listed = fields.get("cross_attention_layers")
    gates = 2 * len(listed) if isinstance(listed, list) else 0
    rows = MLLAMA_IMAGE_ROWS * fields.count("hidden_size")
    return [ExtraWeights("embeddings", rows), ExtraWeights("gates", gates)]


def _nas(fields: Fields) -> list[ExtraWeights]:
    """One matrix where it takes a feed-forward's place; no norm before what a layer lacks."""
    if fields.get("block_configs") is None:
        return []
    blocks = fields.items("block_configs", fields.layers())
    linear = sum(block_part(fields, one, "ffn").flag("replace_with_linear") for one in blocks)
    parts = [block_part(fields, one, key) for one in blocks for key in ("attention", "ffn")]
    hidden, lacking = fields.count("hidden_size"), sum(part.flag("no_op") for part in parts)
    return [ExtraWeights("linear", linear * hidden**2), ExtraWeights("norms", -lacking * hidden)]


EXTRAS: Mapping[str, Callable[[Fields], list[ExtraWeights]]] = {
    "gemma3n": _gemma3n,
    "gemma4": _gemma4,
    "mllama": _mllama,
    "nemotron-nas": _nas,
    "deci": _nas,
}
