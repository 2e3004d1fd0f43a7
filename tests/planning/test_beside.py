"""Adapters, drafts, replicas and dealt tokens in a fit: what they take, and of what."""

from __future__ import annotations

import json
import shlex
from dataclasses import replace

import pytest

from kvsim.catalog import GIB, ExpertSplit, get_gpu, get_model, weight_bytes
from kvsim.errors import InputError
from kvsim.planning.beside import draft_term, lora_term
from kvsim.planning.commands import serve_command, serve_yaml
from kvsim.planning.document import DEFINITIONS, document, lines
from kvsim.planning.explain import explained
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.load import Load, bounds, concurrency_at, concurrency_of_all
from kvsim.planning.pipeline import fit_pipeline
from tests.planning.logs import row


def _llama(**changes: object) -> Fit:
    given = replace(FitSettings(max_model_len=32_768), **changes)  # type: ignore[arg-type]
    return fit(get_model("llama-3.1-8b"), get_gpu("h100"), given)


def test_room_for_adapters_comes_out_of_the_pool() -> None:
    """Four of rank 16 on Llama-3.1-8B: 41,943,040 parameters each, in 16 bits."""
    without, room = _llama(), _llama(max_loras=4)
    (term,) = room.budget.further
    assert term.bytes == 4 * 2 * 41_943_040
    assert without.budget.kv_pool.bytes - room.budget.kv_pool.bytes == term.bytes
    assert term.low == term.bytes
    ends = 2 * (128_256 + 4096)
    assert term.high == term.bytes + 4 * 16 * ends * 2
    assert room.budget.weights == without.budget.weights


def test_one_side_of_every_pair_is_divided_by_tensor_parallelism() -> None:
    """By hand for a layer at tp 2: the whole side stays, unless vLLM is told to divide both."""
    model = get_model("llama-3.1-8b")
    divided = [4096 + 2048, 2 * (4096 + 512), 2048 + 4096, 2 * (4096 + 7168), 7168 + 4096]
    whole = lora_term(model, max_loras=1, max_lora_rank=16, tp=1, fully_sharded=False)
    half = lora_term(model, max_loras=1, max_lora_rank=16, tp=2, fully_sharded=False)
    both = lora_term(model, max_loras=1, max_lora_rank=16, tp=2, fully_sharded=True)
    assert half.bytes == 32 * 16 * 2 * sum(divided)
    assert both.bytes == whole.bytes // 2 < half.bytes


def test_adapters_of_experts_are_in_the_upper_end_only() -> None:
    """Not every release adapts experts: Mixtral's are 8 * 3 products in 32 layers."""
    term = lora_term(
        get_model("mixtral-8x7b"), max_loras=1, max_lora_rank=8, tp=1, fully_sharded=False
    )
    experts = 32 * 8 * 3 * (4096 + 14_336)
    assert term.high - term.bytes == 8 * 2 * (experts + 2 * (32_000 + 4096))


@pytest.mark.parametrize("changes", [{"max_loras": 5000}, {"max_loras": 1, "max_lora_rank": 0}])
def test_adapters_out_of_range_are_refused(changes: dict[str, int]) -> None:
    """With the limit."""
    with pytest.raises(InputError, match="must be from 1 to 4,096"):
        _llama(**changes)


def test_adapters_of_a_latent_cache_are_not_guessed() -> None:
    """Refused with the way out."""
    with pytest.raises(InputError, match="grouped-query attention only"):
        fit(get_model("deepseek-v3"), get_gpu("h200"), FitSettings(8, max_loras=1))


def test_a_drafts_layer_is_in_the_pool_and_its_weights_beside_the_model() -> None:
    """C074: Llama-3.1-8B with EAGLE stores 135,168 B per token and prints 410,128 tokens."""
    printed, found = row("C074"), _llama(speculative="eagle", max_model_len=131_072)
    assert found.layout.block_bytes == 16 * printed["bytes_per_token_per_gpu"]
    pool = printed["available_kv_gib"]
    low, high = (int((pool + way * 0.005) * GIB) // found.layout.block_bytes for way in (-1, 1))
    assert low <= printed["kv_tokens"] // 16 <= high
    (draft,) = found.budget.further
    layer = 2 * (2 * 4096**2 + 2 * 4096 * 1024 + 3 * 4096 * 14_336 + 2 * 4096)
    joined = 2 * 2 * 4096**2
    assert draft.low == draft.bytes == layer + joined + 2 * 4096  # a layer, and one more norm
    assert draft.high == draft.bytes + 2 * 2 * 128_256 * 4096


def test_looking_up_ngrams_takes_no_memory() -> None:
    """No layers, no weights."""
    assert _llama(speculative="ngram").budget == _llama().budget


def test_a_module_of_deepseek_is_a_layer_with_its_experts() -> None:
    """11.5 of its 14 GB are the 256 experts, of which each of 16 GPUs has 16."""
    model = get_model("deepseek-v3")
    alone = draft_term(model, "mtp", tp=1)
    shared = draft_term(model, "mtp", tp=1, experts=ExpertSplit(16, whole=True))
    expert = 3 * 7168 * 2048
    assert alone.bytes - shared.bytes == 240 * expert
    found = fit(model, get_gpu("h200"), FitSettings(8, speculative="mtp"))
    assert found.layout.block_bytes == 16 * 62 * 576 * 2


def test_a_draft_of_a_stage_is_not_covered() -> None:
    """Its layer is on the last one."""
    with pytest.raises(InputError, match="last of several stages"):
        fit_pipeline(
            get_model("llama-3.1-8b"),
            get_gpu("h100"),
            FitSettings(pipeline_parallel_size=2, speculative="eagle"),
        )


def test_dealt_tokens_multiply_the_pool_of_a_latent_cache() -> None:
    """A real log: blocks hold 128 tokens on 8 GPUs, and 44,696 of them 5,721,088."""
    one = fit(get_model("deepseek-v3"), get_gpu("h200"), FitSettings(8))
    dealt = fit(
        get_model("deepseek-v3"), get_gpu("h200"), FitSettings(8, decode_context_parallel_size=8)
    )
    assert dealt.layout.block_tokens == 128
    assert 44_696 * dealt.layout.block_tokens == 5_721_088
    assert dealt.layout.block_bytes == one.layout.block_bytes
    assert dealt.start.num_blocks == one.start.num_blocks
    assert dealt.start.longest_request_tokens == 8 * one.start.longest_request_tokens
    assert any("dealt to 8 GPUs" in line for line in explained(dealt))


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama-3.1-8b", FitSettings(8, decode_context_parallel_size=2)),
        ("gpt-oss-120b", FitSettings(8, decode_context_parallel_size=1 << 40)),
        ("gpt-oss-20b", FitSettings(8, decode_context_parallel_size=2)),
    ],
)
def test_what_is_not_replicated_is_not_dealt(model: str, settings: FitSettings) -> None:
    """8 KV heads on 8 GPUs, absurd numbers, and layers with windows."""
    with pytest.raises(InputError):
        fit(get_model(model), get_gpu("h100"), settings)


def test_replicas_share_experts_and_hold_everything_else_again() -> None:
    """DeepSeek-V3 on 16 GPUs: each has 16 of 256 experts whole, or a sixteenth of each."""
    model = replace(get_model("deepseek-v3"), checkpoint_bytes=None)
    routed = 58 * 256 * 3 * 7168 * 2048
    whole = weight_bytes(model)
    for split in (ExpertSplit(16, whole=True), ExpertSplit(16, whole=False)):
        assert whole - weight_bytes(model, experts=split) == routed - routed // 16
    uneven = weight_bytes(model, experts=ExpertSplit(24, whole=True))
    assert whole - uneven == routed - routed // 256 * 11
    dense = get_model("llama-3.1-8b")
    assert weight_bytes(dense, experts=ExpertSplit(16, whole=True)) == weight_bytes(dense)


def test_replicas_add_up_and_no_request_is_longer() -> None:
    """Two engines: twice the tokens and requests, in the table, as data and explained."""
    one, two = _llama(), _llama(data_parallel_size=2)
    assert two.start == one.start
    said = document(two)["replicas"]
    assert said["gpus"] == 2
    assert said["kv_tokens"] == 2 * one.start.kv_tokens
    assert said["max_concurrency"] == 2 * one.start.max_concurrency
    rows = {line.key: line.cells for line in lines({"one": one, "two": two})}
    assert rows["all_tokens"] == (f"{one.start.kv_tokens:,}", f"{2 * one.start.kv_tokens:,}")
    assert rows.keys() <= DEFINITIONS.keys() | {"verdict"}
    assert any(line.startswith("all_tokens = 2 * ") for line in explained(two))
    assert concurrency_of_all(two, 1000, 100) == 2 * concurrency_at(one, 1000, 100)


def test_replicas_serve_each_its_part_of_the_load() -> None:
    """Two replicas at 10 requests/s are as full as one at 5."""
    one = bounds(_llama(), Load(5.0, 1000, 200))
    two = bounds(_llama(data_parallel_size=2), Load(10.0, 1000, 200))
    assert (two.kv_rps, two.compute_rps) == (2 * one.kv_rps, 2 * one.compute_rps)
    assert (two.kv_usage, two.binding) == (one.kv_usage, one.binding)
    assert two.load.rps == 10.0
    assert two.running is not None
    assert one.running is not None
    assert two.running == 2 * one.running


@pytest.mark.parametrize(
    ("model", "settings"),
    [
        ("llama-3.1-8b", FitSettings(speculative="eagle")),
        ("llama-3.1-8b", FitSettings(max_loras=1)),
        ("mixtral-8x7b", FitSettings(2, data_parallel_size=2)),
        ("deepseek-v3", FitSettings(8, decode_context_parallel_size=8)),
    ],
)
def test_a_time_that_no_clock_knows_is_not_told(model: str, settings: FitSettings) -> None:
    """Refused by name."""
    found = fit(get_model(model), get_gpu("h200"), settings)
    with pytest.raises(InputError, match="is not covered"):
        bounds(found, Load(1.0, 1000, 100))


def test_what_to_paste_has_the_flags() -> None:
    """As one word each, switches without a value; YAML with true."""
    found = _llama(max_loras=2, speculative="ngram", data_parallel_size=2)
    words = shlex.split(serve_command(found, "a model"))
    assert words[words.index("--max-loras") + 1] == "2"
    assert words[words.index("--enable-lora") + 1].startswith("--")
    spoken = json.loads(words[words.index("--speculative-config") + 1])
    assert spoken["method"] == "ngram"
    assert "enable-lora: true\n" in serve_yaml(found, "a model")
    assert words[words.index("--data-parallel-size") + 1] == "2"
    assert "--enable-lora" not in serve_command(_llama(), "a model")
