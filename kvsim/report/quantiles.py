"""Latencies of the requests, read from rows, as the summary counts them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

MAX_POINTS = 200
LATENCY_NAMES = ("ttft_s", "tpot_s", "e2e_s", "queue_s")


class Distribution(NamedTuple):
    """A cumulative distribution: `share` of the requests (in 0..1) took at most `seconds`."""

    seconds: Any
    share: Any
    requests: int
    """How many it was made from."""


def latencies(
    requests: Any, *, frontend_s: float, window_s: tuple[float, float] | None
) -> dict[str, Any]:
    """Latency -> seconds of each finished request that arrived in `window_s`.

    `requests` is a table with the columns of `REQUEST_COLUMNS`. TTFT and end-to-end include
    `frontend_s`; TPOT is that of requests with two output tokens or more.
    """
    finished = np.asarray(requests.column("outcome").to_pylist(), dtype=object) == "finished"
    arrival = _numbers(requests, "arrival_s")
    if window_s is not None:
        finished &= (window_s[0] <= arrival) & (arrival < window_s[1])
    arrival = arrival[finished]
    first = _numbers(requests, "first_token_s")[finished]
    finish = _numbers(requests, "finish_s")[finished]
    gaps = _numbers(requests, "output_tokens")[finished] - 1
    several = gaps > 0
    found = {
        "ttft_s": first - arrival + frontend_s,
        "tpot_s": (finish - first)[several] / gaps[several],
        "e2e_s": finish - arrival + frontend_s,
        "queue_s": _numbers(requests, "queue_s")[finished],
    }
    return {name: values[np.isfinite(values)] for name, values in found.items()}


def distribution(values: Any) -> Distribution | None:
    """The values' own steps, or `MAX_POINTS` nearest-rank quantiles of more; None of nothing."""
    count = len(values)
    if not count:
        return None
    ordered = np.sort(values)
    if count <= MAX_POINTS:
        ranks = np.arange(1, count + 1)
    else:
        # Even steps, and the tail in finer ones: that is where objectives are missed.
        even = np.linspace(0, 1, MAX_POINTS - 8)[1:]
        shares = np.union1d(even, [0.992, 0.994, 0.996, 0.998, 0.999, 0.9995, 0.9999])
        ranks = np.unique(np.concatenate(([1], np.ceil(shares * count).astype(int))))
    return Distribution(ordered[ranks - 1], ranks / count, count)


def pooled(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The latencies of several seeds together."""
    return {name: np.concatenate([part[name] for part in parts]) for name in LATENCY_NAMES}


def _numbers(table: Any, name: str) -> Any:
    return table.column(name).to_numpy(zero_copy_only=False).astype(float)
