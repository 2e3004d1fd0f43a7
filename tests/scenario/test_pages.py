"""`memory.page_kib` from the file to the report."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.core.page_aware import PageAwareOrder
from kvsim.core.page_pins import PinningPool
from kvsim.core.paged import PagedAllocator
from kvsim.errors import InputError
from kvsim.report.html import write_report
from kvsim.scenario import build_server, load_scenario, run_scenario
from tests.scenario.chats import write_chats

MIB = 1 << 20

SCATTERED = """\
version: 1
profile: vllm-0.33
model: qwen3-8b
engine: {max_num_batched_tokens: 2048, max_model_len: 2048}
memory: {kind: paged, block_size: 16, num_blocks: 1344, null_block: false, page_kib: 2048}
clock: {kind: fixed, step_s: 1.0}
workload: {path: scattered.jsonl, chunk_tokens: 512}
compare: {page_aware: {memory: {eviction: page_aware}}}
"""


def _scattered(folder: Path) -> str:
    """Twenty prompts that fill a page set each; the first halves of 19 are used again."""
    rows = [(1024, [2 * i, 2 * i + 1]) for i in range(20)]
    rows += [(513, [2 * i, 100 + i]) for i in range(1, 20)]
    lines = [
        {"timestamp": 10_000 * i, "input_length": n, "output_length": 1, "hash_ids": ids}
        for i, (n, ids) in enumerate(rows)
    ]
    (folder / "scattered.jsonl").write_text("".join(json.dumps(row) + "\n" for row in lines))
    path = folder / "scattered.yaml"
    path.write_text(SCATTERED)
    return str(path)


@pytest.mark.parametrize("asynchronous", ["false", "true"])
def test_the_reported_case_in_a_running_simulation(tmp_path: Path, asynchronous: str) -> None:
    """36 layers in pages of 2 MiB: a block pins 144 MiB, and LRU frees a tenth of page-aware.

    https://github.com/anthony-chaudhary/fak/issues/10721. Evicting 640 of 1,280 cached blocks, LRU
    empties the one page set that was used once and loses the second halves of the others.
    """
    options = [f"engine.async_scheduling={asynchronous}"]
    found = run_scenario(load_scenario(_scattered(tmp_path), options)).summary["variants"]
    lru, aware = (found[name]["pages"] for name in ("paged", "page_aware"))
    assert lru["page_set_bytes"] == aware["page_set_bytes"] == 144 * MIB
    assert (lru["page_sets"], lru["peak_page_sets"]) == (21, 21)
    assert (lru["freed_by_half_page_sets"], aware["freed_by_half_page_sets"]) == (1, 10)
    assert found["paged"]["prefix_cache"] == found["page_aware"]["prefix_cache"]


def test_one_request_pins_its_pages_while_it_runs_and_its_blocks_do_afterwards(
    tmp_path: Path,
) -> None:
    """Two requests of 62 + 3 tokens in blocks of 32 run for 3 s each, 2 s apart, in one page set.

    Both blocks of the first are full at its end. The second finds one of them and fills a block of
    its own, while the other one stays cached.
    """
    rows = "".join(
        json.dumps({"timestamp": at, "input_length": n, "output_length": 3, "hash_ids": ids}) + "\n"
        for at, n, ids in ((0, 62, [1]), (5000, 62, [1]))
    )
    (tmp_path / "scattered.jsonl").write_text(rows)
    path = tmp_path / "one.yaml"
    path.write_text(SCATTERED.replace("chunk_tokens: 512", "chunk_tokens: 64"))
    options = ["compare={}", "memory.block_size=32", "engine.async_scheduling=false"]
    pages = run_scenario(load_scenario(str(path), options)).summary["variants"]["paged"]["pages"]
    assert pages["page_sets"] == 1344 / 32
    assert pages["held_page_sets"] == 6 / 8
    assert pages["cached_page_sets"] == 2 / 8
    assert pages["peak_page_sets"] == 1
    kept_blocks = (3 * 2 + 2 * 2 + 3 * 3) / 8
    assert pages["unfilled"] == pytest.approx(1 - kept_blocks / 32, rel=1e-12)


@pytest.mark.parametrize(
    ("gpus", "cache", "page_kib", "per_page", "set_mib"),
    [
        (1, "auto", 2048, 64, 128),
        (2, "auto", 2048, 128, 128),
        (1, "fp8", 2048, 128, 128),
        (1, "auto", 64, 2, 4),
    ],
)
def test_pages_hold_as_many_blocks_as_the_layers_allow(
    tmp_path: Path, gpus: int, cache: str, page_kib: int, per_page: int, set_mib: int
) -> None:
    """Llama-3-8B: a token takes 2 KiB of a layer's K; 32 layers have 64 tensors."""
    options = [
        "model=llama-3-8b",
        f"hardware={{gpu: a100-80gb, count: {gpus}}}",
        f"engine.kv_cache_dtype={cache}",
        f"memory.page_kib={page_kib}",
        "memory.block_size=16",
    ]
    scenario = load_scenario(write_chats(tmp_path), options)
    pool = build_server(scenario).allocator.pool  # type: ignore[attr-defined]
    assert isinstance(pool, PinningPool)
    assert pool.pages.blocks_per_page == per_page
    entry = run_scenario(scenario).summary["variants"]["paged"]
    assert entry["pages"]["page_set_bytes"] == set_mib * MIB


def _busy(tmp_path: Path, *options: str) -> dict[str, Any]:
    """Many chats in 76 page sets of 4 blocks: 32 tokens of the model in a page of 64 KiB."""
    path = write_chats(tmp_path)
    small = ["model=llama-3-8b", "memory.page_kib=64", "workload.rate_scale=4"]
    scenario = load_scenario(path, [*small, *options])
    found: dict[str, Any] = run_scenario(scenario).summary["variants"]["paged"]
    return found


def test_page_aware_keeps_more_page_sets_free_of_held_blocks_and_finds_less(
    tmp_path: Path,
) -> None:
    lru, aware = _busy(tmp_path), _busy(tmp_path, "memory.eviction=page_aware")
    assert aware["pages"]["held_page_sets"] < lru["pages"]["held_page_sets"]
    assert aware["pages"]["freed_by_half_page_sets"] > lru["pages"]["freed_by_half_page_sets"]
    assert aware["prefix_cache"]["hit_rate"] < lru["prefix_cache"]["hit_rate"]
    assert aware["requests"] == lru["requests"]


def test_pages_only_watch_under_any_other_order(tmp_path: Path) -> None:
    with_pages, without = _busy(tmp_path), _busy(tmp_path, "memory.page_kib=null")
    pages = with_pages.pop("pages")
    assert with_pages == without
    assert 0 < pages["held_page_sets"] < pages["page_sets"]


def test_settings_reach_the_pool_and_its_order(tmp_path: Path) -> None:
    options = ["model=llama-3-8b", "memory.page_kib=2048", "memory.eviction=page_aware"]
    allocator = build_server(load_scenario(write_chats(tmp_path), options)).allocator
    assert isinstance(allocator, PagedAllocator)
    assert allocator.cache is not None
    assert isinstance(allocator.cache.free, PageAwareOrder)
    plain = build_server(load_scenario(write_chats(tmp_path))).allocator
    assert isinstance(plain, PagedAllocator)
    assert not isinstance(plain.pool, PinningPool)


def test_the_report_shows_the_pages(tmp_path: Path) -> None:
    run_scenario(load_scenario(_scattered(tmp_path)), out=tmp_path / "run")
    page = write_report(tmp_path / "run").path.read_text()
    assert "Physical pages of blocks in the measured time" in page
    assert "Freed by evicting half of the cache, at the end" in page


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        (
            ["memory.eviction=page_aware"],
            "memory.eviction = page_aware needs memory.page_kib",
            "Set memory.page_kib, for example to 2048",
        ),
        (
            ["memory.page_kib=2048"],
            "memory.page_kib needs a model",
            "Name a model",
        ),
        (
            ["model=llama-3-8b", "memory.page_kib=2048", "memory.block_size=48"],
            "memory.block_size must divide the 1024 tokens of a page of 2048 KiB, got 48",
            "Choose a power of two",
        ),
        (
            ["model=llama-3-8b", "memory.page_kib=64", "memory.block_size=64"],
            "memory.block_size must divide the 32 tokens of a page of 64 KiB, got 64",
            "Choose a power of two",
        ),
        (
            ["model=deepseek-v3", "memory.page_kib=2048"],
            "memory.page_kib cannot be used: deepseek-v3 has latent attention",
            "Set it to null",
        ),
        (
            ["model=gemma-3-1b", "memory.page_kib=2048"],
            "memory.page_kib needs one group of layers that keeps every token",
            "Set it to null",
        ),
        (["memory.page_kib=100"], "memory.page_kib must be 64, 128, 256 or 2048", "KiB"),
        (
            [
                "model=llama-3-8b",
                "memory.page_kib=64",
                "memory.eviction=page_aware",
                "engine.enable_prefix_caching=false",
            ],
            "memory.eviction = page_aware needs engine.enable_prefix_caching = true",
            "Set memory.eviction to lru",
        ),
    ],
)
def test_what_pages_cannot_have_is_refused_by_name(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    with pytest.raises(InputError) as caught:
        load_scenario(write_chats(tmp_path), options)
    assert problem in str(caught.value)
    assert fix in str(caught.value)
