"""What must be said beside the figures of some mechanisms."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any


def capacity_remark(*, offloads: bool, swaps: bool = False) -> str | None:
    """What memory outside the device does not do; None where nothing goes there."""
    gains = []
    if offloads:
        gains.append(("Offloading", "cached prefixes cheaper to have again"))
    if swaps:
        gains.append(("Swapping", "preempted requests cheaper to resume"))
    if not gains:
        return None
    made = " and ".join(f"{name} makes {gain}" for name, gain in gains)
    return (
        f"{made.replace(' and Swapping', ' and swapping')}; it does not let more requests run at"
        " once: the batch is bounded by the blocks on the device."
    )


def remarks(entries: Iterable[Mapping[str, Any]]) -> list[str]:
    """Remarks on the variants of a summary."""
    sections = {name for entry in entries for name in entry}
    remark = capacity_remark(offloads="offload" in sections, swaps="swap" in sections)
    return [] if remark is None else [remark]
