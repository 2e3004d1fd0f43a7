"""Calibrated clock: operator costs fitted to measurements of the GPU, summed over a step."""

from __future__ import annotations

from collections.abc import Callable

from kvsim.catalog.explain import Fact
from kvsim.catalog.gpu import Engine, Gpu
from kvsim.catalog.kv import kv_bytes_per_token
from kvsim.catalog.model import Model
from kvsim.catalog.registry import get_engine
from kvsim.core.plan import StepPlan
from kvsim.cost.attention import AttentionSum
from kvsim.cost.checks import check_seconds
from kvsim.cost.drafts import decode_drafts, queries_per_decode
from kvsim.cost.operators import moe_precision, precision
from kvsim.cost.shapes import (
    GemmSum,
    MoeSum,
    allreduces,
    lm_head,
    sampling,
    small_kernels,
)

CACHED_SIZES = 1 << 14
DENSE_ERROR, LOW_PRECISION_OR_MOE_ERROR, CLASS_DEFAULT_ERROR = 0.15, 0.30, 0.40


class CalibratedClock:
    """Step time from fitted operator costs. With M tokens in n decodes and the chunks of a step:

    `T = host_s + host_row_s * rows + matrix products(M) + experts(M) + attention + small
    kernels(M) + all-reduces(M) + head(rows) + sampling(rows)`, rows = n + number of chunks.
    A decode-only step is affine in S, the sum of the contexts, where no layer has a window. An
    empty step takes `host_s`.
    A draft that a decode verifies adds to M, to the rows of head and sampling, and to the
    arithmetic of attention; its context is read once for all of them.

    `engine` is a name of the catalogue or an `Engine` with host times of your own calibration,
    which beats the catalogue's. `InputError` when tp does not divide the heads or has no
    all-reduce constants on this GPU.
    """

    def __init__(
        self,
        model: Model,
        gpu: Gpu,
        *,
        tp: int = 1,
        engine: Engine | str = "none",
        kv_dtype_bytes: int | None = None,
    ) -> None:
        host = get_engine(engine) if isinstance(engine, str) else engine
        check_seconds(host_s=host.host_s, host_row_s=host.host_row_s)
        kv_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
        element = kv_dtype_bytes or model.kv_dtype_bytes
        self._host_s, self._host_row_s = host.host_s, host.host_row_s
        self._by_token: list[Callable[[int], float]] = [
            GemmSum(model, gpu, tp).seconds,
            MoeSum(model, gpu, tp).seconds,
            small_kernels(model, gpu, tp).seconds,
            allreduces(model, gpu, tp).seconds,
        ]
        self._by_row: list[Callable[[int], float]] = [
            lm_head(model, gpu, tp).seconds,
            sampling(model, gpu).seconds,
        ]
        self._attention = [AttentionSum(group, gpu, tp, element) for group in model.groups]
        self._context_s = sum(group.decode_context_s for group in self._attention)
        self._has_windows = any(group.window is not None for group in self._attention)
        self._copy_s = 2 * kv_bytes / (gpu.fit.small.eta_bw * gpu.memory_bw)
        self._decode: dict[int, float] = {}
        self._tokens: dict[int, float] = {}
        self._rows: dict[int, float] = {}
        needed = _operators(model, gpu, tp, element)
        self.relative_error: float | None = _relative_error(needed, gpu)
        self.note = _note(gpu, host, needed, self.relative_error)
        self._facts = _facts(model, gpu, host, tp, kv_bytes)

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        rows = plan.num_decodes + plan.padded_decodes
        if plan.chunks or plan.copies or plan.draft_tokens or self._has_windows:
            return self._general(plan, rows)
        constant = self._decode.get(rows)
        if constant is None:
            constant = self._decode_constant(rows)
        return constant + self._context_s * plan.decode_context_tokens

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        return list(self._facts)

    def _general(self, plan: StepPlan, decodes: int) -> float:
        chunks = plan.chunks
        rows = decodes + len(chunks)
        tokens = decodes + decode_drafts(plan)
        for chunk in chunks:
            tokens += chunk[0]
        seconds = self._copy_s * sum(copy.tokens for copy in plan.copies) if plan.copies else 0.0
        if not tokens:
            return seconds + self._host_s
        return (
            seconds
            + self._cached(self._tokens, tokens, self._by_token)
            + self._cached(self._rows, rows + plan.draft_tokens, self._by_row)
            + self._host_s
            + self._host_row_s * rows
            + self._attention_s(plan, decodes)
        )

    def _attention_s(self, plan: StepPlan, decodes: int) -> float:
        context, chunks, queries = plan.decode_context_tokens, plan.chunks, queries_per_decode(plan)
        if not chunks:
            return sum(group.decode_seconds(decodes, context, queries) for group in self._attention)
        return sum(group.seconds(decodes, context, chunks, queries) for group in self._attention)

    def _decode_constant(self, rows: int) -> float:
        """Seconds of a decode-only step, without the part proportional to S."""
        seconds = self._host_s + self._host_row_s * rows
        if rows:
            seconds += self._cached(self._tokens, rows, self._by_token)
            seconds += self._cached(self._rows, rows, self._by_row)
            seconds += sum(group.decode_seconds(rows, 0) for group in self._attention)
        if len(self._decode) >= CACHED_SIZES:
            self._decode.clear()
        self._decode[rows] = seconds
        return seconds

    @staticmethod
    def _cached(cache: dict[int, float], size: int, terms: list[Callable[[int], float]]) -> float:
        seconds = cache.get(size)
        if seconds is None:
            if len(cache) >= CACHED_SIZES:
                cache.clear()
            seconds = cache[size] = sum(term(size) for term in terms)
        return seconds


def _operators(model: Model, gpu: Gpu, tp: int, kv_dtype_bytes: int) -> set[str]:
    """Operators of a step, named as in `Gpu.measured_operators`."""
    needed = {
        "gemm.bf16",
        f"gemm.{precision(gpu, model.weight_dtype).unit}",
        f"attn_decode.{'fp8' if kv_dtype_bytes == 1 else 'bf16'}",
        "attn_prefill.bf16",
    }
    if model.moe is not None:
        needed.add(f"moe.{moe_precision(gpu, model.expert_dtype).unit}")
    if tp > 1:
        needed.add("allreduce")
    return needed


def _relative_error(needed: set[str], gpu: Gpu) -> float:
    if not gpu.measured or not needed <= gpu.measured_operators:
        return CLASS_DEFAULT_ERROR
    if any(name.startswith("moe") or name.endswith("fp8") for name in needed):
        return LOW_PRECISION_OR_MOE_ERROR
    return DENSE_ERROR


def _note(gpu: Gpu, host: Engine, needed: set[str], error: float) -> str:
    missing = sorted(needed - gpu.measured_operators)
    text = f"calibrated on {gpu.name}: {gpu.fit_source}; expect +-{error:.0%} of device time"
    if missing:
        text += f" ({', '.join(missing)} not measured on this GPU"
        assumed = gpu.assumed_error_percent
        text += f", whose source assumes {assumed} %)" if assumed else ")"
    if host.name == "none":
        return f"{text}; no host time"
    return f"{text}; host time of {host.name}, which transfers poorly between models: {host.note}"


def _facts(model: Model, gpu: Gpu, host: Engine, tp: int, kv_bytes: int) -> list[Fact]:
    kind = precision(gpu, model.weight_dtype)
    source = host.source
    if host.error_percent:
        median, p90 = host.error_percent["median"], host.error_percent["p90"]
        source += f"; with it, error median {median} %, p90 {p90} % on runs that were not fitted"
    return [
        Fact("host_s", host.host_s, "s", source),
        Fact("host_row_s", host.host_row_s, "s/sequence", source),
        Fact("arithmetic", kind.unit, "", f"weights in {model.weight_dtype} on {gpu.name}"),
        Fact("flops", kind.flops, "FLOP/s", gpu.datasheet_source),
        Fact("memory_bw", gpu.memory_bw, "B/s", gpu.datasheet_source),
        Fact("kv_bytes_per_token", kv_bytes, "bytes/token/GPU", f"by shape, tp {tp}"),
        Fact("constants", gpu.name, "", gpu.fit_source),
    ]
