"""LMDeploy's pool: a share of what is free after the weights, in whole blocks."""

from __future__ import annotations

from kvsim.planning.tensorrt_llm import BlockPool, kv_memory_bytes
from kvsim.planning.tensorrt_llm import pool as block_pool

CACHE_MAX_ENTRY_COUNT = 0.8
"""The default share."""


def pool(
    free_after_weights_bytes: int,
    *,
    token_bytes: int,
    cache_max_entry_count: float = CACHE_MAX_ENTRY_COUNT,
    cache_block_seq_len: int = 64,
) -> BlockPool:
    """`cache_max_entry_count * free after weights`, in blocks of `cache_block_seq_len` tokens.

    `token_bytes` are of one GPU, all layers together (FIELD.md section 2). Raises `InputError` for
    a share outside (0, 1] and for a block without bytes.
    """
    available = kv_memory_bytes(
        free_after_load_bytes=free_after_weights_bytes, fraction=cache_max_entry_count
    )
    return block_pool(available, token_bytes=token_bytes, tokens_per_block=cache_block_seq_len)
