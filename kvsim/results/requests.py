"""Counts, tokens and latencies of requests, in constant memory."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.core.request import Sequence
from kvsim.errors import InputError
from kvsim.results.histogram import NS_PER_S, LogHistogram

Window = tuple[int, int]
"""Start and end of the measured time, in nanoseconds."""

LATENCIES = ("ttft_s", "tpot_s", "e2e_s", "queue_s", "normalized_latency_s_per_token")


class Slo(NamedTuple):
    """Service-level objectives, in seconds; None is no demand."""

    ttft_s: float | None = None
    tpot_s: float | None = None
    e2e_s: float | None = None


def latencies_ns(sequence: Sequence, frontend_ns: int) -> dict[str, int | None]:
    """Latencies of a finished sequence in nanoseconds, by their names in a summary.

    TPOT is (end-to-end - TTFT) / (output tokens - 1), None for one token; normalized latency is
    end-to-end / output tokens (PagedAttention paper, SOSP'23, section 6.1). Both count the output
    tokens of one branch and are rounded to a nanosecond.
    """
    arrived = sequence.arrived_ns - frontend_ns
    output = sequence.tokens - sequence.request.prompt_tokens
    gaps = output - 1
    decoding = sequence.finished_ns - sequence.first_token_ns
    e2e = sequence.finished_ns - arrived
    return {
        "ttft_s": sequence.first_token_ns - arrived,
        "tpot_s": (2 * decoding + gaps) // (2 * gaps) if gaps > 0 else None,
        "e2e_s": e2e,
        "queue_s": sequence.first_scheduled_ns - sequence.arrived_ns,
        "normalized_latency_s_per_token": (2 * e2e + output) // (2 * output),
    }


def width_of(sequence: Sequence) -> int:
    """Branches of the request, each of which receives its own tokens."""
    branches = sequence.request.branches
    return 1 if branches is None else branches.width


def truncated(sequence: Sequence) -> bool:
    """Whether `max_model_len` ends the sequence before the output that its request states."""
    request = sequence.request
    return sequence.final_tokens < request.prompt_tokens + request.output_tokens


class RequestTotals:
    """What became of the requests.

    Counts and tokens cover the whole run; request rates the requests that finish inside `window`
    (its end included: a delivery belongs to the step before it); latencies the finished requests
    that arrive inside it (its end excluded). Tokens are those of finished requests, as
    `vllm bench serve` counts them; output tokens those of all branches.
    """

    def __init__(self, *, window: Window | None, slo: Slo | None, frontend_ns: int = 0) -> None:
        """`frontend_ns` is the server's time outside the engine, part of TTFT and end-to-end."""
        self._window = window
        self._frontend_ns = frontend_ns
        self._slo = _slo_ns(slo)
        self._outcomes = {"finished": 0, "aborted": 0, "unfinished": 0}
        self._rejected: dict[str, int] = {}
        self._unfinished: dict[str, int] = {}
        self._held_up = 0
        self._truncated = 0
        self._prompt_tokens = 0
        self._output_tokens = 0
        self.measured_finished = 0
        """Requests that finished inside the window."""
        self._measured_good = 0
        self._latencies = {name: LogHistogram() for name in LATENCIES}

    def add(self, sequence: Sequence, outcome: str) -> None:
        """Book a sequence whose times are set. `outcome`: finished, aborted or unfinished."""
        self._outcomes[outcome] += 1
        self._held_up += sequence.held_up_by_fragmentation
        self._truncated += outcome == "finished" and truncated(sequence)
        if outcome == "unfinished":
            state = sequence.state.value
            self._unfinished[state] = self._unfinished.get(state, 0) + 1
        if outcome == "finished":
            self._add_finished(sequence)

    def reject(self, reason: str) -> None:
        """Book a request rejected at arrival, by the kind of its reason (`kind: details`)."""
        kind = reason.partition(": ")[0]
        self._rejected[kind] = self._rejected.get(kind, 0) + 1

    def _add_finished(self, sequence: Sequence) -> None:
        prompt = sequence.request.prompt_tokens
        self._prompt_tokens += prompt
        self._output_tokens += (sequence.tokens - prompt) * width_of(sequence)
        latencies = latencies_ns(sequence, self._frontend_ns)
        start, end = self._window or (None, None)
        if start is None or end is None or start < sequence.finished_ns <= end:
            self.measured_finished += 1
            self._measured_good += self._meets_slo(latencies)
        if start is None or end is None or start <= sequence.arrived_ns < end:
            for name, value in latencies.items():
                if value is not None:
                    self._latencies[name].add(value)

    def _meets_slo(self, latencies: dict[str, int | None]) -> bool:
        if self._slo is None:
            return False
        values = ((latencies[name], limit) for name, limit in self._slo.items())
        return all(value is None or value <= limit for value, limit in values)

    def requests(self) -> dict[str, object]:
        """The summary's `requests`: submitted is the sum of what became of them."""
        rejected = sum(self._rejected.values())
        return {
            "submitted": rejected + sum(self._outcomes.values()),
            "finished": self._outcomes["finished"],
            "truncated": self._truncated,
            "rejected": rejected,
            "rejected_by_reason": dict(sorted(self._rejected.items())),
            "aborted": self._outcomes["aborted"],
            "unfinished": self._outcomes["unfinished"],
            "unfinished_by_reason": dict(sorted(self._unfinished.items())),
            "held_up_by_fragmentation": self._held_up,
        }

    def tokens(self) -> dict[str, int]:
        """Prompt and output tokens of the finished requests, output of every branch."""
        return {"prompt": self._prompt_tokens, "output": self._output_tokens}

    def throughput(
        self, measured_ns: int, *, prompt_tokens: int, output_tokens: int
    ) -> dict[str, float | None]:
        """Rates per second over `measured_ns`; None for no time, goodput None without an SLO.

        The tokens are those delivered inside the window, a prompt with its first token.
        """

        def rate(count: int) -> float | None:
            return count * NS_PER_S / measured_ns if measured_ns else None

        return {
            "requests_per_s": rate(self.measured_finished),
            "output_tokens_per_s": rate(output_tokens),
            "total_tokens_per_s": rate(prompt_tokens + output_tokens),
            "goodput_rps": None if self._slo is None else rate(self._measured_good),
        }

    def histograms(self) -> dict[str, LogHistogram]:
        """Of the summary's latencies but `itl_s`, by their names; not copies."""
        return self._latencies

    def latencies(self) -> dict[str, dict[str, float | int | None]]:
        """The summary's latencies but `itl_s`, in seconds."""
        return {name: histogram.seconds() for name, histogram in self._latencies.items()}


def _slo_ns(slo: Slo | None) -> dict[str, int] | None:
    if slo is None:
        return None
    limits = {name: value for name, value in slo._asdict().items() if value is not None}
    for name, value in limits.items():
        if not 0 < value < 1e9:
            raise InputError(
                f"slo.{name} must be > 0 and < 1e9 seconds, got {value!r}",
                fix=f"Give {name} in seconds or leave it out.",
            )
    return {name: round(value * NS_PER_S) for name, value in limits.items()} or None
