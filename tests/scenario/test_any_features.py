"""Whatever is switched on, and however little memory there is, every request is served."""

from __future__ import annotations

import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st

from kvsim.catalog import GatedDeltaNet, LayerGroup, Model, get_model
from kvsim.errors import InputError
from kvsim.scenario import Scenario, load_scenario, run_scenario

DRAFTS = st.fixed_dictionaries(
    {
        "method": st.sampled_from(["ngram", "draft_model", "eagle"]),
        "num_speculative_tokens": st.integers(1, 5),
        "acceptance_rate": st.sampled_from([0.0, 0.3, 0.8, 1.0]),
        "draft_s_per_token": st.just(0.001),
    }
)
ENGINE = st.fixed_dictionaries(
    {"max_num_seqs": st.integers(1, 12), "max_model_len": st.just(200)},
    optional={
        "max_num_batched_tokens": st.integers(12, 300),
        "enable_prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "scheduling_policy": st.sampled_from(["fcfs", "priority"]),
        "speculative_config": DRAFTS,
        "enable_chunked_prefill": st.booleans(),
        "long_prefill_token_threshold": st.integers(0, 60),
        "watermark": st.sampled_from([0.0, 0.1]),
        "scheduler_reserve_full_isl": st.booleans(),
    },
)
TIER = st.fixed_dictionaries(
    {
        "capacity_blocks": st.integers(1, 100),
        "bandwidth_gb_per_s": st.sampled_from([0.001, 0.01, 1.0]),
        "latency_s": st.sampled_from([0.0, 0.005]),
    }
)
MEMORY = st.fixed_dictionaries(
    {"kind": st.just("paged"), "block_size": st.sampled_from([1, 4, 16])},
    optional={
        "eviction": st.sampled_from(["lru", "fifo", "lfu", "belady"]),
        "null_block": st.booleans(),
        "layer_groups": st.sampled_from(["max_if_close", "min", "gcd", "unified"]),
        "offload": st.fixed_dictionaries(
            {
                "kv_bytes_per_token": st.just(1000),
                "fetch": st.sampled_from(["auto", "always"]),
                "host": TIER,
            },
            optional={"disk": TIER},
        ),
    },
)
TRAFFIC = {
    "chat": {
        "conversations": 12,
        "turns": {"kind": "uniform", "low": 1, "high": 4},
        "user_tokens": {"kind": "uniform", "low": 1, "high": 20},
        "output_tokens": {"kind": "uniform", "low": 1, "high": 25},
        "system_tokens": {"kind": "constant", "tokens": 18},
        "system_prompts": 2,
        "turn_gap_s": 0.2,
    },
    "arrivals": {"kind": "poisson", "rate_rps": 20.0},
}


def _load(settings: dict[str, Any]) -> Scenario | InputError:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(json.dumps(settings))
        try:
            return load_scenario(str(path))
        except InputError as error:
            return error


def _windows(name: str) -> Model:
    """A small model some or all of whose layers keep few tokens, or a state of 5 tokens' bytes."""
    model = get_model("gemma-3-1b")
    attention, state = model.attention, GatedDeltaNet(1, 1, 16, 64, 5, state_dtype_bytes=4)
    groups = {
        "hybrid": (LayerGroup(5, attention, 24), LayerGroup(1, attention)),
        "sliding": (LayerGroup(6, attention, 24),),
        "chunked": (LayerGroup(4, attention, chunk=20), LayerGroup(2, attention)),
        "state": (LayerGroup(3, state), LayerGroup(2, attention)),
    }[name]
    return replace(model, groups=groups)


@pytest.mark.parametrize("model", [None, "hybrid", "sliding", "chunked", "state"])
@given(
    engine=ENGINE,
    memory=MEMORY,
    slots=st.integers(40, 700),
    profile=st.sampled_from(["vllm-0.33", "sosp23", "plain"]),
    seed=st.integers(0, 1000),
)
def test_every_request_ends_and_the_same_settings_end_it_the_same_way(
    model: str | None,
    engine: dict[str, Any],
    memory: dict[str, Any],
    slots: int,
    profile: str,
    seed: int,
) -> None:
    if model:
        slots *= {"hybrid": 7, "chunked": 4, "state": 4}.get(model, 1)
    settings = {
        "version": 1,
        "profile": profile,
        "engine": engine,
        "memory": {**memory, "num_blocks": max(2, slots // memory["block_size"])},
        "clock": {"kind": "linear", "base_s": 0.01, "decode_s": 0.001},
        "workload": TRAFFIC,
        "seeds": [seed],
        **({"model": model} if model else {}),
    }
    with pytest.MonkeyPatch.context() as patched:
        if model:
            patched.setattr("kvsim.scenario.sizing.get_model", _windows)
        _serve(settings)


@given(
    engine=ENGINE,
    memory=MEMORY,
    pages=st.fixed_dictionaries(
        {"page_kib": st.sampled_from([64, 256])},
        optional={"eviction": st.sampled_from(["page_aware", "belady"])},
    ),
    slots=st.integers(40, 700),
)
def test_memory_in_pages_serves_every_request_too(
    engine: dict[str, Any], memory: dict[str, Any], pages: dict[str, Any], slots: int
) -> None:
    num_blocks = max(2, slots // memory["block_size"])
    _serve(
        {
            "version": 1,
            "model": "llama-3-8b",
            "engine": engine,
            "memory": {**memory, **pages, "num_blocks": num_blocks},
            "clock": {"kind": "linear", "base_s": 0.01, "decode_s": 0.001},
            "workload": TRAFFIC,
        }
    )


def _serve(settings: dict[str, Any]) -> None:
    scenario = _load(settings)
    event(type(scenario).__name__)
    if isinstance(scenario, InputError):
        assert scenario.where
        assert scenario.fix
        return
    summary = run_scenario(scenario).summary
    entry = summary["variants"]["paged"]
    requests = entry["requests"]
    assert entry["stuck"] is None
    assert requests["submitted"] == requests["finished"] + requests["rejected"]
    assert run_scenario(scenario).summary == summary
