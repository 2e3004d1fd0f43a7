"""Whether a load is held by the KV memory, by max_num_seqs or by computation."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal, NamedTuple

from kvsim.core.plan import Chunk, StepPlan
from kvsim.cost import CalibratedClock
from kvsim.errors import InputError
from kvsim.planning.fit import Fit

Binding = Literal["KV memory", "max_num_seqs", "prefill", "decode"]
_POINTS = 33
"""Lengths at which a request's blocks are counted, from its prompt to its end."""
_LAW_POINTS = 9
_CHUNKS = 256
"""Whole chunks of a prompt that are timed; of more, so many evenly, and the rest in between."""
ENDLESS_BATCH = 1 << 16
"""A batch at which a step is all arithmetic and reading of KV."""
COMPUTE_MARGIN = 1.1
"""Computation binds where an endless batch would serve at most so many times the requests."""
MOST_TOKENS, MOST_RPS = 10_000_000, 1e6


@dataclass(frozen=True, slots=True)
class Load:
    """Requests of one kind."""

    rps: float
    """Arrivals per second."""
    prompt_tokens: int
    output_tokens: int


@dataclass(frozen=True, slots=True)
class Bounds:
    """Requests per second that each limit alone would allow, and which one binds.

    Of all replicas together, each with its part of the load. A steady state of equal requests:
    with b running, a step takes `T(b)` and every request needs `output_tokens` of them and its
    prompt's time once, so `b / (O T(b) + b t_prompt)` leave per second.
    """

    load: Load
    concurrency: float
    """Requests of this length that the blocks hold, on average over their lives."""
    kv_rps: float
    """With as many running as the blocks hold on average; preemptions take some of it."""
    seqs_rps: float
    """With max_num_seqs running."""
    compute_rps: float
    """With an endless batch: what computation allows, whatever the memory holds."""
    binding: Binding
    prefill_utilization: float
    """Share of the time that the prompts of this load alone would compute; above 1 the queue grows
    whatever the memory."""
    kv_usage: float | None
    """Share of the blocks held at this load; None where the queue grows for ever."""
    running: float | None
    """Requests that run at this load; None where the queue grows for ever."""
    relative_error: float | None
    """Of the clock's step times, and so of every rate."""

    @property
    def sustained_rps(self) -> float:
        """What the tightest limit allows."""
        return min(self.kv_rps, self.seqs_rps, self.compute_rps)

    @property
    def holds(self) -> bool:
        """Whether the load is below every limit."""
        return self.load.rps < self.sustained_rps


def bounds(found: Fit, load: Load) -> Bounds:
    """The limits of a set-up for a load.

    Raises `InputError` for a load out of range, and for models and GPUs without a clock.
    """
    _check(found, load)
    replicas = found.settings.given.data_parallel_size
    load, asked = replace(load, rps=load.rps / replicas), load
    width = 1 if found.settings.kv_cache_dtype == "fp8" else None
    tp = found.settings.tensor_parallel_size
    clock = CalibratedClock(found.model, found.gpu, tp=tp, kv_dtype_bytes=width)
    steady = _Steady(found, load, clock)
    batch_kv = concurrency_at(found, load.prompt_tokens, load.output_tokens)
    kv_rps, seqs_rps, compute_rps = (
        replicas * steady.rate(batch)
        for batch in (batch_kv, found.settings.max_num_seqs, ENDLESS_BATCH)
    )
    sustained = min(kv_rps, seqs_rps)
    prefill = load.rps * steady.prompt_s
    running = steady.batch_at(load.rps, most=min(batch_kv, found.settings.max_num_seqs))
    binding: Binding = "KV memory" if kv_rps <= seqs_rps else "max_num_seqs"
    if compute_rps < COMPUTE_MARGIN * sustained or prefill >= 1:
        decode_s = load.output_tokens * steady.step_s(ENDLESS_BATCH) / ENDLESS_BATCH
        binding = "prefill" if steady.prompt_s >= decode_s else "decode"
    return Bounds(
        load=asked,
        concurrency=replicas * batch_kv,
        kv_rps=kv_rps,
        seqs_rps=seqs_rps,
        compute_rps=compute_rps,
        binding=binding,
        prefill_utilization=prefill,
        kv_usage=None if running is None else running / batch_kv,
        running=None if running is None else replicas * running,
        relative_error=clock.relative_error,
    )


def mean_blocks(
    found: Fit, prompt_tokens: int, output_tokens: int, *, points: int = _POINTS
) -> float:
    """Blocks of one request, on average over its life from its prompt to its last token.

    Raises `InputError` for lengths out of range.
    """
    _check_lengths(found, prompt_tokens, output_tokens)
    in_flight = min(found.settings.max_num_batched_tokens, prompt_tokens)
    lengths = (
        prompt_tokens + round(point / (points - 1) * (output_tokens - 1)) for point in range(points)
    )
    blocks = (
        found.layout.blocks_per_request(length, max_in_flight=in_flight) for length in lengths
    )
    return sum(blocks) / points


def concurrency_at(found: Fit, prompt_tokens: int, output_tokens: int) -> float:
    """Requests of this length, each somewhere in its life, that the blocks hold on average."""
    return found.start.num_blocks / mean_blocks(found, prompt_tokens, output_tokens)


class LawConcurrency(NamedTuple):
    """How many requests of a law of lengths the blocks of all replicas hold."""

    requests: float
    """On average; a request counts for as many steps as it has output tokens."""
    refused: int
    """Requests of the law that are longer than max_model_len and take no part."""
    of: int
    """Requests that the law was given by."""


def concurrency_of_law(found: Fit, lengths: Sequence[tuple[int, int]]) -> LawConcurrency:
    """Requests at once whose (prompt, output) tokens are like `lengths`, equally often each.

    What runs at a moment is longer-lived than what arrives: a request is there for as many steps
    as it has output tokens, so blocks are averaged with these as weights. Raises `InputError` where
    every request is too long.
    """
    fitting = [one for one in lengths if sum(one) <= found.settings.max_model_len]
    if not fitting:
        raise InputError(
            f"no request of these lengths has at most {found.settings.max_model_len:,} tokens",
            where="max_model_len",
            fix="Raise it, or choose shorter requests",
        )
    held = sum(
        output * mean_blocks(found, prompt, output, points=_LAW_POINTS)
        for prompt, output in fitting
    )
    mean = held / sum(output for _, output in fitting)
    replicas = found.settings.given.data_parallel_size
    requests = replicas * found.start.num_blocks / mean
    return LawConcurrency(requests, len(lengths) - len(fitting), len(lengths))


def concurrency_of_all(found: Fit, prompt_tokens: int, output_tokens: int) -> float:
    """The same in all replicas."""
    replicas = found.settings.given.data_parallel_size
    return replicas * concurrency_at(found, prompt_tokens, output_tokens)


def met_load(
    found: Fit, rps: float | None, prompt_tokens: int | None, output_tokens: int | None
) -> Bounds | float | None:
    """What the load meets; without a rate, how many such requests fit; None without lengths."""
    if rps is None and prompt_tokens is None and output_tokens is None:
        return None
    if prompt_tokens is None or output_tokens is None:
        raise InputError(
            "a load needs both lengths of its requests",
            where="--rps",
            fix="Add --prompt-tokens and --output-tokens",
        )
    if rps is None:
        return concurrency_of_all(found, prompt_tokens, output_tokens)
    return bounds(found, Load(rps, prompt_tokens, output_tokens))


def _spread(count: int, most: int) -> list[int]:
    """All of `count` places, or `most` of them evenly, the first and the last among them."""
    if count <= most:
        return list(range(count))
    return [place * (count - 1) // (most - 1) for place in range(most)]


class _Steady:
    """Times of a steady state of equal requests."""

    def __init__(self, found: Fit, load: Load, clock: CalibratedClock) -> None:
        self._found, self._load, self._clock = found, load, clock
        self.prompt_s = self._prompt_s()

    def step_s(self, batch: float) -> float:
        """A step of so many decodes at their mean length; between whole batches, linearly."""
        low = int(batch)
        seconds = self._whole_step_s(low)
        return seconds + (batch - low) * (self._whole_step_s(low + 1) - seconds)

    def _whole_step_s(self, batch: int) -> float:
        plan = StepPlan(0, {})
        plan.num_decodes = batch
        mean = self._load.prompt_tokens + self._load.output_tokens / 2
        plan.decode_context_tokens = round(batch * mean)
        return self._clock.step_seconds(plan) if batch else 0.0

    def _prompt_s(self) -> float:
        """What a prompt adds to steps that decode anyway."""
        budget = self._found.settings.max_num_batched_tokens
        whole, rest = divmod(self._load.prompt_tokens, budget)
        places = _spread(whole, _CHUNKS)
        times = [self._chunk_s(budget, place * budget) for place in places]
        total = (times[0] + times[-1]) / 2 if times else 0.0
        for (before, after), ends in zip(pairwise(places), pairwise(times), strict=True):
            total += (after - before) * sum(ends) / 2
        return total + (self._chunk_s(rest, whole * budget) if rest else 0.0)

    def _chunk_s(self, tokens: int, done: int) -> float:
        """What so many tokens behind `done` others add to a step with a decode."""
        plan = StepPlan(0, {})
        plan.chunks, plan.prefill_tokens = [Chunk(tokens, done)], tokens
        plan.num_decodes = plan.decode_context_tokens = 1
        return self._clock.step_seconds(plan) - self._one_decode_s()

    def _one_decode_s(self) -> float:
        plan = StepPlan(0, {})
        plan.num_decodes = plan.decode_context_tokens = 1
        return self._clock.step_seconds(plan)

    def rate(self, batch: float) -> float:
        """Requests that leave per second while so many run."""
        life_s = self._load.output_tokens * self.step_s(batch) + batch * self.prompt_s
        return batch / life_s if life_s else 0.0

    def batch_at(self, rps: float, *, most: float) -> float | None:
        """How many run at this rate; None where not even `most` keep up."""
        if self.rate(most) <= rps:
            return None
        low, high = 0.0, most
        for _ in range(60):
            middle = (low + high) / 2
            low, high = (middle, high) if self.rate(middle) < rps else (low, middle)
        return high


def _check(found: Fit, load: Load) -> None:
    if not 0 < load.rps <= MOST_RPS:
        raise InputError(f"must be above 0 and at most {MOST_RPS:g} requests/s", where="rps")
    if found.settings.pipeline_parallel_size > 1:
        raise InputError(
            "the time of pipeline stages is not covered",
            where="rps",
            fix="Leave it out, or use tensor parallelism",
        )
    _check_timed(found)
    if not found.start.num_blocks:
        raise InputError(
            "there is no KV memory to serve from", where="rps", fix="See the ways out first"
        )
    _check_lengths(found, load.prompt_tokens, load.output_tokens)


def _check_timed(found: Fit) -> None:
    """`InputError` for what no clock times."""
    given = found.settings.given
    untimed = {
        "the time of experts spread over replicas": found.model.moe is not None
        and given.experts is not None,
        "the time of a cache dealt to several GPUs": given.decode_context_parallel_size > 1,
        "the time of guessing ahead": given.speculative is not None,
        "the time of adapters": given.max_loras > 0,
    }
    for what, asked in untimed.items():
        if asked:
            raise InputError(
                f"{what} is not covered", where="rps", fix="Leave --rps out, or that setting"
            )


def _check_lengths(found: Fit, prompt_tokens: int, output_tokens: int) -> None:
    named = {"prompt_tokens": prompt_tokens, "output_tokens": output_tokens}
    for name, value in named.items():
        if not 1 <= value <= MOST_TOKENS:
            raise InputError(f"must be from 1 to {MOST_TOKENS:,} tokens, got {value:,}", where=name)
    total = prompt_tokens + output_tokens
    if total > found.settings.max_model_len:
        raise InputError(
            f"prompt and output together have {total:,} tokens, max_model_len is"
            f" {found.settings.max_model_len:,}",
            where="prompt_tokens",
            fix="Raise max_model_len or give shorter requests",
        )
