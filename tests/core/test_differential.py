"""The calendar decides, at every step, exactly what a plain loop over the rules decides.

One test per family of modes; what vllm/SPEC.md section 10 leaves open is not generated. Example
counts are those of the profile `ci`; HYPOTHESIS_PROFILE=explore makes twenty times as many.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from hypothesis import event, example, given, settings
from hypothesis import strategies as st

from kvsim.core.accounting import split
from kvsim.core.speculative_scheduler import SpeculativeScheduler
from kvsim.recordings.replay import Replay
from tests.reference import ReferenceReplay

Config = dict[str, Any]
Item = dict[str, Any]
Workload = tuple[Config, list[Item]]

BLOCK_SIZES = [1, 2, 3, 4, 7, 16]
POLICIES = ["fcfs", "priority"]
MAX_STEPS = 600


def examples(count: int) -> settings:
    """`count` in CI, in proportion to the profile's number elsewhere."""
    default = settings.default
    assert default is not None
    return settings(max_examples=count * default.max_examples // 100)


# Engines


@st.composite
def configs(
    draw: st.DrawFn, *, max_block_size: int = 16, longest: int = 120, tables: int = 1
) -> Config:
    """Synchronous, first come first served, uncached, in a memory of a few requests at most."""
    block_size = draw(st.sampled_from([size for size in BLOCK_SIZES if size <= max_block_size]))
    max_model_len = draw(st.integers(8, longest))
    whole = -(-max_model_len // block_size) * tables
    return {
        "num_gpu_blocks": 2 + draw(st.integers(whole // 2, 2 * whole)),
        "block_size": block_size,
        "max_num_seqs": draw(st.sampled_from([1, 2, 3, 5, 8, 12])),
        "max_num_batched_tokens": draw(st.integers(1, 90)),
        "max_model_len": max_model_len,
        "enable_chunked_prefill": draw(st.sampled_from([True, True, True, False])),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 5, 17])),
        "watermark": draw(st.sampled_from([0.0, 0.0, 0.05, 0.3])),
        "scheduler_reserve_full_isl": draw(st.booleans()),
        "enable_prefix_caching": False,
        "policy": "fcfs",
        "async_scheduling": False,
        "kv_groups": None,
        "retention_interval": 0,
        "spec": None,
        "hash_id_tokens": draw(st.sampled_from([1, 5, 16])),
    }


@st.composite
def layer_groups(draw: st.DrawFn, block_size: int) -> list[dict[str, Any]]:
    """Sliding groups, with full ones or without; the full groups' blocks are the smallest."""
    groups: list[dict[str, Any]] = []
    for _ in range(draw(st.integers(1, 3))):
        kind = draw(st.sampled_from(["full", "sliding", "sliding"]))
        if kind == "full":
            groups.append({"type": "full"})
            continue
        group: dict[str, Any] = {"type": "sliding", "window": draw(st.integers(1, 40))}
        factor = draw(st.sampled_from([1, 1, 1, 2, 3]))
        if factor > 1:
            group["block_size"] = block_size * factor
        groups.append(group)
    return groups


@st.composite
def speculations(draw: st.DrawFn, methods: list[str]) -> dict[str, Any]:
    drafts = draw(st.integers(1, 5))
    return {
        "method": draw(st.sampled_from(methods)),
        "num_speculative_tokens": drafts,
        "accept_pattern": draw(st.lists(st.integers(0, drafts + 2), min_size=1, max_size=7)),
    }


# Requests


SHARING = [
    ("segments", "turn"),
    ("segments", "turn"),
    ("segments", "unique"),
    ("hash_ids",),
    ("group",),
    ("segments", "turn", "hash_ids", "group", "unique"),
]


@st.composite
def prompts(
    draw: st.DrawFn, kinds: tuple[str, ...], name: str, earlier: list[Item], limit: int
) -> Item:
    """How long a prompt is, and with whom it is shared."""
    kind = draw(st.sampled_from(kinds))
    own = draw(st.integers(0, limit // 2))
    if kind == "hash_ids":
        ids = draw(st.lists(st.integers(0, 1), min_size=1, max_size=6))
        return {"hash_ids": ids, "prompt_tokens": draw(st.integers(1, limit))}
    if kind == "group":
        shared = draw(st.integers(1, limit))
        return {
            "prefix_group": draw(st.integers(0, 1)),
            "prefix_tokens": shared,
            "prompt_tokens": min(shared + own, limit),
        }
    if kind == "unique":
        return {"prompt_tokens": 1 + own}
    talks = [item for item in earlier if item.get("segments")] if kind == "turn" else []
    if talks:
        before = draw(st.sampled_from(talks))
        said = draw(st.sampled_from([before["output_tokens"], 1, 4, 70]))
        segments = [*before["segments"], [f"out:{before['id']}", said]]
    else:
        lengths = draw(st.lists(st.integers(0, limit), max_size=3))
        segments = [[draw(st.sampled_from("aab")), length] for length in lengths]
    if draw(st.booleans()):
        segments.append([f"user {name}", own])
        own = 0
    tokens = sum(length for _, length in segments) + own
    return {"segments": segments, "prompt_tokens": max(1, min(tokens, limit))}


@st.composite
def requests(
    draw: st.DrawFn, config: Config, *, shared: bool = False, priorities: bool = False
) -> list[Item]:
    limit = config["max_model_len"]
    kinds = draw(st.sampled_from(SHARING)) if shared else ("unique",)
    items: list[Item] = []
    arrival = 0
    for index in range(draw(st.integers(1, 14))):
        arrival += draw(st.sampled_from([0, 0, 0, 1, 3, 9]))
        name = f"r{index}"
        request: Item = {
            "id": name,
            "arrival_step": arrival,
            "output_tokens": draw(st.integers(1, 60)),
            **draw(prompts(kinds, name, items, limit)),
        }
        if priorities:
            request["priority"] = draw(st.integers(-1, 1))
        if draw(st.integers(0, 9)) == 0:
            request["abort_step"] = arrival + draw(st.integers(0, 40))
        items.append(request)
    return items


# Families


@st.composite
def uncached(draw: st.DrawFn) -> Workload:
    config = draw(configs())
    return config, draw(requests(config))


@st.composite
def cached(draw: st.DrawFn) -> Workload:
    config = draw(configs()) | {"enable_prefix_caching": True}
    return config, draw(requests(config, shared=True))


@st.composite
def private(draw: st.DrawFn) -> Workload:
    """Nobody shares anything: contents are counted, and only named after a preemption."""
    config = draw(configs()) | {
        "enable_prefix_caching": True,
        "policy": draw(st.sampled_from(POLICIES)),
        "async_scheduling": draw(st.booleans()),
    }
    return config, draw(requests(config, priorities=True))


@st.composite
def by_priority(draw: st.DrawFn) -> Workload:
    caching = draw(st.booleans())
    config = draw(configs()) | {"policy": "priority", "enable_prefix_caching": caching}
    return config, draw(requests(config, shared=caching, priorities=True))


@st.composite
def asynchronous(draw: st.DrawFn) -> Workload:
    caching = draw(st.booleans())
    config = draw(configs()) | {
        "async_scheduling": True,
        "policy": draw(st.sampled_from(POLICIES)),
        "enable_prefix_caching": caching,
    }
    return config, draw(requests(config, shared=caching, priorities=True))


def grouped_config(draw: st.DrawFn) -> Config:
    config = draw(configs(max_block_size=4, tables=2))
    groups = draw(layer_groups(config["block_size"]))
    sizes = [group.get("block_size", config["block_size"]) for group in groups]
    retention = draw(st.sampled_from([None, 0, 0, 1, 2, 5]))
    return config | {
        "kv_groups": groups,
        "retention_interval": retention and retention * math.lcm(*sizes),
        "policy": draw(st.sampled_from(["fcfs", "fcfs", "priority"])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
    }


@st.composite
def grouped(draw: st.DrawFn) -> Workload:
    config = grouped_config(draw)
    config["async_scheduling"] = draw(st.booleans())
    caching = config["enable_prefix_caching"]
    return config, draw(requests(config, shared=caching, priorities=True))


@st.composite
def speculative(draw: st.DrawFn) -> Workload:
    caching = draw(st.booleans())
    config = draw(configs()) | {
        "spec": draw(speculations(["ngram", "draft_model", "eagle"])),
        "policy": draw(st.sampled_from(POLICIES)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, 0, 1, 2, 3, 4, 17])),
        "enable_prefix_caching": caching,
    }
    return config, draw(requests(config, shared=caching, priorities=True))


@st.composite
def padded(draw: st.DrawFn) -> Workload:
    """Single tokens that are admitted beside verifying sequences, and thresholds that cut them.

    All but the last token of a preempted request are found again where blocks have one token.
    """
    spec = draw(speculations(["ngram", "draft_model", "eagle"]))
    drafts = spec["num_speculative_tokens"]
    config = draw(configs(max_block_size=2, longest=24)) | {
        "spec": spec,
        "max_num_seqs": 5,
        "max_num_batched_tokens": draw(st.integers(1, 4 + 3 * drafts)),
        "long_prefill_token_threshold": draw(st.sampled_from([0, *range(1, drafts + 1)])),
        "enable_prefix_caching": draw(st.sampled_from([True, True, False])),
    }
    items = draw(requests(config, priorities=True))
    for item in items:
        item["prompt_tokens"] = draw(st.sampled_from([1, 1, 2, item["prompt_tokens"]]))
    return config, items


@st.composite
def speculative_grouped(draw: st.DrawFn) -> Workload:
    config = grouped_config(draw)
    config["spec"] = draw(speculations(["ngram", "draft_model"]))
    caching = config["enable_prefix_caching"]
    return config, draw(requests(config, shared=caching, priorities=True))


FAMILIES: dict[str, Callable[[], st.SearchStrategy[Workload]]] = {
    "uncached": uncached,
    "cached": cached,
    "private": private,
    "by_priority": by_priority,
    "asynchronous": asynchronous,
    "grouped": grouped,
    "speculative": speculative,
    "padded": padded,
    "speculative_grouped": speculative_grouped,
}


# The comparison


def assert_rows_equal(workload: Workload, steps: int = MAX_STEPS) -> None:
    """Row for row; state is checked for integrity after each, totals at the end."""
    replay = Replay(*workload)
    reference = ReferenceReplay(*workload)
    for row, expected in zip(replay, reference, strict=True):
        assert row == expected
        assert_sound(replay)
        if row["step"] >= steps:
            return
    assert replay.totals == reference.totals
    for name in ("preemptions", "evicted_blocks", "hit_tokens", "stalled"):
        event(f"{name}: {bool(replay.totals[name])}")


def assert_sound(replay: Replay) -> None:
    scheduler, allocator = replay.scheduler, replay.allocator
    sequences = scheduler.running()
    allocator.check_integrity(sequences)
    if not isinstance(scheduler, SpeculativeScheduler):
        scheduler.calendar.check_integrity()
    computed = sum(scheduler.computed_tokens(sequence) for sequence in sequences)
    terms = split(
        allocator.usage,
        live_tokens=allocator.usage.live_slots(computed),
        capacity=allocator.capacity_slots,
        reserves_ahead=allocator.reserves_ahead,
        held_up=False,
    )
    assert min(terms) >= 0, terms


@examples(160)
@given(uncached())
def test_every_row_without_a_prefix_cache_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(180)
@given(cached())
def test_every_row_with_shared_prompts_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(180)
@given(private())
def test_every_row_with_a_prefix_cache_and_nothing_shared_equals_the_plain_loop(
    workload: Workload,
) -> None:
    assert_rows_equal(workload)


@examples(150)
@given(by_priority())
def test_every_row_of_the_priority_policy_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(180)
@given(asynchronous())
def test_every_row_of_asynchronous_scheduling_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(180)
@given(grouped())
def test_every_row_with_layer_groups_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(180)
@given(speculative())
def test_every_row_with_speculation_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


NEAR_THE_LIMIT: Workload = (
    {
        "num_gpu_blocks": 7,
        "block_size": 1,
        "max_num_seqs": 5,
        "max_num_batched_tokens": 3,
        "max_model_len": 10,
        "enable_chunked_prefill": True,
        "enable_prefix_caching": True,
        "long_prefill_token_threshold": 0,
        "watermark": 0.0,
        "scheduler_reserve_full_isl": False,
        "policy": "fcfs",
        "async_scheduling": False,
        "spec": {"method": "ngram", "num_speculative_tokens": 5, "accept_pattern": [0]},
    },
    [{"id": "r0", "arrival_step": 0, "prompt_tokens": 1, "output_tokens": 5}],
)
"""Resumed with 5 tokens of which 4 are found again: 5 dummy drafts would reach the limit."""


@examples(200)
@given(padded())
@example(NEAR_THE_LIMIT)
def test_every_row_with_padded_single_tokens_equals_the_plain_loop(workload: Workload) -> None:
    assert_rows_equal(workload)


@examples(100)
@given(speculative_grouped())
def test_every_row_with_speculation_and_layer_groups_equals_the_plain_loop(
    workload: Workload,
) -> None:
    assert_rows_equal(workload)
