"""Other libraries' decode kernels, each behind one function of the same inputs.

None is a dependency: each is imported where it is called, and whatever it raises becomes a row.
Written from the sources of torch 2.13, fa3-fwd 0.0.3, flashinfer-python 0.5.3 and xformers 0.0.35.
"""

from __future__ import annotations

import importlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch

PeerCall = Callable[[], torch.Tensor]


class Unavailable(Exception):  # noqa: N818 - an answer, not an error
    """The library does not offer this here; the message says why."""


@dataclass(frozen=True)
class Inputs:
    """One decode batch, bfloat16 on the GPU: every sequence has `context` tokens.

    `query` [batch, heads, d]. `keys`, `values` [batch, context, kv_heads, d], contiguous.
    `key_cache`, `value_cache` [blocks, block_size, kv_heads, d] with `table` int32
    [batch, blocks per sequence] and `lens` int32 [batch].
    """

    query: torch.Tensor
    keys: torch.Tensor
    values: torch.Tensor
    key_cache: torch.Tensor
    value_cache: torch.Tensor
    table: torch.Tensor
    lens: torch.Tensor
    context: int
    block_size: int
    scale: float


def sdpa(inputs: Inputs) -> PeerCall:
    """torch's scaled_dot_product_attention; whichever of its kernels torch chooses."""
    query, keys, values = _heads_first(inputs)

    def call() -> torch.Tensor:
        found = torch.nn.functional.scaled_dot_product_attention(
            query, keys, values, scale=inputs.scale, enable_gqa=True
        )
        return found[:, :, 0]

    return call


def flex_attention(inputs: Inputs) -> PeerCall:
    """torch's flex_attention, compiled for this shape."""
    _need_cuda(inputs)
    flex = importlib.import_module("torch.nn.attention.flex_attention").flex_attention
    compiled: Any = torch.compile(flex, dynamic=False)
    query, keys, values = _heads_first(inputs)

    def call() -> torch.Tensor:
        found: torch.Tensor = compiled(query, keys, values, scale=inputs.scale, enable_gqa=True)
        return found[:, :, 0]

    return call


def fa3_contiguous(inputs: Inputs) -> PeerCall:
    """FlashAttention-3 (fa3-fwd) without a block table."""
    attend = _fa3()

    def call() -> torch.Tensor:
        found: torch.Tensor = attend(
            inputs.query[:, None],
            inputs.keys,
            inputs.values,
            cache_seqlens=inputs.lens,
            softmax_scale=inputs.scale,
        )
        return found[:, 0]

    return call


def fa3_paged(inputs: Inputs) -> PeerCall:
    """FlashAttention-3 with `page_table`. The wheel fa3-fwd 0.0.3 is built without it."""
    attend = _fa3()

    def call() -> torch.Tensor:
        found: torch.Tensor = attend(
            inputs.query[:, None],
            inputs.key_cache,
            inputs.value_cache,
            cache_seqlens=inputs.lens,
            page_table=inputs.table,
            softmax_scale=inputs.scale,
        )
        return found[:, 0]

    return call


def flashinfer(inputs: Inputs, *, tensor_cores: bool) -> PeerCall:
    """FlashInfer's paged decode; planned once, outside of what is timed."""
    _need_cuda(inputs)
    major, minor = torch.cuda.get_device_capability(inputs.query.device)
    suffix = "a" if major >= 9 else ""  # architecture-specific code exists from Hopper on
    os.environ.setdefault("FLASHINFER_CUDA_ARCH_LIST", f"{major}.{minor}{suffix}")
    library = importlib.import_module("flashinfer")
    device, batch = inputs.query.device, inputs.query.shape[0]
    blocks = inputs.table.shape[1]
    workspace = torch.zeros(128 << 20, dtype=torch.uint8, device=device)
    indptr = torch.arange(batch + 1, dtype=torch.int32, device=device) * blocks
    last = torch.full((batch,), inputs.context - (blocks - 1) * inputs.block_size)
    last = last.to(device, torch.int32)
    indices = inputs.table.reshape(-1).contiguous()
    # With graphs the library keeps its launch within these buffers.
    wrapper = library.BatchDecodeWithPagedKVCacheWrapper(
        workspace,
        "NHD",
        use_cuda_graph=True,
        use_tensor_cores=tensor_cores,
        paged_kv_indptr_buffer=torch.empty_like(indptr),
        paged_kv_indices_buffer=torch.empty_like(indices),
        paged_kv_last_page_len_buffer=torch.empty_like(last),
    )
    wrapper.plan(
        indptr,
        indices,
        last,
        inputs.query.shape[1],
        inputs.key_cache.shape[2],
        inputs.query.shape[2],
        inputs.block_size,
        q_data_type=inputs.query.dtype,
        kv_data_type=inputs.key_cache.dtype,
        sm_scale=inputs.scale,
    )

    def call() -> torch.Tensor:
        found: torch.Tensor = wrapper.run(inputs.query, (inputs.key_cache, inputs.value_cache))
        return found

    return call


def xformers_paged(inputs: Inputs) -> PeerCall:
    """xformers' Triton split-K kernel with a paged mask; it wants blocks of a multiple of 64."""
    _need_cuda(inputs)
    fmha = importlib.import_module("xformers.ops.fmha")
    split_k = importlib.import_module("xformers.ops.fmha.triton_splitk").FwOp
    masks = importlib.import_module("xformers.ops.fmha.attn_bias")
    if inputs.block_size % split_k.BLOCK_N:
        raise Unavailable(f"wants blocks of a multiple of {split_k.BLOCK_N} tokens")
    batch, heads, dim = inputs.query.shape
    kv_heads = inputs.key_cache.shape[2]
    group = heads // kv_heads
    mask = masks.PagedBlockDiagonalPaddedKeysMask.from_seqlens(
        q_seqlen=[1] * batch,
        kv_seqlen=[inputs.context] * batch,
        block_tables=inputs.table,
        page_size=inputs.block_size,
        device=inputs.query.device,
    )
    query = inputs.query.view(1, batch, kv_heads, group, dim)
    caches = [
        cache.view(1, -1, kv_heads, 1, dim).expand(-1, -1, -1, group, -1)
        for cache in (inputs.key_cache, inputs.value_cache)
    ]

    def call() -> torch.Tensor:
        found: torch.Tensor = fmha.memory_efficient_attention_forward(
            query, *caches, attn_bias=mask, scale=inputs.scale, op=split_k
        )
        return found.view(batch, heads, dim)

    return call


def _heads_first(inputs: Inputs) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """[batch, heads, tokens, d] of query, keys and values: views."""
    return inputs.query[:, :, None], inputs.keys.transpose(1, 2), inputs.values.transpose(1, 2)


def _fa3() -> Callable[..., torch.Tensor]:
    """The function under either of the names it is shipped with."""
    for name in ("fa3_fwd_interface", "flash_attn_interface"):
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError as missing:
            if missing.name != name:
                raise
            continue
        attend: Callable[..., torch.Tensor] = module.flash_attn_with_kvcache
        return attend
    raise ModuleNotFoundError("neither fa3_fwd_interface nor flash_attn_interface is installed")


def _need_cuda(inputs: Inputs) -> None:
    if inputs.query.device.type != "cuda":
        raise Unavailable("runs on CUDA")
