"""llama.cpp on one GPU: the cache a log prints, and the longest context that fits beside it."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from kvsim.catalog import GIB, get_gpu, get_model
from kvsim.errors import InputError
from kvsim.planning.llama_cpp_fit import cache_bytes, llama_cpp_fit
from kvsim.planning.others import OtherFit
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]
MIB = 1 << 20


@pytest.mark.parametrize(
    ("model", "n_ctx", "mib"),
    [
        ("gpt-oss-20b", 131_072, 3072 + 18),  # C141: 12 layers of 131,072 cells, 12 of 768
        ("mistral-7b", 4096, 512),  # C139: 131,072 B per token
        ("llama-3-8b", 512, 64),  # printed as KV self size
    ],
)
def test_the_cache_is_what_logs_print(model: str, n_ctx: int, mib: int) -> None:
    """Whole MiB, by the context alone."""
    assert cache_bytes(get_model(model), n_ctx) == mib * MIB


def test_every_sequence_has_a_part_of_its_own() -> None:
    """Four contexts of 1,000 tokens are 1,024 cells each, with four windows."""
    model = get_model("llama-3-8b")
    assert cache_bytes(model, 4000, sequences=4) == 4 * 1024 * 131_072
    windows = cache_bytes(get_model("gpt-oss-20b"), 4 * 131_072, sequences=4)
    assert windows == 4 * (3072 + 18) * MIB


@pytest.mark.parametrize(
    ("vocab", "hidden", "mib"),
    [(128_256, 4096, 258.5), (151_936, 2048, 300.75)],
    ids=["Llama-3-8B", "Qwen2.5-3B"],
)
def test_the_buffer_of_a_step_is_what_logs_print(vocab: int, hidden: int, mib: float) -> None:
    """Logits and hidden states of 512 tokens."""
    shapes = replace(get_model("llama-3-8b"), vocab=vocab, hidden=hidden)
    terms = {term.name: term for term in llama_cpp_fit(shapes, get_gpu("rtx4090")).terms}
    assert terms["compute_buffer"].bytes == mib * MIB


def _fit(model: str, gpu: str = "rtx4090", **changes: Any) -> OtherFit:
    return llama_cpp_fit(get_model(model), get_gpu(gpu), **changes)


def test_the_longest_context_is_the_last_that_fits_what_is_left() -> None:
    """In steps of 256 cells; one step more does not fit, and half the sequences fit twice that."""
    model = get_model("llama-3.1-8b")
    found = _fit("llama-3.1-8b")
    left = found.terms[-1].bytes
    total, *spent = (term.bytes for term in found.terms[:-1])
    assert left == total - sum(spent)
    assert cache_bytes(model, found.tokens) <= left < cache_bytes(model, found.tokens + 256)
    assert found.tokens_low < found.tokens < found.tokens_high
    two = _fit("llama-3.1-8b", sequences=2)
    assert two.tokens == found.tokens // 512 * 256
    assert (two.max_concurrency, found.max_concurrency) == (2.0, 1.0)


def test_a_smaller_file_leaves_room_for_the_whole_context() -> None:
    """4.6 GiB of a GGUF file instead of 15: all 131,072 tokens, 16 GiB, fit 23.6 GiB."""
    assert _fit("llama-3.1-8b").verdict == "does not fit"
    small = _fit("llama-3.1-8b", measured={"weights": round(4.6 * GIB)})
    assert (small.verdict, small.tokens) == ("fits", 131_072)
    assert small.request_bytes == 16 * GIB
    assert _fit("llama-3.1-8b", max_model_len=8192).verdict == "fits"


@pytest.mark.parametrize(
    ("model", "changes"),
    [
        ("deepseek-v3", {}),
        ("llama-3-8b", {"max_model_len": 0}),
        ("llama-3-8b", {"sequences": 257}),
        ("llama-3-8b", {"measured": {"non_torch": 1}}),
    ],
)
def test_what_is_not_known_is_refused(model: str, changes: dict[str, Any]) -> None:
    """Latent caches, lengths and sequences out of range, parts of other servers."""
    with pytest.raises(InputError):
        _fit(model, **changes)


def test_the_command_answers_for_llama_cpp(kvsim: Command) -> None:
    """As a table and as data, without a fraction."""
    base = ("fit", "llama-3.1-8b", "--gpu", "rtx4090", "--server", "llama.cpp")
    shown = kvsim(*base, "--max-model-len", "8192")
    assert shown.status == 0, shown.err
    assert "longest context (tokens)" in shown.out
    assert "llama.cpp has no fraction" in shown.out
    assert "assumed, not measured" in shown.out
    answer = json.loads(kvsim(*base, "--measured", "weights=4.6", "--json").out)
    assert (answer["verdict"], answer["fraction"]) == ("fits", None)
    for option in (("--tp", "2"), ("--fraction", "0.9"), ("--kv-cache-dtype", "fp8")):
        refused = kvsim(*base, *option)
        assert refused.status == 2
        assert "has no answer for llama.cpp" in refused.err
