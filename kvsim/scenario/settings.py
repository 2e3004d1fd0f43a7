"""The whole scenario as checked settings; field names and defaults are the file format."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, StringConstraints, model_validator

from kvsim.scenario.checks import check
from kvsim.scenario.clock import CalibratedClockSettings, ClockSettings
from kvsim.scenario.engine import EngineSettings
from kvsim.scenario.fields import NAME_PATTERN, PositiveSeconds, Seconds, Section
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.memory import Memory, PagedMemory
from kvsim.scenario.profile import with_profile
from kvsim.scenario.sampling import SamplingSettings
from kvsim.scenario.traffic import WorkloadSettings
from kvsim.scenario.validation import DeviceSettings, ValidationSettings

Name = Annotated[str, StringConstraints(pattern=NAME_PATTERN)]
CatalogueKey = Annotated[str, StringConstraints(min_length=1, max_length=200)]


def _integer(value: Any) -> Any:
    """`1.0` and `true` equal 1 and are not what the format says."""
    if isinstance(value, bool | float):
        raise SettingsError("", f"must be 1, got {value!r}", "Give 1: the version of this format")
    return value


class HardwareSettings(Section):
    """The GPUs of one replica; several share the model by tensor parallelism."""

    gpu: CatalogueKey = Field(description="a name that `kvsim gpus` lists, e.g. a100-40gb")
    count: Annotated[int, Field(ge=1, le=1024, json_schema_extra={"unit": "GPU"})] = Field(
        default=1, description="GPUs of the replica (tensor parallel size)"
    )


class MeasureSettings(Section):
    """Window of simulated time that averages over time and iterations are restricted to."""

    from_s: Seconds = Field(default=0.0, description="start of the window in seconds")
    to_s: PositiveSeconds | None = Field(
        default=None, description="end of the window in seconds; left out, the end of the run"
    )


class SloSettings(Section):
    """Limits that a request must meet to count for goodput."""

    ttft_s: PositiveSeconds | None = Field(
        default=None, description="time to first token in seconds, at most"
    )
    tpot_s: PositiveSeconds | None = Field(
        default=None, description="time per output token in seconds, at most"
    )
    e2e_s: PositiveSeconds | None = Field(
        default=None, description="end-to-end latency in seconds, at most"
    )


class RecordSettings(Section):
    """What a run folder keeps beside the summary."""

    mode: Literal["summary", "series", "steps"] = Field(
        default="steps",
        description="summary (nothing, constant memory), series (a row per interval and per"
        " request), steps (a row per step and per request)",
    )
    interval_s: PositiveSeconds = Field(
        default=1.0, description="seconds between two rows of a series"
    )


class Scenario(Section):
    """One traffic on one server, with variants that differ in some settings.

    `compare` holds partial settings; `kvsim.scenario.variants.variants` merges them.
    """

    version: Annotated[Literal[1], BeforeValidator(_integer)] = Field(
        description="1, the version of this file format"
    )
    name: Name | None = Field(default=None, description="left out, the file's name")
    base_name: Name | None = Field(
        default=None, description="name of the variant without changes; left out, its memory.kind"
    )
    description: str = Field(default="", max_length=2000, description="what the scenario shows")
    profile: Literal["vllm-0.33", "sosp23", "plain"] = Field(
        default="vllm-0.33",
        description="whose defaults settings have that are left out: vllm-0.33 (`vllm serve`),"
        " sosp23 (the PagedAttention paper's artifact), plain (continuous batching, no prefix"
        " caching, no asynchronous scheduling)",
    )
    model: CatalogueKey | None = Field(
        default=None, description="a name that `kvsim models` lists, e.g. llama-3-8b"
    )
    hardware: HardwareSettings | None = Field(default=None, description="the GPUs")
    engine: EngineSettings = Field(default=EngineSettings(), description="the scheduler")
    memory: Memory = Field(default=PagedMemory(kind="paged"))
    measure: MeasureSettings = Field(default=MeasureSettings())
    clock: ClockSettings = Field(default=CalibratedClockSettings(kind="calibrated"))
    workload: WorkloadSettings
    sampling: SamplingSettings | None = Field(
        default=None, description="outputs per request; left out, one"
    )
    slo: SloSettings = Field(default=SloSettings())
    seeds: list[Annotated[int, Field(ge=0, le=2**32 - 1)]] = Field(
        default=[0], min_length=1, max_length=1000, description="seeds of the generators"
    )
    frontend_s: Seconds = Field(
        default=0.0,
        description="seconds added to every time to first token and end-to-end latency, outside the"
        " engine (public servers 0.011 to 0.040)",
    )
    record: RecordSettings = Field(default=RecordSettings())
    device: DeviceSettings = Field(
        default=DeviceSettings(), description="how a real device runs the steps"
    )
    validation: ValidationSettings = Field(
        default=ValidationSettings(), description="what `kvsim validate` runs and accepts"
    )
    compare: dict[Name, dict[str, Any]] = Field(
        default={}, description="variants: settings that differ from the base, by variant name"
    )

    @model_validator(mode="after")
    def _complete_and_check(self) -> Scenario:
        self.__dict__.update(with_profile(self))
        check(self)
        return self

    @property
    def variant_name(self) -> str:
        """Name of the variant without changes."""
        return self.base_name or self.memory.kind
