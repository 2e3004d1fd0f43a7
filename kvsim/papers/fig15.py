"""PagedAttention paper, Fig. 15: memory saved by sharing between the branches of a request."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.papers.runs import length_pairs, variant_of
from kvsim.papers.target import Figure, Interval, Job, NoResultError, Target, Values, within
from kvsim.scenario import run_scenario
from kvsim.workload import PairLengths
from kvsim.workload.lengths import Streams

SCENARIO = "papers/sosp23-fig15"
WIDTHS = (2, 4, 6)
BLOCK_SIZE = 16
MAX_TOKENS = 2048
PARALLEL = {2: 6.09, 4: 8.53, 6: 9.79}
BEAM = {2: 37.56, 4: 53.13, 6: 55.16}
"""Memory saved in %, as the figure prints it."""
SHAREGPT = {2: 17.55, 4: 26.32, 6: 29.25}
"""Closed form of parallel sampling over all pairs of at most 2,048 tokens, in %."""
SPREAD = 0.05
_DRAWN = 80_000
"""Pairs taken from the preset, about as many as the list has."""
CLOSED_FORM = "sharegpt"


def measure(job: Job) -> dict[str, float]:
    """Savings in %: of one variant of the scenario, or the closed form of all widths."""
    if job.part == CLOSED_FORM:
        share = prompt_share(*_pairs(job))
        return {f"{CLOSED_FORM}-{n}": 100 * (1 - 1 / n) * share for n in WIDTHS}
    settings = variant_of(SCENARIO, job.part).model_copy(update={"seeds": [job.seed]})
    (found,) = run_scenario(settings, workers=1).summary["variants"].values()
    if found["requests"]["finished"] != found["requests"]["submitted"]:
        raise NoResultError(f"{job.part}: {found['requests']}")
    values = {job.part: 100 * found["sharing"]["saving_by_step"]}
    if job.part.startswith("beam"):
        values[f"{job.part}/most"] = 100 * most_saving(found, int(job.part[-1]))
    return values


def most_saving(found: Mapping[str, Any], width: int) -> float:
    """Upper bound for beams: all but the last block of every beam are common to all of a group.

    `(1 - 1/k) (1 - 1/nb)` with nb the mean blocks of a beam (FIELD.md, closed form 5).
    """
    groups: float = found["batch"]["mean_by_time"]
    blocks: float = found["sharing"]["logical_blocks"] / (width * groups)
    return (1 - 1 / width) * (1 - 1 / blocks)


Ints = npt.NDArray[np.int64]


def _pairs(job: Job) -> tuple[Ints, Ints]:
    lengths = length_pairs(job.lengths)
    if isinstance(lengths, PairLengths):
        prompts, outputs = lengths.prompt_tokens, lengths.output_tokens
    else:
        children = np.random.SeedSequence(job.seed).spawn(2)
        streams = Streams(*(np.random.Generator(np.random.PCG64(child)) for child in children))
        prompts, outputs = lengths.draw(streams, 0, _DRAWN)
    short = prompts + outputs <= MAX_TOKENS
    return prompts[short], outputs[short]


def prompt_share(prompts: Ints, outputs: Ints) -> float:
    """Whole prompt blocks over all blocks of a sequence, summed over the steps of every request.

    Closed form 4 with P + j tokens at step j = 0 .. O - 1: `sum O floor(P/B)` over
    `sum ceil((P + j)/B)`. Times `1 - 1/n` it is the saving of n samples.
    """
    blocks = _blocks_up_to(prompts + outputs - 1) - _blocks_up_to(prompts - 1)
    return float((outputs * (prompts // BLOCK_SIZE)).sum() / blocks.sum())


def _blocks_up_to(tokens: Ints) -> Ints:
    """Sum of ceil(l / B) over l = 1 .. tokens."""
    whole, rest = np.divmod(tokens, BLOCK_SIZE)
    result: Ints = BLOCK_SIZE * whole * (whole + 1) // 2 + rest * (whole + 1)
    return result


def derive(values: Values) -> dict[str, float]:
    """The savings, how far they are from 1 - 1/n, and where the beams lie."""
    shares = [values[f"parallel-{n}"] / (1 - 1 / n) for n in WIDTHS]
    mean = sum(shares) / len(shares)
    beams = [values[f"beam-{k}"] for k in WIDTHS]
    bounded = all(
        values[f"parallel-{k}"] <= values[f"beam-{k}"] <= values[f"beam-{k}/most"] for k in WIDTHS
    )
    return {
        **values,
        "spread": max(abs(share / mean - 1) for share in shares),
        "bounded": float(bounded),
        "rising": float(all(a < b for a, b in pairwise(beams))),
    }


def _saving(kind: str, width: int, paper: float) -> Target:
    return Target(
        key=f"{kind}-{width}",
        what=f"{kind} {width}: memory saved",
        unit="%",
        paper=paper,
        tag="READ",
        basis="fit" if kind == "parallel" else "prediction",
    )


def _yes(key: str, what: str) -> Target:
    return Target(
        key=key,
        what=what,
        unit="1: yes",
        paper=None,
        tag="FORMULA",
        basis="closed form",
        accepted=within(1.0, 0.0),
        digits=0,
    )


FIGURE15 = Figure(
    name="sosp23-fig15",
    title="PagedAttention (SOSP'23), Fig. 15: memory saved by sharing",
    how="OPT-13B, 20 requests/s for 500 s, synthetic Alpaca lengths; 1 - 1 / mean over the"
    " iterations from 100 s to 500 s of logical / physical blocks. ShareGPT's rows are the closed"
    " form over all pairs of at most 2,048 tokens.",
    measure=measure,
    derive=derive,
    scenario=SCENARIO,
    parts=(
        *(f"parallel-{n}" for n in WIDTHS),
        *(f"beam-{k}" for k in WIDTHS),
        CLOSED_FORM,
    ),
    uses_lengths=True,
    targets=(
        *(
            Target(
                key=f"{CLOSED_FORM}-{n}",
                what=f"parallel {n}, ShareGPT",
                unit="%",
                paper=paper,
                tag="FORMULA",
                basis="closed form",
                accepted=within(paper, 0.005),
                accepted_preset=within(paper, 0.5),
            )
            for n, paper in SHAREGPT.items()
        ),
        Target(
            key="spread",
            what="parallel: largest distance of saving / (1 - 1/n) from its mean",
            unit="share",
            paper=0.0,
            tag="FORMULA",
            basis="prediction",
            accepted=Interval(0.0, SPREAD),
            digits=3,
        ),
        _yes("bounded", "beams save as much as samples and at most (1 - 1/k)(1 - 1/nb)"),
        _yes("rising", "wider beams save more"),
        *(_saving("parallel", n, paper) for n, paper in PARALLEL.items()),
        *(_saving("beam", k, paper) for k, paper in BEAM.items()),
    ),
    remarks=(
        "The lengths are synthetic with the paper's means; their two sigmas are chosen so that"
        " prompts take about the paper's 12 % of the blocks, hence fit.",
        "Beams: the model of ancestry is wright_fisher, each survivor continues a uniformly drawn"
        " beam. It shares more than the paper's beams did, which its figure, between independent"
        " and neutral ancestry, shows; nothing published says how real beams descend.",
    ),
)
