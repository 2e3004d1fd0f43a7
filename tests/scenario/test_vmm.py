"""`memory.kind: vmm` from the file to the report."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import get_model, kv_bytes_per_token
from kvsim.core.vmm import VmmAllocator
from kvsim.cost import FixedClock, LinearClock, MappingClock
from kvsim.errors import InputError
from kvsim.scenario import Scenario, build_server, load_scenario, resolved, run_scenario, variants
from tests.scenario.small import write_small

ON_GPU = {
    "version": 1,
    "profile": "plain",
    "model": "llama-3-8b",
    "hardware": {"gpu": "a100-80gb"},
    "workload": {"preset": "azure-conv-2023", "num_requests": 10},
}


def _scenario(**sections: Any) -> Scenario:
    return Scenario.model_validate({**ON_GPU, "memory": {"kind": "vmm"}, **sections})


@pytest.mark.parametrize(
    ("page_kib", "gpus", "cache", "tokens"),
    [(2048, 1, "auto", 1024), (64, 1, "auto", 32), (2048, 2, "auto", 2048), (64, 2, "fp8", 128)],
)
def test_pages_come_from_the_memory_budget_in_whole_page_sets(
    page_kib: int, gpus: int, cache: str, tokens: int
) -> None:
    hardware = {"gpu": "a100-80gb", "count": gpus}
    sections: dict[str, Any] = {"hardware": hardware, "engine": {"kv_cache_dtype": cache}}
    server = build_server(_scenario(**sections, memory={"kind": "vmm", "page_kib": page_kib}))
    budget = server.sizing.budget
    assert isinstance(server.allocator, VmmAllocator)
    assert budget is not None
    assert budget.block_bytes == page_kib * 1024 * 2 * 32
    assert server.allocator.num_blocks == budget.kv_pool.bytes // budget.block_bytes
    assert server.allocator.block_size == server.sizing.block_size == tokens
    width = 1 if cache == "fp8" else 2
    token_bytes = kv_bytes_per_token(get_model("llama-3-8b"), tp=gpus, kv_dtype_bytes=width)
    assert tokens * token_bytes == budget.block_bytes
    assert server.allocator.capacity_slots == server.allocator.num_blocks * tokens


def test_every_setting_reaches_the_memory_and_the_clock() -> None:
    memory = {"kind": "vmm", "num_page_sets": 77, "keep_mapped_pages": False, "map_page_s": 0.25}
    linear = {"kind": "linear", "base_s": 0.5, "read_efficiency": {"16": 0.3}}
    server = build_server(_scenario(memory=memory, clock=linear))
    assert isinstance(server.allocator, VmmAllocator)
    assert (server.allocator.num_blocks, server.allocator.keep_mapped_pages) == (77, False)
    clock = server.sizing.clock
    assert isinstance(clock, MappingClock)
    facts = {fact.name: fact.value for fact in clock.explain()}
    assert (facts["map_page_s"], facts["context_token_s"]) == (0.25, 0.0)
    plain = build_server(_scenario(clock={"kind": "linear", "base_s": 0.5})).sizing.clock
    assert type(plain) is LinearClock
    assert type(build_server(_scenario(clock={"kind": "fixed", "step_s": 1.0})).sizing.clock) is (
        FixedClock
    )


def test_a_variant_takes_its_own_pool_not_the_blocks_of_the_base(tmp_path: Path) -> None:
    """9 blocks of 4 tokens are no 9 page sets of 1,024."""
    path = str(write_small(tmp_path))
    options = ["model=llama-3-8b", "hardware={gpu: a100-80gb}"]
    scenario = load_scenario(path, [*options, "compare.pages={memory: {kind: vmm}}"])
    memory = variants(scenario)["pages"].memory
    assert memory.kind == "vmm"
    assert (memory.num_page_sets, memory.num_blocks, memory.page_kib) == (None, None, 2048)
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


TRACE = "arrival_s,prompt_tokens,output_tokens\n" + "".join(
    f"{index / 2},{700 + 90 * index},{index + 2}\n" for index in range(9)
)
LIMITS = [
    "engine.max_model_len=2048",
    "engine.max_num_batched_tokens=2048",
    "model=llama-3-8b",
    "memory={kind: vmm, num_page_sets: 6}",
]


def test_a_run_says_what_it_mapped_and_where_every_slot_is(tmp_path: Path) -> None:
    path = str(write_small(tmp_path, trace=TRACE))
    named = "compare={all: {memory: {keep_mapped_pages: false, map_page_s: 0.5}}}"
    found = run_scenario(load_scenario(path, [*LIMITS, named])).summary["variants"]
    needed = sum(math.ceil((700 + 90 * i + i + 1) / 1024) for i in range(9))
    kept, anew = found["vmm"], found["all"]
    assert anew["mapping"] == {"mapped_page_sets": needed, "reused_page_sets": 0}
    assert sum(kept["mapping"].values()) == needed
    assert kept["mapping"]["mapped_page_sets"] < needed
    assert anew["duration_s"] > kept["duration_s"]
    for entry in (kept, anew):
        assert entry["setup"]["memory"] == "vmm"
        assert (entry["setup"]["block_size"], entry["setup"]["num_blocks"]) == (1024, 6)
        assert entry["requests"]["finished"] == 9
        terms = entry["memory"]["by_time"]
        five = ("live", "reservation", "internal", "external", "usable_free")
        assert sum(terms[term] for term in five) == pytest.approx(1, abs=1e-12)
        assert terms["external"] == 0
    assert "mapping pages takes the time that was given" in anew["setup"]["clock_note"]
    assert "mapping" not in kept["setup"]["clock_note"]


def test_memory_without_pages_has_no_mapping(tmp_path: Path) -> None:
    summary = run_scenario(load_scenario(str(write_small(tmp_path)))).summary
    assert all("mapping" not in entry for entry in summary["variants"].values())


@pytest.mark.parametrize(
    ("options", "problem", "fix"),
    [
        ([], "model is missing, and memory.kind is vmm", "Name a model, or set memory.kind"),
        (
            ["model=llama-3-8b"],
            "hardware is missing, and memory.num_page_sets is left out",
            "Name a model and a GPU",
        ),
        (
            ["model=deepseek-v3", "memory.num_page_sets=9"],
            "memory.kind cannot be used: deepseek-v3 has latent attention",
            "Use paged memory",
        ),
        (
            ["model=gemma-3-1b", "memory.num_page_sets=9"],
            "memory.kind must be paged, got vmm: the model has layers with a sliding window",
            "Set memory.kind to paged",
        ),
        (
            ["model=llama-3-8b", "engine.enable_prefix_caching=true"],
            "engine.enable_prefix_caching = true needs memory.kind = paged, got vmm",
            "Set it to false",
        ),
        (
            ["model=llama-3-8b", "engine.async_scheduling=true"],
            "engine.async_scheduling = true needs memory.kind = paged, got vmm",
            "Set it to false",
        ),
        (
            ["engine.scheduler=static"],
            "memory.kind must be contiguous or grow with engine.scheduler = static, got vmm",
            "Set memory.kind to contiguous",
        ),
        (
            ["engine.scheduler=orca"],
            "memory.kind must be contiguous with engine.scheduler = orca, got vmm",
            "Set memory.kind to contiguous",
        ),
        (["memory.page_kib=100"], "memory.page_kib must be 64, 128, 256 or 2048", "KiB"),
        (["memory.num_page_sets=1"], "memory.num_page_sets must be >= 2 page sets", "page sets"),
        (["memory.num_blocks=9"], "memory.num_blocks is not a setting", "num_page_sets"),
        (["memory.map_page_s=-1.0"], "memory.map_page_s must be >= 0 seconds", "seconds"),
    ],
)
def test_what_pages_cannot_have_is_refused_by_name(
    tmp_path: Path, options: list[str], problem: str, fix: str
) -> None:
    path = str(write_small(tmp_path))
    with pytest.raises(InputError) as caught:
        build_server(load_scenario(path, ["memory={kind: vmm}", "compare={}", *options]))
    assert problem in str(caught.value)
    assert fix in str(caught.value)


def test_a_model_whose_tokens_do_not_fill_a_page_is_refused(tmp_path: Path) -> None:
    """40 KV heads of 128 at 16 bits are 10,240 bytes, of which no page is a multiple."""
    path = str(write_small(tmp_path))
    memory = "memory={kind: vmm, num_page_sets: 9}"
    with pytest.raises(InputError) as caught:
        build_server(load_scenario(path, ["model=opt-13b", memory, "compare={}"]))
    assert "memory.page_kib cannot be used: a page of 2048 KiB holds" in str(caught.value)
