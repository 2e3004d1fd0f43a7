"""SGLang and TensorRT-LLM by their own rules, from a model and a GPU alone."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvsim.catalog import get_gpu, get_model, kv_bytes_per_token
from kvsim.errors import InputError
from kvsim.planning.others import OtherFit, other_fit
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]


def found(server: Any, model: str = "llama-3.1-8b", **settings: Any) -> OtherFit:
    return other_fit(server, get_model(model), get_gpu("h100"), **settings)


def test_sglangs_pool_is_what_its_fraction_leaves_of_the_free_memory() -> None:
    """free after weights - free before * (1 - f), in whole tokens."""
    answer = found("sglang", fraction=0.8)
    total, weights, non_torch, pool = (term.bytes for term in answer.terms)
    assert pool == int(total - weights - non_torch - total * (1 - 0.8))
    assert answer.tokens == pool // 131_072
    assert answer.tokens_low < answer.tokens < answer.tokens_high
    assert found("sglang", fraction=0.9).tokens > answer.tokens


def test_tensorrt_takes_a_share_of_what_loading_leaves_in_whole_blocks() -> None:
    """fraction * (total - weights - non_torch - activations), blocks of 32 tokens."""
    answer = found("tensorrt-llm")
    total, *spent, pool = (term.bytes for term in answer.terms)
    assert pool == int((total - sum(spent)) * 0.9)
    assert answer.tokens == pool // (32 * 131_072) * 32
    assert answer.fraction == 0.9


def test_the_verdict_is_about_one_request_of_full_length() -> None:
    """A 70B model on one H100 leaves nothing, on four room for several."""
    assert found("sglang", "llama-3-70b").verdict == "does not fit"
    assert found("sglang", "llama-3-70b").tokens == 0
    four = found("sglang", "llama-3-70b", tp=4)
    assert four.verdict == "fits"
    assert four.request_bytes == 8192 * kv_bytes_per_token(get_model("llama-3-70b"), tp=4)
    assert four.max_concurrency == four.tokens / 8192


def test_half_the_bytes_store_twice_the_tokens() -> None:
    """An 8-bit cache."""
    assert found("sglang", kv_dtype_bytes=1).tokens // 2 == found("sglang").tokens


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"model": "gemma-3-27b"}, "do not keep every token"),
        ({"fraction": 1.5}, "mem_fraction_static must be above 0"),
        ({"max_model_len": 10**9}, "must be from 1 to 131,072 tokens"),
    ],
)
def test_what_is_not_covered_is_refused(settings: dict[str, Any], message: str) -> None:
    """With the way out."""
    with pytest.raises(InputError, match=message):
        found("sglang", **settings)


def test_the_command_prints_the_servers_own_answer(kvsim: Command) -> None:
    """And says that time is simulated with vLLM's scheduler."""
    arguments = ("fit", "llama-3.1-8b", "--gpu", "h100", "--server", "sglang")
    shown = kvsim(*arguments)
    assert shown.status == 0, shown.err
    assert "kvsim simulates time with vLLM's scheduler" in shown.out
    assert "mem_fraction_static is the share" in shown.out
    answer = json.loads(kvsim(*arguments, "--fraction", "0.8", "--json").out)
    assert answer["kv_tokens"] == found("sglang", fraction=0.8).tokens
    refused = kvsim("fit", "llama-3.1-8b", "--gpu", "h100", "--server", "tgi")
    assert refused.status == 2
    assert "Known: vllm, sglang, tensorrt-llm, llama.cpp" in refused.err
