"""KV tensors of all layers in torch, their addresses on the device, and the Triton kernels.

Nothing here waits for the device.
"""

from __future__ import annotations

import torch

from gpu_backend import ops
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.runtime import Settings
from gpu_backend.executor.torch_staging import DeviceInputs
from gpu_backend.kv_cache import ArenaShape, KVCache, Layout, PagedShape, allocate
from kvsim.core.plan import Copy


class TorchPagedMemory:
    """Blocks in one of the layouts of `kv_cache`, and the device's block table."""

    def __init__(
        self,
        addresses: PagedAddresses,
        settings: Settings,
        *,
        num_blocks: int,
        layout: Layout,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape, size = settings.shape, addresses.block_size
        layers, heads = settings.layers, shape.kv_heads
        cache = PagedShape(layers, num_blocks, size, heads, shape.head_dim, dtype, layout)
        self.layout = layout
        self.cache = _filled(allocate(cache, device), settings.fill)
        self.table = torch.tensor(addresses.table, device=device)
        """int32 [rows, columns]."""
        self._block_size = size
        self._scale = shape.head_dim**-0.5

    def update(self, changes: torch.Tensor) -> None:
        """Write (row, column, block id), int64 [3, changes], into the table."""
        _put(self.table, changes)

    def move(self, copy: Copy) -> None:
        """Read all slots of the copy, then write them: they may overlap."""
        steps = torch.arange(copy.tokens, device=self.table.device)
        source, target = copy.source_slot + steps, copy.target_slot + steps
        size = self._block_size
        for cache in (*self.cache.keys, *self.cache.values):
            slots_first = cache if self.layout == "nhd" else cache.transpose(1, 2)
            moved = slots_first[source // size, source % size]
            slots_first[target // size, target % size] = moved

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """Store keys and values [tokens, kv_heads, head_dim] in slots int64 [tokens]."""
        pair = self.cache.keys[layer], self.cache.values[layer]
        ops.reshape_and_cache(key, value, *pair, slots, layout=self.layout)

    def attend(
        self, layer: int, query: torch.Tensor, inputs: DeviceInputs, out: torch.Tensor
    ) -> None:
        """Attention of queries [tokens, heads, head_dim] into `out` of that shape.

        The decode kernel when every row has one query, else one call for the mixed batch.
        """
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        contexts, scale, layout = inputs.contexts, self._scale, self.layout
        table = self.table[: len(contexts)]
        if len(query) == len(contexts):
            longest = inputs.max_context
            ops.paged_decode(
                *(query, keys, values, table, contexts),
                scale=scale,
                layout=layout,
                out=out,
                max_context=longest,
            )
        else:
            starts = inputs.query_start
            ops.paged_prefill(
                *(query, keys, values, table, starts, contexts),
                scale=scale,
                layout=layout,
                out=out,
            )


class TorchContiguousMemory:
    """An arena [slots, kv_heads, head_dim] per layer, and the device's first slots."""

    def __init__(
        self,
        addresses: ContiguousAddresses,
        settings: Settings,
        *,
        slots: int,
        dtype: torch.dtype,
        device: torch.device,
    ) -> None:
        shape = settings.shape
        arena = ArenaShape(settings.layers, slots, shape.kv_heads, shape.head_dim, dtype)
        self.cache = _filled(allocate(arena, device), settings.fill)
        self.start_slots = torch.tensor(addresses.start_slots, device=device)
        """int64 [rows]."""
        self._scale = shape.head_dim**-0.5

    def update(self, changes: torch.Tensor) -> None:
        """Write (row, first slot), int64 [2, changes], into the first slots."""
        _put(self.start_slots, changes)

    def move(self, copy: Copy) -> None:
        """Move a range of slots by way of a copy, for source and target may overlap."""
        source, target, tokens = copy.source_slot, copy.target_slot, copy.tokens
        for arena in (*self.cache.keys, *self.cache.values):
            arena[target : target + tokens] = arena[source : source + tokens].clone()

    def write(
        self, layer: int, key: torch.Tensor, value: torch.Tensor, slots: torch.Tensor
    ) -> None:
        """As `TorchPagedMemory.write`: an arena is written as blocks of one slot."""
        keys, values = self.cache.keys[layer][:, None], self.cache.values[layer][:, None]
        ops.reshape_and_cache(key, value, keys, values, slots, layout="nhd")

    def attend(
        self, layer: int, query: torch.Tensor, inputs: DeviceInputs, out: torch.Tensor
    ) -> None:
        """As `TorchPagedMemory.attend`."""
        keys, values = self.cache.keys[layer], self.cache.values[layer]
        contexts, scale = inputs.contexts, self._scale
        first = self.start_slots[: len(contexts)]
        if len(query) == len(contexts):
            longest = inputs.max_context
            ops.contiguous_decode(
                *(query, keys, values, first, contexts), scale=scale, out=out, max_context=longest
            )
        else:
            starts = inputs.query_start
            ops.contiguous_prefill(
                *(query, keys, values, first, starts, contexts), scale=scale, out=out
            )


def _filled(cache: KVCache, fill: float) -> KVCache:
    for tensor in (*cache.keys, *cache.values):
        tensor.fill_(fill)
    return cache


def _put(place: torch.Tensor, changes: torch.Tensor) -> None:
    """`changes` int64 [indices + 1, n]: where in `place`, and the new values."""
    if changes.shape[1]:
        *indices, values = changes
        place.index_put_(tuple(indices), values.to(place.dtype))
