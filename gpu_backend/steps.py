"""Steps made by hand: any batch at any context, without computing what came before it.

A calibration wants the time of 16 sequences of 1,000 tokens, not of the thousand steps that lead
there. The memory is a real allocator's, the contexts' keys and values are whatever the memory was
filled with, and the executor cannot tell the difference.
"""

from __future__ import annotations

import random
from collections.abc import Iterator
from contextlib import contextmanager
from typing import NamedTuple

from gpu_backend.executor import Executor, ModelShape, StepTiming, build_executor
from gpu_backend.layouts import CacheLayout
from kvsim.core.plan import Chunk, Copy, StepPlan
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence, State


class Point(NamedTuple):
    """One batch, in tokens."""

    decodes: tuple[int, ...] = ()
    """Context of each decode, the token it computes included."""
    chunks: tuple[tuple[int, int], ...] = ()
    """(new, prior) tokens of each prefill chunk."""
    copy_tokens: int = 0
    """Tokens moved inside the device before the step, as compaction does."""

    @property
    def tokens(self) -> int:
        """Tokens computed."""
        return len(self.decodes) + sum(new for new, _ in self.chunks)

    @property
    def rows(self) -> int:
        """Sequences that sample a token: all, since every chunk ends its prompt."""
        return len(self.decodes) + len(self.chunks)

    def slots(self, block_size: int) -> int:
        """Slots that the batch holds in blocks of this size."""
        contexts = [*self.decodes, *(new + prior for new, prior in self.chunks)]
        return sum(-(-context // block_size) * block_size for context in contexts)


COMPANY_CONTEXTS = (256,) * 8
"""Of the decodes between which chunks are run, in tokens."""
WARM_UP = 3


class StepBench:
    """An executor over its own memory that runs hand-made batches."""

    is_async = False
    delivers_unevenly = False

    def __init__(
        self,
        shape: ModelShape,
        layout: CacheLayout,
        *,
        layers: int,
        slots: int,
        max_num_seqs: int,
        max_num_batched_tokens: int,
        max_model_len: int,
        device: str = "cpu",
        num_threads: int | None = None,
        dtype: str | None = None,
        attention_only: bool = False,
        seed: int = 0,
    ) -> None:
        """`slots` token slots for a batch; its blocks lie scattered over the memory."""
        self.layout = layout
        self.layers = layers
        self.max_num_seqs, self.max_model_len = max_num_seqs, max_model_len
        self.max_num_batched_tokens = max_num_batched_tokens
        company = (min(context, max_model_len) for context in COMPANY_CONTEXTS[:max_num_seqs])
        self._company = Point(tuple(company))
        beside = self._company.slots(layout.block_size or 1)
        self.allocator = layout.allocator(slots + beside, max_model_len)
        self._computed: dict[int, int] = {}
        self._orders = iter(range(1 << 62))
        self._step = 0
        self._random = random.Random(seed)
        self._scatter()
        self.executor: Executor = build_executor(
            self.allocator,
            self,
            shape,
            layers=layers,
            device=device,
            num_threads=num_threads,
            dtype=dtype,
            attention_only=attention_only,
            seed=seed,
            fill=0.0,
        )

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens with KV after the step."""
        return self._computed[sequence.order]

    def measure(self, point: Point, repeats: int) -> list[StepTiming]:
        """Times of `repeats` runs of one batch, each in the company that it has in a server.

        Decodes follow steps of the same sequences: the first `WARM_UP` are not measured. A chunk
        comes once, among decodes, and finds neither its buffers nor its caches warm. Raises
        ValueError for a batch that does not fit.
        """
        self.executor.forget_timings()
        with self._placed(point) as plan:
            if point.chunks:
                timings = self._among_decodes(plan, repeats)
            else:
                for _ in range(WARM_UP + repeats):
                    self.executor.step_seconds(plan)
                timings = self.executor.timings[WARM_UP:]
        self.executor.forget_timings()
        return timings

    def _among_decodes(self, plan: StepPlan, repeats: int) -> list[StepTiming]:
        timings = []
        with self._placed(self._company) as company:
            for run in range(1 + repeats):
                for _ in range(WARM_UP):
                    self.executor.step_seconds(company)
                self.executor.step_seconds(plan)
                if run:  # the first may be the first of its shape in this process
                    timings.append(self.executor.timings[-1])
        return timings

    @contextmanager
    def _placed(self, point: Point) -> Iterator[StepPlan]:
        members: dict[int, Sequence] = {}
        self._step += 1
        plan = StepPlan(self._step, members)
        try:
            for context in point.decodes:
                self._admit(members, context, context - 1)
            for new, prior in point.chunks:
                plan.prefills.append(self._admit(members, new + prior, prior))
                plan.chunks.append(Chunk(new, prior))
            plan.joined.extend(plan.prefills)
            plan.num_decodes = len(point.decodes)
            plan.decode_context_tokens = sum(point.decodes)
            plan.prefill_tokens = sum(new for new, _ in point.chunks)
            if point.copy_tokens:
                plan.copies.append(self._copy(point.copy_tokens))
            yield plan
        finally:
            for order, sequence in members.items():
                self.allocator.release(sequence)
                del self._computed[order]

    def _admit(self, members: dict[int, Sequence], context: int, computed: int) -> Sequence:
        """A sequence that samples a token after this step."""
        order = next(self._orders)
        sequence = Sequence(Request(f"s{order}", 0, context, 1), context)
        sequence.order, sequence.computed, sequence.state = order, computed, State.DECODING
        fits = len(members) < self.max_num_seqs and context <= self.max_model_len
        if not (fits and self.allocator.admit(sequence, NO_HIT, context, 0, 0)):
            raise ValueError(
                f"a context of {context} tokens is one too many for {self.layout.name} memory of "
                f"{self.allocator.capacity_slots} slots, {self.max_num_seqs} sequences and "
                f"{self.max_model_len} tokens each"
            )
        members[order] = sequence
        self._computed[order] = context
        return sequence

    def _copy(self, tokens: int) -> Copy:
        """A move between the two ends of the memory; what lies there means nothing."""
        capacity = self.allocator.capacity_slots
        if 2 * tokens > capacity:
            raise ValueError(f"{tokens} tokens cannot move within {capacity} slots")
        return Copy(capacity - tokens, 0, tokens)

    def _scatter(self) -> None:
        """Free blocks come back in the order of a server that has run for a while."""
        if self.layout.block_size is None:
            return
        holders = []
        for _ in range(self.allocator.num_blocks):
            sequence = Sequence(Request("", 0, 1, 1), self.max_model_len)
            self.allocator.admit(sequence, NO_HIT, 1, 0, 0)
            holders.append(sequence)
        self._random.shuffle(holders)
        for sequence in holders:
            self.allocator.release(sequence)
