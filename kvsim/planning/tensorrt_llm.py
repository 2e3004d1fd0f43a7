"""TensorRT-LLM's pool: a fraction of what is free after loading, in whole blocks."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError

DEFAULT_FRACTION = 0.9
"""`free_gpu_memory_fraction` where none is given."""


@dataclass(frozen=True, slots=True)
class BlockPool:
    """One rank's pool of blocks."""

    num_blocks: int
    """The `primary blocks`."""
    tokens: int
    """As in `max tokens in paged KV cache (...)`."""
    kv_bytes: int
    """The `Allocated ... GiB`."""


def kv_memory_bytes(*, free_after_load_bytes: int, fraction: float = DEFAULT_FRACTION) -> int:
    """Bytes for the KV cache of one GPU: `fraction * free after load` (FIELD.md section 2).

    After load means with weights, buffers and, in the PyTorch backend, the measured peak of a
    step taken off: the fraction is of the rest, not of the GPU. Raises `InputError` for a fraction
    outside (0, 1].
    """
    if not 0 < fraction <= 1:
        raise InputError(
            f"free_gpu_memory_fraction must be above 0 and at most 1, got {fraction:g}",
            where="free_gpu_memory_fraction",
            fix="Give the share of the memory that is free after loading, such as 0.9",
        )
    return int(free_after_load_bytes * fraction)


def pool(
    available_bytes: int,
    *,
    token_bytes: int,
    tokens_per_block: int = 32,
    max_tokens: int | None = None,
) -> BlockPool:
    """Whole blocks in the available bytes, at most those that `max_tokens` take.

    `token_bytes` are of one GPU, all layers together. Raises `InputError` where a block has no
    bytes.
    """
    block_bytes = token_bytes * tokens_per_block
    if block_bytes < 1:
        raise InputError(
            f"needs bytes per token and tokens per block, got {token_bytes} and {tokens_per_block}",
            where="tokens_per_block" if tokens_per_block < 1 else "model",
        )
    blocks = max(available_bytes, 0) // block_bytes
    if max_tokens is not None:
        blocks = min(blocks, -(-max_tokens // tokens_per_block))
    return BlockPool(blocks, blocks * tokens_per_block, blocks * block_bytes)
