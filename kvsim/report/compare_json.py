"""A comparison as plain data."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from kvsim.report.compare import Comparison, Figure, Pair, Side
from kvsim.report.thresholds import Check


def comparison_json(comparison: Comparison, checks: Sequence[Check] = ()) -> dict[str, Any]:
    """Everything a `Comparison` holds, figures with all their digits.

    `mismatches` comes first and is empty unless the comparison was insisted on.
    """
    return {
        "mismatches": [mismatch._asdict() for mismatch in comparison.mismatches],
        "runs": [
            {
                "label": source.label,
                "scenario": source.summary["scenario"],
                "kvsim_version": source.summary["kvsim_version"],
                "source": source.summary["workload"]["source"],
                "digest": source.summary["workload"]["digest"],
                "seeds": source.summary.get("seeds"),
            }
            for source in comparison.sources
        ],
        "unmatched": [_side(side) for side in comparison.unmatched],
        "pairs": [_pair(pair) for pair in comparison.pairs],
        "checks": [
            {
                "rule": check.rule.text,
                "base": _side(check.pair.base),
                "candidate": _side(check.pair.candidate),
                "figure": _figure(check.figure),
                "failed": check.breached,
            }
            for check in checks
        ],
    }


def _pair(pair: Pair) -> dict[str, Any]:
    return {
        "base": _side(pair.base),
        "candidate": _side(pair.candidate),
        "settings_known": pair.settings_known,
        "settings": [setting._asdict() for setting in pair.settings],
        "method": pair.method,
        "common_seeds": None if pair.common_seeds is None else list(pair.common_seeds),
        "figures": [_figure(figure) for figure in pair.figures],
    }


def _side(side: Side) -> dict[str, str]:
    return {"run": side.source, "variant": side.variant}


def _figure(figure: Figure) -> dict[str, Any]:
    return {
        "metric": figure.path,
        "base": figure.base,
        "candidate": figure.candidate,
        "difference": figure.difference,
        "relative": figure.relative,
        "interval": None if figure.interval is None else list(figure.interval),
        "better": figure.better,
        "verdict": figure.verdict,
    }
