"""Parameters by shape, and the bytes of weights on one GPU."""

from __future__ import annotations

from kvsim.catalog.model import DTYPE_BYTES, Model

VECTOR_BYTES = 2
"""Embeddings, norms, biases and the router stay in 16 bits when the matrices are quantized."""


def mlp_matrices(model: Model, intermediate: int, tp: int) -> list[tuple[int, int]]:
    """(N, K) of one dense feed-forward on one GPU."""
    width = -(-intermediate // tp)
    up = 2 * width if model.gated_mlp else width
    return [(up, model.hidden), (model.hidden, width)]


def dense_layers(model: Model) -> int:
    """Layers whose feed-forward is dense."""
    return model.layers if model.moe is None else model.moe.dense_layers


def moe_layers(model: Model) -> int:
    """Layers whose feed-forward is a mixture of experts."""
    return model.layers - dense_layers(model)


def parameter_terms(model: Model, *, tp: int = 1) -> dict[str, int]:
    """Parameters on one GPU by part; with tp = 1 the model's.

    Matrices and embeddings are split over tp, norms and the router are replicated, KV projections
    are replicated when there are fewer KV heads than GPUs. The experts count whole, not only the
    ones a token uses.
    """
    terms = dict.fromkeys(("attention", "mlp", "experts", "router"), 0)
    for group in model.groups:
        matrices = group.attention.matrices(model.hidden, tp)
        terms["attention"] += group.layers * (
            sum(n * k for n, k in matrices) + group.attention.vector_elements(model.hidden, tp)
        )
    dense = sum(n * k for n, k in mlp_matrices(model, model.intermediate, tp))
    if model.mlp_bias:
        dense += model.intermediate // tp + model.hidden
    terms["mlp"] = dense_layers(model) * dense
    if model.moe is not None:
        count = moe_layers(model)
        one = sum(n * k for n, k in mlp_matrices(model, model.moe.intermediate, tp))
        terms["experts"] = count * one * (model.moe.experts + model.moe.shared_experts)
        if model.moe.expert_bias:
            up = (2 if model.gated_mlp else 1) * -(-model.moe.intermediate // tp)
            terms["expert_biases"] = count * model.moe.experts * (up + model.hidden)
        terms["router"] = count * model.moe.experts * (model.hidden + model.moe.routing_bias)
    embedding = -(-model.vocab // tp) * model.hidden
    norm = model.hidden * (2 if model.norm_bias else 1)
    terms["norms"] = norm * (model.norms_per_layer * model.layers + 1)
    terms["embeddings"] = embedding + model.learned_positions * model.hidden
    terms["lm_head"] = 0 if model.tied_embeddings else embedding
    return terms


def parameters(model: Model) -> int:
    """Parameters of the whole model, multi-token prediction modules excluded."""
    return sum(parameter_terms(model).values())


def active_parameter_terms(model: Model, *, tp: int = 1) -> dict[str, int]:
    """As `parameter_terms`, without the experts that a token is not routed to."""
    terms = parameter_terms(model, tp=tp)
    if model.moe is not None:
        held = model.moe.experts + model.moe.shared_experts
        used = model.moe.experts_per_token + model.moe.shared_experts
        terms["experts"] = terms["experts"] // held * used
        if model.moe.expert_bias:
            terms["expert_biases"] = terms["expert_biases"] // held * used
    return terms


def active_parameters(model: Model) -> int:
    """Parameters one token is computed with: all, except the experts it is not routed to."""
    return sum(active_parameter_terms(model).values())


def weight_bytes(model: Model, *, tp: int = 1) -> int:
    """Bytes of weights on one GPU. Scales of block-quantized matrices are left out (< 0.03 %)."""
    terms = parameter_terms(model, tp=tp)
    matrices = (terms.pop("attention") + terms.pop("mlp")) * model.weight_element_bytes
    experts = terms.pop("experts") * DTYPE_BYTES[model.expert_dtype]
    return round(matrices + experts) + sum(terms.values()) * VECTOR_BYTES
