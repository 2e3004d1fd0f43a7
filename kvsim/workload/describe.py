"""Statistics of a workload."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from kvsim.workload.base import NS_PER_S, Workload

Ints = npt.NDArray[np.int64]
WINDOWS_S = (1, 10, 60)


def describe(workload: Workload) -> dict[str, Any]:
    """Exact statistics over all rows, for people and for comparisons.

    Keys: source, digest, rows (read, kept, dropped, reordered), max_concurrency, requests, span_s
    (first to last arrival), rate_rps (gaps per second), gap_cv (standard deviation / mean of the
    gaps), dispersion (variance / mean of the arrivals per window of "1", "10", "60" seconds from
    the first on; 1 for Poisson), prompt_tokens and output_tokens (total, mean, std, min, p50, p90,
    p99, max; percentiles linear between rows), correlation (Pearson, prompt with output). None
    where undefined.
    """
    table = np.array(
        [(row.arrival_ns, row.prompt_tokens, row.output_tokens) for row in workload], dtype=np.int64
    ).reshape(-1, 3)
    arrivals, prompts, outputs = table.T
    gaps = np.diff(arrivals) / NS_PER_S
    span = float(arrivals[-1] - arrivals[0]) / NS_PER_S if len(table) else 0.0
    mean_gap = span / len(gaps) if len(gaps) else 0.0
    spread = float(prompts.std()) * float(outputs.std()) if len(table) else 0.0
    return {
        "source": workload.source,
        "digest": workload.digest,
        "rows": workload.counts.as_dict(),
        "max_concurrency": workload.max_concurrency,
        "requests": len(table),
        "span_s": span,
        "rate_rps": 1 / mean_gap if mean_gap else None,
        "gap_cv": float(gaps.std()) / mean_gap if mean_gap else None,
        "dispersion": {str(width): _dispersion(arrivals, width) for width in WINDOWS_S},
        "prompt_tokens": _spread(prompts),
        "output_tokens": _spread(outputs),
        "correlation": float(np.corrcoef(prompts, outputs)[0, 1]) if spread else None,
    }


def _dispersion(arrivals_ns: Ints, width_s: int) -> float | None:
    if not len(arrivals_ns):
        return None
    # Only windows with arrivals are held: a span may have far more without.
    places, counts = np.unique(
        (arrivals_ns - arrivals_ns[0]) // (width_s * NS_PER_S), return_counts=True
    )
    windows = int(places[-1]) + 1
    mean = len(arrivals_ns) / windows
    return (float((counts**2).sum()) / windows - mean**2) / mean


def _spread(values: Ints) -> dict[str, float | int | None]:
    if not len(values):
        return dict.fromkeys(("total", "mean", "std", "min", "p50", "p90", "p99", "max"))
    p50, p90, p99 = np.percentile(values, (50, 90, 99)).tolist()
    return {
        "total": int(values.sum()),
        "mean": float(values.mean()),
        "std": float(values.std()),
        "min": int(values.min()),
        "p50": p50,
        "p90": p90,
        "p99": p99,
        "max": int(values.max()),
    }
