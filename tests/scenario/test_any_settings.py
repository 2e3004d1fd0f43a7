"""No settings, however odd, end in anything but a scenario or an `InputError` with a way out."""

from __future__ import annotations

import json
import tempfile
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
from hypothesis import event, given
from hypothesis import strategies as st
from hypothesis.strategies import DataObject

from kvsim.errors import InputError
from kvsim.scenario import (
    Scenario,
    build_server,
    build_workload,
    load_scenario,
    resolved,
    variants,
)
from kvsim.scenario.schema import scenario_schema

SCHEMA = scenario_schema()
KEYS = sorted(
    {key for part in (SCHEMA, *SCHEMA["$defs"].values()) for key in part.get("properties", {})}
)
WORDS = [
    "paged",
    "contiguous",
    "grow",
    "vmm",
    "vllm",
    "orca",
    "static",
    "fixed",
    "linear",
    "roofline",
]
WORDS += ["calibrated", "poisson", "constant", "uniform", "lognormal", "quantiles", "all_at_once"]
WORDS += ["llama-3-8b", "deepseek-v3", "a100-40gb", "t4", "azure-conv-2023", "max", "buddy"]
WORDS += [
    "vllm-0.33",
    "sosp23",
    "plain",
    "priority",
    "ngram",
    "draft_model",
    "eagle",
    "belady",
    "lfu",
]
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**20), 10**20)
    | st.integers(0, 300)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(WORDS)
    | st.text(max_size=8)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=5)
    ),
    max_leaves=12,
)
LIKELY = st.integers(1, 20) | st.floats(0.1, 3) | st.sampled_from(WORDS) | st.booleans()
BASE: dict[str, Any] = {
    "version": 1,
    "model": "llama-3-8b",
    "hardware": {"gpu": "a100-80gb", "count": 1},
    "engine": {"scheduler": "vllm", "max_num_seqs": 8, "max_model_len": 4096},
    "memory": {"kind": "paged", "block_size": 16, "num_blocks": 500},
    "clock": {"kind": "linear", "base_s": 0.1},
    "measure": {"from_s": 1.0, "to_s": 2.0},
    "workload": {
        "num_requests": 3,
        "arrivals": {"kind": "gamma", "rate_rps": 2.0},
        "lengths": {
            "prompt": {"kind": "uniform", "low": 1, "high": 9},
            "output": {"kind": "lognormal", "p50": 3.0, "sigma": 0.5},
        },
    },
    "compare": {"b": {"memory": {"kind": "contiguous", "reserve": "pow2"}}},
}
SERVED: dict[str, Any] = {
    "version": 1,
    "profile": "vllm-0.33",
    "model": "llama-3-8b",
    "hardware": {"gpu": "h100", "count": 2},
    "engine": {
        "scheduling_policy": "fcfs",
        "async_scheduling": False,
        "prefix_cache_retention_interval": 0,
        "speculative_config": {
            "method": "eagle",
            "num_speculative_tokens": 2,
            "acceptance_rate": 0.5,
            "draft_s_per_token": 0.001,
        },
    },
    "memory": {"kind": "paged", "num_blocks": 500, "eviction": "lru"},
    "clock": {"kind": "calibrated"},
    "workload": {
        "chat": {
            "conversations": 3,
            "turns": {"kind": "constant", "tokens": 2},
            "user_tokens": {"kind": "uniform", "low": 1, "high": 9},
            "output_tokens": {"kind": "constant", "tokens": 4},
            "system_tokens": {"kind": "constant", "tokens": 40},
            "system_prompts": 2,
            "turn_gap_s": 1.0,
        },
        "arrivals": {"kind": "poisson", "rate_rps": 2.0},
    },
    "compare": {"b": {"engine": {"speculative_config": None, "enable_prefix_caching": False}}},
}
"""A server with everything switched on, on conversations."""


def _outcome(path: Path) -> Scenario | InputError:
    try:
        return load_scenario(str(path))
    except InputError as error:
        return error


@given(st.data())
def test_settings_load_or_are_refused(data: DataObject) -> None:
    settings = json.loads(json.dumps(data.draw(st.sampled_from([BASE, SERVED]))))
    for _ in range(data.draw(st.integers(1, 2))):
        section = settings
        key = data.draw(st.sampled_from(sorted(section)))
        while isinstance(section[key], dict) and section[key] and data.draw(st.integers(0, 3)):
            section = section[key]
            key = data.draw(st.sampled_from(sorted(section)))
        key = data.draw(st.just(key) | st.sampled_from(KEYS))
        section[key] = data.draw(LIKELY | VALUES)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "s.yaml"
        path.write_text(json.dumps(settings))
        outcome = _outcome(path)
    event(type(outcome).__name__)
    if isinstance(outcome, InputError):
        assert outcome.where
        assert outcome.fix
        return
    assert resolved(outcome)
    traffic = build_workload(outcome.workload, seed=outcome.seeds[0])
    for settings_of_variant in variants(outcome).values():
        if (settings_of_variant.memory.num_blocks or 0) <= 1000:
            requests = islice(traffic.workload, 20)
            build_server(settings_of_variant, seed=outcome.seeds[0], requests=requests)


@pytest.mark.parametrize("settings", [BASE, SERVED], ids=["BASE", "SERVED"])
def test_the_settings_to_start_from_load(tmp_path: Path, settings: dict[str, Any]) -> None:
    path = tmp_path / "s.yaml"
    path.write_text(json.dumps(settings))
    assert isinstance(_outcome(path), Scenario)
