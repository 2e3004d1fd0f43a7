"""Attention of a step under the calibrated formula."""

from __future__ import annotations

from collections.abc import Iterable

from kvsim.catalog.gpu import Gpu
from kvsim.catalog.heads import split_heads
from kvsim.catalog.model import GqaAttention, LayerGroup
from kvsim.cost.covered import token_attention
from kvsim.cost.windows import decode_tokens, mean_reach


class AttentionSum:
    """Attention of one layer group. Attributes are seconds, summed over the group's layers."""

    def __init__(self, group: LayerGroup, gpu: Gpu, tp: int, kv_dtype_bytes: int) -> None:
        attention = token_attention(group)
        heads = split_heads(attention.heads, tp, "query heads")
        kv_heads = split_heads(attention.kv_heads, tp, "KV heads")
        decode = gpu.fit.attn_decode["fp8" if kv_dtype_bytes == 1 else "bf16"]
        prefill = gpu.fit.attn_prefill
        key_value = attention.head_dim + attention.v_head_dim
        kv_bytes = attention.kv_elements(tp) * kv_dtype_bytes
        if isinstance(attention, GqaAttention):
            context_s = kv_bytes / (decode.eta_bw * gpu.memory_bw)
            query_s = 2 * heads * key_value / (prefill.eta_f * gpu.flops_16bit)
            stored_kv_heads, mixed_ratio = kv_heads, heads / kv_heads
        else:
            # The formula's source takes datasheet figures here: no fitted fraction is known.
            latent = 2 * attention.kv_lora_rank + attention.qk_rope_head_dim
            query_s = 2 * heads * latent / gpu.flops_16bit
            context_s = max(kv_bytes / gpu.memory_bw, query_s)
            # Prefill expands the latent vector: every query head has keys and values of its own.
            stored_kv_heads, mixed_ratio = heads, 1.0
        layers = group.layers
        self.heads = heads
        self.window = group.limit_tokens
        """Tokens that a query attends to, at most; None: all."""
        self.fill_rows = prefill.fill_rows
        self.decode_launch_s = layers * decode.launch_s
        self.decode_row_s = layers * decode.row_s * kv_heads
        self.decode_context_s = layers * context_s
        """Per context token; the slope of a decode-only step without drafts."""
        self.query_context_s = layers * query_s
        """Arithmetic per (query, context token) pair of a decode, over the heads."""
        self.prefill_launch_s = layers * prefill.launch_s
        moved = 2 * (heads + stored_kv_heads) * key_value
        self.prefill_token_s = layers * moved / (prefill.eta_io * gpu.memory_bw)
        self.prefill_pair_s = layers * 2 * key_value / (prefill.eta_f * gpu.flops_16bit)
        """Per (query row, context token) pair."""
        self.mixed_factor = 1 + gpu.fit.mixed_kappa * (mixed_ratio - 1)

    def decode_seconds(self, rows: int, context_tokens: int, queries: float = 1.0) -> float:
        """All layers of a step without chunks; `context_tokens` is the sum over the `rows`.

        With drafts a row has several `queries` of its context, which is read once.
        """
        context_s = self._context_s(queries)
        read = decode_tokens(rows, context_tokens, self.window)
        return self.decode_launch_s + self.decode_row_s * rows + context_s * read

    def _context_s(self, queries: float) -> float:
        if queries == 1.0:
            return self.decode_context_s
        return max(self.decode_context_s, self.query_context_s * queries)

    def seconds(
        self,
        rows: int,
        context_tokens: int,
        chunks: Iterable[tuple[int, int]],
        queries: float = 1.0,
    ) -> float:
        """All layers of a step with at least one chunk; `chunks` are (new, prior) tokens.

        Arithmetic is bound by the sum over the chunks, or by the longest chunk alone when its
        query rows do not fill the GPU. Decodes share the kernel with the chunks.
        """
        new_tokens = 0
        pairs = longest = 0.0
        for new, prior in chunks:
            reach = mean_reach(new, prior, self.window)
            new_tokens += new
            pairs += new * reach
            longest = max(longest, reach)
        work = max(self.heads * pairs, self.fill_rows * longest)
        variable = self.prefill_token_s * new_tokens + self.prefill_pair_s * work
        if not rows:
            return self.prefill_launch_s + variable
        read = decode_tokens(rows, context_tokens, self.window)
        decode = self.decode_row_s * rows + self._context_s(queries) * read
        launch = max(self.decode_launch_s, self.prefill_launch_s)
        return launch + variable + self.mixed_factor * decode
