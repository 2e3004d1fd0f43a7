"""What moving KV between the device and memory outside it costs (FIELD.md, closed form 10)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from kvsim.catalog.explain import Fact
from kvsim.core.plan import StepPlan, Transfer
from kvsim.cost.checks import check_seconds
from kvsim.cost.predictive import PredictiveClock
from kvsim.errors import InputError

NOTE = "steps wait for KV that moves between the device and memory outside it"


@dataclass(frozen=True, slots=True)
class Link:
    """A way between the device and memory outside it, in one direction.

    The KV of a block is scattered: it has a piece in the K and in the V tensor of every layer, and
    each piece is a copy of its own (SOSP'23, section 7.3). Raises `InputError` for values that are
    not positive (times: not >= 0 and finite).
    """

    bytes_per_token: int
    bandwidth_bytes_per_s: float
    copies_per_block: int = 1
    copy_s: float = 0.0
    """Seconds that each copy costs beside its bytes."""
    latency_s: float = 0.0
    """Seconds from asking until the first byte comes, once per transfer."""

    def __post_init__(self) -> None:
        check_seconds(copy_s=self.copy_s, latency_s=self.latency_s)
        for name in ("bytes_per_token", "bandwidth_bytes_per_s", "copies_per_block"):
            value = getattr(self, name)
            if not 0 < value < float("inf"):
                raise InputError(f"{name} must be > 0 and finite, got {value!r}", where=name)

    def seconds(self, tokens: int, blocks: int) -> float:
        """Time to move so many tokens, which lie in so many blocks."""
        if not blocks:
            return 0.0
        size_s = tokens * self.bytes_per_token / self.bandwidth_bytes_per_s
        return self.latency_s + size_s + blocks * self.copies_per_block * self.copy_s


class TransferClock:
    """Another clock's time, and that of the transfers that a step makes before its kernels run."""

    def __init__(self, clock: PredictiveClock, links: Mapping[str, Link]) -> None:
        """`links` by the names that transfers carry."""
        self.links = dict(links)
        self.relative_error = clock.relative_error
        self.note = f"{clock.note}; {NOTE}"
        self._clock = clock

    def step_seconds(self, plan: StepPlan) -> float:
        """Duration of the step in seconds."""
        seconds = self._clock.step_seconds(plan)
        return seconds + sum(map(self.transfer_seconds, plan.transfers))

    def transfer_seconds(self, transfer: Transfer) -> float:
        """Duration of one transfer in seconds."""
        return self.links[transfer.link].seconds(transfer.tokens, transfer.blocks)

    def explain(self) -> list[Fact]:
        """The constants and where they come from."""
        given = [
            Fact(f"{name}.{constant}", getattr(link, constant), unit, "given")
            for name, link in self.links.items()
            for constant, unit in _UNITS.items()
        ]
        return [*self._clock.explain(), *given]


_UNITS = {
    "bytes_per_token": "B/token",
    "bandwidth_bytes_per_s": "B/s",
    "copies_per_block": "copies/block",
    "copy_s": "s/copy",
    "latency_s": "s",
}


def crossover_block_size(
    tokens: int, recompute_s: float, swap_out: Link, swap_in: Link
) -> float | None:
    """Tokens per block from which on swapping out and in is faster than computing again.

    None where the bytes alone take longer. Counts the blocks of `tokens` tokens as a fraction.
    """
    bytes_s = sum(
        tokens * link.bytes_per_token / link.bandwidth_bytes_per_s + link.latency_s
        for link in (swap_out, swap_in)
    )
    copies_s = sum(tokens * link.copies_per_block * link.copy_s for link in (swap_out, swap_in))
    return copies_s / (recompute_s - bytes_s) if recompute_s > bytes_s else None
