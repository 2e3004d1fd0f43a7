"""Parameters by shape, and the bytes of weights on one GPU."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.catalog.model import Model

VECTOR_BYTES = 2
"""Embeddings, norms, biases and the router stay in 16 bits when the matrices are quantized."""


class ExpertSplit(NamedTuple):
    """How routed experts are divided, where not over the tensor parallel group alone."""

    gpus: int
    """GPUs that share them: those of all data parallel replicas."""
    whole: bool
    """Whether a GPU has some of the experts whole (expert parallelism), or a part of each."""


def mlp_matrices(
    model: Model, intermediate: int, tp: int, hidden: int | None = None
) -> list[tuple[int, int]]:
    """(N, K) of one feed-forward on one GPU. `hidden` goes in and out, by default the model's."""
    width, ends = -(-intermediate // tp), hidden or model.hidden
    up = 2 * width if model.gated_mlp else width
    return [(up, ends), (ends, width)]


def dense_mlps(model: Model) -> tuple[tuple[int, int], ...]:
    """(layers, intermediate elements) of the dense feed-forwards, by width."""
    if model.mlp_layers is not None:
        return model.mlp_layers
    layers = model.layers if model.moe is None else model.layers - moe_layers(model)
    return ((layers, model.intermediate),) if layers else ()


def dense_layers(model: Model) -> int:
    """Layers with a dense feed-forward."""
    return sum(layers for layers, _ in dense_mlps(model))


def moe_layers(model: Model) -> int:
    """Layers with a mixture of experts."""
    if model.moe is None:
        return 0
    own = model.moe.layers
    return model.layers - model.moe.dense_layers if own is None else own


def routed_hidden(model: Model) -> int:
    """Elements that routed experts take and give."""
    return (model.moe.latent if model.moe is not None else 0) or model.hidden


def expert_elements(model: Model, tp: int) -> tuple[int, int]:
    """Elements of the matrices of one routed expert and of one layer's shared ones on one GPU."""
    if model.moe is None:
        return 0, 0
    routed = mlp_matrices(model, model.moe.intermediate, tp, routed_hidden(model))
    shared = mlp_matrices(model, model.moe.shared_width, tp)
    return sum(n * k for n, k in routed), sum(n * k for n, k in shared)


def parameter_terms(
    model: Model, *, tp: int = 1, experts: ExpertSplit | None = None
) -> dict[str, int]:
    """Parameters on one GPU by part; with tp = 1 the model's.

    Matrices and embeddings are split over tp, norms and the router are replicated, KV projections
    are replicated when there are fewer KV heads than GPUs. The experts count whole, not only the
    ones a token uses; `experts` says how routed ones are divided, by default over tp.
    """
    terms = dict.fromkeys(("attention", "mlp", "experts", "router"), 0)
    for group in model.groups:
        parts = (group.attention,) if group.beside is None else (group.attention, group.beside)
        for part in parts:
            elements = sum(n * k for n, k in part.matrices(model.hidden, tp))
            elements += part.vector_elements(model.hidden, tp)
            terms["attention"] += group.layers * elements
    for layers, width in dense_mlps(model):
        dense = sum(n * k for n, k in mlp_matrices(model, width, tp))
        if model.mlp_bias:
            dense += (2 if model.gated_mlp else 1) * width // tp + model.hidden
        terms["mlp"] += layers * dense
    terms |= _moe_terms(model, tp, experts or ExpertSplit(tp, whole=False))
    embedding = -(-model.vocab // tp) * model.hidden
    norm = model.hidden * (2 if model.norm_bias else 1)
    terms["norms"] = norm * (model.norms_per_layer * model.layers + 1)
    terms["embeddings"] = embedding + model.learned_positions * model.hidden
    terms["lm_head"] = 0 if model.tied_embeddings else embedding
    for extra in model.extra_weights:
        terms[extra.name] = terms.get(extra.name, 0) + extra.elements
    return terms


def _moe_terms(model: Model, tp: int, split: ExpertSplit) -> dict[str, int]:
    moe = model.moe
    if moe is None:
        return {}
    count = moe_layers(model)
    own, ways = (-(-moe.experts // split.gpus), 1) if split.whole else (moe.experts, split.gpus)
    routed, shared = expert_elements(model, ways)[0], expert_elements(model, tp)[1]
    terms = {"experts": count * (own * routed + shared)}
    if moe.expert_bias:
        up = (2 if model.gated_mlp else 1) * -(-moe.intermediate // ways)
        terms["expert_biases"] = count * own * (up + model.hidden)
    router = moe.experts * (model.hidden + moe.routing_bias) + model.hidden * moe.shared_gate
    terms["router"] = count * (router + 2 * moe.latent * model.hidden)
    return terms


def parameters(model: Model) -> int:
    """Parameters of the whole model, multi-token prediction modules excluded."""
    return sum(parameter_terms(model).values())


def active_parameter_terms(model: Model, *, tp: int = 1) -> dict[str, int]:
    """As `parameter_terms`, without the experts that a token is not routed to."""
    terms = parameter_terms(model, tp=tp)
    moe = model.moe
    if moe is not None:
        routed, _ = expert_elements(model, tp)
        idle = moe_layers(model) * (moe.experts - moe.experts_per_token)
        terms["experts"] -= idle * routed
        if moe.expert_bias:
            used = terms["expert_biases"] // moe.experts * moe.experts_per_token
            terms["expert_biases"] = used
    return terms


def active_parameters(model: Model) -> int:
    """Parameters one token is computed with: all, except the experts it is not routed to."""
    return sum(active_parameter_terms(model).values())


def weight_bytes(model: Model, *, tp: int = 1, experts: ExpertSplit | None = None) -> int:
    """Bytes of weights on one GPU; `experts` as in `parameter_terms`.

    By shape, scales of block-quantized fp8 matrices left out (< 0.03 %). Where the size of the
    checkpoint is known, it takes the place of the bytes by shape, and its share on one of several
    GPUs is that of the bytes by shape.
    """
    shape = _shape_bytes(model, tp, experts)
    if model.checkpoint_bytes is None:
        return shape
    return round(model.checkpoint_bytes * shape / _shape_bytes(model, 1, None))


def _shape_bytes(model: Model, tp: int, experts: ExpertSplit | None) -> int:
    terms = parameter_terms(model, tp=tp, experts=experts)
    matrices = terms.pop("attention") * model.attention_element_bytes
    matrices += terms.pop("mlp") * model.weight_element_bytes
    shared = moe_layers(model) * expert_elements(model, tp)[1]
    matrices += (terms.pop("experts") - shared) * model.expert_element_bytes
    matrices += shared * model.shared_expert_element_bytes
    wider = sum((one.element_bytes - VECTOR_BYTES) * one.elements for one in model.extra_weights)
    return round(matrices) + sum(terms.values()) * VECTOR_BYTES + wider
