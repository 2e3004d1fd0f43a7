"""Several recorders behind one."""

from __future__ import annotations

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Recorder
from kvsim.core.request import Request, Sequence


class Tee:
    """Hands everything to several recorders, in order."""

    def __init__(self, *recorders: Recorder) -> None:
        self._recorders = recorders

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """One engine step."""
        for recorder in self._recorders:
            recorder.step(plan, start_ns, duration_ns)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """A stretch without steps."""
        for recorder in self._recorders:
            recorder.idle(start_ns, duration_ns)

    def request(self, sequence: Sequence, outcome: str) -> None:
        """A request reached its end."""
        for recorder in self._recorders:
            recorder.request(sequence, outcome)

    def rejected(self, request: Request, reason: str) -> None:
        """A request was rejected at arrival."""
        for recorder in self._recorders:
            recorder.rejected(request, reason)
