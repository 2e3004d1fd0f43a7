"""The operators of one engine step on one GPU, as coefficients of the calibrated formula.

Everything here is computed once per clock. M is the number of tokens in the step.
"""

from __future__ import annotations

from collections.abc import Iterable
from math import hypot

from kvsim.catalog.gpu import Gpu
from kvsim.catalog.model import GqaAttention, LayerGroup, Model, split_heads
from kvsim.catalog.weights import dense_layers, mlp_matrices, moe_layers
from kvsim.cost.operators import (
    MoeShape,
    allreduce_fit,
    decode_fit,
    gemm_coefficients,
    moe_fit_s,
    moe_precision,
    precision,
)

SMALL_KERNELS_PER_LAYER = 5
SAMPLE_S = 25e-6
SAMPLE_BYTES_PER_LOGIT = 8


class GemmSum:
    """Sum of matrix products over the layers, as a function of M."""

    def __init__(self, model: Model, gpu: Gpu, tp: int) -> None:
        matrices: dict[tuple[int, int], int] = {}
        router: dict[tuple[int, int], int] = {}
        for group in model.groups:
            _add(matrices, group.attention.matrices(model.hidden, tp), group.layers)
        _add(matrices, mlp_matrices(model, model.intermediate, tp), dense_layers(model))
        if model.moe is not None:
            layers = moe_layers(model)
            shared = model.moe.shared_experts * model.moe.intermediate
            if shared:
                _add(matrices, mlp_matrices(model, shared, tp), layers)
            _add(router, [(model.moe.experts, model.hidden)], layers)
        kinds = ((matrices, precision(gpu, model.weight_dtype)), (router, precision(gpu, "bf16")))
        self._fixed = 0.0
        self._terms: list[tuple[float, float, float]] = []
        for counted, kind in kinds:
            for (n, k), count in counted.items():
                fixed, *terms = gemm_coefficients(gpu, kind, n, k)
                self._fixed += count * fixed
                bytes_0, bytes_m, flops_m = (count * value for value in terms)
                self._terms.append((bytes_0, bytes_m, flops_m))

    def seconds(self, tokens: int) -> float:
        """All matrix products but the experts and the language model head."""
        total = self._fixed
        for bytes_0, bytes_m, flops_m in self._terms:
            total += hypot(bytes_0 + bytes_m * tokens, flops_m * tokens)
        return total


class MoeSum:
    """Routed experts over the layers, as a function of M."""

    def __init__(self, model: Model, gpu: Gpu, tp: int) -> None:
        self._layers = 0
        if model.moe is None:
            return
        self._layers = moe_layers(model)
        self._kind = moe_precision(gpu, model.weight_dtype)
        self._fit = gpu.fit.moe[self._kind.unit]
        self._memory_bw = gpu.memory_bw
        self._shape = MoeShape(
            hidden=model.hidden,
            intermediate=-(-model.moe.intermediate // tp),
            experts=model.moe.experts,
            per_token=model.moe.experts_per_token,
        )

    def seconds(self, tokens: int) -> float:
        """0 for a dense model."""
        if not self._layers:
            return 0.0
        return self._layers * moe_fit_s(
            self._fit, self._kind, memory_bw=self._memory_bw, tokens=tokens, shape=self._shape
        )


class PerToken:
    """A term `fixed + per_token * M`."""

    def __init__(self, fixed: float, per_token: float) -> None:
        self._fixed = fixed
        self._per_token = per_token

    def seconds(self, tokens: int) -> float:
        """The term for this many tokens (or rows)."""
        return self._fixed + self._per_token * tokens


def small_kernels(model: Model, gpu: Gpu, tp: int) -> PerToken:
    """Norms, rotary embedding, activation functions, residuals."""
    fit = gpu.fit.small
    elements = 0.0
    for group in model.groups:
        attention = group.attention
        heads = split_heads(attention.heads, tp, "query heads") + split_heads(
            attention.kv_heads, tp, "KV heads"
        )
        elements += group.layers * (8 * model.hidden + heads * attention.head_dim)
    elements += dense_layers(model) * 3 * model.intermediate / tp
    if model.moe is not None:
        shared = model.moe.shared_experts * model.moe.intermediate
        elements += moe_layers(model) * 3 * shared / tp
    fixed = model.layers * SMALL_KERNELS_PER_LAYER * fit.launch_s
    return PerToken(fixed, 2 * elements / (fit.eta_bw * gpu.memory_bw))


def allreduces(model: Model, gpu: Gpu, tp: int) -> PerToken:
    """Two per layer and one for the embedding; none on a single GPU."""
    if tp == 1:
        return PerToken(0.0, 0.0)
    fit = allreduce_fit(gpu, tp)
    count = 2 * model.layers + 1
    per_token = 2 * (tp - 1) / tp * 2 * model.hidden / fit.bus_bw
    return PerToken(count * fit.launch_s, count * per_token)


class Head:
    """Language model head, as a function of the rows that are sampled. Weights have 16 bits."""

    def __init__(self, model: Model, gpu: Gpu, tp: int) -> None:
        self._coefficients = gemm_coefficients(
            gpu, precision(gpu, "bf16"), -(-model.vocab // tp), model.hidden
        )

    def seconds(self, rows: int) -> float:
        """The matrix product of `rows` hidden states with the vocabulary."""
        fixed, bytes_0, bytes_m, flops_m = self._coefficients
        return fixed + hypot(bytes_0 + bytes_m * rows, flops_m * rows)


def sampling(model: Model, gpu: Gpu) -> PerToken:
    """Sampler, as a function of rows; every GPU sees the whole vocabulary."""
    bandwidth = gpu.fit.small.eta_bw * gpu.memory_bw
    return PerToken(SAMPLE_S, SAMPLE_BYTES_PER_LOGIT * model.vocab / bandwidth)


class AttentionSum:
    """Attention of one layer group. Attributes are seconds, summed over the group's layers."""

    def __init__(self, group: LayerGroup, gpu: Gpu, tp: int, kv_dtype_bytes: int) -> None:
        attention = group.attention
        heads = split_heads(attention.heads, tp, "query heads")
        kv_heads = split_heads(attention.kv_heads, tp, "KV heads")
        decode = decode_fit(gpu, kv_dtype_bytes)
        prefill = gpu.fit.attn_prefill
        key_value = attention.head_dim + attention.v_head_dim
        compute = prefill.eta_f * gpu.flops_16bit
        kv_bytes = attention.kv_elements(tp) * kv_dtype_bytes
        context_s = kv_bytes / (decode.eta_bw * gpu.memory_bw)
        if isinstance(attention, GqaAttention):
            stored_kv_heads, mixed_ratio = kv_heads, heads / kv_heads
        else:
            latent = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            context_s = max(context_s, 2 * heads * latent / compute)
            # Prefill expands the latent vector: every query head has keys and values of its own.
            stored_kv_heads, mixed_ratio = heads, 1.0
        layers = group.layers
        self.heads = heads
        self.fill_rows = prefill.fill_rows
        self.decode_launch_s = layers * decode.launch_s
        self.decode_row_s = layers * decode.row_s * kv_heads
        self.decode_context_s = layers * context_s
        """Per context token; the slope of a decode-only step."""
        self.prefill_launch_s = layers * prefill.launch_s
        moved = 2 * (heads + stored_kv_heads) * key_value
        self.prefill_token_s = layers * moved / (prefill.eta_io * gpu.memory_bw)
        self.prefill_pair_s = layers * 2 * key_value / compute
        """Per (query row, context token) pair."""
        self.mixed_factor = 1 + gpu.fit.mixed_kappa * (mixed_ratio - 1)

    def decode_seconds(self, rows: int, context_tokens: int) -> float:
        """All layers of a step without chunks."""
        return (
            self.decode_launch_s + self.decode_row_s * rows + self.decode_context_s * context_tokens
        )

    def seconds(self, rows: int, context_tokens: int, chunks: Iterable[tuple[int, int]]) -> float:
        """All layers of a step with at least one chunk."""
        new_tokens = 0
        pairs = longest = 0.0
        for new, prior in chunks:
            reach = prior + new / 2
            new_tokens += new
            pairs += new * reach
            longest = max(longest, reach)
        work = max(self.heads * pairs, self.fill_rows * longest)
        variable = self.prefill_token_s * new_tokens + self.prefill_pair_s * work
        if not rows:
            return self.prefill_launch_s + variable
        decode = self.decode_row_s * rows + self.decode_context_s * context_tokens
        launch = max(self.decode_launch_s, self.prefill_launch_s)
        return launch + variable + self.mixed_factor * decode


def _add(counts: dict[tuple[int, int], int], matrices: list[tuple[int, int]], times: int) -> None:
    for shape in matrices:
        if times:
            counts[shape] = counts.get(shape, 0) + times
