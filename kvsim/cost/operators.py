"""Single GPU operators under the calibrated formula, from a GPU's fitted constants.

A clock sums these over a step; attention, which depends on the whole step, is in `attention`.
Errors per GPU and operator are in `Gpu.operator_error_percent`. Element types are `bf16`, `fp16`,
`fp8`, `int8`, `int4`; both 16-bit types share the constants called `bf16`.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from kvsim.catalog.gpu import Gpu
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
    """Without a unit for a low precision: low-precision weight bytes, 16-bit arithmetic.

    Activations then keep 16 bits, where the formula's source has `w` bytes for them too (`w*M*K`).
    This deviation is deliberate: such kernels widen the weights, nothing narrows the activations.
    Over the catalogue it adds at most 0.8 % to a step with fp8 weights, 2.1 % with int4.
    """
    size = DTYPE_BYTES[weight_dtype]
    if size < 2 and gpu.has_unit(weight_dtype):
        return Precision(size, size, weight_dtype, gpu.flops[weight_dtype])
    return Precision(size, 2.0, "bf16", gpu.flops_16bit)


def moe_precision(gpu: Gpu, weight_dtype: str) -> Precision:
    """As `precision`, for the expert kernels."""
    kind = precision(gpu, weight_dtype)
    if kind.unit in gpu.fit.moe:
        return kind
    return Precision(kind.weight_bytes, 2.0, "bf16", gpu.flops_16bit)


class Affine:
    """A term `fixed + slope * size`."""

    def __init__(self, fixed: float, slope: float) -> None:
        self.fixed = fixed
        self.slope = slope

    def seconds(self, size: float) -> float:
        """The term for this many tokens, rows or bytes."""
        return self.fixed + self.slope * size


class Gemm:
    """Matrix product of (M, K) and (K, N), as a function of M: K input, N output elements."""

    def __init__(self, gpu: Gpu, kind: Precision, n: int, k: int) -> None:
        fit = gpu.fit.gemm[kind.unit]
        bandwidth = fit.eta_bw * gpu.memory_bw
        self._fixed = fit.launch_s + fit.k_loop_s * k / 4096
        self._weights_s = kind.weight_bytes * n * k / bandwidth
        self._row_io_s = (kind.activation_bytes * k + 2 * n) / bandwidth
        self._row_flops_s = 2 * n * k / (fit.eta_f * kind.flops)

    def seconds(self, m: int) -> float:
        """One product with M = `m` rows."""
        return self._fixed + hypot(self._weights_s + self._row_io_s * m, self._row_flops_s * m)


@dataclass(frozen=True, slots=True)
class MoeShape:
    """Routed experts on one GPU. `intermediate` is already divided by tp."""

    hidden: int
    intermediate: int
    experts: int
    per_token: int


def touched_experts(experts: int, per_token: int, tokens: int, skew: float = 1.0) -> float:
    """Expected number of experts that at least one of `tokens` tokens is routed to."""
    missed: float = (1 - per_token / experts) ** (1 + (tokens - 1) * skew)
    return experts * (1 - missed)


class Experts:
    """Routed experts of one layer, as a function of M; the router is a matrix product."""

    def __init__(self, gpu: Gpu, kind: Precision, shape: MoeShape) -> None:
        self._fit = gpu.fit.moe[kind.unit]
        self._kind = kind
        self._memory_bw = gpu.memory_bw
        self._shape = shape

    def seconds(self, tokens: int) -> float:
        """One layer with M = `tokens`."""
        fit, kind, shape, memory_bw = self._fit, self._kind, self._shape, self._memory_bw
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


def allreduce(gpu: Gpu, tp: int) -> Affine:
    """One all-reduce over `tp` >= 2 GPUs, as a function of the bytes on each of them.

    `InputError` when the GPU has no constants for this size.
    """
    fit = gpu.fit.allreduce.get(tp)
    if fit is None:
        sizes = ", ".join(str(size) for size in (1, *gpu.fit.allreduce))
        raise InputError(
            f"no all-reduce constants for tensor parallel size {tp} on {gpu.name}",
            where="tp",
            fix=f"Known sizes: {sizes}",
        )
    return Affine(fit.launch_s, 2 * (tp - 1) / tp / fit.bus_bw)
