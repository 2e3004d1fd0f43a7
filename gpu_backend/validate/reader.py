"""Reads back what `kvsim validate --json-out` wrote, checked in every part that is shown."""

from __future__ import annotations

import stat
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gpu_backend.validate.document import FORMAT
from gpu_backend.validate.free import CLOSED
from kvsim.catalog.json_size import check_json_size
from kvsim.errors import InputError

MAX_BYTES = 8 * 1024 * 1024
MAX_LISTS = 160_000
"""Lists and objects of a file; four variants with four loads have some 16,000."""
MAX_VALUES = 1_000_000
_FIX = "Give a file that `kvsim validate --json-out` wrote, unchanged"
_MOST = 1e15
Number = Annotated[float, Field(ge=-_MOST, le=_MOST)]
Count = Annotated[int, Field(ge=0, le=10**15)]
Text = Annotated[str, Field(max_length=10_000)]


class _Part(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore")


class _Spread(_Part):
    median: Number
    p90: Number
    bias: Number


class _StepErrors(_Spread):
    steps: Number


class _BatchErrors(_Spread):
    points: Number


class _Lockstep(_Part):
    steps: Count
    repeats: Count
    counts_equal: bool
    checked_rows: Count
    preemptions: Count
    errors: dict[Text, _StepErrors]
    noise: dict[Text, _StepErrors]
    bounds: dict[Text, dict[Text, Number]]
    points: Annotated[list[tuple[Number, Number, int]], Field(max_length=10_000)]

    @model_validator(mode="after")
    def _complete(self) -> _Lockstep:
        if "median" not in self.bounds.get("all", {}):
            raise ValueError("has no bound of the median of all steps")
        if not {"all", *self.errors} <= self.noise.keys():
            raise ValueError("has kinds of steps without noise")
        return self


class _Compared(_Part):
    measured: Number
    simulated: Number
    difference: Number | None
    interval: tuple[Number, Number] | None


class _Side(_Part):
    unfinished: Number


class _Seed(_Part):
    seed: int
    slowness: Number
    attempts: Count = 1
    cpu_share: Number | None = None
    measured: _Side
    simulated: _Side


class _Shares(_Part):
    measured: list[Number]
    simulated: list[Number]


class _Curves(_Part):
    measured: list[tuple[Number, Number, Number]]
    simulated: list[tuple[Number, Number, Number]]


class _Load(_Part):
    rate_rps: Number | None
    figures: dict[Text, _Compared]
    seeds: Annotated[list[_Seed], Field(min_length=1)]
    usage_shares: _Shares
    curves: _Curves


class _Variant(_Part):
    layout: Text
    knee_rps: Number | None = None
    lockstep: _Lockstep
    free: dict[Text, _Load]

    @model_validator(mode="after")
    def _has_rate(self) -> _Variant:
        if CLOSED in self.free and "requests_per_s" not in self.free[CLOSED].figures:
            raise ValueError("has a closed loop without a rate")
        return self


class _Check(_Part):
    variant: Text
    name: Text
    value: Number
    bound: Number
    ok: bool


class _Control(_Part):
    name: Text
    what: Text
    noticed: bool
    broken: list[_Check]
    variants: list[Text]


class _Memory(_Part):
    peak_allocated_bytes: Count
    peak_reserved_bytes: Count
    mean_idle_share: Number
    refused: Count


class _Framework(_Part):
    simulated: _Memory | None
    framework: _Memory | None
    why: Text = ""


class _Device(_Part):
    name: Text
    kind: Text
    mode: Text
    dtype: Text | None = None
    num_threads: Count | None = None
    attention_only: bool = False


class _ProfileErrors(_Part):
    fitted: _BatchErrors
    held_out: _BatchErrors
    held_out_by_kind: dict[Text, _BatchErrors] | None = None
    depth_check: _BatchErrors | None = None


class _Profile(_Part):
    sha256: Text
    device: Text
    measured_at: Text | None = None
    errors: _ProfileErrors
    noise: _BatchErrors | None = None
    measured_layers: list[Count] | None = None
    layers: Count | None = None


class _Document(_Part):
    format: Text
    kvsim_version: Text
    scenario: Text
    device: _Device
    profile: _Profile
    slowness: list[Number]
    bounds: dict[Text, Number]
    variants: Annotated[dict[Text, _Variant], Field(min_length=1, max_length=1000)]
    framework: dict[Text, _Framework] = {}
    ratios: dict[Text, _Compared]
    checks: list[_Check]
    controls: list[_Control]
    failures: list[Text]

    @model_validator(mode="after")
    def _known(self) -> _Document:
        if self.format != FORMAT:
            raise ValueError(f"its format is not {FORMAT}")
        return self


def read_validation(path: Path, *, label: str | None = None) -> dict[str, Any]:
    """The document of a validation; `label` names the file in messages instead of its path.

    Raises `InputError` for anything but a regular file of at most `MAX_BYTES` with every part, and
    for numbers that are not finite. Messages hold no content of the file.
    """
    where = label or str(path)
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("must be a regular file", where=where, fix=_FIX)
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where, fix=_FIX) from None
    if len(content) > MAX_BYTES:
        raise InputError(f"has more than {MAX_BYTES:,} bytes, the limit", where=where, fix=_FIX)
    check_json_size(content, where, max_lists=MAX_LISTS, max_values=MAX_VALUES, fix=_FIX)
    try:
        return _Document.model_validate_json(content).model_dump()
    except ValidationError as error:
        raise InputError(_problem(error), where=where, fix=_FIX) from None


def _problem(error: ValidationError) -> str:
    """The first thing that is wrong; names in the file are left out, they may be anything."""
    first = error.errors(include_input=False, include_url=False, include_context=False)[0]
    if first["type"] == "json_invalid":
        return "is no JSON document"
    known = {name for part in _Part.__subclasses__() for name in part.model_fields} | set(
        _BatchErrors.model_fields
    )
    place = ".".join(
        str(one) if isinstance(one, int) or one in known else "?" for one in first["loc"]
    )
    message = first["msg"].removeprefix("Value error, ")
    return f"is no validation that this version shows: {place or 'document'}: {message}"
