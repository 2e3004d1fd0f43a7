"""How releases of vLLM turn memory into blocks, and what they print about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from kvsim.catalog import GroupingRule
from kvsim.errors import InputError

Engine = Literal["v0", "v1"]


@dataclass(frozen=True, slots=True)
class Release:
    """A range of releases with the same rules (FIELD.md section 2)."""

    name: str
    engine: Engine
    first: tuple[int, int, int]
    """The first version of the range."""
    layer_groups: GroupingRule
    """How layers that keep different tokens share the pool."""
    graphs_in_budget: bool
    """Whether an estimate of the CUDA graphs is subtracted before the pool is sized."""
    prints_tokens_of_one_request: bool
    """Whether the size is printed as `int(concurrency * max_model_len)`, else from whole blocks."""
    gpu_memory_utilization: float = 0.9
    """The default."""


RELEASES = (
    Release("vllm 0.6.3 and earlier", "v0", (0, 0, 0), "unified", False, False),
    Release("vllm 0.6.4 to 0.10, v0", "v0", (0, 6, 4), "unified", False, False),
    Release("vllm 0.8 and 0.9, v1", "v1", (0, 8, 0), "unified", False, False),
    Release("vllm 0.10, v1", "v1", (0, 10, 0), "min", False, False),
    Release("vllm 0.11 to 0.20, v1", "v1", (0, 11, 0), "max_if_close", False, False),
    Release("vllm 0.21 and later, v1", "v1", (0, 21, 0), "max_if_close", True, True, 0.92),
)
LATEST = RELEASES[-1]
FIRST_V1 = (0, 8, 0)
"""From here on v1 is the default."""
_VERSION = re.compile(r"[v~ ]{0,2}(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


def release_of(version: str, engine: Engine | None = None) -> Release:
    """The rules of a version such as `0.11.0rc2`; without `engine` the version's default engine.

    Raises `InputError` for text that is no version, and for v1 before its first release here.
    """
    match = _VERSION.match(version)
    if match is None:
        raise InputError(
            f"version {version[:40]!r} is not understood",
            where="version",
            fix="Write it as 0.11 or 0.11.0",
        )
    found = (int(match[1]), int(match[2]), int(match[3] or 0))
    engine = engine or ("v1" if found >= FIRST_V1 else "v0")
    known = [one for one in RELEASES if one.engine == engine and one.first <= found]
    if not known:
        raise InputError(
            f"vllm {version} has no engine {engine} whose rules are known here",
            where="version",
            fix="Use 0.8 or later with v1, or v0",
        )
    return known[-1]
