"""Settings of `memory.swap`: host memory that preempted requests go to, and the way there."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated

from pydantic import Field

from kvsim.scenario.fields import MAX_BLOCKS, Seconds, Section
from kvsim.scenario.findings import Finding

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario

GbPerS = Annotated[float, Field(gt=0, le=1e6, json_schema_extra={"unit": "GB/s"})]


class SwapSettings(Section):
    """A block has a piece in the K and the V tensor of every layer; each is a copy of its own.
    Latent attention has one tensor per layer.

    Bandwidths and times per copy are those of the PagedAttention paper's A100 (SOSP'23, Fig. 19a),
    to which they were fitted.
    """

    capacity_gib: (
        Annotated[float, Field(gt=0, le=1e9, json_schema_extra={"unit": "GiB"})] | None
    ) = Field(
        default=None,
        description="host memory for each GPU (vLLM v0's --swap-space); left out, 4",
    )
    capacity_blocks: (
        Annotated[int, Field(ge=1, le=MAX_BLOCKS, json_schema_extra={"unit": "block"})] | None
    ) = Field(default=None, description="KV blocks that the host holds, instead of capacity_gib")
    out_gb_per_s: GbPerS = Field(
        default=13.05, description="10^9 bytes per second from each GPU to the host"
    )
    in_gb_per_s: GbPerS = Field(
        default=12.19, description="10^9 bytes per second from the host to each GPU"
    )
    copy_out_s: Seconds = Field(
        default=1.92e-6, description="seconds that a copy to the host costs beside its bytes"
    )
    copy_in_s: Seconds = Field(
        default=3.35e-6, description="seconds that a copy to a GPU costs beside its bytes"
    )


def swap_findings(scenario: Scenario) -> Iterator[Finding]:
    """What swapping needs."""
    engine, memory = scenario.engine, scenario.memory
    swap = memory.swap if memory.kind == "paged" else None
    if engine.preemption_mode == "recompute":
        if swap is not None:
            yield Finding(
                "memory.swap",
                "is not used: engine.preemption_mode is recompute",
                "Set engine.preemption_mode to swap or auto, or remove memory.swap",
            )
        return
    mode = f"engine.preemption_mode = {engine.preemption_mode}"
    if memory.kind != "paged":
        yield Finding(
            "engine.preemption_mode",
            f"= {engine.preemption_mode} needs memory.kind = paged, got {memory.kind}",
            "Set it to recompute, or memory.kind to paged",
        )
    if scenario.model is None:
        yield Finding(
            "model",
            f"is missing, and {mode} moves as many bytes as its layers have",
            "Name a model, or set engine.preemption_mode to recompute",
        )
    if swap is not None and swap.capacity_gib is not None and swap.capacity_blocks is not None:
        yield Finding(
            "memory.swap",
            "has both capacity_gib and capacity_blocks",
            "Give one of them",
        )
