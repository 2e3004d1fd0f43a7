"""Layers without attention, and layers that differ in KV heads (Nemotron-NAS, GLM-5): one table."""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import GIB, Model, get_gpu, kv_groups, model_from_config
from kvsim.errors import InputError
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.releases import release_of
from kvsim.planning.start import KvLayout, start
from tests.catalog.hf_rows import read, row
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]
SUPER = "nvidia/Llama-3_3-Nemotron-Super-49B-v1"


def nas(changes: dict[int, Any]) -> Model:
    """Super 49B with the attention of some layers replaced."""
    config = copy.deepcopy(row(SUPER)["config"])
    for layer, attention in changes.items():
        config["block_configs"][layer]["attention"] = attention
    return model_from_config(config, name="Super", source="config.json")


def fitted(model: Model, version: str = "0.11.0", tp: int = 2) -> Fit:
    settings = FitSettings(tensor_parallel_size=tp, max_model_len=32_768)
    return fit(model, get_gpu("h100"), settings, release=release_of(version))


@pytest.mark.parametrize("version", ["0.8.5", "0.9.2", "0.10.1", "0.11.0", "0.33.0"])
def test_only_layers_with_attention_have_blocks(version: str) -> None:
    """49 of 80 layers, 8 KV heads of 128 on two GPUs: 16 * 49 * 4 * 256 * 2 bytes a block."""
    found = fitted(read(SUPER), version)
    assert found.layout.block_bytes == 16 * 49 * 4 * 256 * 2
    assert found.layout.groups.layers == 49
    assert found.start.num_blocks == found.budget.kv_pool.bytes // (16 * 100_352)


def test_null_in_the_place_of_attention_is_a_layer_without() -> None:
    """So is a null feed-forward; what is left out is an error."""
    assert nas({0: None}).layers == 80
    found = fitted(nas({0: None}))
    assert found.layout.block_bytes == 16 * 48 * 4 * 256 * 2
    config = copy.deepcopy(row(SUPER)["config"])
    config["block_configs"][0]["ffn"] = None
    whole, less = read(SUPER), model_from_config(config, name="x", source="x")
    assert whole.mlp_layers is not None
    assert less.mlp_layers is not None
    assert sum(n for n, _ in whole.mlp_layers) - sum(n for n, _ in less.mlp_layers) == 1
    del config["block_configs"][0]["attention"]
    with pytest.raises(InputError, match="attention of block_configs must be objects"):
        model_from_config(config, name="x", source="x")


def test_layers_that_differ_in_kv_heads_share_one_block_table() -> None:
    """One layer with 16 heads in a group has 4 KV heads: 48 * 4 + 2 of them on each of two GPUs."""
    model = nas({0: {"n_heads_in_group": 16, "no_op": False}})
    found = fitted(model)
    assert found.layout.block_bytes == 16 * (48 * 4 + 2) * 256 * 2
    assert found.layout.groups.is_uniform
    per_request = found.layout.blocks_per_request(32_768, max_in_flight=8192)
    assert per_request == 2048
    assert found.start.max_concurrency == found.start.num_blocks / 2048


@pytest.mark.parametrize("version", ["0.7.3", "0.9.2", "0.10.1"])
def test_releases_without_such_blocks_are_refused_by_name(version: str) -> None:
    model = nas({0: {"n_heads_in_group": 16, "no_op": False}})
    with pytest.raises(InputError, match="differ in KV bytes") as error:
        fitted(model, version)
    assert error.value.fix == "Use 0.11 or later"


def test_a_real_start_confirms_one_table_for_index_keys_on_some_layers() -> None:
    """GLM-5.3, fp8 cache, one rank of four: 53,763 blocks of 64 tokens, 47,700 bytes each."""
    groups = kv_groups(read("zai-org/GLM-5.2"), tp=4, kv_dtype_bytes=1)
    assert (groups.token_bytes, groups.is_uniform) == (47_700, True)
    layout = KvLayout(groups, groups.block_tokens(64), 64 * groups.token_bytes)
    pool = 53_763 * 64 * 47_700
    found = start(
        layout, release_of("0.21"), max_model_len=8192, max_in_flight=8192, available_bytes=pool
    )
    assert (found.num_blocks, found.max_concurrency) == (53_763, 53_763 / 128)
    assert pool / GIB == pytest.approx(152.86, abs=0.01)


def test_the_command_answers_for_such_a_file(kvsim: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(row(SUPER)["config"]))
    run = kvsim("fit", str(tmp_path / "config.json"), "--gpu", "h200", "--json")
    assert run.status == 0
    assert json.loads(run.out)["block_bytes"] == 16 * 200_704
