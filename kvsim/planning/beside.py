"""What a server loads beside a model: room for adapters, and a draft model that guesses ahead."""

from __future__ import annotations

from dataclasses import replace

from kvsim.catalog import ExpertSplit, GqaAttention, LayerGroup, Model, Moe, Term, weight_bytes
from kvsim.catalog.compressed import CompressedAttention
from kvsim.catalog.compressed_bytes import compresses
from kvsim.catalog.weights import VECTOR_BYTES, dense_mlps, moe_layers
from kvsim.errors import InputError
from kvsim.planning.parallel import DRAFT_LAYERS, DraftMethod, lora_bytes

MOST_LORAS, MOST_RANK = 4096, 4096
WIDEST_DRAFT = 6
"""EAGLE heads of models with experts have feed-forwards of up to so many times `hidden`."""


def lora_term(
    model: Model, *, max_loras: int, max_lora_rank: int, tp: int, fully_sharded: bool
) -> Term:
    """Bytes of the room for adapters on one GPU, taken at start whatever the adapters' ranks.

    Every product of attention and of dense feed-forwards has a pair of matrices per adapter. Of
    the pair one side is divided over tp and the other is whole, both are with `fully_sharded`
    (vLLM's fully_sharded_loras). The upper end also has pairs for embeddings, head and experts,
    which some releases adapt. Raises `InputError` for other attention and numbers out of range.
    """
    for name, value, most in (
        ("max_loras", max_loras, MOST_LORAS),
        ("max_lora_rank", max_lora_rank, MOST_RANK),
    ):
        if not 1 <= value <= most:
            raise InputError(f"must be from 1 to {most:,}, got {value:,}", where=name)

    def room(matrices: list[tuple[int, int]]) -> int:
        return lora_bytes(matrices, max_loras=max_loras, max_lora_rank=max_lora_rank)

    products = _adapted(model, 1)
    inner = room(products) // tp if fully_sharded else room(_adapted(model, tp))
    return Term(
        "lora_adapters",
        inner,
        inner,
        inner + room(_sometimes_adapted(model)),
        formula=(
            f"{max_loras} max_loras * {max_lora_rank} max_lora_rank * {len(products):,} products'"
            f" in + out on one of {tp} GPUs * 2 B; above it embeddings, head and experts"
        ),
        source="vLLM; printed within the model's weights",
    )


def _adapted(model: Model, tp: int) -> list[tuple[int, int]]:
    """(in, out) elements on one GPU of every product that adapters change, all layers."""
    found: list[tuple[int, int]] = []
    for group in model.groups:
        found += group.layers * _attention_products(model, group, tp)
    for layers, width in dense_mlps(model):
        up, inner = (2 if model.gated_mlp else 1), -(-width // tp)
        found += layers * ([(model.hidden, inner)] * up + [(inner, model.hidden)])
    return found


def _attention_products(model: Model, group: LayerGroup, tp: int) -> list[tuple[int, int]]:
    attention = group.attention
    if not isinstance(attention, GqaAttention) or group.beside is not None:
        raise InputError(
            f"{model.name} has layers of {attention.kind} attention: room for adapters is covered"
            " for grouped-query attention only",
            where="max_loras",
            fix="Leave it out and add the bytes your log prints with --measured weights=GIB",
        )
    heads, kv_heads = attention.heads // tp, max(1, attention.kv_heads // tp)
    widths = [heads * attention.head_dim]
    if attention.kv_matrices:
        widths += [kv_heads * attention.head_dim, kv_heads * attention.v_head_dim]
    return [(model.hidden, width) for width in widths] + [
        (heads * attention.v_head_dim, model.hidden)
    ]


def _sometimes_adapted(model: Model) -> list[tuple[int, int]]:
    found = 2 * [(model.vocab, model.hidden)]
    moe = model.moe
    if moe is not None:
        pair = [(model.hidden, moe.intermediate)] * 2 + [(moe.intermediate, model.hidden)]
        found += moe_layers(model) * moe.experts * pair
    return found


def with_draft(model: Model, method: DraftMethod) -> Model:
    """The model whose pool also holds a draft's layers: more of its first kind of full attention.

    Raises `InputError` for a model without one.
    """
    more = DRAFT_LAYERS[method]
    if not more:
        return model
    if compresses(model) and method == "mtp":
        # Its module attends to a window alone, whatever the last layer does.
        return replace(model, groups=(*model.groups, LayerGroup(more, _window_only(model))))
    for place, group in enumerate(model.groups):
        if group.kind == "full":
            longer = replace(group, layers=group.layers + more)
            return replace(
                model, groups=(*model.groups[:place], longer, *model.groups[place + 1 :])
            )
    raise InputError(
        f"{model.name} has no layer of full attention that a draft's could share a pool with",
        where="speculative",
        fix="Use ngram, which has no layers",
    )


def _window_only(model: Model) -> CompressedAttention:
    """The attention of a model's layers, without a compressed past."""
    attention = model.attention
    assert isinstance(attention, CompressedAttention)
    return replace(attention, ratio=0, index_heads=0, index_dim=0)


def draft_term(
    model: Model, method: DraftMethod, *, tp: int, experts: ExpertSplit | None = None
) -> Term:
    """Bytes of a draft on one GPU: a layer, and a product that halves two hidden states to one.

    An MTP module's layer is like the model's (with its experts), an EAGLE head's has a dense
    feed-forward. The upper end has embeddings and head of its own. `experts` as in `weight_bytes`.
    """
    ends = 2 * -(-model.vocab // tp) * model.hidden * VECTOR_BYTES
    if method == "mtp":
        module = _layer_bytes(model, model.moe, tp, experts)
        low = middle = module + 2 * model.hidden**2 * VECTOR_BYTES
        high, what = middle + ends, "a layer of the model"
    else:
        width = round(3.5 * model.hidden) if model.moe is not None else model.intermediate
        plain = replace(model, weight_dtype="bf16", weight_scale_bytes=0.0, attention_dtype=None)
        joined = 2 * model.hidden**2 * VECTOR_BYTES

        def head(intermediate: int) -> int:
            return joined + _layer_bytes(replace(plain, intermediate=intermediate), None, tp)

        low, middle = head(min(width, model.intermediate)), head(width)
        widest = max(width, WIDEST_DRAFT * model.hidden if model.moe is not None else 0)
        high, what = head(widest) + ends, f"a layer in 16 bits, {width:,} wide inside,"
    return Term(
        "draft_model",
        middle,
        low,
        high,
        formula=f"{what} + 2 * hidden^2 * 2 B; above it embeddings and head of its own",
        source="shape; printed within the model's weights",
    )


def _layer_bytes(model: Model, moe: Moe | None, tp: int, split: ExpertSplit | None = None) -> int:
    """Weights of one more layer with full attention, with the experts of `moe` or a dense part."""
    groups = [one for one in with_draft(model, "mtp").groups if one.kind in ("full", "compressed")]
    group = groups[-1] if compresses(model) else groups[0]
    experts = None if moe is None else replace(moe, layers=None, dense_layers=0)
    bare = replace(
        model,
        groups=(replace(group, layers=1),),
        moe=experts,
        mlp_layers=None,
        extra_weights=(),
        learned_positions=0,
        checkpoint_bytes=None,
        tied_embeddings=True,
        vocab=0,
    )
    return weight_bytes(bare, tp=tp, experts=split)
