"""PagedAttention paper, Fig. 19: swapping against recomputing by block size."""

from __future__ import annotations

from kvsim.core.host_pool import SWAP_IN, SWAP_OUT
from kvsim.cost import crossover_block_size
from kvsim.papers.runs import summary_of, variant_of
from kvsim.papers.target import Figure, Interval, Job, Target
from kvsim.scenario.build_swap import swap_links
from kvsim.scenario.sizing import size_server

SCENARIO = "papers/sosp23-fig19"
TOKENS = 256
BLOCK_SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
OUT_MS = (55.5, 35.7, 26.0, 21.0, 18.5, 17.3, 16.7, 16.4, 16.0)
IN_MS = (82.0, 53.5, 35.2, 26.0, 21.5, 19.3, 18.3, 17.6, 17.3)
"""Fig. 19a: milliseconds for 256 tokens of OPT-13B by block size."""
RECOMPUTED_S = 38.6e-3
"""The same figure: seconds to compute 256 tokens again at block size 16."""
LATENCY = {
    "recompute-8": 0.5,
    "recompute-16": 0.07,
    "recompute-64": 0.06,
    "recompute-256": 1.12,
    "swap-8": 0.56,
    "swap-16": 0.07,
    "swap-64": 0.06,
    "swap-256": 0.66,
}
"""Fig. 19b: normalized latency in s/token."""


def measure(job: Job) -> dict[str, float]:
    """Times of both ways by block size and where they cross, or the latencies of the runs."""
    if job.part == "runs":
        found = summary_of(SCENARIO, seed=job.seed, lengths=job.lengths)["variants"]
        return {name: found[name]["normalized_latency_s_per_token"]["mean"] for name in LATENCY}
    settings = variant_of(SCENARIO, "swap-16")
    links = swap_links(settings, size_server(settings).model)
    values = {}
    for size in BLOCK_SIZES:
        blocks = -(-TOKENS // size)
        values[f"out-{size}"] = 1e3 * links[SWAP_OUT].seconds(TOKENS, blocks)
        values[f"in-{size}"] = 1e3 * links[SWAP_IN].seconds(TOKENS, blocks)
    crossover = crossover_block_size(TOKENS, RECOMPUTED_S, links[SWAP_OUT], links[SWAP_IN])
    return {**values, "crossover": crossover or 0.0}


def _times(way: str, what: str, paper: tuple[float, ...]) -> tuple[Target, ...]:
    return tuple(
        Target(
            key=f"{way}-{size}",
            what=f"{what}, block size {size}",
            unit="ms",
            paper=value,
            tag="DIGITISED",
            basis="fit",
            accepted=Interval(0.95 * value, 1.05 * value),
            digits=1,
        )
        for size, value in zip(BLOCK_SIZES, paper, strict=True)
    )


FIGURE19 = Figure(
    name="sosp23-fig19",
    title="PagedAttention (SOSP'23), Fig. 19: swapping against recomputing",
    how="(a) 256 tokens of OPT-13B: bytes over bandwidth and a time for each copy, of which a block"
    " has 80, against the paper's recomputation. (b) ShareGPT at 2.01 requests/s for 600 s, mean"
    " normalized latency.",
    measure=measure,
    scenario=SCENARIO,
    parts=("microbenchmark", "runs"),
    uses_lengths=True,
    targets=(
        Target(
            key="crossover",
            what="block size from which on swapping is faster",
            unit="tokens",
            paper=None,
            tag="DERIVED",
            basis="fit",
            accepted=Interval(16.0, 32.0),
            digits=1,
        ),
        *_times("out", "256 tokens out", OUT_MS),
        *_times("in", "256 tokens in", IN_MS),
        *(
            Target(
                key=name,
                what=f"{name}: normalized latency",
                unit="s/token",
                paper=paper,
                tag="DIGITISED",
                basis="fit" if name.endswith("-8") else "prediction",
            )
            for name, paper in LATENCY.items()
        ),
    ),
    remarks=(
        "Two bandwidths and two times per copy are fitted to the figure's 18 times.",
        "Latencies: see the remarks of Fig. 18b, whose clock this is.",
    ),
)
