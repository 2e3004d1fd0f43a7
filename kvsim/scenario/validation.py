"""Settings of the sections `device` and `validation`: running a scenario and judging the clock."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import Section

RelativeError = Annotated[float, Field(gt=0, le=1)]
Layers = Annotated[int, Field(ge=1, le=1000, json_schema_extra={"unit": "layer"})]


class DeviceSettings(Section):
    """How a device runs the steps of this scenario."""

    num_threads: Annotated[int, Field(ge=1, le=1024)] | None = Field(
        default=None, description="CPU threads; left out, all CPUs"
    )
    dtype: Literal["fp32", "bf16", "fp16"] | None = Field(
        default=None,
        description="type of weights and KV; left out, fp32 on a CPU and bf16 on a GPU",
    )
    measured_layers: Annotated[list[Layers], Field(min_length=2, max_length=2)] | None = Field(
        default=None,
        description="two depths to run instead of the model's own; step times are extrapolated"
        " affinely. Left out, the whole model is run",
    )
    attention_only: bool = Field(
        default=False, description="run only the attention of every layer: no weights are needed"
    )
    check_every: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=0,
        description="every so many steps, and all that follow a preemption or a prefix hit, are"
        " compared with a float64 reference; 0: none",
    )


class BoundSettings(Section):
    """Largest relative errors with which a validation passes."""

    step_median: RelativeError = Field(
        default=0.05,
        description="median error of a step's time; twice the noise of the measurement if that is"
        " more",
    )
    step_p90: RelativeError = Field(
        default=0.15,
        description="90th percentile of the error of a step's time; twice the noise of the"
        " measurement if that is more",
    )
    prefill_median: RelativeError = Field(
        default=0.10,
        description="median error of the time of steps with prefill chunks, likewise: they are few,"
        " and caches are as cold as the steps before left them",
    )
    kv_usage: RelativeError = Field(
        default=0.06, description="error of the mean KV usage of busy time, at every load"
    )
    saturation: RelativeError = Field(
        default=0.08, description="error of the saturation rate (closed loop)"
    )
    tpot_p50: RelativeError = Field(
        default=0.08, description="error of the median time per output token, at every load"
    )
    layout_ratio: RelativeError = Field(
        default=0.10,
        description="error of the ratio of two saturation rates, paged over contiguous memory",
    )


class ValidationSettings(Section):
    """What `kvsim validate` runs, and what it accepts."""

    requests: Annotated[int, Field(ge=2, le=100_000)] = Field(
        default=40, description="requests of a run: the first of the workload"
    )
    loads: Annotated[
        list[Annotated[float, Field(gt=0, le=10)]], Field(min_length=1, max_length=10)
    ] = Field(
        default=[0.5, 0.9, 1.2],
        description="arrival rates of the open-loop runs, as shares of the saturation rate",
    )
    step_repeats: Annotated[int, Field(ge=2, le=100)] = Field(
        default=6,
        description="how often the lockstep steps are measured; a step's time is their median",
    )
    max_concurrency: Annotated[int, Field(ge=1, le=1_000_000)] | None = Field(
        default=None,
        description="clients of the closed loop; left out, engine.max_num_seqs",
    )
    bounds: BoundSettings = Field(default=BoundSettings())
