"""KV memory in physical pages: how many tokens one page of a layer's K or V holds."""

from __future__ import annotations

from kvsim.catalog.kv import kv_bytes_per_token
from kvsim.catalog.model import GqaAttention, Model
from kvsim.errors import InputError

PAGE_KIB = (64, 128, 256, 2048)
"""Page sizes of vAttention's driver, and of the unchanged one (2 MiB), in KiB."""


def tokens_per_page(
    model: Model, page_kib: int, *, tp: int = 1, kv_dtype_bytes: int | None = None
) -> int:
    """Tokens whose K (or V) of one layer fill a page of one GPU.

    `page_bytes / (max(1, kv_heads / tp) * head_dim * bytes)`; K and V of each layer have pages of
    their own. Raises `InputError` where that is no whole number, where K and V differ in width, for
    latent attention and for layers that differ.
    """
    if len({group.attention.kv_elements(tp) for group in model.groups}) > 1:
        raise _uncovered(model, "layers with different KV bytes per token")
    attention = model.attention
    if not isinstance(attention, GqaAttention):
        raise _uncovered(model, "latent attention, which keeps one tensor per layer instead of two")
    if attention.head_dim != attention.v_head_dim:
        raise _uncovered(model, "K and V of different widths")
    layers = sum(group.layers for group in model.groups)
    token_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes) // (2 * layers)
    tokens, rest = divmod(page_kib * 1024, token_bytes)
    if not rest and tokens:
        return tokens
    whole = [size for size in PAGE_KIB if size * 1024 % token_bytes == 0]
    raise InputError(
        f"a page of {page_kib} KiB holds no whole number of tokens of {model.name}, whose K of one"
        f" layer takes {token_bytes} bytes per token on each GPU",
        where="page_kib",
        fix=f"Use pages of {' or '.join(map(str, whole))} KiB" if whole else "Use paged memory",
    )


def _uncovered(model: Model, what: str) -> InputError:
    return InputError(
        f"{model.name} has {what}: its memory in pages is not covered",
        where="model",
        fix="Use paged memory, or a model whose layers are alike",
    )
