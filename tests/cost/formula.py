"""The published step-time formula, transcribed line by line: the oracle of the calibrated clock.

Shares nothing with the clock but the data: shapes of the model, datasheet and constants of the GPU.
Drafts, which the publication does not have, are decode tokens that share their context's reads.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import hypot

from kvsim.catalog import Gpu, GqaAttention, Model
from kvsim.core.plan import StepPlan

BYTES = {"bf16": 2.0, "fp8": 1.0, "int8": 1.0, "int4": 0.5}


@dataclass(frozen=True)
class Formula:
    """One model on `tp` GPUs, with `k` bytes per KV element and no host time."""

    model: Model
    gpu: Gpu
    tp: int = 1
    k: int = 2

    def seconds(self, plan: StepPlan) -> float:
        n = plan.num_decodes
        rows = n + len(plan.chunks) + plan.draft_tokens
        m = n + plan.prefill_tokens + plan.draft_tokens
        model, bw, small = self.model, self.gpu.memory_bw, self.gpu.fit.small
        layers, h = model.layers, model.hidden
        seconds = self.matrices(m) + self.experts(m)
        seconds += layers * (self.attention(plan) + 5 * small.launch_s)
        seconds += self.small_bytes(m) / (small.eta_bw * bw)
        if self.tp > 1:
            fit = self.gpu.fit.allreduce[self.tp]
            size = 2 * m * h
            one = fit.launch_s + 2 * (self.tp - 1) / self.tp * size / fit.bus_bw
            seconds += (2 * layers + 1) * one
        seconds += self.gemm(rows, model.vocab / self.tp, h, "bf16")
        return seconds + 25e-6 + 8 * rows * model.vocab / (small.eta_bw * bw)

    def flops(self, unit: str) -> float:
        return self.gpu.flops[unit] if unit in self.gpu.flops else self.gpu.flops["fp16"]

    def unit(self, dtype: str) -> str:
        """Low precision without a unit for it: 16-bit arithmetic."""
        return dtype if dtype in self.gpu.flops and dtype in self.gpu.fit.gemm else "bf16"

    def gemm(self, m: int, n: float, k: float, dtype: str) -> float:
        unit, w = self.unit(dtype), BYTES[dtype]
        fit, bw = self.gpu.fit.gemm[unit], self.gpu.memory_bw
        memory = (w * n * k + w * m * k + 2 * m * n) / (fit.eta_bw * bw)
        compute = 2 * m * n * k / (fit.eta_f * self.flops(unit))
        return fit.launch_s + fit.k_loop_s * k / 4096 + hypot(memory, compute)

    def matrices(self, m: int) -> float:
        """Projections, feed-forward or shared expert, router. DeepSeek-V3: section 2.1.1."""
        model, tp, h, dtype = self.model, self.tp, self.model.hidden, self.model.weight_dtype
        attention = model.attention
        heads = attention.heads / tp
        if isinstance(attention, GqaAttention):
            d, kv_heads = attention.head_dim, max(1, attention.kv_heads / tp)
            shapes = [((heads + 2 * kv_heads) * d, h), (h, heads * d)]
        else:
            a = attention
            shapes = [
                (a.q_lora_rank + a.kv_lora_rank + a.qk_rope_head_dim, h),
                (heads * (a.qk_nope_head_dim + a.qk_rope_head_dim), a.q_lora_rank),
                (heads * a.kv_lora_rank, a.qk_nope_head_dim),
                (heads * a.v_head_dim, a.kv_lora_rank),
                (h, heads * a.v_head_dim),
            ]
        seconds = model.layers * sum(self.gemm(m, n, k, dtype) for n, k in shapes)

        def feed_forward(width: float) -> float:
            return self.gemm(m, 2 * width / tp, h, dtype) + self.gemm(m, h, width / tp, dtype)

        moe = model.moe
        if moe is None:
            return seconds + model.layers * feed_forward(model.intermediate)
        sparse = model.layers - moe.dense_layers
        seconds += moe.dense_layers * feed_forward(model.intermediate) if moe.dense_layers else 0
        if moe.shared_experts:
            seconds += sparse * feed_forward(moe.shared_experts * moe.intermediate)
        return seconds + sparse * self.gemm(m, moe.experts, h, "bf16")

    def experts(self, m: int) -> float:
        moe = self.model.moe
        if moe is None:
            return 0.0
        unit, w = self.unit(self.model.weight_dtype), BYTES[self.model.weight_dtype]
        unit = unit if unit in self.gpu.fit.moe else "bf16"
        fit, bw, flops = self.gpu.fit.moe[unit], self.gpu.memory_bw, self.flops(unit)
        h, i, topk = self.model.hidden, moe.intermediate / self.tp, moe.experts_per_token
        e = moe.experts
        active = 3 * h * i * e * (1 - (1 - topk / e) ** (1 + (m - 1) * fit.skew))
        act = 2 * m * topk * (2 * h + 3 * i) / (fit.eta_act * bw)
        work = 6 * m * topk * h * i + 2 * fit.pad_rows * active
        one = fit.launch_s + act
        one += hypot(w * active / (fit.eta_bw * bw), work / (fit.eta_f * flops))
        return (self.model.layers - moe.dense_layers) * one

    def small_bytes(self, m: int) -> float:
        """bytes_small of all layers; expert layers have the shared expert's activations only."""
        model, tp, moe = self.model, self.tp, self.model.moe
        attention = model.attention
        heads, kv_heads = attention.heads / tp, max(1, attention.kv_heads / tp)
        elements = model.layers * (8 * model.hidden + (heads + kv_heads) * attention.head_dim)
        dense = model.layers if moe is None else moe.dense_layers
        elements += dense * 3 * model.intermediate / tp
        if moe is not None:
            shared = moe.shared_experts * moe.intermediate
            elements += (model.layers - dense) * 3 * shared / tp
        return 2 * m * elements

    def attention(self, plan: StepPlan) -> float:
        """One layer: decode, prefill, or both in one kernel."""
        n, s, chunks = plan.num_decodes, plan.decode_context_tokens, plan.chunks
        a, fit, bw, k = self.model.attention, self.gpu.fit, self.gpu.memory_bw, self.k
        heads = a.heads / self.tp
        if isinstance(a, GqaAttention):
            kv_heads = stored = max(1, a.kv_heads / self.tp)
            eta = fit.attn_decode["fp8" if k == 1 else "bf16"].eta_bw
            beta = 2 * kv_heads * a.head_dim * k / (eta * bw)
            if plan.draft_tokens:
                one = 4 * heads * a.head_dim / (fit.attn_prefill.eta_f * self.flops("bf16"))
                beta = max(beta, one * (n + plan.draft_tokens) / n)
        else:
            kv_heads, stored = 1, heads
            latent = a.kv_lora_rank + a.qk_rope_head_dim
            absorbed = 2 * heads * (latent + a.kv_lora_rank)
            queries = (n + plan.draft_tokens) / n if plan.draft_tokens else 1
            beta = max(latent * k / bw, queries * absorbed / self.flops("bf16"))
        a0 = fit.attn_decode["fp8" if k == 1 else "bf16"].launch_s
        a1 = fit.attn_decode["fp8" if k == 1 else "bf16"].row_s
        decode = a0 + a1 * n * kv_heads + beta * s
        if not chunks:
            return decode
        p, d = fit.attn_prefill, (a.head_dim + a.v_head_dim) / 2
        io = 2 * 2 * (heads + stored) * d * sum(c for c, _ in chunks)
        whole = sum(heads * c * (prior + c / 2) for c, prior in chunks)
        longest = max(p.fill_rows * (prior + c / 2) for c, prior in chunks)
        prefill = p.launch_s + io / (p.eta_io * bw)
        prefill += 4 * d * max(whole, longest) / (p.eta_f * self.flops("bf16"))
        if not n:
            return prefill
        slower = 1 + fit.mixed_kappa * (heads / stored - 1)
        return max(a0, p.launch_s) + (prefill - p.launch_s) + slower * (decode - a0)
