"""PagedAttention paper, Fig. 2 and 13a: shares of the KV slots, and how many requests run."""

from __future__ import annotations

from typing import Any

from kvsim.papers.runs import summary_of, variant_of
from kvsim.papers.target import Figure, Job, Target, within
from kvsim.scenario import build_server
from kvsim.scenario.clock import LinearClockSettings

TERMS = ("tokens", "reservation", "internal", "external_and_others")
FIG2 = {
    "orca-max": (20.4, 13.3, 57.3, 8.9),
    "orca-pow2": (26.8, 17.9, 13.6, 41.6),
    "orca-oracle": (38.2, 25.2, 0.0, 36.6),
    "vllm": (96.3,),
}
"""Percent of the slots, in the order of `TERMS`."""
PRESET_POINTS = 4.0
CHUNK_TOKENS = 2048


def _tolerance(system: str, term: str) -> float:
    """Percentage points; the wider one of pow2 is the spread over seeds."""
    if system == "vllm":
        return 0.5
    if (system, term) == ("orca-max", "external_and_others"):
        return 0.1
    if system == "orca-pow2" and term in ("internal", "external_and_others"):
        return 3.5
    if (system, term) == ("orca-oracle", "internal"):
        return 1e-9
    return 2.0


def _preset_tolerance(system: str, term: str) -> float:
    """Percentage points; what does not depend on lengths keeps its tolerance."""
    tolerance = _tolerance(system, term)
    return tolerance if tolerance <= 0.1 else PRESET_POINTS


def measure_fig2(job: Job) -> dict[str, float]:
    """Percent of the slots by the paper's rule; the paged memory's mean tail; buddy chunks."""
    found = summary_of("papers/sosp23-fig2", seed=job.seed, lengths=job.lengths)["variants"]
    values = {
        f"{system}/{term}": 100 * found[system]["memory"]["paper"][term]
        for system in FIG2
        for term in TERMS
    }
    values["vllm/tail"] = found["vllm"]["memory"]["empty_tail_slots_per_sequence"]
    chunks = [
        build_server(variant_of("papers/sosp23-fig2", name)).allocator.largest_free_extent()
        for name in FIG2
        if name != "vllm"
    ]
    values["chunk"] = max(chunks, key=lambda tokens: abs(tokens - CHUNK_TOKENS))
    fast = _paged_alone("papers/sosp23-fig2", job, clock=_clock(0.5))
    values["vllm/fast"] = 100 * fast["memory"]["paper"]["tokens"]
    return values


def _clock(factor: float) -> LinearClockSettings:
    """The clock of Fig. 2, all step times scaled."""
    clock = variant_of("papers/sosp23-fig2", "vllm").clock
    assert isinstance(clock, LinearClockSettings)
    terms = ("base_s", "prefill_token_s", "context_token_s")
    return clock.model_copy(update={term: factor * getattr(clock, term) for term in terms})


def _paged_alone(scenario: str, job: Job, *, clock: LinearClockSettings) -> dict[str, Any]:
    """The summary of the base variant under another clock."""
    update = {"clock": clock, "compare": {}}
    found = summary_of(scenario, seed=job.seed, lengths=job.lengths, update=update)
    entry: dict[str, Any] = found["variants"]["vllm"]
    return entry


def _fig2_targets() -> tuple[Target, ...]:
    bars = [
        Target(
            key=f"{system}/{term}",
            what=f"{system}: {term.replace('_', ' ')}",
            unit="% of slots",
            paper=paper,
            tag="READ",
            basis="prediction",
            accepted=within(paper, _tolerance(system, term)),
            accepted_preset=within(paper, _preset_tolerance(system, term)),
            digits=1,
        )
        for system, bar in FIG2.items()
        for term, paper in zip(TERMS, bar, strict=False)
    ]
    tail = Target(
        key="vllm/tail",
        what="vllm: empty tail per request",
        unit="slots",
        paper=7.499,
        tag="DERIVED",
        basis="closed form",
        accepted=within(7.499, 0.02),
        accepted_preset=within(7.499, 0.05),
        digits=3,
    )
    chunk = Target(
        key="chunk",
        what="largest buddy chunk of all three",
        unit="slots",
        paper=CHUNK_TOKENS,
        tag="READ",
        basis="closed form",
        accepted=within(CHUNK_TOKENS, 0),
        digits=0,
    )
    fast = Target(
        key="vllm/fast",
        what="vllm: tokens, with a clock twice as fast",
        unit="% of slots",
        paper=None,
        tag="OURS",
        basis="prediction",
        digits=1,
    )
    return (*bars, tail, chunk, fast)


FIGURE2 = Figure(
    name="sosp23-fig2",
    title="PagedAttention (SOSP'23), Fig. 2: where the KV slots are",
    how="OPT-13B on one A100-40GB, 4 requests/s for 900 s; mean over the iterations that start"
    " between 300 and 900 s, by the paper's rule (`memory.paper`), then over seeds.",
    measure=measure_fig2,
    scenario="papers/sosp23-fig2",
    seeds=(0, 1, 2, 3, 4),
    uses_lengths=True,
    targets=_fig2_targets(),
    remarks=(
        "The linear clock (22.5 ms + 0.15 ms per prompt token + 0.75 us per context token) was"
        " picked by hand to bracket the paper's latencies, not fitted to these bars. Only the paged"
        " bar depends on it: with a clock twice as fast the server is not overloaded and the bar"
        " falls, as the last row shows.",
    ),
)


def measure_fig13a(job: Job) -> dict[str, float]:
    """Mean batch over iterations."""
    found = summary_of("papers/sosp23-fig13a", seed=job.seed, lengths=job.lengths)["variants"]
    other = _paged_alone("papers/sosp23-fig13a", job, clock=_clock(1.0))
    batches = {system: found[system]["batch"]["mean"] for system in FIG2}
    return {**batches, "vllm/fig2-clock": other["batch"]["mean"]}


def _batch(
    system: str, paper: float, tolerance: float, *, preset_tolerance: float | None = None
) -> Target:
    return Target(
        key=system,
        what=f"{system}: mean batch",
        unit="requests",
        paper=paper,
        tag="READ",
        basis="fit" if system == "vllm" else "prediction",
        accepted=within(paper, tolerance),
        accepted_preset=within(paper, preset_tolerance or tolerance),
    )


FIGURE13A = Figure(
    name="sosp23-fig13a",
    title="PagedAttention (SOSP'23), Fig. 13a: requests that run at once",
    how="OPT-13B on one A100-40GB, 2 requests/s for 3,600 s; mean over the iterations that start"
    " between 600 and 3,600 s, then over seeds.",
    measure=measure_fig13a,
    scenario="papers/sosp23-fig13a",
    seeds=(0, 1, 2, 3, 4),
    uses_lengths=True,
    targets=(
        _batch("orca-max", 7.0, 1e-9),
        _batch("orca-pow2", 9.81, 0.5),
        _batch("orca-oracle", 13.62, 0.6, preset_tolerance=1.0),
        _batch("vllm", 30.42, 0.15 * 30.42),
        Target(
            key="vllm/fig2-clock",
            what="vllm: mean batch, with the clock of Fig. 2",
            unit="requests",
            paper=None,
            tag="OURS",
            basis="prediction",
        ),
    ),
    remarks=(
        "The clock is that of Fig. 2 times 1.22, chosen to meet the paged bar. The other servers"
        " are overloaded with either clock. The paged one is at its limit and depends on the step"
        " time above all, as the last row shows.",
        "floor(983 / 128) = 7 reservations of 2,048 tokens fit: the bar of orca-max is exact.",
    ),
)
