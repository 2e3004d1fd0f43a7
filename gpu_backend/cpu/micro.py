"""The attention of one step, measured alone: what calibration fits and an executor adds up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial

import numpy as np

from gpu_backend.cpu.arrays import Array, NumpyArray
from gpu_backend.cpu.attention import (
    contiguous_decode,
    contiguous_prefill,
    paged_decode,
    paged_prefill,
)
from gpu_backend.cpu.timing import Seconds, timed
from gpu_backend.cpu.warm_up import warm_up

_PATTERN_FLOATS = 1 << 20


class AttentionMeter:
    """One attention layer with its own KV memory, on which the steps of any batch can be timed.

    `slots` tokens of fp32 keys and values are allocated and filled once. Every step lies at other
    random places of them, so with a memory several times as large as the last-level cache, and as
    what a step reads, the step reads cold memory as it does behind the other layers of a model.
    """

    def __init__(
        self,
        heads: int,
        kv_heads: int,
        head_dim: int,
        *,
        slots: int,
        num_threads: int | None = None,
        seed: int = 0,
    ) -> None:
        self.heads, self.kv_heads, self.head_dim = heads, kv_heads, head_dim
        self.slots, self.num_threads = slots, num_threads
        self._random = np.random.default_rng(seed)
        pattern = self._random.standard_normal(_PATTERN_FLOATS, dtype=np.float32)
        self._key = np.resize(pattern, slots * kv_heads * head_dim)
        self._value = np.resize(pattern[::-1], slots * kv_heads * head_dim)
        warm_up(heads, kv_heads, head_dim, num_threads=num_threads)

    def step_bytes(self, contexts: Sequence[int]) -> int:
        """Bytes of keys and values that a step reads at least: every token of a context once."""
        return 2 * 4 * self.kv_heads * self.head_dim * sum(contexts)

    def step(
        self,
        contexts: Sequence[int],
        *,
        block_size: int | None,
        queries: Sequence[int] | None = None,
    ) -> Seconds:
        """Time the attention of one step, argument checks included, placement excluded.

        `contexts` tokens per sequence, of which the last `queries` (None: one each, a decode) are
        computed; `block_size` tokens per block, or None for one contiguous extent per sequence.
        Raises ValueError if the memory has too few blocks or slots.
        """
        lens = np.asarray(contexts, np.int32)
        counts = np.ones_like(lens) if queries is None else np.asarray(queries, np.int32)
        starts = np.concatenate([[0], np.cumsum(counts)]).astype(np.int32)
        shape = (int(starts[-1]), self.heads, self.head_dim)
        query = self._random.standard_normal(shape, dtype=np.float32)
        place = self._contiguous(lens) if block_size is None else self._paged(lens, block_size)
        decode = bool((counts == 1).all())
        return timed(self._call(decode, block_size is None, query, place, starts, lens))

    def _call(
        self,
        decode: bool,
        contiguous: bool,
        query: NumpyArray,
        place: tuple[NumpyArray, NumpyArray, NumpyArray],
        starts: NumpyArray,
        lens: NumpyArray,
    ) -> Callable[[], object]:
        """The kernel's call with everything that it needs."""
        kernels: dict[tuple[bool, bool], Callable[..., Array]] = {
            (True, False): paged_decode,
            (False, False): paged_prefill,
            (True, True): contiguous_decode,
            (False, True): contiguous_prefill,
        }
        ranges = (lens,) if decode else (starts, lens)
        return partial(
            kernels[decode, contiguous],
            query,
            *place,
            *ranges,
            scale=self.head_dim**-0.5,
            out=np.zeros_like(query),
            num_threads=self.num_threads,
        )

    def _paged(self, lens: NumpyArray, size: int) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Caches and a block table with random blocks; -1 behind a sequence's last block."""
        num_blocks = self.slots // size
        used = -(-lens // size)
        if used.sum() > num_blocks:
            raise ValueError(f"the batch needs {used.sum()} blocks of {size}, got {num_blocks}")
        ids = self._random.permutation(num_blocks)[: used.sum()].astype(np.int32)
        table = np.full((len(lens), max(1, used.max(initial=0))), -1, np.int32)
        table[np.arange(table.shape[1]) < used[:, None]] = ids
        shape = (num_blocks, self.kv_heads, size, self.head_dim)
        length = num_blocks * size * self.kv_heads * self.head_dim
        return self._key[:length].reshape(shape), self._value[:length].reshape(shape), table

    def _contiguous(self, lens: NumpyArray) -> tuple[NumpyArray, NumpyArray, NumpyArray]:
        """Arenas and first slots: the sequences in random order, the free slots between them."""
        spare = self.slots - int(lens.sum())
        if spare < 0:
            raise ValueError(f"the batch needs {lens.sum()} slots, got {self.slots}")
        order = self._random.permutation(len(lens))
        gaps = np.sort(self._random.integers(0, spare + 1, len(lens)))
        starts = np.empty(len(lens), np.int64)
        starts[order] = gaps + np.concatenate([[0], np.cumsum(lens[order])[:-1]])
        shape = (self.kv_heads, self.slots, self.head_dim)
        key, value = (flat.reshape(shape).swapaxes(0, 1) for flat in (self._key, self._value))
        return key, value, starts


def measure_step(
    meter: AttentionMeter,
    contexts: Sequence[int],
    *,
    block_size: int | None,
    queries: Sequence[int] | None = None,
    repeats: int = 5,
) -> Seconds:
    """Median wall and median CPU seconds of `repeats` steps, each at other places of the memory."""
    steps = [meter.step(contexts, block_size=block_size, queries=queries) for _ in range(repeats)]
    return Seconds(
        float(np.median([step.wall for step in steps])),
        float(np.median([step.cpu for step in steps])),
    )
