"""The inputs of a step, built from the plan into buffers that stay: only what changed is written.

Every running sequence has a row, and the rows are the batch: where one leaves, the last row takes
its place. A row belongs to one admission, so a preempted sequence starts a new one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np

from gpu_backend.executor.addresses import Addresses
from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.content import tail, token_values, tokens_of
from kvsim.core.request import Sequence, State


class Inputs(NamedTuple):
    """What the kernels of one step read. Views of the batch's buffers: valid for this step."""

    tokens: NumpyArray
    """Token ids int64 [tokens]."""
    positions: NumpyArray
    """Their positions int64 [tokens]."""
    slots: NumpyArray
    """Where their keys and values go, int64 [tokens]."""
    query_start: NumpyArray
    """int64 [rows + 1]: row i's tokens are query_start[i] .. query_start[i + 1]."""
    contexts: NumpyArray
    """Tokens with KV after this step, int64 [rows]."""
    sampled: NumpyArray
    """Indices of the tokens after which one is sampled, int64 [samples]."""
    max_context: int
    """The largest of `contexts`, or more."""


class Batch:
    """Rows of the running sequences and their buffers."""

    def __init__(
        self, rows: int, addresses: Addresses, vocab: int, context: Callable[[Sequence], int]
    ) -> None:
        """`context` says how many tokens of a sequence have KV after the step."""
        self.rows: dict[int, int] = {}
        """Row of each admission, by `Sequence.order`."""
        self._orders: list[int] = []
        self._addresses = addresses
        self._vocab = vocab
        self._context = context
        self._seeds = np.zeros(rows, np.uint64)
        self._bases = np.zeros(rows, np.int64)
        self._contexts = np.zeros(rows, np.int64)
        self._counts = np.zeros(rows, np.int64)
        self._samples = np.zeros(rows, np.bool_)
        self._starts = np.zeros(rows + 1, np.int64)

    def load(self, scheduled: list[tuple[Sequence, int]]) -> Inputs:
        """The inputs of a step that computes so many tokens of each sequence."""
        self._drop_all_but({sequence.order for sequence, _ in scheduled})
        shared_prompts = []
        for sequence, new_tokens in scheduled:
            row = self._row(sequence)
            context = self._context(sequence)
            self._counts[row] = new_tokens
            self._contexts[row] = context
            self._samples[row] = sequence.state is State.DECODING
            request = sequence.request
            first = context - new_tokens
            if request.segments is not None and first < request.prompt_tokens:
                shared_prompts.append((row, request, first, context))
        inputs = self._vectors()
        for row, request, first, context in shared_prompts:
            begin = inputs.query_start[row]
            inputs.tokens[begin : begin + context - first] = tokens_of(
                request, first, context, self._vocab
            )
        return inputs

    def _vectors(self) -> Inputs:
        used = len(self._orders)
        counts, contexts = self._counts[:used], self._contexts[:used]
        starts = self._starts[: used + 1]
        np.cumsum(counts, out=starts[1:])
        rows = np.repeat(np.arange(used), counts)
        positions = np.arange(starts[-1]) + (contexts - starts[1:])[rows]
        tokens = token_values(self._seeds[rows], positions - self._bases[rows], self._vocab)
        slots = self._addresses.slots(rows, positions)
        sampled = starts[1:][self._samples[:used]] - 1
        longest = int(contexts.max(initial=0))
        return Inputs(tokens, positions, slots, starts, contexts, sampled, longest)

    def _row(self, sequence: Sequence) -> int:
        order = sequence.order
        row = self.rows.get(order)
        is_new = row is None
        if row is None:
            row = self.rows[order] = len(self._orders)
            self._orders.append(order)
            self._seeds[row], self._bases[row] = tail(sequence.request)
        self._addresses.place(row, sequence, is_new=is_new)
        return row

    def _drop_all_but(self, kept: set[int]) -> None:
        for order in [order for order in self.rows if order not in kept]:
            row, last = self.rows.pop(order), self._orders.pop()
            if last == order:
                continue
            source = len(self._orders)
            self.rows[last], self._orders[row] = row, last
            self._seeds[row], self._bases[row] = self._seeds[source], self._bases[source]
            self._addresses.move_row(source, row)
