"""KV tensors of all layers on the CPU, float32: paged and contiguous, with numba's attention."""

from __future__ import annotations

import numpy as np

from gpu_backend.cpu import (
    contiguous_decode,
    contiguous_prefill,
    paged_decode,
    paged_prefill,
    reshape_and_cache,
)
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.runtime import Settings
from kvsim.core.plan import Copy


class PagedMemory:
    """Blocks [num_blocks, kv_heads, block_size, head_dim] per layer, and a block table."""

    def __init__(
        self,
        addresses: PagedAddresses,
        settings: Settings,
        *,
        num_blocks: int,
        num_threads: int | None,
    ) -> None:
        shape = settings.shape
        self.addresses = addresses
        self.block_size = addresses.block_size
        size = (2, num_blocks, shape.kv_heads, self.block_size, shape.head_dim)
        # Filling touches every page, so that none is touched for the first time in a step.
        self.caches = [np.full(size, settings.fill, np.float32) for _ in range(settings.layers)]
        """Per layer, keys and values."""
        self._scale = shape.head_dim**-0.5
        self._threads = num_threads

    def move(self, copy: Copy) -> None:
        """Read all slots of the copy, then write them."""
        steps = np.arange(copy.tokens)
        source, target = copy.source_slot + steps, copy.target_slot + steps
        size = self.block_size
        for cache in self.caches:
            moved = cache[:, source // size, :, source % size]
            cache[:, target // size, :, target % size] = moved

    def write(self, layer: int, key: NumpyArray, value: NumpyArray, slots: NumpyArray) -> None:
        """Store keys and values float32 [tokens, kv_heads, head_dim] in slots int64 [tokens]."""
        keys, values = self.caches[layer]
        reshape_and_cache(key, value, keys, values, slots)

    def attend(
        self,
        layer: int,
        query: NumpyArray,
        query_start: NumpyArray,
        contexts: NumpyArray,
        out: NumpyArray,
    ) -> None:
        """Attention of queries float32 [tokens, heads, head_dim] into `out` of that shape.

        Row i's queries are query_start[i] .. query_start[i + 1], the end of its contexts[i] tokens:
        the decode kernel when every row has one query, else one call for the mixed batch.
        """
        keys, values = self.caches[layer]
        table = self.addresses.table[: len(contexts)]
        scale, threads = self._scale, self._threads
        if len(query) == len(contexts):
            paged_decode(
                query, keys, values, table, contexts, scale=scale, out=out, num_threads=threads
            )
        else:
            paged_prefill(
                query,
                keys,
                values,
                table,
                query_start,
                contexts,
                scale=scale,
                out=out,
                num_threads=threads,
            )


class ContiguousMemory:
    """An arena [kv_heads, slots, head_dim] per layer, and each row's first slot."""

    def __init__(
        self,
        addresses: ContiguousAddresses,
        settings: Settings,
        *,
        slots: int,
        num_threads: int | None,
    ) -> None:
        shape = settings.shape
        self.addresses = addresses
        size = (2, shape.kv_heads, slots, shape.head_dim)
        self.arenas = [
            np.full(size, settings.fill, np.float32).swapaxes(1, 2) for _ in range(settings.layers)
        ]
        """Per layer, keys and values [2, slots, kv_heads, head_dim]; heads come first in memory."""
        self._scale = shape.head_dim**-0.5
        self._threads = num_threads

    def move(self, copy: Copy) -> None:
        """Move a range of slots (numpy buffers what overlaps)."""
        source, target, tokens = copy.source_slot, copy.target_slot, copy.tokens
        for arena in self.arenas:
            arena[:, target : target + tokens] = arena[:, source : source + tokens]

    def write(self, layer: int, key: NumpyArray, value: NumpyArray, slots: NumpyArray) -> None:
        """An arena is written as one block whose tokens come before its heads."""
        keys, values = self.arenas[layer]
        reshape_and_cache(key, value, keys[None], values[None], slots, layout="nhd")

    def attend(
        self,
        layer: int,
        query: NumpyArray,
        query_start: NumpyArray,
        contexts: NumpyArray,
        out: NumpyArray,
    ) -> None:
        """As `PagedMemory.attend`."""
        keys, values = self.arenas[layer]
        starts = self.addresses.start_slots[: len(contexts)]
        scale, threads = self._scale, self._threads
        if len(query) == len(contexts):
            contiguous_decode(
                query, keys, values, starts, contexts, scale=scale, out=out, num_threads=threads
            )
        else:
            contiguous_prefill(
                query,
                keys,
                values,
                starts,
                query_start,
                contexts,
                scale=scale,
                out=out,
                num_threads=threads,
            )
