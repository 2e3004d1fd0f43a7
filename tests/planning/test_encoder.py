"""The encoder's part of a start-up: budgets and items of public logs, weights, what drops them."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvsim.catalog import GIB, Model, get_gpu, get_model, model_from_config
from kvsim.errors import InputError
from kvsim.planning.advice import advice
from kvsim.planning.commands import serve_command, serve_yaml
from kvsim.planning.document import document
from kvsim.planning.explain import explained
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.pipeline import fit_pipeline
from kvsim.planning.releases import release_of

TOWERS = Path(__file__).parents[1] / "catalog" / "data" / "encoders.jsonl"
QWEN = {
    "model_type": "qwen2",
    "num_hidden_layers": 28,
    "hidden_size": 3584,
    "num_attention_heads": 28,
    "num_key_value_heads": 4,
    "intermediate_size": 18944,
    "vocab_size": 152064,
    "max_position_embeddings": 128_000,
    "tie_word_embeddings": False,
}
MISTRAL = {
    "model_type": "mistral",
    "num_hidden_layers": 40,
    "hidden_size": 5120,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 32768,
    "vocab_size": 131072,
    "max_position_embeddings": 131_072,
    "tie_word_embeddings": False,
}
QWEN3 = {
    "model_type": "qwen3_vl_text",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "head_dim": 128,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 262_144,
    "tie_word_embeddings": False,
}
LLAVA = {**MISTRAL, "num_hidden_layers": 32, "hidden_size": 4096, "intermediate_size": 14336}
TEXTS = {
    "Qwen/Qwen2.5-VL-7B-Instruct": QWEN,
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503": MISTRAL,
    "Qwen/Qwen3-VL-8B-Instruct": QWEN3,
    "llava-hf/llava-v1.6-mistral-7b-hf": {**LLAVA, "vocab_size": 32_064},
}


def seeing(name: str, **more: Any) -> Model:
    """A model of the towers' file with its language model, or one of the catalogue."""
    if name not in TEXTS:
        return get_model(name)
    rows = (json.loads(line) for line in TOWERS.read_text(encoding="utf-8").splitlines())
    outer = next(one["config"] for one in rows if one["model"] == name)
    config = {**outer, "text_config": TEXTS[name]}
    return model_from_config(config, name=name, source="config.json", **more)


def started(name: str, version: str = "0.23", gpu: str = "h200", **flags: Any) -> Fit:
    """What a server of this version would do with it."""
    model = seeing(name, **flags.pop("beside", {}))
    return fit(model, get_gpu(gpu), FitSettings(**flags), release=release_of(version))


GEMMA, QWEN35 = "gemma-3-27b", "qwen3.5-35b-a3b"
VL, VL3 = "Qwen/Qwen2.5-VL-7B-Instruct", "Qwen/Qwen3-VL-8B-Instruct"
SMALL, NEXT = (
    "mistralai/Mistral-Small-3.1-24B-Instruct-2503",
    "llava-hf/llava-v1.6-mistral-7b-hf",
)
LOGS: list[tuple[str, str, dict[str, Any], tuple[int, int, str]]] = [
    # vllm-project/vllm#16292
    (
        SMALL,
        "0.8.3",
        {"max_num_batched_tokens": 8192, "limit_mm_per_prompt": {"image": 10}},
        (8192, 3, "image"),
    ),
    # the log of C091
    (
        GEMMA,
        "0.11.0",
        {
            "max_num_batched_tokens": 8192,
            "max_model_len": 4096,
            "limit_mm_per_prompt": {"image": 2},
        },
        (8192, 31, "image"),
    ),
    # start-ups of Gemma-4-26B-A4B in 4 bits, 0.19.2
    (
        "gemma-4-26b-a4b",
        "0.19.2",
        {"max_num_batched_tokens": 16_384, "max_num_seqs": 2, "max_model_len": 256_000},
        (16_384, 6, "video"),
    ),
    (
        "gemma-4-26b-a4b",
        "0.19.2",
        {"max_num_batched_tokens": 8192, "max_model_len": 98_304},
        (8192, 3, "video"),
    ),
    ("gemma-4-26b-a4b", "0.22", {"max_num_batched_tokens": 4096}, (4096, 1, "video")),
    # a start-up of Qwen2.5-VL-7B, 0.8.1, all defaults; and one of 0.23.0
    (VL, "0.8.1", {}, (98_304, 1, "video")),
    (VL, "0.23.0", {"max_num_batched_tokens": 2048}, (114_688, 1, "video")),
    # Qwen3.5-35B-A3B-FP8, 0.18.1; Qwen3.6-35B-A3B with 32,768 tokens of a step
    (QWEN35, "0.18.1", {"max_num_batched_tokens": 2048}, (16_384, 1, "image")),
    (QWEN35, "0.22", {"max_num_batched_tokens": 32_768}, (32_768, 2, "image")),
    # Qwen3-VL: vllm-project/vllm#30475 before, and a start with images off after it
    (VL3, "0.11.0", {"max_model_len": 65_536}, (153_600, 1, "video")),
    (
        VL3,
        "0.20",
        {"max_num_batched_tokens": 2048, "limit_mm_per_prompt": {"image": 0}},
        (12_288, 1, "video"),
    ),
    # a start-up of LLaVA-1.6-Mistral, 0.11.0
    (
        NEXT,
        "0.11.0",
        {"max_num_batched_tokens": 8192, "max_model_len": 4096, "max_num_seqs": 1},
        (8192, 1, "image"),
    ),
]


@pytest.mark.parametrize(("name", "version", "flags", "printed"), LOGS)
def test_budget_and_items_are_those_that_servers_printed(
    name: str, version: str, flags: dict[str, Any], printed: tuple[int, int, str]
) -> None:
    """`Encoder cache will be initialized with a budget of N tokens, and profiled with M items`."""
    found = started(name, version, **flags).encoder
    assert found is not None
    assert (found.budget_tokens, found.items, found.modality) == printed


def terms_of(found: Fit) -> dict[str, int]:
    return {term.name: term.bytes for term in found.budget.terms()}


def test_the_peak_of_a_long_video_is_that_of_the_encoder() -> None:
    """Qwen2.5-VL-7B, 0.23.0, on 79.1 GiB: 15.67 GiB of weights, -14.28 GiB left of 22 %.

    So everything but weights and 0.53 GiB of graphs took 15.5 GiB.
    """
    found = started(VL, gpu="a100-80gb", gpu_memory_utilization=0.22, max_num_batched_tokens=2048)
    terms = terms_of(found)
    assert terms["weights"] + terms["encoder_weights"] == pytest.approx(15.67 * GIB, rel=0.015)
    peak = found.budget.activation_peak
    cache = terms["encoder_cache"]
    assert peak.low + cache <= 15.4 * GIB <= peak.high + cache
    assert peak.bytes + cache == pytest.approx(15.4 * GIB, rel=0.1)
    assert found.start.refusal is not None


def test_outputs_stay_while_the_decoder_is_profiled() -> None:
    """An item of 16,384 vectors of 2,048 elements in 16 bits: 64 MiB."""
    found = started(QWEN35, max_num_batched_tokens=2048)
    assert terms_of(found)["encoder_cache"] == 16_384 * 2048 * 2
    (cache,) = (term for term in found.budget.terms() if term.name == "encoder_cache")
    assert cache.low == cache.bytes == cache.high
    several = started(GEMMA, "0.11.0", max_num_batched_tokens=8192, max_model_len=4096)
    assert terms_of(several)["encoder_cache"] == 31 * 260 * 5376 * 2


def test_no_images_gives_back_what_the_tower_takes() -> None:
    """Qwen3.6-35B-A3B in 4 bits on 31.84 GiB, nightly before 0.20: 4.88 GiB of pool, 6.44 without.

    Both the tower (0.83 GiB) and its profiled image are gone.
    """
    flags: dict[str, Any] = {"gpu": "rtx5090", "max_num_batched_tokens": 4096, "max_num_seqs": 4}
    with_images = started(QWEN35, "0.19", **flags)
    without = started(
        QWEN35, "0.19", limit_mm_per_prompt={"image": 0, "video": 0, "audio": 0}, **flags
    )
    assert without.encoder is None
    assert not {"encoder_weights", "encoder_cache"} & set(terms_of(without))
    gained = (without.budget.kv_pool.bytes - with_images.budget.kv_pool.bytes) / GIB
    assert terms_of(with_images)["encoder_weights"] / GIB == pytest.approx(0.83, abs=0.01)
    assert 1.3 < gained < 3.3
    only_text = started(QWEN35, "0.19", language_model_only=True, **flags)
    assert only_text.budget.kv_pool == without.budget.kv_pool


@pytest.mark.parametrize(
    ("version", "share"), [("0.8.5", 1.0), ("0.9.2", 1.0), ("0.11", 0.0), ("0.19", None)]
)
def test_old_releases_load_a_tower_that_nothing_uses(version: str, share: float | None) -> None:
    """Only what is profiled goes; from 0.10.1 on some families leave the tower out, later all."""
    off = {"image": 0, "video": 0}
    terms = terms_of(started(VL, version, limit_mm_per_prompt=off, max_model_len=32_768))
    whole = terms_of(started(VL, version, max_model_len=32_768))["encoder_weights"]
    assert terms.get("encoder_weights") == (None if share is None else share * whole)
    assert "encoder_cache" not in terms


def test_measured_terms_hold_what_a_server_prints_within_them() -> None:
    """Its weights contain the tower, its peak the outputs; either can be given alone too."""
    printed = started(VL, measured_bytes={"weights": 16 * GIB, "activation_peak": 2 * GIB})
    names = terms_of(printed)
    assert not {"encoder_weights", "encoder_cache"} & set(names)
    assert names["activation_peak"] == 2 * GIB
    alone = started(VL, measured_bytes={"encoder_weights": GIB, "encoder_cache": GIB // 2})
    assert terms_of(alone)["encoder_weights"] == GIB
    assert terms_of(alone)["encoder_cache"] == GIB // 2


def test_the_checkpoint_has_the_tower_in_it() -> None:
    """16,584,333,312 B of Qwen2.5-VL-7B: with and without the files' size the sum is the same."""
    index = {"metadata": {"total_size": 16_584_333_312}}
    terms = terms_of(started(VL, beside={"index": index}))
    assert terms["weights"] + terms["encoder_weights"] == 16_584_333_312
    by_shape = terms_of(started(VL))
    assert by_shape["weights"] + by_shape["encoder_weights"] == 16_584_333_312
    text = terms_of(started(VL, language_model_only=True, beside={"index": index}))
    assert text["weights"] == terms["weights"]


def test_text_models_have_no_such_terms_and_take_no_such_limits() -> None:
    """A limit that the model has no use for is refused, not ignored."""
    model, gpu = get_model("llama-3.1-8b"), get_gpu("h100")
    assert fit(model, gpu).encoder is None
    for flags in ({"limit_mm_per_prompt": {"image": 1}}, {"language_model_only": True}):
        with pytest.raises(InputError, match="has no encoder"):
            fit(model, gpu, FitSettings(**flags))


@pytest.mark.parametrize(
    ("version", "flags", "said"),
    [
        ("0.23", {"limit_mm_per_prompt": {"smell": 1}}, "image, video, audio"),
        ("0.23", {"limit_mm_per_prompt": {"image": -1}}, "from 0 to"),
        ("0.9", {"language_model_only": True}, "limit_mm_per_prompt"),
    ],
)
def test_limits_that_a_server_would_refuse(version: str, flags: Any, said: str) -> None:
    """With what to do instead."""
    with pytest.raises(InputError, match=said):
        started(VL, version, **flags)


def test_an_unknown_tower_is_said_by_name() -> None:
    """Its interval is in the terms, its profile in words and with a wide interval."""
    config = {"model_type": "llava", "text_config": QWEN, "vision_config": {"model_type": "eye"}}
    model = model_from_config(config, name="x", source="x")
    found = fit(model, get_gpu("h100"), FitSettings(max_model_len=8192))
    terms = {term.name: term for term in found.budget.terms()}
    assert terms["encoder_weights"].high > 5 * terms["encoder_weights"].low
    assert terms["activation_peak"].high > terms["activation_peak"].bytes + GIB
    notes = " ".join(advice(found))
    assert "'eye'" in notes
    assert "--measured" in notes


@pytest.mark.parametrize(
    "tower",
    [
        {"model_type": "pixtral", "image_size": 8, "patch_size": 16},
        {"model_type": "pixtral", "image_size": 10_000, "patch_size": 1},
        {"model_type": "clip_vision_model", "hidden_size": True},
    ],
)
def test_hostile_towers_do_not_break_a_fit(tower: dict[str, Any]) -> None:
    """An answer with intervals, or one that does not fit: never another error."""
    config = {"model_type": "llava", "text_config": QWEN, "vision_config": tower}
    model = model_from_config(config, name="x", source="x")
    for version in ("0.8", "0.11", "0.23", "0.7"):
        found = fit(model, get_gpu("h100"), release=release_of(version))
        names = {term.name for term in found.budget.terms()}
        assert "encoder_weights" in names


def test_v0_says_in_words_what_it_profiles() -> None:
    """The tower has its bytes; a batch of the longest prompts is profiled, which is not covered."""
    found = started(VL, "0.7.3", max_model_len=32_768)
    assert terms_of(found)["encoder_weights"] == 2 * 676_550_144
    assert found.encoder is None
    assert any("1 to 37 GiB" in note for note in advice(found))


def test_the_formulas_and_the_line_to_paste_have_the_users_numbers() -> None:
    """Budget, items, and the flags, quoted for a shell and for YAML."""
    found = started(VL, max_model_len=32_768, limit_mm_per_prompt={"image": 2, "video": 0})
    text = "\n".join(explained(found))
    assert "encoder_cache = " in text
    assert "max(max_num_batched_tokens 8,192, 16,384 tokens of the largest image)" in text
    assert "1 image" in text
    line = serve_command(found, "MODEL")
    assert """--limit-mm-per-prompt '{"image": 2, "video": 0}'""" in line
    assert "limit-mm-per-prompt" in serve_yaml(found, "MODEL")
    only = started(VL, language_model_only=True)
    assert "--language-model-only" in serve_command(only, "MODEL")
    assert document(found)["encoder"] == {
        "budget_tokens": 16_384,
        "modality": "image",
        "items": 1,
        "item_tokens": 16_384,
    }
    assert document(only)["encoder"] is None


def test_every_stage_of_a_pipeline_has_the_tower() -> None:
    """vLLM builds it on all of them."""
    model, flags = seeing(VL), FitSettings(pipeline_parallel_size=2, max_model_len=32_768)
    stages = fit_pipeline(model, get_gpu("h200"), flags).stages
    assert [terms_of(one)["encoder_weights"] for one in stages] == [2 * 676_550_144] * 2
    known = replace(flags, measured_bytes={"weights": 9 * GIB})
    measured = fit_pipeline(model, get_gpu("h200"), known).stages[0]
    assert "encoder_weights" not in terms_of(measured)
