"""SGLang's pool: from the memory that is free around the load of the weights to what it prints."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError


@dataclass(frozen=True, slots=True)
class SglangPool:
    """One rank's pool as the line `KV Cache is allocated` prints it."""

    tokens: int
    """`#tokens`, whole pages."""
    k_bytes: int
    """`K size`; of a latent cache, which has no values of its own, `KV size`."""
    v_bytes: int
    """`V size`; 0 for a latent cache."""

    @property
    def kv_bytes(self) -> int:
        """Keys and values together."""
        return self.k_bytes + self.v_bytes


def kv_memory_bytes(
    *,
    free_before_weights_bytes: int,
    free_after_weights_bytes: int,
    mem_fraction_static: float,
    state_pool_bytes: int = 0,
) -> int:
    """Bytes left for keys and values on one GPU; negative where weights take more than the share.

    `free_after_weights - free_before_weights * (1 - mem_fraction_static)`, less the pool of Mamba
    states (FIELD.md section 2): the fraction is of what was free when the server started, and what
    steps and CUDA graphs take must fit into the rest. Raises `InputError` for a fraction outside
    (0, 1).
    """
    if not 0 < mem_fraction_static < 1:
        raise InputError(
            f"mem_fraction_static must be above 0 and below 1, got {mem_fraction_static:g}",
            where="mem_fraction_static",
            fix="Give the share of free memory for weights and pool, such as 0.88",
        )
    kept = free_before_weights_bytes * (1 - mem_fraction_static)
    return int(free_after_weights_bytes - kept) - state_pool_bytes


def state_pool_bytes(*, running_requests: int, layers: int, layer_bytes: int) -> int:
    """Bytes of the pool of states: a slot per running request, and one that pads a batch."""
    return (running_requests + 1) * layers * layer_bytes


def pool(
    available_bytes: int,
    *,
    k_token_bytes: int,
    v_token_bytes: int,
    page_size: int = 1,
    max_total_tokens: int | None = None,
) -> SglangPool:
    """Tokens and sizes of the pool: `floor(available / bytes per token)`, in whole pages.

    Bytes per token are of one GPU, all layers together. `max_total_tokens` is a cap that the user
    set. Raises `InputError` where a token has no bytes or a page no tokens.
    """
    token_bytes = k_token_bytes + v_token_bytes
    if token_bytes < 1 or page_size < 1:
        raise InputError(
            f"needs bytes per token and tokens per page, got {token_bytes} and {page_size}",
            where="page_size" if page_size < 1 else "model",
        )
    tokens = max(available_bytes, 0) // token_bytes
    if max_total_tokens is not None:
        tokens = min(tokens, max_total_tokens)
    tokens = tokens // page_size * page_size
    return SglangPool(tokens, tokens * k_token_bytes, tokens * v_token_bytes)
