"""Llama 3.2 Vision: blocks of engine v0 for text and for images, and releases that serve it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import Model, get_gpu, model_from_config
from kvsim.catalog.kv_layers import hybrid_bytes, layer_kvs
from kvsim.errors import InputError
from kvsim.planning.advice import advice
from kvsim.planning.explain import explained
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.pool_groups import image_tokens, release_for
from tests.catalog.hf_rows import row
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]
ROW = row("meta-llama/Llama-3.2-11B-Vision")["config"]
VISION = {"image_size": 560, "patch_size": 14, "max_num_tiles": 4}


def vision_model(**vision: Any) -> Model:
    config = ROW | ({"vision_config": VISION | vision} if vision else {})
    return model_from_config(config, name="Llama-3.2-11B-Vision", source="config.json")


def fitted(version: str = "0.6.4", **flags: Any) -> Fit:
    model = vision_model()
    settings = FitSettings(max_model_len=8192, max_num_seqs=16, **flags)
    return fit(model, get_gpu("a100-80gb"), settings, release=release_for(model, version))


def test_a_tile_has_a_token_per_patch_and_one_more() -> None:
    """560 / 14 = 40: 1,601 per tile, 6,404 of four; 448 pixels as in the base files: 1,025."""
    assert image_tokens(vision_model(image_size=560)) == (1601, 6404)
    assert image_tokens(vision_model(image_size=448, max_num_tiles=2)) == (1025, 2050)
    assert image_tokens(vision_model()) == (1601, 6404)


def test_what_the_file_leaves_out_is_said() -> None:
    assumed = [one for one in vision_model().assumptions if "vision_config is missing" in one]
    assert len(assumed) == 1
    assert not any("vision_config" in one for one in vision_model(image_size=560).assumptions)
    with pytest.raises(InputError, match="patch_size must be a whole number"):
        vision_model(patch_size=0)


def test_a_block_has_room_in_all_layers_for_text_or_image() -> None:
    """40 layers of 8 KV heads of 128: 163,840 bytes per token, 16 tokens; 8 layers cross."""
    found = fitted()
    assert found.layout.block_bytes == 16 * 40 * 2 * 8 * 128 * 2
    assert found.start.num_blocks == found.budget.kv_pool.bytes // (16 * 163_840)
    assert found.start.max_concurrency == found.start.num_blocks * 16 / 8192


def test_layers_need_text_or_image_and_no_more() -> None:
    """32 layers keep 4,096 bytes per token of the text, 8 as many per token of the image."""
    model = vision_model()
    needed = hybrid_bytes(layer_kvs(model), 100, 1601)
    assert needed == 32 * 4096 * 100 + 8 * 4096 * 1601


def test_an_image_takes_blocks_for_its_tiles() -> None:
    """ceil(1601 / 16) = 101, ceil(6404 / 16) = 401 blocks of 2,621,440 bytes."""
    found = fitted()
    said = "\n".join(explained(found))
    assert "= 101 to 401 blocks * 2,621,440 B = 0.25 to 0.98 GiB" in said
    assert any("An image takes 101 to 401 blocks more" in one for one in advice(found))


@pytest.mark.parametrize(
    ("version", "name"),
    [
        ("0.6.2", "vllm 0.5.4 to 0.6.3"),
        ("0.7.3", "vllm 0.7 to 0.10, v0"),
        ("0.8.5", "vllm 0.7 to 0.10, v0"),
        ("0.10.2", "vllm 0.7 to 0.10, v0"),
    ],
)
def test_versions_that_served_it_did_so_with_engine_v0(version: str, name: str) -> None:
    """0.8 to 0.10 fell back to it."""
    assert release_for(vision_model(), version).name == name
    assert fitted(version).start.num_blocks > 0


@pytest.mark.parametrize("version", ["0.11.0", "0.25.0", None])
def test_later_versions_are_refused_with_the_reason(version: str | None) -> None:
    model = vision_model()
    with pytest.raises(InputError, match=r"engine v0 alone .* from 0.6.2 to 0.10.2") as error:
        fit(model, get_gpu("h200"), release=release_for(model, version))
    assert "0.10.2" in (error.value.fix or "")


def test_earlier_versions_are_refused_with_the_reason() -> None:
    with pytest.raises(InputError, match=r"came with 0\.6\.2"):
        release_for(vision_model(), "0.6.1")


def test_the_command_takes_the_engine_that_served_the_model(kvsim: Command, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps(ROW))
    words = ["fit", str(tmp_path / "config.json"), "--gpu", "a100-80gb", "--max-model-len", "8192"]
    served = kvsim(*words, "--vllm", "0.9.2", "--json")
    assert served.status == 0
    answer = json.loads(served.out)
    assert answer["release"] == "vllm 0.7 to 0.10, v0"
    assert answer["block_bytes"] == 2_621_440
    refused = kvsim(*words)
    assert refused.status == 2
    assert "cross_attention_layers" in refused.err
