"""The few figures of a run that its summary starts with, from its rows alone."""

from __future__ import annotations

import statistics
from pathlib import Path

from gpu_backend.bench.results import Row, read_rows

GOAL_BLOCK_SIZE = 16


def headline(folder: Path) -> Row:
    """What can be said so far; a figure whose section gave no row is missing."""
    return {
        **_correctness(read_rows(folder, "correctness")),
        **_decode(read_rows(folder, "decode")),
        **_paging(read_rows(folder, "paging")),
        **_peers(read_rows(folder, "peers")),
    }


def fastest_peer(rows: list[Row]) -> tuple[str, float] | None:
    """The peer with the largest median factor, over what it was measured on."""
    factors: dict[str, list[float]] = {}
    for row in rows:
        if row["status"] == "measured":
            factors.setdefault(row["peer"], []).append(row["factor"])
    medians = {peer: statistics.median(values) for peer, values in factors.items()}
    return max(medians.items(), key=lambda item: item[1]) if medians else None


def _correctness(rows: list[Row]) -> Row:
    if not rows:
        return {}
    return {
        "correct_cases": sum(row["correct"] for row in rows),
        "wrong_cases": [row["case"] for row in rows if not row["correct"]],
    }


def _decode(rows: list[Row]) -> Row:
    judged = [row for row in rows if row.get("goal_met") is not None]
    if not judged:
        return {}
    return {
        "decode_share_of_ceiling_median": statistics.median(row["share"] for row in judged),
        "decode_goal_met": sum(row["goal_met"] for row in judged),
        "decode_goal_points": len(judged),
    }


def _paging(rows: list[Row]) -> Row:
    costs = [
        row["paging_cost"]
        for row in rows
        if row["block_size"] == GOAL_BLOCK_SIZE and "paging_cost" in row
    ]
    return {"paging_cost_percent_median": 100 * statistics.median(costs)} if costs else {}


def _peers(rows: list[Row]) -> Row:
    found = fastest_peer(rows)
    wrong = sorted({row["peer"] for row in rows if row["status"] == "wrong"})
    result: Row = {"wrong_peers": wrong} if wrong else {}
    if found is not None:
        result |= {"fastest_peer": found[0], "fastest_peer_factor_median": found[1]}
    return result
