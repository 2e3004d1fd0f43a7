"""Checked tensors -> kernel launches, as data: `ops` runs them, `aot_check` compiles them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
import triton

from gpu_backend import configs
from gpu_backend.checks import GRID_LIMIT, CacheView, require
from gpu_backend.kernels import cache as cache_kernels
from gpu_backend.kernels import decode as decode_kernels
from gpu_backend.kernels import prefill as prefill_kernels

REDUCE_TILE = 16
COPY_TILE = 1024


@dataclass(frozen=True)
class Launch:
    """One kernel, its grid, its arguments, and its compile-time constants and options."""

    kernel: Any
    grid: tuple[int, ...]
    arguments: tuple[Any, ...]
    constants: dict[str, Any]

    def run(self) -> None:
        """Starts the kernel; on CUDA it runs on the current stream."""
        self.kernel[self.grid](*self.arguments, **self.constants)


@dataclass(frozen=True)
class Attention:
    """What attention computes: softmax(scale * q k) v over the last `window` tokens (0: all).

    `soft_cap` c > 0 bounds the scores to c * tanh(score / c).
    """

    scale: float
    window: int = 0
    soft_cap: float = 0.0

    def __post_init__(self) -> None:
        require(self.window >= 0, f"window {self.window} is negative")
        require(self.soft_cap >= 0, f"soft_cap {self.soft_cap} is negative")


def interpreted() -> bool:
    """Whether the kernels run in Triton's interpreter: TRITON_INTERPRET=1 when imported."""
    return not isinstance(decode_kernels.decode_kernel, triton.runtime.JITFunction)


def settings_name(device: torch.device) -> str:
    """The name under which `configs` lists settings for `device`; ValueError without kernels."""
    if interpreted():
        return "interpreter"
    require(
        device.type == "cuda",
        f"the Triton kernels run on CUDA, not on {device} (or interpreted: TRITON_INTERPRET=1)",
    )
    return configs.gpu_class(device)


def decode_launches(
    out: torch.Tensor,
    query: torch.Tensor,
    view: CacheView,
    context_lens: torch.Tensor,
    attention: Attention,
    max_context: int,
    config: configs.DecodeConfig,
) -> list[Launch]:
    """Decode, and the reduce if a context of `max_context` tokens takes several chunks."""
    seqs, heads, head_dim = query.shape
    visible = min(max_context, attention.window) if attention.window else max_context
    chunks = _chunks(max_context, attention.window, config.chunk) if visible > config.chunk else 1
    require(chunks <= GRID_LIMIT, f"{chunks} chunks are above {GRID_LIMIT}")
    split = chunks > 1
    partial, partial_lse = out, out  # unused unless split
    if split:
        partial = query.new_empty((seqs, heads, chunks, head_dim), dtype=torch.float32)
        partial_lse = query.new_empty((seqs, heads, chunks), dtype=torch.float32)
    group = heads // view.kv_heads
    decode = Launch(
        decode_kernels.decode_kernel,
        (view.kv_heads, chunks, seqs),
        (
            *(out, partial, partial_lse, query, view.key, view.value, view.place, context_lens),
            *(*out.stride()[:2], *query.stride()[:2], *_strides(view), attention.scale),
        ),
        _attention_constants(view, attention, query.dtype, config)
        | {"GROUP": group, "ROWS": max(16, triton.next_power_of_2(group))}
        | {"CHUNK": config.chunk, "SPLIT": split},
    )
    if not split:
        return [decode]
    reduce = Launch(
        decode_kernels.reduce_kernel,
        (heads, seqs),
        (out, partial, partial_lse, context_lens, *out.stride()[:2], chunks),
        {"HEAD_DIM": head_dim, "DIMS": configs.padded(head_dim), "CHUNK": config.chunk}
        | {"WINDOW": attention.window, "TILE": REDUCE_TILE, "num_warps": 4},
    )
    return [decode, reduce]


def prefill_launch(
    out: torch.Tensor,
    query: torch.Tensor,
    view: CacheView,
    query_start: torch.Tensor,
    context_lens: torch.Tensor,
    attention: Attention,
    config: configs.PrefillConfig,
) -> Launch:
    """Prefill of a batch; a group of more query heads than `config.rows` gets the rows it needs."""
    tokens, heads, _ = query.shape
    group = heads // view.kv_heads
    rows = max(config.rows, triton.next_power_of_2(group))
    require(view.kv_heads <= GRID_LIMIT, f"{view.kv_heads} KV heads are above {GRID_LIMIT}")
    return Launch(
        prefill_kernels.prefill_kernel,
        (tokens // (rows // group) + view.seqs, view.kv_heads),
        (
            *(out, query, view.key, view.value, view.place, query_start, context_lens),
            *(*out.stride()[:2], *query.stride()[:2], *_strides(view), attention.scale, view.seqs),
        ),
        _attention_constants(view, attention, query.dtype, config) | {"GROUP": group, "ROWS": rows},
    )


def write_launch(
    key: torch.Tensor,
    value: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    slot_mapping: torch.Tensor,
    strides: tuple[int, int, int],
    block_size: int,
) -> Launch:
    """Writes keys and values [tokens, kv_heads, head_dim]; `strides` is (block, slot, head)."""
    tokens, kv_heads, head_dim = key.shape
    elements = kv_heads * head_dim
    tile = min(COPY_TILE, triton.next_power_of_2(elements))
    return Launch(
        cache_kernels.write_kernel,
        (tokens, triton.cdiv(elements, tile)),
        (
            *(key, value, key_cache, value_cache, slot_mapping),
            *(*key.stride()[:2], *value.stride()[:2], *strides),
        ),
        {"ELEMENTS": elements, "HEAD_DIM": head_dim, "BLOCK_SIZE": block_size, "TILE": tile}
        | {"num_warps": 4},
    )


def copy_launch(key_cache: torch.Tensor, value_cache: torch.Tensor, pairs: torch.Tensor) -> Launch:
    """Copies whole blocks, (source, target) by row of `pairs`."""
    elements, tile = _block_tile(key_cache)
    return Launch(
        cache_kernels.copy_kernel,
        (int(pairs.shape[0]), triton.cdiv(elements, tile)),
        (key_cache, value_cache, pairs, key_cache.stride(0)),
        {"ELEMENTS": elements, "TILE": tile, "num_warps": 4},
    )


def swap_launch(
    buffer: torch.Tensor,
    key_cache: torch.Tensor,
    value_cache: torch.Tensor,
    blocks: torch.Tensor,
    out: bool,
) -> Launch:
    """Copies whole blocks to (`out`) or from `buffer` [2, n, *block]."""
    elements, tile = _block_tile(key_cache)
    return Launch(
        cache_kernels.swap_kernel,
        (int(blocks.shape[0]), triton.cdiv(elements, tile)),
        (buffer, key_cache, value_cache, blocks, key_cache.stride(0)),
        {"ELEMENTS": elements, "TILE": tile, "OUT": out, "num_warps": 4},
    )


def _chunks(max_context: int, window: int, chunk: int) -> int:
    """Chunks that a visible context can touch: a window begins anywhere in its first chunk."""
    chunks: int = triton.cdiv(max_context, chunk)
    return min(chunks, triton.cdiv(window, chunk) + 1) if window else chunks


def _strides(view: CacheView) -> tuple[int, int, int, int]:
    table = view.place.stride(0) if view.paged else 0
    return table, view.block_stride, view.slot_stride, view.head_stride


def _attention_constants(
    view: CacheView,
    attention: Attention,
    dtype: torch.dtype,
    config: configs.DecodeConfig | configs.PrefillConfig,
) -> dict[str, Any]:
    constants: dict[str, Any] = {
        "HEAD_DIM": view.head_dim,
        "DIMS": configs.padded(view.head_dim),
        "BLOCK_SIZE": view.block_size,
        "TILE": config.tile,
        "WINDOW": attention.window,
        "SOFT_CAP": float(attention.soft_cap),
        "PAGED": view.paged,
        # tf32 keeps 10 bits of mantissa: what is stored as float32 is multiplied as float32.
        "PRECISION": "ieee" if dtype == torch.float32 else "tf32",
        # The interpreter multiplies bfloat16 wrongly and says nothing.
        "UPCAST": interpreted(),
        "num_warps": config.warps,
        "num_stages": config.stages,
    }
    if config.registers is not None:
        constants["maxnreg"] = config.registers
    return constants


def _block_tile(cache: torch.Tensor) -> tuple[int, int]:
    elements = cache[0].numel()
    return elements, min(COPY_TILE, triton.next_power_of_2(elements))
