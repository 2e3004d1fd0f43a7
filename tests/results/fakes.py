"""The smallest objects a recorder can be driven with."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from kvsim.core.accounting import Usage
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence

CAPACITY = 1000
S = 1_000_000_000


class FakeAllocator:
    block_size = 16

    def __init__(self, *, capacity: int = CAPACITY, reserves_ahead: bool = False) -> None:
        self.capacity_slots = capacity
        self.reserves_ahead = reserves_ahead
        self.usage = Usage()
        self.extent = capacity

    def largest_free_extent(self) -> int:
        return self.extent

    def prefix_counts(self) -> dict[str, int] | None:
        return None

    def set(self, **counts: int) -> None:
        """The usage from now on; counts not named are 0."""
        for name in Usage.__slots__:
            setattr(self.usage, name, counts.get(name, 0))


def plan(**fields: Any) -> StepPlan:
    result = StepPlan(0, list)
    for name, value in fields.items():
        setattr(result, name, value)
    return result


def sequence(
    name: str = "r",
    *,
    prompt: int = 10,
    output: int = 5,
    arrived: int = 0,
    scheduled: int = 0,
    first: int = -1,
    end: int = -1,
) -> Sequence:
    """A sequence that delivered all its output; times in nanoseconds."""
    result = Sequence(Request(name, arrived, prompt, output), max_model_len=10_000)
    result.tokens = prompt + output
    result.first_scheduled_ns = scheduled
    result.first_token_ns = first
    result.finished_ns = end
    return result


@st.composite
def states(draw: st.DrawFn, *, reserves_ahead: bool) -> dict[str, Any]:
    """Counts an allocator and a scheduler could show together after a step's schedule()."""
    live = draw(st.integers(0, 600))
    shared = draw(st.integers(0, live)) if not reserves_ahead else 0
    usage = {
        "shared": shared,
        "internal_tail": draw(st.integers(0, 50)),
        "over_reservation": draw(st.integers(0, 50)) if reserves_ahead else 0,
        "roundup": draw(st.integers(0, 50)),
    }
    ahead = draw(st.integers(0, 100))
    never_filled = usage["internal_tail"] + usage["over_reservation"] + usage["roundup"]
    usage["allocated"] = live - shared + never_filled + ahead
    usage["cached"] = draw(st.integers(0, CAPACITY - usage["allocated"]))
    return {
        "usage": usage,
        "extent": draw(st.integers(0, CAPACITY - usage["allocated"])),
        "duration": draw(st.integers(0, 10**9)),
        "plan": {
            "live_tokens": live,
            "num_running": draw(st.integers(0, 9)),
            "num_waiting": draw(st.integers(0, 9)),
            "num_decodes": draw(st.integers(0, 9)),
            "prefill_tokens": draw(st.integers(0, 99)),
            "decode_context_tokens": draw(st.integers(0, 999)),
            "head_held_up": draw(st.booleans()),
        },
    }
