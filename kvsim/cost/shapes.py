"""The operators of one engine step on one GPU, but attention, summed over the layers.

Everything here is computed once per clock. M is the number of tokens in the step, rows the number
of sequences that are sampled.
"""

from __future__ import annotations

from kvsim.catalog.gpu import Gpu
from kvsim.catalog.heads import split_heads
from kvsim.catalog.model import Model
from kvsim.catalog.weights import dense_mlps, mlp_matrices, moe_layers, routed_hidden
from kvsim.cost.covered import token_attention
from kvsim.cost.operators import (
    Affine,
    Experts,
    Gemm,
    MoeShape,
    allreduce,
    moe_precision,
    precision,
)

SMALL_KERNELS_PER_LAYER = 5
SAMPLE_S = 25e-6
SAMPLE_BYTES_PER_LOGIT = 8


class GemmSum:
    """All matrix products but the experts and the language model head, as a function of M."""

    def __init__(self, model: Model, gpu: Gpu, tp: int) -> None:
        matrices: dict[tuple[int, int], int] = {}
        for group in model.groups:
            _add(matrices, group.attention.matrices(model.hidden, tp), group.layers)
        for layers, width in dense_mlps(model):
            _add(matrices, mlp_matrices(model, width, tp), layers)
        if model.moe is not None and model.moe.shared_width:
            shared = mlp_matrices(model, model.moe.shared_width, tp)
            _add(matrices, shared, moe_layers(model))
        kind = precision(gpu, model.weight_dtype)
        self._terms = [(count, Gemm(gpu, kind, n, k)) for (n, k), count in matrices.items()]
        if model.moe is not None:
            router = Gemm(gpu, precision(gpu, "bf16"), model.moe.experts, model.hidden)
            self._terms.append((moe_layers(model), router))

    def seconds(self, tokens: int) -> float:
        """The sum for M = `tokens`."""
        return sum(count * gemm.seconds(tokens) for count, gemm in self._terms)


class MoeSum:
    """Routed experts over the layers, as a function of M."""

    def __init__(self, model: Model, gpu: Gpu, tp: int) -> None:
        self._layers = moe_layers(model)
        self._experts: Experts | None = None
        if model.moe is not None:
            shape = MoeShape(
                hidden=routed_hidden(model),
                intermediate=-(-model.moe.intermediate // tp),
                experts=model.moe.experts,
                per_token=model.moe.experts_per_token,
            )
            self._experts = Experts(gpu, moe_precision(gpu, model.expert_dtype), shape)

    def seconds(self, tokens: int) -> float:
        """The sum for M = `tokens`; 0 for a dense model."""
        return self._layers * self._experts.seconds(tokens) if self._experts else 0.0


def small_kernels(model: Model, gpu: Gpu, tp: int) -> Affine:
    """Norms, rotary embedding, activation functions, residuals, as a function of M."""
    fit = gpu.fit.small
    elements = 0.0
    for group in model.groups:
        attention = token_attention(group)
        heads = split_heads(attention.heads, tp, "query heads") + split_heads(
            attention.kv_heads, tp, "KV heads"
        )
        elements += group.layers * (8 * model.hidden + heads * attention.head_dim)
    elements += sum(layers * 3 * width / tp for layers, width in dense_mlps(model))
    if model.moe is not None:
        elements += moe_layers(model) * 3 * model.moe.shared_width / tp
    fixed = model.layers * SMALL_KERNELS_PER_LAYER * fit.launch_s
    return Affine(fixed, 2 * elements / (fit.eta_bw * gpu.memory_bw))


def allreduces(model: Model, gpu: Gpu, tp: int) -> Affine:
    """Two per layer and one for the embedding, as a function of M; none on a single GPU."""
    if tp == 1:
        return Affine(0.0, 0.0)
    one = allreduce(gpu, tp)
    count = 2 * model.layers + 1
    return Affine(count * one.fixed, count * one.slope * 2 * model.hidden)


def lm_head(model: Model, gpu: Gpu, tp: int) -> Gemm:
    """Language model head, as a function of rows. Its weights have 16 bits."""
    return Gemm(gpu, precision(gpu, "bf16"), -(-model.vocab // tp), model.hidden)


def sampling(model: Model, gpu: Gpu) -> Affine:
    """Sampler, as a function of rows; every GPU sees the whole vocabulary."""
    bandwidth = gpu.fit.small.eta_bw * gpu.memory_bw
    return Affine(SAMPLE_S, SAMPLE_BYTES_PER_LOGIT * model.vocab / bandwidth)


def _add(counts: dict[tuple[int, int], int], matrices: list[tuple[int, int]], times: int) -> None:
    for shape in matrices:
        if times:
            counts[shape] = counts.get(shape, 0) + times
