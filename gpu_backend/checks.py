"""What a launch needs to know of its tensors, checked: a kernel itself checks nothing.

Shapes, strides, dtypes and devices cost nothing to check. Values (block ids, lengths, slots) are
checked only where that needs no wait for a device, on the CPU; `check_context` does it anywhere.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from gpu_backend.kv_cache import LAYOUTS

FLOATS = (torch.float32, torch.float16, torch.bfloat16)
MAX_HEAD_DIM = 256
GRID_LIMIT = 65535  # programs along the second and third axis of a CUDA grid


@dataclass(frozen=True)
class CacheView:
    """Cached keys and values as kernels address them; strides in elements.

    `place` is the block table (int32 [seqs, max_blocks]) if `paged`, else each sequence's first
    slot (int64 [seqs]).
    """

    key: torch.Tensor
    value: torch.Tensor
    place: torch.Tensor
    block_stride: int
    slot_stride: int
    head_stride: int
    kv_heads: int
    block_size: int
    paged: bool

    @property
    def seqs(self) -> int:
        """How many sequences `place` describes."""
        return int(self.place.shape[0])

    @property
    def head_dim(self) -> int:
        """Elements of one head."""
        return int(self.key.shape[-1])


def require(condition: bool, message: str) -> None:
    """Raises ValueError with `message` unless `condition`."""
    if not condition:
        raise ValueError(message)


def check_tensor(
    name: str,
    tensor: torch.Tensor,
    shape: tuple[int | None, ...],
    dtypes: tuple[torch.dtype, ...],
    device: torch.device,
) -> None:
    """Checks shape (None: any extent), dtype, device, and that the last axis is contiguous."""
    found = tuple(tensor.shape)
    matches = len(found) == len(shape) and all(
        want is None or have == want for have, want in zip(found, shape, strict=True)
    )
    wanted = "[" + ", ".join("*" if want is None else str(want) for want in shape) + "]"
    require(matches, f"{name} has shape {list(found)}, not {wanted}")
    require(tensor.dtype in dtypes, f"{name} is {tensor.dtype}, not one of {dtypes}")
    require(tensor.device == device, f"{name} is on {tensor.device}, not on {device}")
    require(
        tensor.numel() == 0 or tensor.stride(-1) == 1 or found[-1] == 1,
        f"{name} is not contiguous along its last axis",
    )


def cache_strides(
    key_cache: torch.Tensor, value_cache: torch.Tensor, layout: str
) -> tuple[int, int, int]:
    """Strides (block, slot, head) of a paged cache, in elements; K and V must share them."""
    require(layout in LAYOUTS, f"layout {layout!r} is none of {', '.join(LAYOUTS)}")
    check_tensor("key_cache", key_cache, (None,) * 4, FLOATS, key_cache.device)
    _check_pair("key_cache", key_cache, "value_cache", value_cache)
    block, first, second, _ = key_cache.stride()
    return (block, first, second) if layout == "nhd" else (block, second, first)


def cache_sizes(key_cache: torch.Tensor, layout: str) -> tuple[int, int]:
    """(block_size, kv_heads) of a paged cache."""
    first, second = int(key_cache.shape[1]), int(key_cache.shape[2])
    return (first, second) if layout == "nhd" else (second, first)


def paged_view(
    key_cache: torch.Tensor, value_cache: torch.Tensor, block_table: torch.Tensor, layout: str
) -> CacheView:
    """A paged cache and its block table; ValueError where a kernel could not address them."""
    block, slot, head = cache_strides(key_cache, value_cache, layout)
    check_tensor("block_table", block_table, (None, None), (torch.int32,), key_cache.device)
    block_size, kv_heads = cache_sizes(key_cache, layout)
    require(block_size <= 128, f"block size {block_size} is above 128")
    return CacheView(
        key_cache, value_cache, block_table, block, slot, head, kv_heads, block_size, True
    )


def contiguous_view(key: torch.Tensor, value: torch.Tensor, start_slots: torch.Tensor) -> CacheView:
    """A contiguous cache, [slots, kv_heads, head_dim], and where each sequence starts in it."""
    check_tensor("key", key, (None,) * 3, FLOATS, key.device)
    _check_pair("key", key, "value", value)
    check_tensor("start_slots", start_slots, (None,), (torch.int64,), key.device)
    slot, head, _ = key.stride()
    return CacheView(key, value, start_slots, 0, slot, head, int(key.shape[1]), 1, False)


def check_queries(
    query: torch.Tensor, out: torch.Tensor, view: CacheView, context_lens: torch.Tensor
) -> None:
    """Checks queries and output [n, heads, head_dim], and `context_lens` int32 [seqs]."""
    device = view.key.device
    head_dim = view.head_dim
    require(head_dim <= MAX_HEAD_DIM, f"head size {head_dim} is above {MAX_HEAD_DIM}")
    check_tensor("query", query, (None, None, head_dim), (view.key.dtype,), device)
    heads = int(query.shape[1])
    require(
        heads > 0 and heads % view.kv_heads == 0,
        f"{heads} query heads are no multiple of {view.kv_heads} KV heads",
    )
    check_tensor("out", out, tuple(query.shape), FLOATS, device)
    check_tensor("context_lens", context_lens, (view.seqs,), (torch.int32,), device)
    require(view.seqs <= GRID_LIMIT, f"{view.seqs} sequences are above {GRID_LIMIT}")


def check_context(
    view: CacheView, context_lens: torch.Tensor, first: torch.Tensor | None = None
) -> None:
    """Checks that every visible token's slot lies in the cache, on any device (it waits for it).

    `context_lens` [seqs] tokens of each sequence; `first` [seqs] its first visible position, 0 by
    default. Raises ValueError: a kernel would read or write memory that is not the cache's.
    """
    ends = context_lens.long()
    begins = torch.zeros_like(ends) if first is None else first.long().clamp(min=0)
    require(bool((ends >= 0).all()), "context_lens holds a negative length")
    if not view.paged:
        slots = int(view.key.shape[0])
        inside = (view.place >= 0) & (view.place + ends <= slots)
        require(bool((inside | (ends == 0)).all()), f"a sequence leaves the {slots} slots")
        return
    columns = torch.arange(view.place.shape[1], device=view.place.device)
    reach = int(view.place.shape[1]) * view.block_size
    require(bool((ends <= reach).all()), f"a context is longer than the table's {reach} slots")
    last = (ends + view.block_size - 1) // view.block_size
    used = (columns >= (begins // view.block_size)[:, None]) & (columns < last[:, None])
    _check_ids("block_table", view.place[used], int(view.key.shape[0]))


def check_ids(name: str, ids: torch.Tensor, limit: int) -> None:
    """Checks 0 <= id < `limit` for a tensor on the CPU; ids elsewhere are taken on trust."""
    if ids.device.type == "cpu":
        _check_ids(name, ids, limit)


def check_query_start(
    query_start: torch.Tensor, context_lens: torch.Tensor, tokens: int
) -> torch.Tensor:
    """Checks varlen prefix sums against the context; returns query lengths, int32 [seqs]."""
    lens = query_start[1:] - query_start[:-1]
    require(bool((query_start[0] == 0) & (lens >= 0).all()), "query_start is no prefix sum from 0")
    require(int(query_start[-1]) <= tokens, "query_start reaches past the queries")
    require(bool((lens <= context_lens).all()), "a sequence has more queries than context")
    return lens


def _check_ids(name: str, ids: torch.Tensor, limit: int) -> None:
    require(
        ids.numel() == 0 or (int(ids.min()) >= 0 and int(ids.max()) < limit),
        f"{name} holds an id outside 0 .. {limit - 1}",
    )


def _check_pair(name: str, key: torch.Tensor, other_name: str, value: torch.Tensor) -> None:
    check_tensor(other_name, value, tuple(key.shape), (key.dtype,), key.device)
    require(key.stride() == value.stride(), f"{name} and {other_name} have different strides")
