"""What both sides of a validation record: the same figures from a measured and a simulated run."""

from __future__ import annotations

import numpy as np

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence
from kvsim.results.requests import latencies_ns

NS_PER_S = 1e9
CURVE_POINTS = 300


class RunRecorder:
    """Steps and requests of one run (`kvsim.core.protocols.Recorder`)."""

    def __init__(self, allocator: Allocator) -> None:
        self._usage = allocator.usage
        self._capacity = allocator.capacity_slots
        self.start_ns: list[int] = []
        self.duration_ns: list[int] = []
        self.usage: list[float] = []
        """Allocated share of the KV memory during each step."""
        self.running: list[int] = []
        self.preemptions = 0
        self.finished = 0
        self.unfinished = 0
        self.ttft_s: list[float] = []
        self.tpot_s: list[float] = []

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book one step."""
        self.start_ns.append(start_ns)
        self.duration_ns.append(duration_ns)
        self.usage.append(self._usage.allocated / self._capacity)
        self.running.append(plan.num_running)
        self.preemptions += len(plan.preempted)

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Nothing runs."""

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Book a request's end."""
        if outcome != "finished":
            self.unfinished += 1
            return
        self.finished += 1
        latencies = latencies_ns(sequence, 0)
        ttft, tpot = latencies["ttft_s"], latencies["tpot_s"]
        if ttft is not None:
            self.ttft_s.append(ttft / NS_PER_S)
        if tpot is not None:
            self.tpot_s.append(tpot / NS_PER_S)

    def rejected(self, request: Request, reason: str) -> None:
        """A request that both sides refuse counts as unfinished."""
        self.unfinished += 1

    def figures(self) -> dict[str, float]:
        """The run in numbers; averages over busy time."""
        seconds = np.array(self.duration_ns) / NS_PER_S
        busy = max(float(seconds.sum()), 1e-12)
        span = (self.start_ns[-1] + self.duration_ns[-1]) / NS_PER_S if self.start_ns else 1e-12
        return {
            "requests_per_s": self.finished / span,
            "busy_s": busy,
            "steps": float(len(seconds)),
            "kv_usage": float(np.dot(self.usage, seconds)) / busy,
            "batch": float(np.dot(self.running, seconds)) / busy,
            "preemptions": float(self.preemptions),
            "unfinished": float(self.unfinished),
            "ttft_p50_s": _quantile(self.ttft_s, 0.5),
            "ttft_p99_s": _quantile(self.ttft_s, 0.99),
            "tpot_p50_s": _quantile(self.tpot_s, 0.5),
            "tpot_p99_s": _quantile(self.tpot_s, 0.99),
        }

    def usage_shares(self) -> list[float]:
        """Share of busy time in each twentieth of the KV usage, from empty to full."""
        counts, _ = np.histogram(
            np.clip(self.usage, 0, 1), bins=20, range=(0, 1), weights=self.duration_ns
        )
        return [float(count) for count in counts / max(counts.sum(), 1)]

    def curve(self) -> list[list[float]]:
        """[seconds, KV usage, running requests] at up to `CURVE_POINTS` steps."""
        chosen = np.unique(np.linspace(0, max(len(self.start_ns) - 1, 0), CURVE_POINTS).astype(int))
        return [
            [self.start_ns[i] / NS_PER_S, self.usage[i], float(self.running[i])]
            for i in chosen
            if self.start_ns
        ]


def _quantile(values: list[float], share: float) -> float:
    return float(np.quantile(values, share)) if values else 0.0
