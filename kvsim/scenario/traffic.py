"""Settings of the section `workload`: a trace, a file, a preset, laws, recipes."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field, model_validator

from kvsim.scenario.chat import ChatRecipe
from kvsim.scenario.fields import (
    ContentSha256,
    PositiveSeconds,
    Seconds,
    Section,
    Tokens,
    by_key,
    key_tag,
)
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.lengths import ArrivalSettings, LengthSettings, PairTraceSettings
from kvsim.scenario.names import FormatName, LengthPresetName, PresetName, TraceName

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
_INSTEAD_OF = (
    "trace that was not there when a run with a fallback drew from this preset; the run folder's"
    " scenario says so, and so does a run repeated from it"
)
_CONCURRENCY = "requests in flight at most; later ones wait outside the server (closed loop)"


class PresetFallback(Section):
    """A preset that replaces a trace that this machine does not have."""

    preset: PresetName = Field(description="a preset derived from the trace, e.g. azure-conv-2023")
    num_requests: NumRequests | None = Field(
        default=None, description="requests to generate; left out, as many as the trace has"
    )


class ChatFallback(Section):
    """Generated conversations that replace a trace; its `limit` does not apply to them."""

    chat: ChatRecipe = Field(description="the conversations")
    arrivals: ArrivalSettings


FALLBACKS: dict[str, type[Section]] = {"preset": PresetFallback, "chat": ChatFallback}
FallbackSettings = Annotated[
    Annotated[PresetFallback, key_tag("preset")] | Annotated[ChatFallback, key_tag("chat")],
    by_key("preset", "chat"),
]


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

    @property
    def named_trace(self) -> str | None:
        """The published trace that it reads from the folder $KVSIM_TRACES."""
        return self.trace


class FileWorkload(Section):
    """A trace file of the user's own."""

    path: str = Field(description="a trace file; relative paths start at the scenario file")
    sha256: ContentSha256 = None
    format: FormatName = Field(
        default="auto", description="its format; auto goes by the column names"
    )
    chunk_tokens: Tokens | None = Field(
        default=None,
        description="tokens of one chunk under `hash_ids`, where the file does not say it",
    )
    rate_scale: RateScale = 1.0
    limit: NumRequests | None = Field(default=None, description=_LIMIT)
    smear_s: Smear = 0.0
    on_bad_row: BadRows = "error"
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)

    @property
    def named_trace(self) -> str | None:
        """None: it reads no published trace."""
        return None


class PresetWorkload(Section):
    """A generator derived from a published trace; needs no file."""

    preset: PresetName = Field(description="name of a preset, e.g. azure-conv-2023")
    num_requests: NumRequests | None = Field(
        default=None, description="requests to generate; left out, as many as the trace has"
    )
    rate_scale: RateScale = 1.0
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)
    instead_of: TraceName | None = Field(default=None, description=_INSTEAD_OF)

    @property
    def named_trace(self) -> str | None:
        """None: it reads no published trace."""
        return None


class LawWorkload(Section):
    """Arrivals and lengths from laws, or lengths from a file."""

    lengths: LengthSettings
    arrivals: ArrivalSettings
    num_requests: NumRequests = Field(description="requests to generate")
    rate_scale: RateScale = 1.0
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)

    @property
    def named_trace(self) -> str | None:
        """The published trace that it reads from the folder $KVSIM_TRACES."""
        return self.lengths.trace if isinstance(self.lengths, PairTraceSettings) else None


class Sosp23Recipe(Section):
    """Poisson arrivals in quanta of 10 ms; the first pairs below 2,048 tokens, shuffled."""

    trace: TraceName | None = Field(
        default=None, description="name of a published list of length pairs"
    )
    preset: LengthPresetName | None = Field(
        default=None, description="name of a preset to draw the pairs from instead, e.g. sharegpt"
    )
    rate_rps: Annotated[float, Field(ge=1e-6, le=1e6)] = Field(
        description="mean arrivals per second"
    )
    duration_s: Annotated[PositiveSeconds, Field(ge=0.01, le=1e6)] = Field(
        default=900.0, description="seconds during which requests arrive"
    )

    @model_validator(mode="after")
    def _one_source(self) -> Sosp23Recipe:
        if (self.trace is None) == (self.preset is None):
            raise SettingsError("", "needs either trace or preset", "Give one of the two")
        return self


class LengthFallback(Section):
    """What replaces a list of lengths that this machine does not have."""

    preset: LengthPresetName = Field(description="name of a preset of lengths, e.g. sharegpt")


class Sosp23Workload(Section):
    """The trace recipe of the PagedAttention paper's artifact (SOSP'23)."""

    sosp23: Sosp23Recipe = Field(description="the recipe's settings")
    fallback: LengthFallback | None = Field(
        default=None, description="used where the list of lengths is not there"
    )
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)
    instead_of: TraceName | None = Field(default=None, description=_INSTEAD_OF)

    @property
    def named_trace(self) -> str | None:
        """The published trace that it reads from the folder $KVSIM_TRACES."""
        return self.sosp23.trace


class ChatSettings(Section):
    """Conversations of several turns under shared system prompts."""

    chat: ChatRecipe = Field(description="the conversations")
    arrivals: ArrivalSettings
    rate_scale: RateScale = 1.0
    max_concurrency: NumRequests | None = Field(default=None, description=_CONCURRENCY)
    instead_of: TraceName | None = Field(default=None, description=_INSTEAD_OF)

    @property
    def named_trace(self) -> str | None:
        """None: it reads no published trace."""
        return None


WORKLOAD_SOURCES: dict[str, type[Section]] = {
    "trace": TraceWorkload,
    "path": FileWorkload,
    "preset": PresetWorkload,
    "lengths": LawWorkload,
    "sosp23": Sosp23Workload,
    "chat": ChatSettings,
}
WorkloadSettings = Annotated[
    Annotated[TraceWorkload, key_tag("trace")]
    | Annotated[FileWorkload, key_tag("path")]
    | Annotated[PresetWorkload, key_tag("preset")]
    | Annotated[LawWorkload, key_tag("lengths")]
    | Annotated[Sosp23Workload, key_tag("sosp23")]
    | Annotated[ChatSettings, key_tag("chat")],
    by_key("trace", "path", "preset", "lengths", "sosp23", "chat"),
    Field(description="the requests"),
]
