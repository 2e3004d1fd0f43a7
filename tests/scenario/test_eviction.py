"""Which cached block is given up first: `memory.eviction`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.core.eviction import FifoOrder, LfuOrder, LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.errors import InputError
from kvsim.scenario import build_server, build_workload, load_scenario, run_scenario
from kvsim.scenario.foresight import ForesightAllocator
from kvsim.workload.prefix import PrefixAnalysis
from tests.scenario.chats import write_chats

ONE_AT_A_TIME = ["workload.max_concurrency=1", "engine.async_scheduling=false"]


def _entry(path: str, *options: str) -> dict[str, Any]:
    return run_scenario(load_scenario(path, options)).summary["variants"]["paged"]


def _hit_tokens(path: str, *options: str) -> int:
    return int(_entry(path, *options)["prefix_cache"]["hit_tokens"])


@pytest.mark.parametrize(("name", "order"), [("lru", LruOrder), ("fifo", FifoOrder)])
def test_every_order_becomes_its_class(tmp_path: Path, name: str, order: type) -> None:
    server = build_server(load_scenario(write_chats(tmp_path), [f"memory.eviction={name}"]))
    assert isinstance(server.allocator, PagedAllocator)
    assert server.allocator.cache is not None
    assert type(server.allocator.cache.free) is order


def test_without_caching_there_is_no_order(tmp_path: Path) -> None:
    path = write_chats(tmp_path)
    server = build_server(load_scenario(path, ["engine.enable_prefix_caching=false"]))
    assert isinstance(server.allocator, PagedAllocator)
    assert server.allocator.cache is None
    lfu = build_server(load_scenario(path, ["memory.eviction=lfu"])).allocator
    assert isinstance(lfu, PagedAllocator)
    assert lfu.cache is not None
    assert type(lfu.cache.free) is LfuOrder


@pytest.mark.parametrize("blocks", [80, 150, 300])
def test_one_request_at_a_time_lru_and_belady_find_what_the_analysis_of_the_trace_says(
    tmp_path: Path, blocks: int
) -> None:
    """Two programs: one walks the references of the trace, the other simulates the server."""
    path = write_chats(tmp_path)
    pool = [*ONE_AT_A_TIME, f"memory.num_blocks={blocks + 1}"]
    analysis = PrefixAnalysis(build_workload(load_scenario(path).workload, seed=0).workload, 8)
    assert _hit_tokens(path, *pool) == analysis.lru_hit_tokens(blocks)
    best = _hit_tokens(path, *pool, "memory.eviction=belady")
    assert best == analysis.best_hit_tokens(blocks)


def test_no_order_finds_more_than_the_one_that_knows_the_future(tmp_path: Path) -> None:
    path = write_chats(tmp_path)
    pool = [*ONE_AT_A_TIME, "memory.num_blocks=121"]
    best = _hit_tokens(path, *pool, "memory.eviction=belady")
    for order in ("lru", "fifo", "lfu"):
        assert 0 < _hit_tokens(path, *pool, f"memory.eviction={order}") < best


def test_belady_beats_lru_with_many_requests_at_once_and_preemptions(tmp_path: Path) -> None:
    path = write_chats(tmp_path)
    busy = ["memory.num_blocks=121", "workload.rate_scale=4"]
    lru, best = _entry(path, *busy), _entry(path, *busy, "memory.eviction=belady")
    assert lru["preemptions"] > 0
    assert best["prefix_cache"]["hit_tokens"] > lru["prefix_cache"]["hit_tokens"]
    assert best["requests"]["finished"] == lru["requests"]["finished"]


def test_belady_does_not_wait_for_a_request_that_is_rejected(tmp_path: Path) -> None:
    """Prompts of 400 tokens and more are refused; what they would have asked for is no use."""
    path = write_chats(tmp_path)
    short = [*ONE_AT_A_TIME, "engine.max_model_len=300", "memory.num_blocks=121"]
    entry = _entry(path, *short, "memory.eviction=belady")
    assert entry["requests"]["rejected"] > 0
    lru = _entry(path, *short)
    assert entry["prefix_cache"]["hit_tokens"] >= lru["prefix_cache"]["hit_tokens"]


def test_a_server_built_without_the_requests_expects_none(tmp_path: Path) -> None:
    server = build_server(load_scenario(write_chats(tmp_path), ["memory.eviction=belady"]))
    assert isinstance(server.allocator, ForesightAllocator)


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            ["memory.eviction=belady", "engine.scheduling_policy=priority"],
            "memory.eviction = belady knows the future only under engine.scheduling_policy = fcfs",
            "Set scheduling_policy to fcfs",
        ),
        (
            ["memory.eviction=fifo", "engine.enable_prefix_caching=false"],
            "memory.eviction = fifo needs engine.enable_prefix_caching = true",
            "Set memory.eviction to lru",
        ),
        (
            ["memory.eviction=random"],
            "memory.eviction must be lru, fifo, lfu, belady or page_aware",
            "belady",
        ),
    ],
)
def test_an_order_without_its_conditions_is_refused(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), options)
    assert caught.value.where == f"--set {options[0].split('=')[0]}"
    assert problem in caught.value.problem
    assert fix in str(caught.value.fix)
