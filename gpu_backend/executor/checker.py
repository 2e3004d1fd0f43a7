"""Which rows of a step are compared with the reference, and when."""

from __future__ import annotations

import numpy as np

from gpu_backend.executor.batch import Batch, Inputs
from gpu_backend.executor.oracle import Oracle
from gpu_backend.executor.runtime import Engine, Runtime
from kvsim.core.plan import StepPlan
from kvsim.core.request import Sequence

CHECKED_SEQUENCES = 4
"""Sequences that a checked step compares with the reference."""


class Checker:
    """Checks every n-th step, and those with or right after something that moves or shares KV.

    That is a preemption, a resumption, a prefix hit or a copy.
    """

    def __init__(self, engine: Engine, batch: Batch, runtime: Runtime, *, every: int) -> None:
        self._engine = engine
        self._batch = batch
        self._runtime = runtime
        self._every = every
        self._disturbed = False
        self._oracle: Oracle | None = None

    def check_if_due(self, plan: StepPlan, inputs: Inputs) -> int:
        """Compares the step that has just run; returns how many query rows, 0 if it is not due.

        Raises AssertionError where a row differs from the reference.
        """
        resumed = any(sequence.admissions > 1 for sequence in plan.admitted)
        disturbed = bool(plan.preempted or plan.copies or resumed or any(plan.hits))
        is_due = disturbed or self._disturbed or plan.step % self._every == 0
        self._disturbed = disturbed
        suspects = self._suspects(plan)[:CHECKED_SEQUENCES] if is_due else []
        return sum(self._check(sequence, new_tokens, inputs) for sequence, new_tokens in suspects)

    def _suspects(self, plan: StepPlan) -> list[tuple[Sequence, int]]:
        """What is scheduled: first whatever was moved, resumed or hit the cache, then in turn."""
        moved = {copy.target_slot for copy in plan.copies}
        first = {
            sequence.order
            for sequence, hit in zip(plan.admitted, plan.hits, strict=False)
            if hit or sequence.admissions > 1
        }
        scheduled = plan.scheduled()
        turn = plan.step * CHECKED_SEQUENCES % len(scheduled)
        return sorted(
            scheduled[turn:] + scheduled[:turn],
            key=lambda item: (
                item[0].order not in first
                and (item[0].extent is None or item[0].extent.start_slot not in moved)
            ),
        )

    def _check(self, sequence: Sequence, new_tokens: int, inputs: Inputs) -> int:
        """Compare the first and the last row of a sequence; returns how many that are."""
        if self._oracle is None:
            self._oracle = Oracle(self._runtime.weights(), self._runtime.dtype)
        last = self._engine.computed_tokens(sequence) - 1
        back = np.unique([new_tokens - 1, 0])
        end = int(inputs.query_start[self._batch.rows[sequence.order] + 1])
        found = self._runtime.attention_rows(end - 1 - back)
        self._oracle.compare(sequence.request, last - back, found)
        return len(back)
