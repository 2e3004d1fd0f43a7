"""Draws the figure of the README from a run of a shipped scenario.

    python tools/make_figures.py [--scenario azure-conv] [--out docs/figures]

Needs the extra `dev`. Same run, same bytes.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("svg")

from matplotlib import pyplot as plt

from kvsim.scenario.loader import load_scenario
from kvsim.scenario.run import run_scenario

ROOT = Path(__file__).resolve().parents[1]
TERMS = (
    # Okabe-Ito colours: told apart by the colour-blind; hatches do it in black and white.
    ("live", "live", "#0072B2", ""),
    ("reservation", "reservation", "#56B4E9", "//"),
    ("internal", "internal", "#D55E00", "xx"),
    ("external", "external", "#E69F00", ".."),
    ("usable_free", "usable free", "#EEEEEE", ""),
)


def draw(summary: dict[str, Any], path: Path) -> None:
    """Stacked memory terms per variant, with batch and queueing beside them."""
    plt.rcParams.update({"svg.hashsalt": "kvsim", "svg.fonttype": "none", "font.size": 10})
    variants = summary["variants"]
    figure, axes = plt.subplots(figsize=(9.6, 0.55 * len(variants) + 1.3))
    left = [0.0] * len(variants)
    for key, label, colour, hatch in TERMS:
        shares = [100 * entry["memory"]["by_time"][key] for entry in variants.values()]
        axes.barh(
            list(variants),
            shares,
            left=left,
            label=label,
            color=colour,
            hatch=hatch,
            edgecolor="white",
            height=0.7,
        )
        for index, share in enumerate(shares):
            if share >= 4:
                dark = key in ("live", "internal")
                axes.text(
                    left[index] + share / 2,
                    index,
                    f"{share:.0f}",
                    ha="center",
                    va="center",
                    color="white" if dark else "black",
                    bbox={"facecolor": colour, "edgecolor": "none", "pad": 1.2},
                )
        left = [start + share for start, share in zip(left, shares, strict=True)]
    for index, entry in enumerate(variants.values()):
        text = f"batch {entry['batch']['mean']:.1f}   queue p50 {entry['queue_s']['p50']:,.2f} s"
        axes.text(101, index, text, va="center")
    axes.invert_yaxis()
    axes.set_xlim(0, 100)
    axes.set_xlabel("share of KV slots, averaged over time (%)")
    for side in ("top", "right"):
        axes.spines[side].set_visible(False)
    figure.legend(loc="upper center", ncols=len(TERMS), frameon=False)
    figure.subplots_adjust(left=0.22, right=0.75, top=0.86, bottom=0.17)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, metadata={"Date": None})
    plt.close(figure)


def main() -> None:
    """Run the scenario and draw it."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--scenario", default="azure-conv")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures")
    options = parser.parse_args()
    result = run_scenario(load_scenario(options.scenario, []))
    path = options.out / f"{options.scenario}-memory.svg"
    draw(result.summary, path)
    print(f"{path}: {result.summary['workload']['source']}")


if __name__ == "__main__":
    main()
