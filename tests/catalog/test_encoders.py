"""Towers of images and sound by shape, against published counts of parameters and real logs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import GIB, get_model, model_from_config
from kvsim.catalog.encoder import Encoder

ROWS = [
    json.loads(line)
    for line in (Path(__file__).parent / "data" / "encoders.jsonl")
    .read_text(encoding="utf-8")
    .splitlines()
]
TEXT = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 32064,
    "max_position_embeddings": 32768,
}


def encoder_of(outer: dict[str, Any], hidden: int = 4096, **more: Any) -> Encoder:
    """The encoder of a file whose language model has `hidden` elements."""
    text = {**TEXT, "hidden_size": hidden}
    model = model_from_config({"text_config": text, **outer}, name="x", source="x", **more)
    assert model.encoder is not None
    return model.encoder


@pytest.mark.parametrize("row", ROWS, ids=lambda row: str(row["model"]))
def test_parameters_are_the_published_ones(row: dict[str, Any]) -> None:
    """Exactly where the source lists every tensor, else to the digits that it prints."""
    encoder = encoder_of(row["config"], row["hidden"])
    assert encoder.exact
    if "elements" in row:
        assert encoder.elements == row["elements"]
    else:
        assert encoder.elements == pytest.approx(row["about"], rel=row["rel"])


@pytest.mark.parametrize("row", [one for one in ROWS if "tokens" in one], ids=lambda r: r["model"])
def test_the_largest_item_has_so_many_tokens(row: dict[str, Any]) -> None:
    """Placeholders with the text between them, and the embeddings among them."""
    image = encoder_of(row["config"], row["hidden"]).items[0]
    assert (image.tokens, image.embeds) == tuple(row["tokens"])


def test_tensor_parallelism_divides_the_products() -> None:
    """Qwen3-VL-235B at tp 8 (vLLM pull request 26000): 0.331 GiB a GPU with the buffers of
    deepstack for 8,192 tokens, 1.272 GiB where every GPU holds all."""
    row = next(one for one in ROWS if one["model"] == "Qwen/Qwen3-VL-235B-A22B-Instruct")
    encoder = encoder_of(row["config"], row["hidden"])
    buffers = 2 * 8192 * encoder.buffer_width
    assert (encoder.weight_bytes(8) + buffers) / GIB == pytest.approx(0.3311, abs=0.01)
    assert (encoder.weight_bytes(1) + buffers) / GIB == pytest.approx(1.2723, abs=0.012)


def test_the_layer_that_llava_reads_is_the_last_one_loaded() -> None:
    """LLaVA-1.6-Mistral prints 14.0786 GiB: 23 of 24 layers of CLIP, 7.2417B of text."""
    row = next(one for one in ROWS if one["model"] == "llava-hf/llava-v1.6-mistral-7b-hf")
    encoder = encoder_of(row["config"], row["hidden"])
    text = 7_241_732_096 + 64 * 2 * 4096
    assert (2 * text + encoder.weight_bytes(1)) / GIB == pytest.approx(14.0786, abs=0.01)


def test_the_processor_says_how_large_an_image_may_be() -> None:
    """Beside the config, in either of the ways in which it is written."""
    row = next(one for one in ROWS if one["model"] == "Qwen/Qwen2.5-VL-7B-Instruct")
    for processor in ({"max_pixels": 1_003_520}, {"size": {"longest_edge": 1_003_520}}):
        encoder = encoder_of(row["config"], row["hidden"], processor=processor)
        assert encoder.items[0].tokens == 1280
    odd = encoder_of(row["config"], row["hidden"], processor={"max_pixels": "x"})
    assert odd.items[0].tokens == 16_384


@pytest.mark.parametrize(
    "tower",
    [
        {"model_type": "new_vit"},
        {"model_type": "new_vit", "num_hidden_layers": 24, "hidden_size": 1024},
        {"model_type": "siglip_vision_model", "hidden_size": -3},
        {"model_type": ["x"], "depth": 10**30},
        {},
    ],
)
def test_an_unknown_tower_has_an_interval_and_a_name(tower: dict[str, Any]) -> None:
    """No guess: the ends are those of the smallest and largest tower in use."""
    encoder = encoder_of({"model_type": "llava", "vision_config": tower})
    assert not encoder.exact
    assert encoder.unknown
    assert encoder.low < encoder.elements < encoder.high
    assert encoder.low >= 50_000_000


def test_another_projector_is_named() -> None:
    """PaliGemma's is one product: the tower's shapes are known, not what is behind it."""
    row = next(one for one in ROWS if one["model"] == "google/siglip-so400m-patch14-384")
    encoder = encoder_of({**row["config"], "model_type": "paligemma"})
    assert encoder.low < encoder.elements < encoder.high
    assert "projector" in encoder.unknown[0]
    assert encoder.items == ()


def test_sound_is_by_shape_where_it_is_whisper_like() -> None:
    """Qwen2.5-Omni's tower of sound is that of Whisper-large: 32 layers of 1280 (637M)."""
    thinker = {
        "text_config": TEXT,
        "audio_config": {
            "model_type": "qwen2_5_omni_audio_encoder",
            "d_model": 1280,
            "encoder_layers": 32,
            "encoder_ffn_dim": 5120,
            "num_mel_bins": 128,
        },
    }
    model = model_from_config(
        {"model_type": "qwen2_5_omni", "thinker_config": thinker}, name="x", source="x"
    )
    assert model.encoder is not None
    (tower,) = model.encoder.towers
    assert tower.elements == pytest.approx(637e6, rel=0.02)
    assert any("sound" in text for text in model.encoder.unknown)


def test_models_of_the_catalogue_have_their_encoders() -> None:
    """Published: Gemma 3 417M, Qwen3.5-35B-A3B 447M (its file of 853 MiB); the rest have none."""
    gemma, qwen = get_model("gemma-3-27b").encoder, get_model("qwen3.5-35b-a3b").encoder
    assert gemma is not None
    assert qwen is not None
    assert gemma.towers[0].elements == pytest.approx(417e6 + 6.2e6, rel=0.01)
    assert 2 * qwen.elements / 2**20 == pytest.approx(853, abs=2)
    assert get_model("llama-3.1-8b").encoder is None
    assert get_model("gemma-3-1b").encoder is None
