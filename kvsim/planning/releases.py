"""How releases of vLLM turn memory into blocks, and what they print about it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, NamedTuple

from kvsim.catalog import GroupingRule, PageRules
from kvsim.catalog.start_rules import BY_FREE_MEMORY, SORTED, UNSORTED, StartRules
from kvsim.errors import InputError

Engine = Literal["v0", "v1"]


class EncoderRule(NamedTuple):
    """How a range of releases budgets and profiles encoders of images and sound."""

    rounds_up: bool
    """Whether an item that the budget holds a part of is profiled too."""
    counts_text: bool
    """Whether an item's places in the prompt count, or only its vectors."""
    usual_limit: int
    """Items of a modality per prompt where nobody says."""
    video_after_images: bool
    """Whether the longest video has only what the images leave of a context."""
    leaves_out: Literal["never", "some", "all"]
    """Which families load no tower where every limit is 0."""
    language_model_only: bool
    """Whether there is an option for that."""


_ROUNDED_UP = EncoderRule(True, True, 1, True, "never", False)
_MANY_ITEMS = EncoderRule(False, True, 999, True, "some", False)
ENCODER_RULES: tuple[tuple[tuple[int, int, int], EncoderRule], ...] = (
    ((0, 8, 0), _ROUNDED_UP),
    ((0, 9, 0), _ROUNDED_UP._replace(rounds_up=False)),
    ((0, 10, 0), _MANY_ITEMS),
    ((0, 16, 0), EncoderRule(False, False, 999, False, "all", True)),
)
"""Of v1, by the first version; vllm-project/vllm#22228, #22299, #30475, #32605."""


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
    rules: StartRules
    """What it takes beside the KV cache."""
    gpu_memory_utilization: float = 0.9
    """The default."""
    chunk_tokens: int | None = None
    """Tokens of a step where v0 prefills contexts above 32,768 tokens in chunks by itself."""
    seqs_on_every_gpu: int | None = None
    """Default of max_num_seqs where it does not follow from the GPU."""

    @property
    def version(self) -> str:
        """The first version of the range, as `release_of` takes it; it never changes."""
        major, minor, patch = self.first
        return f"{major}.{minor}.{patch}" if patch else f"{major}.{minor}"

    pages: PageRules | None = None
    """How caches with pages of several sizes share the pool; None: not known here."""
    counts_steps_in_flight: bool = False
    """Whether windows hold the tokens of both steps that asynchronous scheduling has in flight."""

    @property
    def encoder(self) -> EncoderRule | None:
        """None for v0, which profiles prompts full of images: that is not covered here."""
        known = [rule for first, rule in ENCODER_RULES if first <= self.first]
        return known[-1] if self.engine == "v1" else None


RELEASES = (
    Release("vllm 0.5.3 and earlier", "v0", (0, 0, 0), "unified", False, False, BY_FREE_MEMORY),
    Release(
        "vllm 0.5.4 to 0.6.3",
        "v0",
        (0, 5, 4),
        "unified",
        False,
        False,
        BY_FREE_MEMORY,
        chunk_tokens=512,
    ),
    Release(
        "vllm 0.6.4 to 0.6.6, v0",
        "v0",
        (0, 6, 4),
        "unified",
        False,
        False,
        SORTED,
        chunk_tokens=512,
    ),
    Release(
        "vllm 0.7 to 0.10, v0",
        "v0",
        (0, 7, 0),
        "unified",
        False,
        False,
        SORTED,
        chunk_tokens=2048,
    ),
    Release(
        "vllm 0.8, v1",
        "v1",
        (0, 8, 0),
        "unified",
        False,
        False,
        SORTED,
        seqs_on_every_gpu=1024,
    ),
    Release("vllm 0.9, v1", "v1", (0, 9, 0), "unified", False, False, SORTED),
    Release("vllm 0.10, v1", "v1", (0, 10, 0), "min", False, False, SORTED),
    Release("vllm 0.11 to 0.15, v1", "v1", (0, 11, 0), "max_if_close", False, False, SORTED),
    Release("vllm 0.16 to 0.20, v1", "v1", (0, 16, 0), "max_if_close", False, False, UNSORTED),
    Release(
        "vllm 0.21 and 0.22, v1",
        "v1",
        (0, 21, 0),
        "max_if_close",
        True,
        True,
        UNSORTED,
        gpu_memory_utilization=0.92,
        pages=PageRules("tuples", counts_by_group=False),
    ),
    Release(
        "vllm 0.23 to 0.25, v1",
        "v1",
        (0, 23, 0),
        "max_if_close",
        True,
        True,
        UNSORTED,
        gpu_memory_utilization=0.92,
        pages=PageRules("sizes", counts_by_group=False),
    ),
    Release(
        "vllm 0.26, v1",
        "v1",
        (0, 26, 0),
        "max_if_close",
        True,
        True,
        UNSORTED,
        gpu_memory_utilization=0.92,
        pages=PageRules("sizes", counts_by_group=False),
        counts_steps_in_flight=True,
    ),
    Release(
        "vllm 0.27 and later, v1",
        "v1",
        (0, 27, 0),
        "max_if_close",
        True,
        True,
        UNSORTED,
        gpu_memory_utilization=0.92,
        pages=PageRules("dense", counts_by_group=True),
        counts_steps_in_flight=True,
    ),
)
LATEST = RELEASES[-1]
FIRST_V1 = (0, 8, 0)
"""From here on v1 is the default."""
_VERSION = re.compile(r"[v~ ]{0,2}(\d{1,3})\.(\d{1,3})(?:\.(\d{1,3}))?")


def version_of(version: str) -> tuple[int, int, int]:
    """Major, minor and patch number of text such as `v0.11.0rc2`; `InputError` for any other."""
    match = _VERSION.match(version)
    if match is None:
        raise InputError(
            f"version {version[:40]!r} is not understood",
            where="version",
            fix="Write it as 0.11 or 0.11.0",
        )
    return int(match[1]), int(match[2]), int(match[3] or 0)


def release_of(version: str, engine: Engine | None = None) -> Release:
    """The rules of a version such as `0.11.0rc2`; without `engine` the version's default engine.

    Raises `InputError` for text that is no version, and for v1 before its first release here.
    """
    found = version_of(version)
    engine = engine or ("v1" if found >= FIRST_V1 else "v0")
    known = [one for one in RELEASES if one.engine == engine and one.first <= found]
    if not known:
        raise InputError(
            f"vllm {version} has no engine {engine} whose rules are known here",
            where="version",
            fix="Use 0.8 or later with v1, or v0",
        )
    return known[-1]
