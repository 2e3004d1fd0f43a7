"""The summary of a run, gathered step by step in constant memory."""

from __future__ import annotations

import math
from itertools import compress
from operator import sub, truediv

from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request, Sequence, State
from kvsim.errors import InputError
from kvsim.results.histogram import NS_PER_S, LogHistogram
from kvsim.results.memory import STATE, StateSums, fractions, paper_terms, state_of
from kvsim.results.requests import RequestTotals, Slo, Window, width_of

_COUNTS = (
    "steps",
    "scheduled",
    "recomputed",
    "preemptions",
    "held_up",
    "short_of_memory",
    "queued",
    "full_batch",
    "full_budget",
)
_DRAFTS = ("draft_tokens", "accepted_tokens", "decodes", "delivered_tokens")
_EXTRA = 5
"""Numbers of a buffered step before its state: duration, gap, decodes, prefill, recomputed."""
_WIDTH = _EXTRA + len(STATE)
_BUFFERED_STEPS = 256


class SummaryRecorder:
    """Everything `summary.json` says about one variant.

    `window` (start and end in nanoseconds) restricts memory, batch, throughput and latencies;
    request counts, tokens, steps, duration, preemptions, held-up steps, the prefix cache and
    speculation cover the whole run.
    * By time, a step or idle stretch counts by its overlap with the window; by iteration a step
      counts when it starts inside, start included, end excluded.
    * A token delivered at t is inside when start < t <= end. It decides which ITL gaps, finished
      requests and tokens count (a prompt with its request's first token); TTFT, TPOT, end-to-end
      and queueing are of requests that arrive inside.
    * The state counted is the one after `schedule()`, held for the step's duration. Memory still
      held in an idle stretch counts as reservation: nothing says how much of it is computed.

    `allocator.usage` must stay the same object. A step is appended to a buffer of 256 rows and
    summed column by column: two thirds of the time of adding every number as it comes.
    """

    def __init__(
        self,
        allocator: Allocator,
        *,
        window: Window | None = None,
        slo: Slo | None = None,
        frontend_ns: int = 0,
        max_num_seqs: int | None = None,
        max_num_batched_tokens: int | None = None,
    ) -> None:
        """`max_num_seqs` and `max_num_batched_tokens` are the scheduler's limits; None: none."""
        if window is not None and not 0 <= window[0] < window[1]:
            raise InputError(
                f"the measured window must have 0 <= from < to, got {window[0] / NS_PER_S:g} s "
                f"to {window[1] / NS_PER_S:g} s",
                where="measure",
                fix="Give measure.from_s and measure.to_s in seconds of simulated time.",
            )
        self._usage = allocator.usage
        self._prefix_counts = allocator.prefix_counts
        self._capacity = allocator.capacity_slots
        self._reserves_ahead = allocator.reserves_ahead
        self._largest_free_extent = allocator.largest_free_extent
        self._window = window
        self._requests = RequestTotals(window=window, slo=slo, frontend_ns=frontend_ns)
        self._by_time = StateSums()
        self._by_iteration = StateSums()
        self._itl = LogHistogram()
        self._prompt_tokens = 0
        self._output_tokens = 0
        self._buffer: list[int] = []
        self._step_end_ns = 0
        self._idle_end_ns = 0
        self._max_num_seqs = max_num_seqs or math.inf
        self._max_num_batched_tokens = max_num_batched_tokens or math.inf
        self._counts = dict.fromkeys(_COUNTS, 0)
        self._drafts: dict[str, int] = {}
        self._max_running = 0
        self._max_allocated = 0
        self._min_extent = self._capacity
        self._empty_tail_sum = 0.0
        self._steps_with_running = 0

    def step(self, plan: StepPlan, start_ns: int, duration_ns: int) -> None:
        """Book one engine step; its tokens are delivered at `start_ns + duration_ns`."""
        end_ns = start_ns + duration_ns
        gap_ns = end_ns - self._step_end_ns
        self._step_end_ns = end_ns
        if plan.joined or plan.preempted or plan.num_waiting:
            self._note_events(plan, end_ns)
        decodes = plan.num_decodes
        if plan.outcomes:
            self._note_drafts(plan, end_ns)
            decodes = 0
        if plan.swapped_in:
            decodes -= self._note_swapped_in(plan, end_ns)
        window = self._window
        if window is not None and not (window[0] <= start_ns < window[1] >= end_ns):
            self._step_at_edge(plan, start_ns, end_ns, gap_ns, decodes)
            return
        usage = self._usage
        buffer = self._buffer
        buffer += (
            duration_ns,
            gap_ns,
            decodes,
            plan.prefill_tokens,
            plan.recomputed_tokens,
            plan.num_running,
            self._largest_free_extent() if self._reserves_ahead else 0,
            plan.live_tokens,
            usage.allocated,
            usage.internal_tail,
            usage.over_reservation,
            usage.roundup,
            usage.shared,
            usage.cached,
            usage.reserved_tokens,
            usage.final_tokens,
        )
        if plan.head_held_up:
            free = self._capacity - usage.allocated
            self._by_time.add_held_up(free, usage.cached, duration_ns)
            self._by_iteration.add_held_up(free, usage.cached, 1)
        if len(buffer) >= _WIDTH * _BUFFERED_STEPS:
            self._flush()

    def idle(self, start_ns: int, duration_ns: int) -> None:
        """Book a stretch without steps."""
        self._idle_end_ns = start_ns + duration_ns
        extent = self._largest_free_extent() if self._reserves_ahead else 0
        state = state_of(self._usage, running=0, largest_free_extent=extent, live_tokens=0)
        self._by_time.add(state, self._overlap(start_ns, start_ns + duration_ns))

    def request(self, sequence: Sequence, outcome: str) -> None:
        """Book a request's end: finished, aborted or unfinished. Its times must be set."""
        self._requests.add(sequence, outcome)

    def rejected(self, request: Request, reason: str) -> None:
        """Book a request rejected at arrival."""
        self._requests.reject(reason)

    def _overlap(self, start_ns: int, end_ns: int) -> int:
        if self._window is None:
            return end_ns - start_ns
        return max(0, min(end_ns, self._window[1]) - max(start_ns, self._window[0]))

    def _delivers_inside(self, end_ns: int) -> bool:
        return self._window is None or self._window[0] < end_ns <= self._window[1]

    def _note_events(self, plan: StepPlan, end_ns: int) -> None:
        counts = self._counts
        counts["preemptions"] += len(plan.preempted)
        if plan.num_waiting:
            counts["queued"] += 1
            sequences = plan.num_running + plan.further_branches
            counts["full_batch"] += sequences >= self._max_num_seqs
            counts["full_budget"] += plan.scheduled_tokens >= self._max_num_batched_tokens
        counts["held_up"] += plan.head_held_up
        counts["short_of_memory"] += plan.head_short_of_memory
        if not self._delivers_inside(end_ns):
            return
        for sequence in plan.joined:
            width = width_of(sequence)
            self._output_tokens += width
            if sequence.first_token_ns < 0:
                self._prompt_tokens += sequence.request.prompt_tokens
            # A request resumed after a preemption waited since its last delivery; the gaps of
            # decodes are the steps themselves.
            if sequence.last_token_ns >= 0:
                self._itl.add(end_ns - sequence.last_token_ns, width)

    def _note_swapped_in(self, plan: StepPlan, end_ns: int) -> int:
        """Decodes that were swapped out until this step; each waited since its last delivery.

        Returns how many there are.
        """
        inside = self._delivers_inside(end_ns)
        resumed = 0
        for sequence in plan.swapped_in:
            if sequence.state is State.DECODING:
                width = width_of(sequence)
                resumed += width
                if inside:
                    self._itl.add(end_ns - sequence.last_token_ns, width)
                    self._output_tokens += width
        self._counts["scheduled"] += resumed
        return resumed

    def _note_drafts(self, plan: StepPlan, end_ns: int) -> None:
        """Decodes with speculation: each delivers tokens of its own number, or none."""
        inside = self._delivers_inside(end_ns)
        first = set(plan.joined)
        drafts = self._drafts or dict.fromkeys(_DRAFTS, 0)
        for sequence, verified, accepted, delivered in plan.outcomes:
            if not delivered or sequence in first:
                continue
            drafts["draft_tokens"] += verified
            drafts["accepted_tokens"] += accepted
            drafts["decodes"] += 1
            drafts["delivered_tokens"] += delivered
            if inside:
                self._itl.add(end_ns - sequence.last_token_ns)
                self._output_tokens += delivered
        self._drafts = drafts
        self._counts["scheduled"] += plan.num_decodes + plan.draft_tokens

    def _step_at_edge(
        self, plan: StepPlan, start_ns: int, end_ns: int, gap_ns: int, decodes: int
    ) -> None:
        """A step not wholly inside the window: each figure has its own rule for what counts."""
        counts = self._counts
        counts["steps"] += 1
        counts["scheduled"] += decodes + plan.prefill_tokens
        counts["recomputed"] += plan.recomputed_tokens
        if self._delivers_inside(end_ns):
            self._itl.add(gap_ns, decodes)
            self._output_tokens += decodes
        overlap = self._overlap(start_ns, end_ns)
        starts_inside = self._window is not None and self._window[0] <= start_ns < self._window[1]
        if not (overlap or starts_inside):
            return
        usage = self._usage
        state = state_of(
            usage,
            running=plan.num_running,
            largest_free_extent=self._largest_free_extent() if self._reserves_ahead else 0,
            live_tokens=plan.live_tokens,
        )
        free = self._capacity - usage.allocated if plan.head_held_up else 0
        cached = usage.cached if plan.head_held_up else 0
        self._by_time.add(state, overlap)
        self._by_time.add_held_up(free, cached, overlap)
        columns = [[value] for value in state]
        self._note_extremes(columns)
        if starts_inside:
            self._by_iteration.add(state, 1)
            self._by_iteration.add_held_up(free, cached, 1)
            self._note_empty_tails(columns)

    def _flush(self) -> None:
        buffer = self._buffer
        if not buffer:
            return
        columns = [buffer[index::_WIDTH] for index in range(_WIDTH)]
        buffer.clear()
        durations, gaps, decodes, prefills, recomputed = columns[:_EXTRA]
        states = columns[_EXTRA:]
        counts = self._counts
        counts["steps"] += len(durations)
        counts["scheduled"] += sum(decodes) + sum(prefills)
        counts["recomputed"] += sum(recomputed)
        self._itl.add_many(gaps, decodes)
        self._output_tokens += sum(decodes)
        self._by_time.add_columns(states, durations)
        self._by_iteration.add_columns(states, None)
        self._note_extremes(states)
        self._note_empty_tails(states)

    def _note_extremes(self, states: list[list[int]]) -> None:
        running, extents, _, allocated = states[:4]
        self._max_running = max(self._max_running, max(running))
        self._max_allocated = max(self._max_allocated, max(allocated))
        smallest = min(extents) if self._reserves_ahead else self._capacity - max(allocated)
        self._min_extent = min(self._min_extent, smallest)

    def _note_empty_tails(self, states: list[list[int]]) -> None:
        running, _, live, allocated, internal_tail, over, roundup, shared = states[:8]
        if self._reserves_ahead:
            empty = internal_tail
        else:
            empty = list(map(sub, allocated, live))
            if any(over) or any(roundup) or any(shared):
                rows = zip(empty, over, roundup, shared, strict=True)
                empty = [slots - a - b + c for slots, a, b, c in rows]
        if 0 in running:
            empty = list(compress(empty, running))
            running = list(filter(None, running))
        self._empty_tail_sum += sum(map(truediv, empty, running))
        self._steps_with_running += len(running)

    def summary(self) -> dict[str, object]:
        """One entry of `variants` in `summary.json`; None where a figure is undefined.

        Memory terms are fractions of the capacity. Means and counts are exact; percentiles are
        nearest-rank within 0.1 % (`LogHistogram`).
        """
        self._flush()
        counts = self._counts
        duration_ns = max(self._step_end_ns, self._idle_end_ns)
        start_ns, end_ns = self._window or (0, duration_ns)
        end_ns = min(end_ns, duration_ns)
        measured_ns = max(0, end_ns - start_ns)
        delivered = {"prompt_tokens": self._prompt_tokens, "output_tokens": self._output_tokens}
        return {
            "requests": self._requests.requests(),
            "tokens": {
                **self._requests.tokens(),
                "scheduled": counts["scheduled"],
                "recomputed": counts["recomputed"],
            },
            "steps": counts["steps"],
            "duration_s": duration_ns / NS_PER_S,
            "measured": {
                "from_s": start_ns / NS_PER_S,
                "to_s": end_ns / NS_PER_S,
                "duration_s": measured_ns / NS_PER_S,
                "steps": self._by_iteration.weight,
                "finished": self._requests.measured_finished,
                **delivered,
            },
            "memory": self._memory(),
            "batch": {
                "mean": self._by_iteration.mean("running"),
                "max": self._max_running,
                "mean_by_time": self._by_time.mean("running"),
            },
            **self._prefix_cache(),
            **self._speculation(),
            "preemptions": counts["preemptions"],
            "held_up_steps": counts["held_up"],
            "short_of_memory_steps": counts["short_of_memory"],
            "queued_steps": counts["queued"],
            "queued_steps_at_max_num_seqs": counts["full_batch"],
            "queued_steps_at_token_budget": counts["full_budget"],
            "throughput": self._requests.throughput(measured_ns, **delivered),
            **self._requests.latencies(),
            "itl_s": self._itl.seconds(),
        }

    def histograms(self) -> dict[str, LogHistogram]:
        """Of the summary's latencies, by their names; not copies."""
        self._flush()
        return {**self._requests.histograms(), "itl_s": self._itl}

    def _prefix_cache(self) -> dict[str, object]:
        counts = self._prefix_counts()
        if counts is None:
            return {}
        queried = counts["query_tokens"]
        rate = counts["hit_tokens"] / queried if queried else None
        return {"prefix_cache": {**counts, "hit_rate": rate}}

    def _speculation(self) -> dict[str, object]:
        """Drafts of the whole run; a decode is one verification by one request."""
        drafts = self._drafts
        if not drafts:
            return {}
        drafted, decodes = drafts["draft_tokens"], drafts["decodes"]
        accepted = drafts["accepted_tokens"]
        return {
            "speculation": {
                "draft_tokens": drafted,
                "accepted_tokens": accepted,
                "acceptance_rate": accepted / drafted if drafted else None,
                "tokens_per_decode": drafts["delivered_tokens"] / decodes if decodes else None,
            }
        }

    def _memory(self) -> dict[str, object]:
        capacity = self._capacity
        split = {}
        for name, sums in (("by_time", self._by_time), ("by_iteration", self._by_iteration)):
            terms = sums.terms(capacity, reserves_ahead=self._reserves_ahead)
            split[name] = fractions(terms, capacity * sums.weight)
        mean_extent = self._by_time.mean("largest_free_extent")
        weight = self._by_time.weight
        mean_free = capacity - self._by_time.total("allocated") / weight if weight else None
        if not self._reserves_ahead:
            mean_extent = mean_free
        steps = self._steps_with_running
        return {
            "capacity_slots": capacity,
            **split,
            "paper": paper_terms(self._by_iteration, capacity),
            "kv_utilization": split["by_time"]["live"],
            "peak_allocated": self._max_allocated / capacity if capacity else None,
            "empty_tail_slots_per_sequence": self._empty_tail_sum / steps if steps else None,
            "largest_free_extent_tokens": {
                "mean": mean_extent,
                "min": self._min_extent if self._by_iteration.weight else None,
            },
            "free_fragmentation": (
                1 - mean_extent / mean_free if mean_extent is not None and mean_free else None
            ),
        }
