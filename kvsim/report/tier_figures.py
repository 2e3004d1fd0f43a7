"""The figures of the section `offload`: the same for every tier."""

from __future__ import annotations

from typing import Literal, NamedTuple

TIERS = {"host": "the host's memory", "disk": "the disk"}
"""Tiers by their name in a summary, and in words."""


class TierFigure(NamedTuple):
    """A figure that every tier has."""

    name: str
    label: str
    unit: str
    better: Literal["higher", "lower"] | None
    digits: int
    meaning: str
    """Definition, with `{tier}` for the tier in words."""


TIER_FIGURES = (
    TierFigure(
        "fetched_tokens",
        "fetched",
        "tokens",
        None,
        0,
        "Tokens whose KV was fetched from {tier}, in the whole run; hits of first admissions among"
        " them count in prefix_cache.hit_tokens (tokens).",
    ),
    TierFigure(
        "fetched_blocks", "fetched", "blocks", None, 0, "Blocks fetched from {tier} (count)."
    ),
    TierFigure(
        "declined_tokens",
        "declined",
        "tokens",
        None,
        0,
        "Tokens that {tier} had and that were computed all the same, because that is faster"
        " (tokens).",
    ),
    TierFigure(
        "stored_blocks",
        "stored",
        "blocks",
        None,
        0,
        "Blocks written to {tier}: full blocks of the device, and those that come from another tier"
        " (count).",
    ),
    TierFigure(
        "evicted_blocks",
        "evicted",
        "blocks",
        None,
        0,
        "Blocks that left {tier} for lack of room: to the next tier, or for good from the last"
        " (count).",
    ),
    TierFigure(
        "peak_blocks", "peak", "blocks", None, 0, "Most blocks ever held by {tier} at once (count)."
    ),
    TierFigure(
        "transfer_s",
        "waited for",
        "s",
        "lower",
        2,
        "Time that steps waited for what they fetched from {tier} (s).",
    ),
)


def tier_definitions() -> dict[str, str]:
    """Definitions by dotted path."""
    return {
        f"offload.{tier}.{figure.name}": figure.meaning.format(tier=words)
        for tier, words in TIERS.items()
        for figure in TIER_FIGURES
    }
