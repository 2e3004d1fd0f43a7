"""Names that must be known: traces, presets, trace formats."""

from __future__ import annotations

import difflib
import reprlib
from collections.abc import Callable, Iterable
from typing import Annotated

from pydantic import AfterValidator

from kvsim.scenario.checks import SettingsError
from kvsim.workload import FORMATS, KNOWN_TRACES, list_presets


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


PresetName = Annotated[str, AfterValidator(_one_of(list_presets(), "preset"))]
TraceName = Annotated[str, AfterValidator(_one_of(KNOWN_TRACES, "trace"))]
FormatName = Annotated[str, AfterValidator(_one_of(["auto", *FORMATS], "format"))]
