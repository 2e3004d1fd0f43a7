"""Settings of the section `workload`: a published trace, a file, a preset, or laws."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import ContentSha256, Seconds, Section, by_key, key_tag
from kvsim.scenario.lengths import ArrivalSettings, LengthSettings
from kvsim.scenario.names import FormatName, PresetName, TraceName

NumRequests = Annotated[int, Field(ge=1, le=100_000_000, json_schema_extra={"unit": "request"})]
RateScale = Annotated[
    float,
    Field(ge=1e-6, le=1e6, description="factor on the arrival rate: 2 halves every gap"),
]
Smear = Annotated[
    Seconds,
    Field(description="seconds over which arrivals of the same instant are spread"),
]
BadRows = Annotated[
    Literal["error", "drop"],
    Field(description="error stops at the first bad row of the trace, drop counts them by reason"),
]
_LIMIT = "requests read at most, from the start"
_CONCURRENCY = "requests in flight at most; later ones wait outside the server (closed loop)"


class FallbackSettings(Section):
    """What replaces a trace that this machine does not have."""

    preset: PresetName = Field(description="a preset derived from the trace, e.g. azure-conv-2023")
    num_requests: NumRequests | None = Field(
        default=None, description="requests to generate; left out, as many as the trace has"
    )


class TraceWorkload(Section):
    """A published trace, looked for by name in the folder $KVSIM_TRACES."""

    trace: TraceName = Field(description="name of a published trace, e.g. azure-conv-2023")
    fallback: FallbackSettings | None = Field(
        default=None, description="used where the trace is not there"
    )
    rate_scale: RateScale = 1.0
    limit: NumRequests | None = Field(default=None, description=_LIMIT)
    smear_s: Smear = 0.0
    on_bad_row: BadRows = "error"
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)


class FileWorkload(Section):
    """A trace file of the user's own."""

    path: str = Field(description="a trace file; relative paths start at the scenario file")
    sha256: ContentSha256 = None
    format: FormatName = Field(
        default="auto", description="its format; auto goes by the column names"
    )
    rate_scale: RateScale = 1.0
    limit: NumRequests | None = Field(default=None, description=_LIMIT)
    smear_s: Smear = 0.0
    on_bad_row: BadRows = "error"
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)


class PresetWorkload(Section):
    """A generator derived from a published trace; needs no file."""

    preset: PresetName = Field(description="name of a preset, e.g. azure-conv-2023")
    num_requests: NumRequests | None = Field(
        default=None, description="requests to generate; left out, as many as the trace has"
    )
    rate_scale: RateScale = 1.0
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)


class LawWorkload(Section):
    """Arrivals and lengths from laws, or lengths from a file."""

    lengths: LengthSettings
    arrivals: ArrivalSettings
    num_requests: NumRequests = Field(description="requests to generate")
    rate_scale: RateScale = 1.0
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)


WorkloadSettings = Annotated[
    Annotated[TraceWorkload, key_tag("trace")]
    | Annotated[FileWorkload, key_tag("path")]
    | Annotated[PresetWorkload, key_tag("preset")]
    | Annotated[LawWorkload, key_tag("lengths")],
    by_key("trace", "path", "preset", "lengths"),
    Field(description="the requests"),
]
