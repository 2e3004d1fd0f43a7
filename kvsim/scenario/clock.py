"""Settings of the section `clock`: what predicts the duration of a step."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from kvsim.scenario.fields import ContentSha256, PositiveSeconds, Seconds, Section

BLOCK_SIZE_PATTERN = r"^[1-9][0-9]{0,4}$"
BlockSizeKey = Annotated[str, StringConstraints(pattern=BLOCK_SIZE_PATTERN)]
Efficiency = Annotated[float, Field(gt=0, le=1)]


class FixedClockSettings(Section):
    """Every step takes the same time."""

    kind: Literal["fixed"]
    step_s: PositiveSeconds = Field(description="duration of every step in seconds")
    copy_token_s: Seconds = Field(
        default=0.0, description="seconds per token that is copied inside the device"
    )


class LinearClockSettings(Section):
    """Seconds per step, per scheduled prompt token, per context token and per decode."""

    kind: Literal["linear"]
    base_s: Seconds = Field(description="seconds of a step that computes nothing")
    prefill_token_s: Seconds = Field(default=0.0, description="seconds per prompt token scheduled")
    context_token_s: Seconds = Field(
        default=0.0, description="seconds per KV token read by decodes"
    )
    decode_s: Seconds = Field(default=0.0, description="seconds per decoding sequence")
    copy_token_s: Seconds = Field(
        default=0.0, description="seconds per token that is copied inside the device"
    )
    read_efficiency: dict[BlockSizeKey, Efficiency] | None = Field(
        default=None,
        description="by block size in tokens, e.g. {1: 0.3, 16: 1}: context_token_s is divided by"
        " the entry of memory.block_size, because small blocks are read more slowly",
    )


class RooflineClockSettings(Section):
    """The larger of memory time and compute time at datasheet figures of model and GPU."""

    kind: Literal["roofline"]
    t0_s: Seconds = Field(default=0.0, description="seconds added to every step")


class CalibratedClockSettings(Section):
    """The composed formula with constants fitted to measurements of the GPU."""

    kind: Literal["calibrated"]
    engine: Literal["none", "sglang", "trtllm", "vllm"] = Field(
        default="none",
        description="whose host time per step is added; none is device time alone, the closest for"
        " engines that schedule asynchronously",
    )


class ProfileClockSettings(Section):
    """Constants that `kvsim calibrate` measured on a device, for this model and memory."""

    kind: Literal["profile"]
    path: str = Field(description="the profile; a relative path starts at the scenario file")
    sha256: ContentSha256 = None


CLOCK_KINDS: dict[str, type[Section]] = {
    "fixed": FixedClockSettings,
    "linear": LinearClockSettings,
    "roofline": RooflineClockSettings,
    "calibrated": CalibratedClockSettings,
    "profile": ProfileClockSettings,
}
ClockSettings = Annotated[
    FixedClockSettings
    | LinearClockSettings
    | RooflineClockSettings
    | CalibratedClockSettings
    | ProfileClockSettings,
    Field(discriminator="kind", description="what predicts the duration of a step"),
]
