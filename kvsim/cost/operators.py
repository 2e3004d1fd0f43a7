"""Seconds of single GPU operators under the calibrated formula, from a GPU's fitted constants.

Every function is one line of the formula; the calibrated clock sums them over a step. Errors per
GPU and operator are in `Gpu.operator_error_percent`. Element types are `bf16`, `fp16`, `fp8`,
`int8`, `int4`; both 16-bit types share the constants called `bf16`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import hypot

from kvsim.catalog.gpu import AllReduceFit, DecodeFit, Gpu, MoeFit
from kvsim.catalog.model import DTYPE_BYTES
from kvsim.errors import InputError


@dataclass(frozen=True, slots=True)
class Precision:
    """How a GPU multiplies matrices of one weight type."""

    weight_bytes: float
    activation_bytes: float
    unit: str
    """Key of the constants: a type the GPU has a unit for, else `bf16`."""
    flops: float


def precision(gpu: Gpu, weight_dtype: str) -> Precision:
    """Without a unit for a low precision: low-precision bytes, 16-bit arithmetic."""
    size = DTYPE_BYTES[weight_dtype]
    if size < 2 and gpu.has_unit(weight_dtype):
        return Precision(size, size, weight_dtype, gpu.flops[weight_dtype])
    return Precision(size, 2.0, "bf16", gpu.flops_16bit)


def gemm_coefficients(
    gpu: Gpu, kind: Precision, n: int, k: int
) -> tuple[float, float, float, float]:
    """(fixed, bytes_0, bytes_m, flops_m): seconds are `fixed + hypot(bytes_0 + bytes_m * M,
    flops_m * M)` for M rows, N = n output and K = k input elements."""
    fit = gpu.fit.gemm[kind.unit]
    bandwidth = fit.eta_bw * gpu.memory_bw
    return (
        fit.launch_s + fit.k_loop_s * k / 4096,
        kind.weight_bytes * n * k / bandwidth,
        (kind.activation_bytes * k + 2 * n) / bandwidth,
        2 * n * k / (fit.eta_f * kind.flops),
    )


def gemm_s(gpu: Gpu, weight_dtype: str, m: int, n: int, k: int) -> float:
    """Matrix product of (m, k) and (k, n)."""
    fixed, bytes_0, bytes_m, flops_m = gemm_coefficients(gpu, precision(gpu, weight_dtype), n, k)
    return fixed + hypot(bytes_0 + bytes_m * m, flops_m * m)


def decode_fit(gpu: Gpu, kv_dtype_bytes: int) -> DecodeFit:
    """Constants of decode attention for this width of the KV elements."""
    return gpu.fit.attn_decode["fp8" if kv_dtype_bytes == 1 else "bf16"]


def decode_attention_s(
    gpu: Gpu, *, rows: int, context_tokens: int, kv_heads: int, head_dim: int, kv_dtype_bytes: int
) -> float:
    """One layer; `context_tokens` is the sum over the `rows` sequences."""
    fit = decode_fit(gpu, kv_dtype_bytes)
    per_token = 2 * kv_heads * head_dim * kv_dtype_bytes / (fit.eta_bw * gpu.memory_bw)
    return fit.launch_s + fit.row_s * rows * kv_heads + per_token * context_tokens


def prefill_attention_s(
    gpu: Gpu, chunks: Sequence[tuple[int, int]], *, heads: int, kv_heads: int, head_dim: int
) -> float:
    """One layer, causal; `chunks` are (new tokens, prior tokens) pairs.

    Arithmetic is bound by the sum over the chunks, or by the longest chunk alone when its query
    rows do not fill the GPU.
    """
    fit = gpu.fit.attn_prefill
    new_tokens = sum(new for new, _ in chunks)
    moved = 2 * 2 * (heads + kv_heads) * head_dim * new_tokens
    work = heads * sum(new * (prior + new / 2) for new, prior in chunks)
    longest = fit.fill_rows * max(prior + new / 2 for new, prior in chunks)
    return (
        fit.launch_s
        + moved / (fit.eta_io * gpu.memory_bw)
        + 4 * head_dim * max(work, longest) / (fit.eta_f * gpu.flops_16bit)
    )


def mixed_attention_s(gpu: Gpu, prefill_s: float, decode_s: float, *, heads_per_kv: float) -> float:
    """One layer in which decodes share a kernel with prefill chunks. `decode_s` for bf16 KV."""
    prefill_launch = gpu.fit.attn_prefill.launch_s
    decode_launch = gpu.fit.attn_decode["bf16"].launch_s
    slower = 1 + gpu.fit.mixed_kappa * (heads_per_kv - 1)
    return (
        max(prefill_launch, decode_launch)
        + (prefill_s - prefill_launch)
        + slower * (decode_s - decode_launch)
    )


def moe_precision(gpu: Gpu, weight_dtype: str) -> Precision:
    """As `precision`, for the expert kernels."""
    kind = precision(gpu, weight_dtype)
    if kind.unit in gpu.fit.moe:
        return kind
    return Precision(kind.weight_bytes, 2.0, "bf16", gpu.flops_16bit)


def touched_experts(experts: int, per_token: int, tokens: int, skew: float = 1.0) -> float:
    """Expected number of experts that at least one of `tokens` tokens is routed to."""
    missed: float = (1 - per_token / experts) ** (1 + (tokens - 1) * skew)
    return experts * (1 - missed)


def moe_fit_s(
    fit: MoeFit, kind: Precision, *, memory_bw: float, tokens: int, shape: MoeShape
) -> float:
    """Routed experts of one layer; the router is a matrix product of its own."""
    routed = tokens * shape.per_token
    matrices = 3 * shape.hidden * shape.intermediate
    touched = matrices * touched_experts(shape.experts, shape.per_token, tokens, fit.skew)
    activations = 2 * routed * (2 * shape.hidden + 3 * shape.intermediate)
    return (
        fit.launch_s
        + activations / (fit.eta_act * memory_bw)
        + hypot(
            kind.weight_bytes * touched / (fit.eta_bw * memory_bw),
            (2 * routed * matrices + 2 * fit.pad_rows * touched) / (fit.eta_f * kind.flops),
        )
    )


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Routed experts on one GPU. `intermediate` is already divided by tp."""

    hidden: int
    intermediate: int
    experts: int
    per_token: int


def moe_s(gpu: Gpu, weight_dtype: str, tokens: int, shape: MoeShape) -> float:
    """Routed experts of one layer."""
    kind = moe_precision(gpu, weight_dtype)
    fit = gpu.fit.moe[kind.unit]
    return moe_fit_s(fit, kind, memory_bw=gpu.memory_bw, tokens=tokens, shape=shape)


def allreduce_fit(gpu: Gpu, tp: int) -> AllReduceFit:
    """Constants for this tensor parallel size. `InputError` when the GPU has none."""
    fit = gpu.fit.allreduce.get(tp)
    if fit is None:
        sizes = ", ".join(str(size) for size in (1, *gpu.fit.allreduce))
        raise InputError(
            f"no all-reduce constants for tensor parallel size {tp} on {gpu.name}",
            where="tp",
            fix=f"Known sizes: {sizes}",
        )
    return fit


def allreduce_s(gpu: Gpu, tp: int, size_bytes: float) -> float:
    """All-reduce of `size_bytes` per GPU."""
    fit = allreduce_fit(gpu, tp)
    return fit.launch_s + 2 * (tp - 1) / tp * size_bytes / fit.bus_bw
