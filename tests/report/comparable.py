"""Summaries small enough to compare by hand."""

from __future__ import annotations

from typing import Any

from kvsim.report.compare import Source


def entry(**changes: Any) -> dict[str, Any]:
    """A variant's entry with a few figures."""
    return {
        "preemptions": 4,
        "memory": {"by_time": {"live": 0.5, "external": 0.25}},
        "throughput": {"requests_per_s": 8.0},
        "ttft_s": {"mean": 1.0, "p99": 2.0, "max": 3.0, "count": 10},
        "setup": {"model": "opt-13b", "block_size": 16},
        "stuck": None,
        **changes,
    }


def summary(
    *, digest: str = "d", source: str = "trace.csv", **variants: dict[str, Any]
) -> dict[str, Any]:
    """A summary of one seed; without variants, of one called paged."""
    return {
        "scenario": "s",
        "kvsim_version": "1",
        "workload": {"source": source, "digest": digest},
        "variants": variants or {"paged": entry()},
    }


def seeded(figures: dict[int, float], *, digests: str = "d", law: str = "l") -> dict[str, Any]:
    """A summary of several seeds whose batch.mean is given for each."""
    per_seed = [{"seed": seed, "batch": {"mean": value}} for seed, value in figures.items()]
    rows = [{"seed": seed, "digest": f"{digests}{seed}"} for seed in figures]
    merged = {
        "batch": {"mean": sum(figures.values()) / len(figures)},
        "intervals": {},
        "per_seed": per_seed,
    }
    made = summary(digest=f"{digests}{sorted(figures)}", paged=merged)
    made["workload"] |= {"law": law, "per_seed": rows}
    return {**made, "seeds": list(figures)}


def source(label: str, content: dict[str, Any]) -> Source:
    """A run of which the summary alone is there."""
    return Source(label, content, None)
