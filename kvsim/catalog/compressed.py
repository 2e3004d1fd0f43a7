"""Attention to a window of tokens and a compressed past, and what its layers keep (DeepSeek V4).

Shapes follow the published model definition, bytes of an entry vLLM's layout `fp8_ds_mla`.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsim.catalog.heads import split_heads

STATE_ELEMENT_BYTES = 4
"""States of compressors are in 32 bits at any cache type."""
INDEXED_RATIO = 4
"""Layers that keep an entry per 4 tokens select entries by an index; their compressors overlap."""
RATIOS = (0, INDEXED_RATIO, 128)
"""Tokens per entry that published files have; 0: no compressed past."""
SCALE_ELEMENTS, SCALE_STEP_BYTES = 64, 8
"""An 8-bit entry has a byte of scale per 64 elements without rotary part, in steps of 8 bytes."""
INDEX_SCALE_BYTES, INDEX_SCALE_ELEMENTS = 4, 128

PartName = Literal["window", "compressed", "index", "state", "index_state"]


class Part(NamedTuple):
    """One cache of one layer."""

    name: PartName
    entry_bytes: int
    tokens_per_entry: int = 1
    limit_tokens: int | None = None
    """Tokens after which an entry is given up; None: never."""

    def entries(self, tokens: int) -> int:
        """Entries of a request: those of the last tokens, or one per whole group of tokens."""
        if self.limit_tokens is not None:
            return min(tokens, self.limit_tokens)
        return tokens // self.tokens_per_entry


@dataclass(frozen=True, slots=True)
class CompressedAttention:
    """One latent KV head for a window of tokens, beside entries that stand for several tokens."""

    heads: int
    head_dim: int
    """Elements of a query head, and of an entry of the cache."""
    rope_dim: int
    """Elements of them with rotary positions, which stay in 16 bits."""
    q_lora_rank: int
    o_groups: int
    """Groups of heads that the output's first product works on one by one."""
    o_lora_rank: int
    """Elements that it makes of each."""
    window: int
    """Tokens, the current one included."""
    ratio: int = 0
    """Tokens per compressed entry; 0: there are none."""
    index_heads: int = 0
    index_dim: int = 0
    """Elements of the index's one key per compressed entry; 0: no index."""

    kind = "compressed"

    @property
    def kv_heads(self) -> int:
        """KV heads as the cache sees them."""
        return 1

    @property
    def v_head_dim(self) -> int:
        """Elements of a value head: keys and values are one entry."""
        return self.head_dim

    @property
    def index_bytes(self) -> int:
        """Bytes of an index key: 132 for 128 elements."""
        if not self.index_dim:
            return 0
        return self.index_dim + INDEX_SCALE_BYTES * -(-self.index_dim // INDEX_SCALE_ELEMENTS)

    def entry_bytes(self, element_bytes: int) -> int:
        """Bytes of an entry: with 8 bits 448 + 2 * 64 + 8 = 584 for 512 elements, 64 rotary."""
        if element_bytes != 1:
            return self.head_dim * element_bytes
        plain = self.head_dim - self.rope_dim
        scales = -(-plain // SCALE_ELEMENTS)
        return plain + 2 * self.rope_dim + -(-scales // SCALE_STEP_BYTES) * SCALE_STEP_BYTES

    @property
    def lanes(self) -> int:
        """Windows of a compressor that overlap: entry and gate are so many times as wide."""
        return 2 if self.ratio == INDEXED_RATIO else 1

    def parts(self, element_bytes: int) -> Iterator[Part]:
        """The caches of one layer, the same on every GPU."""
        entry = self.entry_bytes(element_bytes)
        yield Part("window", entry, limit_tokens=self.window)
        if not self.ratio:
            return
        yield Part("compressed", entry, self.ratio)
        held = self.lanes * self.ratio
        width = 2 * self.lanes * STATE_ELEMENT_BYTES
        if self.index_dim:
            yield Part("index", self.index_bytes, self.ratio)
        yield Part("state", width * self.head_dim, limit_tokens=held)
        if self.index_dim:
            yield Part("index_state", width * self.index_dim, limit_tokens=held)

    def kv_elements(self, tp: int) -> int:
        """Elements of one entry on one GPU: every GPU holds all of them."""
        split_heads(self.heads, tp, "query heads")
        return self.head_dim

    def naive_kv_elements(self) -> int:
        """Per token, if every head had keys and values of its own and none were compressed."""
        return 2 * self.heads * self.head_dim

    def matrices(self, hidden: int, tp: int) -> list[tuple[int, int]]:
        """(N, K) of the matrix products of one layer on one GPU, compressors left out.

        The query's and the entry's down projection and the index's queries are replicated; the
        output's first product works on one group of heads at a time.
        """
        heads = split_heads(self.heads, tp, "query heads")
        groups = split_heads(self.o_groups, tp, "output groups")
        width = self.heads * self.head_dim // self.o_groups
        index = [(self.index_heads * self.index_dim, self.q_lora_rank)] if self.index_dim else []
        return [
            (self.q_lora_rank + self.head_dim, hidden),
            (heads * self.head_dim, self.q_lora_rank),
            *index,
            (groups * self.o_lora_rank, width),
            (hidden, groups * self.o_lora_rank),
        ]

    def vector_elements(self, hidden: int, tp: int) -> int:
        """Norms, and a sink per head, of one layer on one GPU."""
        compressors = self.head_dim + self.index_dim if self.ratio else 0
        sinks = split_heads(self.heads, tp, "query heads")
        return self.q_lora_rank + self.head_dim + sinks + compressors

    def compressor_elements(self, hidden: int) -> int:
        """Entry and gate of the compressors, and the index's weight per head: all in 16 bits."""
        if not self.ratio:
            return 0
        width = 2 * self.lanes * (self.head_dim + self.index_dim)
        return hidden * (width + (self.index_heads if self.index_dim else 0))

    def position_elements(self) -> int:
        """Position biases of the compressors, in 32 bits."""
        return self.ratio * self.lanes * (self.head_dim + self.index_dim)
