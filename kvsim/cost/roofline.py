"""Roofline clock: the larger of bytes over bandwidth and FLOPs over peak, from datasheets alone."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.catalog.explain import Fact
from kvsim.catalog.gpu import Gpu
from kvsim.catalog.kv import kv_bytes_per_token
from kvsim.catalog.model import GqaAttention, LayerGroup, Model
from kvsim.catalog.weights import (
    active_parameter_terms,
    expert_elements,
    moe_layers,
    weight_bytes,
)
from kvsim.core.plan import StepPlan
from kvsim.cost.checks import check_seconds
from kvsim.cost.covered import token_attention
from kvsim.cost.drafts import decode_drafts, queries_per_decode
from kvsim.cost.operators import precision, touched_experts
from kvsim.cost.windows import decode_tokens, mean_reach, prior_tokens

CACHED_ROW_COUNTS = 1 << 14
RELATIVE_ERROR = 0.6
NOTE = (
    "datasheet roofline without launch, efficiency or communication costs, hence optimistic; "
    "such rooflines miss served runs by 32 % (median) to 60 % (90th percentile)"
)


class RooflineClock:
    """`max(bytes / BW, FLOPs / F) + t0_s` per step.

    bytes = weights read once + KV bytes of every context token; with a mixture of experts only the
    expected number of touched experts is read. FLOPs = 2 * active parameters of the layers, norms
    left out, * tokens + 2 * lm_head * rows + attention; rows are the sequences that are sampled:
    decodes and chunks. Attention is `4 * layers * heads * head_dim` per decode context token, and
    for a chunk of c new after p prior tokens the same times `c * p + c * c / 2` (causal). Looking
    up embeddings is no arithmetic. All per GPU: divided by tp, except what every GPU holds whole
    (replicated KV heads, the latent cache, the router). BW and F are the datasheet's; F is that of
    16-bit operands but for the layers' matrices. A draft that a decode verifies is one more token,
    one more row, and one more query of the same context, which is read once. Layers with a sliding
    window or a chunk read and multiply no more than that of a context; in a chunk of chunked-local
    attention that is the most a token attends to.
    """

    relative_error: float | None = RELATIVE_ERROR
    note = NOTE

    def __init__(
        self,
        model: Model,
        gpu: Gpu,
        *,
        tp: int = 1,
        t0_s: float = 0.0,
        kv_dtype_bytes: int | None = None,
    ) -> None:
        check_seconds(t0_s=t0_s)
        self.t0_s = t0_s
        kind = precision(gpu, model.weight_dtype)
        kv_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
        element = kv_dtype_bytes or model.kv_dtype_bytes
        self._moe = model.moe
        expert = precision(gpu, model.expert_dtype)
        one_expert = expert_elements(model, tp)[0]
        self._expert_bytes = moe_layers(model) * one_expert * expert.weight_bytes
        routed = model.moe.experts * self._expert_bytes if model.moe else 0.0
        self._fixed_bytes = weight_bytes(model, tp=tp) - routed
        self._bandwidth = gpu.memory_bw
        self._copy_s = 2 * (kv_bytes / gpu.memory_bw)
        self._token_s = _token_flops(model, tp) / kind.flops
        self._row_s = _row_flops(model, tp) / gpu.flops_16bit
        windows = dict.fromkeys(group.limit_tokens for group in model.groups)
        self._attention = [_Attention(model, gpu, tp, element, window) for window in windows]
        self._decode: dict[int, tuple[float, float]] = {}
        self._facts = [
            *_datasheet_facts(model, gpu, tp),
            Fact("kv_bytes_per_token", kv_bytes, "bytes/token/GPU", f"by shape, tp {tp}"),
            Fact("t0_s", t0_s, "s", "given"),
        ]

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds; an empty step takes `t0_s`."""
        rows = plan.num_decodes + plan.padded_decodes
        if plan.chunks or plan.copies or plan.draft_tokens:
            memory, compute, copies = self._terms(plan)
            return self.t0_s + max(memory, compute) + copies
        memory, compute = self.decode_terms_s(rows, plan.decode_context_tokens)
        return memory if memory > compute else compute

    def decode_terms_s(self, decodes: int, context_tokens: float) -> tuple[float, float]:
        """Seconds of a decode-only step by bandwidth and by arithmetic, `t0_s` in both.

        `context_tokens` are summed over the decodes. The step takes the larger one.
        """
        pair = self._decode.get(decodes)
        if pair is None:
            pair = self._decode_constants(decodes)
        memory, compute = pair
        for group in self._attention:
            read = decode_tokens(decodes, context_tokens, group.window)
            memory += group.kv_s * read
            compute += group.decode_s * read
        return memory, compute

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        return list(self._facts)

    def _weights_s(self, tokens: int) -> float:
        size = self._fixed_bytes
        if self._moe is not None:
            moe = self._moe
            touched = touched_experts(moe.experts, moe.experts_per_token, tokens)
            size += self._expert_bytes * touched
        return size / self._bandwidth

    def _decode_constants(self, rows: int) -> tuple[float, float]:
        if len(self._decode) >= CACHED_ROW_COUNTS:
            self._decode.clear()
        weights_s = self._weights_s(rows) if rows else 0.0
        pair = (self.t0_s + weights_s, self.t0_s + (self._token_s + self._row_s) * rows)
        self._decode[rows] = pair
        return pair

    def _terms(self, plan: StepPlan) -> tuple[float, float, float]:
        decodes = plan.num_decodes + plan.padded_decodes
        rows = decodes + plan.draft_tokens + len(plan.chunks)
        tokens = decodes + decode_drafts(plan) + sum(chunk.new_tokens for chunk in plan.chunks)
        copies = self._copy_s * sum(copy.tokens for copy in plan.copies)
        if not tokens:
            return 0.0, 0.0, copies
        memory = self._weights_s(tokens)
        compute = self._token_s * tokens + self._row_s * rows
        queries = queries_per_decode(plan)
        for group in self._attention:
            read = decode_tokens(decodes, plan.decode_context_tokens, group.window)
            attention = group.decode_s * read * queries
            kv_tokens = read
            for new, prior in plan.chunks:
                kv_tokens += new + prior_tokens(prior, group.window)
                attention += group.prefill_s * new * mean_reach(new, prior, group.window)
            memory += group.kv_s * kv_tokens
            compute += attention
        return memory, compute, copies


class _Attention:
    """Attention of all layers with one window. Attributes are seconds of all these layers."""

    def __init__(
        self, model: Model, gpu: Gpu, tp: int, kv_dtype_bytes: int, window: int | None
    ) -> None:
        groups = [group for group in model.groups if group.limit_tokens == window]
        held = sum(group.layers * group.attention.kv_elements(tp) for group in groups)
        decode, prefill = _attention_flops(groups)
        self.window = window
        self.kv_s = held * kv_dtype_bytes / gpu.memory_bw
        """Per context token read."""
        self.decode_s = decode / tp / gpu.flops_16bit
        self.prefill_s = prefill / tp / gpu.flops_16bit
        """Per (query, context token) pair."""


def _token_flops(model: Model, tp: int) -> int:
    """FLOPs per token of the layers' matrix products on one GPU."""
    terms = active_parameter_terms(model, tp=tp)
    return 2 * sum(terms[part] for part in ("attention", "mlp", "experts", "router"))


def _row_flops(model: Model, tp: int) -> int:
    """FLOPs of the language model head per sampled sequence on one GPU."""
    return 2 * -(-model.vocab // tp) * model.hidden


def _attention_flops(groups: Iterable[LayerGroup]) -> tuple[int, int]:
    """FLOPs per (query token, context token) pair over all layers and heads: decode, prefill.

    Latent attention decodes on the latent vector and prefills on expanded heads.
    """
    decode = prefill = 0
    for group in groups:
        attention = token_attention(group)
        pairs = 2 * group.layers * attention.heads
        expanded = pairs * (attention.head_dim + attention.v_head_dim)
        prefill += expanded
        if isinstance(attention, GqaAttention):
            decode += expanded
        else:
            decode += pairs * (2 * attention.kv_lora_rank + attention.qk_rope_head_dim)
    return decode, prefill


def _datasheet_facts(model: Model, gpu: Gpu, tp: int) -> list[Fact]:
    kind, shape = precision(gpu, model.weight_dtype), f"by shape, tp {tp}"
    layers, head = _token_flops(model, tp), _row_flops(model, tp)
    return [
        Fact("memory_bw", gpu.memory_bw, "B/s", gpu.datasheet_source),
        Fact("flops", kind.flops, "FLOP/s", f"{gpu.datasheet_source}; {kind.unit}"),
        Fact("weights", weight_bytes(model, tp=tp), "bytes/GPU", shape),
        Fact("flops_per_token", layers, "FLOP/token/GPU", f"matrices of the layers {shape}"),
        Fact("flops_per_row", head, "FLOP/sequence/GPU", f"lm_head {shape}"),
    ]
