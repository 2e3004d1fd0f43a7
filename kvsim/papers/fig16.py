"""PagedAttention paper, Fig. 16: what a prefix that all requests share is worth."""

from __future__ import annotations

from typing import Any

from kvsim.papers.knee import knee_rps
from kvsim.papers.runs import variant_of
from kvsim.papers.target import Figure, Interval, Job, Target, Values
from kvsim.scenario.lengths import ConstantLength, PoissonArrivals
from kvsim.scenario.traffic import ChatSettings
from kvsim.workload import ChatWorkload

LIMIT_S = 0.5
"""Normalized latency at the knee, in seconds per token: as far beyond saturation after ten minutes
as the paper's 1 s/token after twenty."""
DURATION_S = 600.0
RATES_RPS = (4.0, 256.0)
PREFIXES = {"one-shot": 80, "five-shot": 341}
"""Tokens of the examples in front of every request."""
SYSTEMS = ("orca-oracle", "vllm")
KNEES = {
    "one-shot/orca-oracle": 30.0,
    "one-shot/vllm": 50.0,
    "five-shot/orca-oracle": 12.0,
    "five-shot/vllm": 43.0,
}
"""Requests/s, read off the figure."""
MULTIPLIERS = {"one-shot": 1.67, "five-shot": 3.58}
"""vLLM's throughput over Orca's, as the paper's text says."""
TOLERANCE = 0.2


def measure(job: Job) -> dict[str, float]:
    """The knee of one system behind one prefix, in requests/s."""
    prefix, system = job.part.split("/")
    settings = variant_of("papers/sosp23-fig16", system)
    workload = settings.workload
    assert isinstance(workload, ChatSettings)
    knee = knee_rps(
        settings,
        lambda rate: requests(workload, prefix_tokens=PREFIXES[prefix], rate=rate, seed=job.seed),
        limit_s=LIMIT_S,
        rates_rps=RATES_RPS,
        halvings=5,
    )
    return {job.part: knee}


def requests(workload: ChatSettings, *, prefix_tokens: int, rate: float, seed: int) -> ChatWorkload:
    """The scenario's requests behind a prefix of so many tokens, at `rate` requests/s."""
    tokens = ConstantLength(kind="constant", tokens=prefix_tokens)
    changes: dict[str, Any] = {"system_tokens": tokens, "conversations": round(rate * DURATION_S)}
    recipe = workload.chat.model_copy(update=changes)
    return recipe.build(PoissonArrivals(kind="poisson", rate_rps=rate), rate_scale=1.0, seed=seed)


def derive(knees: Values) -> dict[str, float]:
    """The knees and their ratios."""
    ratios = {name: knees[f"{name}/vllm"] / knees[f"{name}/orca-oracle"] for name in PREFIXES}
    return {**knees, **ratios}


FIGURE16 = Figure(
    name="sosp23-fig16",
    title="PagedAttention (SOSP'23), Fig. 16: translation behind a shared prefix",
    how="Ten minutes of arrivals; the mean over all requests of end-to-end latency / output tokens"
    " reaches 0.5 s/token at the knee, found to 2 %. vLLM finds the prefix in its cache,"
    " Orca (Oracle) computes and stores it for every request. Lengths are synthetic.",
    measure=measure,
    derive=derive,
    scenario="papers/sosp23-fig16",
    parts=tuple(f"{prefix}/{system}" for prefix in PREFIXES for system in SYSTEMS),
    targets=(
        *(
            Target(
                key=name,
                what=f"{name} ({PREFIXES[name]} tokens): vllm over orca-oracle",
                unit="x",
                paper=paper,
                tag="READ",
                basis="fit",
                accepted=Interval(paper * (1 - TOLERANCE), paper * (1 + TOLERANCE)),
            )
            for name, paper in MULTIPLIERS.items()
        ),
        *(
            Target(
                key=key,
                what=f"{key.replace('/', ', ')}: knee",
                unit="requests/s",
                paper=paper,
                tag="DIGITISED",
                basis="fit",
                digits=1,
            )
            for key, paper in KNEES.items()
        ),
    ),
    remarks=(
        "Lengths and one constant of the clock are ours: prompts of 30 and outputs of 35 tokens on"
        " average, and 0.375 ms per sequence and step, a fit to the four knees. The other constants"
        " are those of an A100.",
    ),
)
