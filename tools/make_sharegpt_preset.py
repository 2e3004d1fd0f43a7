"""Derive the preset of ShareGPT's lengths from published statistics of the data.

    python tools/make_sharegpt_preset.py PAPERS_JSON [OUTPUT_FILE]

PAPERS_JSON holds, under vllm_sosp23.sharegpt_trace, the joint histogram and the quantiles of the
length pairs of the PagedAttention paper's artifact. No row of the data is read or written.
"""

from __future__ import annotations

import json
import sys
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from make_presets import written

from kvsim.workload.joint import JointHistogram
from kvsim.workload.lengths import QuantileTokens, Streams

OUTPUT = "kvsim/workload/length_presets/sharegpt.json"
MAX_TOTAL_TOKENS = 2047
POINTS = 8
"""Straight pieces per stretch between two known quantiles."""
SAMPLE = 2_000_000
HOW = (
    "By tools/make_sharegpt_preset.py from the joint histogram and the quantiles of the 79,725 "
    "pairs with fewer than 2,048 tokens. Between known points a length is a (b/a)^(u^g), u from 0 "
    "to 1, with one g per length, chosen so that the means of drawn prompts and outputs are those "
    "of the data. Within a cell of the histogram both lengths are independent."
)

Curve = tuple[tuple[float, ...], tuple[float, ...]]


def known_points(
    stats: dict[str, Any], letter: str, totals: list[int]
) -> list[tuple[float, float]]:
    """(probability, tokens) on the curve: bin edges and quantiles; n tokens end at n + 1/2."""
    ends = np.cumsum(totals) / sum(totals)
    edges = stats["joint_hist"][f"{letter}_edges"]
    points = {float(p): edge - 0.5 for p, edge in zip(ends[:-1], edges[1:-1], strict=True)}
    values = stats[f"{letter}_quantiles"]
    for percent, value in zip(stats["quantiles_pct"][1:-1], values[1:-1], strict=True):
        points.setdefault(percent / 100, value)
    kept = [(0.0, 1.0)]
    for probability, tokens in sorted(points.items()):
        if tokens > kept[-1][1]:
            kept.append((probability, tokens))
    return [*kept, (1.0, values[-1] + 0.49)]


def curve(points: list[tuple[float, float]], bend: float) -> Curve:
    """The points joined by bent stretches, each of `POINTS` straight pieces."""
    found = [points[0]]
    for (p, a), (q, b) in pairwise(points):
        for step in range(1, POINTS + 1):
            u = step / POINTS
            found.append((p + (q - p) * u, a * (b / a) ** (u**bend)))
    probabilities, values = zip(*found, strict=True)
    return (
        tuple(float(f"{p:.8f}") for p in probabilities),
        tuple(float(f"{value:.6g}") for value in values),
    )


def law(stats: dict[str, Any], bends: tuple[float, float]) -> JointHistogram:
    """The preset's law with these two bends."""
    histogram = stats["joint_hist"]
    counts = np.array(histogram["counts"])
    curves = [
        QuantileTokens(*curve(known_points(stats, letter, totals.tolist()), bend))
        for letter, totals, bend in zip("PO", (counts.sum(1), counts.sum(0)), bends, strict=True)
    ]
    return JointHistogram(
        *curves,
        tuple(histogram["P_edges"]),
        tuple(histogram["O_edges"]),
        tuple(map(tuple, histogram["counts"])),
        MAX_TOTAL_TOKENS,
    )


def fitted(stats: dict[str, Any]) -> JointHistogram:
    """Bends that give the data's means, by the secant method on one fixed sample."""
    bends = np.array([1.0, 1.0])
    wanted = np.array([stats["E_P"], stats["E_O"]])
    step = 0.05
    for _ in range(6):
        now = means(law(stats, tuple(bends)))
        slopes = (means(law(stats, tuple(bends + step))) - now) / step
        bends = bends + (wanted - now) / slopes
    return law(stats, tuple(bends))


def means(lengths: JointHistogram) -> Any:
    """Mean prompt and mean output of a sample that does not change."""
    streams = Streams(np.random.default_rng(1), np.random.default_rng(2))
    return np.array([column.mean() for column in lengths.draw(streams, 0, SAMPLE)])


def main(papers: str, output: str = OUTPUT) -> None:
    """Write the preset."""
    trace = json.loads(Path(papers).read_text(encoding="utf-8"))["vllm_sosp23"]["sharegpt_trace"]
    stats = trace["stats"]
    made = fitted(stats)
    facts = {
        "name": "sharegpt",
        "source": "https://github.com/sosp-ae-39/sosp-ae-astra",
        "licence": "none stated: figures derived from the data only, no rows",
        "attribution": "PagedAttention artifact (SOSP'23): ShareGPT conversations, OPT tokenizer",
        "how": HOW,
        "statistics": {
            "pairs": stats["n"],
            "prompt_tokens": {"mean": stats["E_P"], "std": stats["sd_P"]},
            "output_tokens": {"mean": stats["E_O"], "std": stats["sd_O"]},
            "token_steps": stats["E_token_steps"],
            "correlation": stats["corr"],
            "quantiles": {
                "probabilities": [percent / 100 for percent in stats["quantiles_pct"]],
                "prompt_tokens": stats["P_quantiles"],
                "output_tokens": stats["O_quantiles"],
            },
        },
        "max_total_tokens": MAX_TOTAL_TOKENS,
        "histogram": {
            "prompt_edges": list(made.prompt_edges),
            "output_edges": list(made.output_edges),
            "counts": [list(row) for row in made.counts],
        },
        "prompt_tokens": {
            "probabilities": list(made.prompt.probabilities),
            "values": list(made.prompt.values),
        },
        "output_tokens": {
            "probabilities": list(made.output.probabilities),
            "values": list(made.output.values),
        },
    }
    Path(output).write_text(written(facts), encoding="utf-8")


if __name__ == "__main__":
    main(*sys.argv[1:])
