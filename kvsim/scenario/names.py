"""Names that must be known: traces, presets, trace formats."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable
from typing import Annotated, cast

from pydantic import AfterValidator, Field, JsonValue
from pydantic.fields import FieldInfo

from kvsim.scenario.findings import SettingsError
from kvsim.workload import FORMATS, KNOWN_TRACES, list_length_presets, list_presets


def _one_of(names: Iterable[str], kind: str) -> Callable[[str], str]:
    known = sorted(names)

    def check(name: str) -> str:
        if name in known:
            return name
        close = difflib.get_close_matches(name[:80], known, n=1)
        hint = f"Did you mean {close[0]}? " if close else ""
        raise SettingsError(
            "", f"= {reprlib.repr(name)} is no known {kind}", f"{hint}Known: {', '.join(known)}"
        )

    return check


def _listed(names: Iterable[str]) -> FieldInfo:
    known: list[JsonValue] = [*sorted(names)]
    return cast(FieldInfo, Field(json_schema_extra={"enum": known}))


PresetName = Annotated[
    str, AfterValidator(_one_of(list_presets(), "preset")), _listed(list_presets())
]
LengthPresetName = Annotated[
    str,
    AfterValidator(_one_of(list_length_presets(), "preset of lengths")),
    _listed(list_length_presets()),
]
TraceName = Annotated[str, AfterValidator(_one_of(KNOWN_TRACES, "trace")), _listed(KNOWN_TRACES)]
FormatName = Annotated[
    str, AfterValidator(_one_of(["auto", *FORMATS], "format")), _listed(["auto", *FORMATS])
]
