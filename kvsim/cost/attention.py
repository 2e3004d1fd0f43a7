"""Attention of a step under the calibrated formula."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.catalog.gpu import Gpu
from kvsim.catalog.model import GqaAttention, LayerGroup, split_heads


class AttentionSum:
    """Attention of one layer group. Attributes are seconds, summed over the group's layers."""

    def __init__(self, group: LayerGroup, gpu: Gpu, tp: int, kv_dtype_bytes: int) -> None:
        attention = group.attention
        heads = split_heads(attention.heads, tp, "query heads")
        kv_heads = split_heads(attention.kv_heads, tp, "KV heads")
        decode = gpu.fit.attn_decode["fp8" if kv_dtype_bytes == 1 else "bf16"]
        prefill = gpu.fit.attn_prefill
        key_value = attention.head_dim + attention.v_head_dim
        kv_bytes = attention.kv_elements(tp) * kv_dtype_bytes
        if isinstance(attention, GqaAttention):
            context_s = kv_bytes / (decode.eta_bw * gpu.memory_bw)
            stored_kv_heads, mixed_ratio = kv_heads, heads / kv_heads
        else:
            # The formula's source takes datasheet figures here: no fitted fraction is known.
            latent = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            context_s = max(kv_bytes / gpu.memory_bw, 2 * heads * latent / gpu.flops_16bit)
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
        self.prefill_pair_s = layers * 2 * key_value / (prefill.eta_f * gpu.flops_16bit)
        """Per (query row, context token) pair."""
        self.mixed_factor = 1 + gpu.fit.mixed_kappa * (mixed_ratio - 1)

    def decode_seconds(self, rows: int, context_tokens: int) -> float:
        """All layers of a step without chunks; `context_tokens` is the sum over the `rows`."""
        return (
            self.decode_launch_s + self.decode_row_s * rows + self.decode_context_s * context_tokens
        )

    def seconds(self, rows: int, context_tokens: int, chunks: Iterable[tuple[int, int]]) -> float:
        """All layers of a step with at least one chunk; `chunks` are (new, prior) tokens.

        Arithmetic is bound by the sum over the chunks, or by the longest chunk alone when its
        query rows do not fill the GPU. Decodes share the kernel with the chunks.
        """
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
