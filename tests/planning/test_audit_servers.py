"""Start-up logs of SGLang, TensorRT-LLM and llama.cpp against their rules and models."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.catalog import Model, get_model
from kvsim.errors import InputError
from kvsim.planning.audit import Audit, audit
from kvsim.startup_logs import read_startup_log
from tests.cli.conftest import Command, kvsim
from tests.planning import shapes
from tests.planning.logs import ROWS, row
from tests.startup_logs.logs_other import LLAMA, SGLANG, TENSORRT
from tests.startup_logs.render import render

__all__ = ["kvsim"]

MODELS: dict[str, Model | None] = {
    "C116": get_model("qwen3-235b-a22b"),
    "C117": get_model("kimi-k2"),
    "C118": shapes.QWEN25_05B,
    "C119": get_model("llama-3.1-8b"),
    "C120": get_model("nemotron-3-nano-30b-a3b"),
    "C121": None,
    "C123": get_model("deepseek-v3"),
    "C126": get_model("llama-3.1-8b"),
    "C128": get_model("qwen3-8b"),
    "C131": shapes.TINYLLAMA,
    "C137": get_model("llama-3.1-405b"),
    "C138": shapes.PHI3_MINI,
    "C139": get_model("mistral-7b"),
    "C141": get_model("gpt-oss-20b"),
    "C142": shapes.OPENLLAMA_3B,
    "C143": shapes.LLAMA_30B,
}
"""The consistent rows of these servers. C121's hybrid of 9B is not among the known shapes."""
SERVERS = {"sglang", "tensorrt-llm", "llama.cpp"}


def rendered(log_id: str) -> list[str]:
    """A row's lines, without the free memory after the weights, which no row has."""
    printed = {key: value for key, value in row(log_id).items() if value is not None}
    lines, _ = render(printed)
    if "kv_cache_dtype" in printed and printed["server"] == "sglang":
        lines[0] = lines[0].replace("page_size", f"kv_cache_dtype='{'fp8_e4m3'}', page_size")
    return [line for line in lines if "avail mem=209.98" not in line]


def audited(lines: list[str], model: Model | None = None) -> Audit:
    return audit(read_startup_log(lines), model)


def disagreeing(found: Audit) -> set[str]:
    return {check.what for check in found.checks if not check.agrees}


@pytest.mark.parametrize("log", MODELS)
def test_a_consistent_log_agrees_with_every_check(log: str) -> None:
    """The size of the pool is checked wherever the model is known."""
    found = audited(rendered(log), MODELS[log])
    assert disagreeing(found) == set()
    sized = {"kv_size_gib", "kv_full_gib"} & {check.what for check in found.checks}
    assert bool(sized) == (MODELS[log] is not None)
    assert found.notes


def test_every_consistent_row_of_these_servers_is_audited() -> None:
    """No exceptions but the shapes nobody knows."""
    rows = {one["id"] for one in ROWS if one["server"] in SERVERS}
    assert rows - MODELS.keys() == {"C124", "C130"}
    assert {row(log)["status"] for log in MODELS} == {"consistent"}


@pytest.mark.parametrize("log", ["C116", "C119", "C126", "C128", "C137", "C139", "C142"])
def test_another_model_does_not_agree(log: str) -> None:
    """Opt-13B's tokens take more bytes than any of these models'."""
    assert disagreeing(audited(rendered(log), get_model("opt-13b"))) == {"kv_size_gib"}


def changed(lines: list[str], old: str, new: str) -> list[str]:
    text = "\n".join(lines)
    assert old in text
    return text.replace(old, new).splitlines()


@pytest.mark.parametrize(
    ("log", "old", "new", "what"),
    [
        ("C116", "#tokens: 367404", "#tokens: 366404", "kv_size_gib"),
        ("C126", "(12800)", "(12801)", "kv_tokens"),
        ("C131", "blocks=116617", "blocks=116618", "kv_tokens"),
        ("C139", "(  8192 cells", "(  8448 cells", "kv_size_gib"),
        ("C141", "(   768 cells", "(  1024 cells", "kv_swa_tokens"),
        ("C141", "(   768 cells", "(  1024 cells", "kv_swa_gib"),
        ("C139", "n_ctx         = 8192", "n_ctx         = 4096", "kv_tokens"),
    ],
)
def test_a_changed_figure_does_not_agree(log: str, old: str, new: str, what: str) -> None:
    """Each rule sees a wrong figure."""
    assert what in disagreeing(audited(changed(rendered(log), old, new), MODELS[log]))


WEIGHTS = (
    "[2026-03-01 10:10:01 TP0] Load weight end. elapsed=9.1 s, type=LlamaForCausalLM, "
    "dtype=torch.bfloat16, avail mem={after:.2f} GB, mem usage=15.05 GB."
)
STATES = (
    "[2026-03-01 10:10:02 TP0] Mamba Cache is allocated. max_mamba_cache_size: 49, "
    "conv_state size: 0.06GB, ssm_state size: 6.40GB"
)
POOL = (
    "[2026-03-01 10:10:02 TP0] KV Cache is allocated. #tokens: {tokens}, K size: {half:.2f} GB, "
    "V size: {half:.2f} GB"
)
ARGUMENTS = (
    "[2026-03-01 10:10:00] server_args=ServerArgs(model_path='llama-3.1-8b', tp_size=1, "
    "mem_fraction_static=0.88, page_size=1{more})"
)


def sglang(
    *, after: float, tokens: int, size: float, states: bool = False, more: str = ""
) -> Audit:
    lines = [ARGUMENTS.format(more=more), WEIGHTS.format(after=after)]
    lines += [STATES] if states else []
    return audited([*lines, POOL.format(tokens=tokens, half=size / 2)])


def test_the_pool_follows_from_the_free_memory_around_the_weights() -> None:
    """63.95 - (63.95 + 15.05) * 0.12 = 54.47 GiB, to the two decimals; 6.46 of states less."""
    good = sglang(after=63.95, tokens=446_218, size=54.47)
    assert [check.what for check in good.checks] == ["kv_size_gib"]
    assert disagreeing(good) == set()
    for size in (54.44, 54.51):
        wrong = sglang(after=63.95, tokens=446_218, size=size)
        assert disagreeing(wrong) == {"kv_size_gib"}
    hybrid = sglang(after=63.95, tokens=446_218, size=48.01, states=True)
    assert disagreeing(hybrid) == set()
    assert hybrid.checks[0].how.endswith("- state")


@pytest.mark.parametrize("more", [", max_total_tokens=20480", ", speculative_algorithm='EAGLE'"])
def test_a_capped_pool_is_not_checked_against_the_fraction(more: str) -> None:
    """And a note says why."""
    found = sglang(after=63.95, tokens=20_480, size=2.5, more=more)
    assert found.checks == ()
    assert any("smaller than the fraction allows" in note for note in found.notes)


def test_sglang_pools_of_windows_and_drafts_are_told_apart() -> None:
    """gpt-oss-20b: 12 full layers of 40,000 tokens, 12 windows of 30,000, 2,048 bytes each."""
    case = SGLANG["0.5: two pools of a model with sliding windows"]
    found = audited(case[0].splitlines(), get_model("gpt-oss-20b"))
    (size,) = [check for check in found.checks if check.what == "kv_size_gib"]
    assert size.low == pytest.approx(12 * 2048 * 70_000 / 2**30 - 0.005, abs=1e-4)
    assert not size.agrees  # the sizes in that log are made up
    tokens = SGLANG["0.5: a draft's pool behind the target's"]
    assert disagreeing(audited(tokens[0].splitlines())) == set()


def test_the_tokens_of_both_lines_are_the_same() -> None:
    """max_total_num_tokens is what the pool holds."""
    text = SGLANG["0.4.4: a dense model"][0]
    assert "kv_tokens" not in disagreeing(audited(text.splitlines()))
    other = text.replace("max_total_num_tokens=367404", "max_total_num_tokens=367405")
    assert "kv_tokens" in disagreeing(audited(other.splitlines()))


def test_sglang_says_what_it_cannot_check() -> None:
    """Stages, data parallel heads, an index; and why vLLM prints other tokens (case 03)."""
    lines = rendered("C116")
    for old, model, why in (
        ("tp_size=4, ", "qwen3-235b-a22b", "how many layers each stage has"),
        ("dp_size=1", "qwen3-235b-a22b", "over how many GPUs the heads are split"),
        ("", "deepseek-v3.2", "the index beside the cache"),
    ):
        new = {"tp_size=4, ": "tp_size=4, pp_size=2, ", "dp_size=1": "dp_size=4"}.get(old, "")
        found = audited(changed(lines, old, new) if old else lines, get_model(model))
        assert "kv_size_gib" not in {check.what for check in found.checks}
        assert any(why in note for note in found.notes)
        assert "mem_fraction_static" in found.notes[0]
        assert "gpu_memory_utilization" in found.notes[0]
        assert "although a token takes the same bytes" in found.notes[0]
    unknown = changed(lines, "page_size", "kv_cache_dtype='fp4_e2m1', page_size")
    assert any("has no known bytes" in note for note in audited(unknown, MODELS["C116"]).notes)


TRT_LOADED = (
    "[TensorRT-LLM][INFO] Memory usage when calculating max tokens in paged kv cache: total: 79.25"
    " GiB, available: 60.50 GiB\n"
    "[TensorRT-LLM][INFO] KvCacheConfig free_gpu_memory_fraction=0.9\n"
    "[TensorRT-LLM][INFO] Number of tokens per block: 64.\n"
    "[TensorRT-LLM][INFO] [MemUsageChange] Allocated {size} GiB for max tokens in paged KV cache"
    " ({tokens})."
)


def test_tensorrt_llm_allocates_the_fraction_of_what_is_free() -> None:
    """60.50 * 0.9 = 54.45 GiB: 446,016 tokens of Llama-3.1-8B in blocks of 64 are 54.45."""
    text = TRT_LOADED.format(size="54.45", tokens=446_016)
    good = audited(text.splitlines(), get_model("llama-3.1-8b"))
    assert disagreeing(good) == set()
    assert [check.what for check in good.checks] == ["kv_tokens", "kv_size_gib", "kv_size_gib"]
    wrong = TRT_LOADED.format(size="53.45", tokens=446_016)
    assert disagreeing(audited(wrong.splitlines())) == {"kv_size_gib"}
    capped = text + "\nfree_gpu_memory_fraction and max_tokens are set (to 0.9 and 8192,"
    notes = audited(capped.splitlines()).notes
    assert any("max_tokens may hold the pool below" in note for note in notes)


def test_tensorrt_llm_bytes_of_a_token_are_the_models_on_some_gpus() -> None:
    """As printed: 147,456 are Qwen3-8B's on one GPU, not Llama-3.1-8B's on any."""
    lines = TENSORRT["1.x: the PyTorch backend allocates twice"][0].splitlines()
    assert disagreeing(audited(lines, get_model("qwen3-8b"))) == set()
    other = audited(lines, get_model("llama-3.1-8b"))
    assert disagreeing(other) == {"kv_bytes_per_token"}
    uncapped = [line for line in lines if "max_tokens are set" not in line]
    fewer = audited(changed(uncapped, "(33984)", "(33920)"))
    assert disagreeing(fewer) >= {"kv_tokens"}  # 4.67 GiB would hold more
    capped = changed(changed(lines, "(33984)", "(8192)"), "Allocated 4.67", "Allocated 1.12")
    assert disagreeing(audited(capped)) == set()


def test_tensorrt_llm_blocks_of_several_windows_are_not_checked() -> None:
    """They share the memory in ways that the log does not print."""
    lines = TENSORRT["1.x: blocks of every window"][0].splitlines()
    two = [lines[0].replace("16384]", "1024]"), *lines]
    found = audited(two)
    assert found.checks == ()
    assert any("several windows" in note for note in found.notes)


def test_llama_cpp_buffers_windows_and_states_are_checked() -> None:
    """Four streams of a window, two hosts' buffers, and 149.625 MiB of states per sequence."""
    windows = LLAMA["today: sliding windows, four streams"][0].replace(
        "131072\n", "131072\nllama_context: n_ubatch      = 512\n", 1
    )
    found = audited(windows.splitlines(), get_model("gpt-oss-20b"))
    assert disagreeing(found) == set()
    assert {check.what for check in found.checks} >= {"kv_full_gib", "kv_swa_gib", "kv_swa_tokens"}
    hosts = LLAMA["mid 2025: the unified cache over two hosts"][0]
    short = hosts.replace("580.00", "570.00").splitlines()
    assert disagreeing(audited(short)) == {"kv_size_gib"}
    states = (
        "llama_context: n_seq_max     = 4\n"
        "llama_context: n_ctx         = 262144\n"
        "llama_kv_cache: size = 16384.00 MiB (262144 cells,  16 layers,  4/1 seqs), "
        "K (f16): 8192.00 MiB, V (f16): 8192.00 MiB\n"
        "llama_memory_recurrent: size =  598.50 MiB (     4 cells,  64 layers,  4 seqs)\n"
    )
    hybrid = audited(states.splitlines(), get_model("qwen3.5-27b"))
    assert {check.what for check in hybrid.checks} == {"kv_tokens", "kv_size_gib", "state_gib"}
    assert disagreeing(hybrid) == set()
    fewer = states.replace("598.50", "598.25").splitlines()
    assert disagreeing(audited(fewer, get_model("qwen3.5-27b"))) == {"state_gib"}


GPT_OSS_POOLS = """\
llama_context: n_seq_max     = {sequences}
llama_context: n_ctx         = {context}
llama_context: n_ubatch      = 512
llama_context: kv_unified    = {unified}
llama_kv_cache_iswa: creating non-SWA KV cache, size = {cells} cells
llama_kv_cache: size = {full:.2f} MiB ({cells:6d} cells,  12 layers,  {seqs} seqs), K (f16): 0 MiB, V (f16): 0 MiB
llama_kv_cache_iswa: creating     SWA KV cache, size = {window} cells
llama_kv_cache: size = {swa:.2f} MiB ({window:6d} cells,  12 layers,  {seqs} seqs), K (f16): 0 MiB, V (f16): 0 MiB
"""  # noqa: E501


@pytest.mark.parametrize(
    ("context", "unified", "cells", "window"),
    [
        (131_072, "true", 131_072, 1024),  # 4 windows of 128, and 512
        (131_072, "true", 131_072, 131_072),  # --swa-full
        (4100, "false", 1280, 768),  # 1,025 each, padded
    ],
)
def test_llama_cpp_streams_have_their_own_cells_unless_unified(
    context: int, unified: str, cells: int, window: int
) -> None:
    """Four sequences of gpt-oss-20b; 24,576 bytes per cell of each kind of layers."""
    streams = 4 if unified == "false" else 1

    def log(window: int) -> list[str]:
        return GPT_OSS_POOLS.format(
            sequences=4,
            context=context,
            unified=unified,
            cells=cells,
            full=cells * streams * 24_576 / 2**20,
            window=window,
            swa=window * streams * 24_576 / 2**20,
            seqs=f"4/{streams}",
        ).splitlines()

    model = get_model("gpt-oss-20b")
    assert disagreeing(audited(log(window), model)) == set()
    assert disagreeing(audited(log(window + 256), model)) == {"kv_swa_tokens"}


def test_llama_cpp_says_what_it_cannot_check() -> None:
    """A latent cache, a type that no release has, and one that is not printed (C143: f32)."""
    old = audited(rendered("C143"), MODELS["C143"])
    assert old.checks[-1].how.endswith("K f32, V f32")
    assert any("prints no cache type" in note for note in old.notes)
    latent = audited(rendered("C139"), get_model("deepseek-v3"))
    assert any("latent cache" in note for note in latent.notes)
    unknown = audited(changed(rendered("C139"), "f16", "q9_0"), get_model("mistral-7b"))
    assert any("is no cache type" in note for note in unknown.notes)
    assert disagreeing(unknown) == set()


def test_quantized_caches_are_checked_to_the_byte() -> None:
    """Keys of q8_0, values of q4_0: 32 layers * 8,192 cells * 1,024 elements."""
    keys, values = 32 * 8192 * 1088 / 2**20, 32 * 8192 * 576 / 2**20
    line = (
        f"llama_kv_cache: size = {keys + values:.2f} MiB (  8192 cells,  32 layers,  1/1 seqs), "
        f"K (q8_0): {keys:.2f} MiB, V (q4_0): {values:.2f} MiB"
    )
    found = audited(["llama_context: n_ctx         = 8192", line], get_model("mistral-7b"))
    assert disagreeing(found) == set()
    assert "K q8_0, V q4_0" in found.checks[-1].how


@pytest.mark.parametrize("log", ["C119", "C128", "C141"])
def test_the_command_checks_logs_of_other_servers(kvsim: Command, tmp_path: Path, log: str) -> None:
    """And says in words what the server's fraction is, beside vLLM's."""
    path = tmp_path / "server.log"
    path.write_text("\n".join(rendered(log)))
    model: Any = MODELS[log]
    answer = json.loads(kvsim("fit", model.name, "--from-log", str(path), "--json").out)
    assert answer["server"] in SERVERS
    assert answer["checks"]
    assert all(check["agrees"] for check in answer["checks"])
    shown = kvsim("fit", model.name, "--from-log", str(path))
    assert "agrees with" in shown.out
    assert "fraction" in shown.out


EVERY_LOG = [case[0] for cases in (SGLANG, TENSORRT, LLAMA) for case in cases.values()] + [
    "\n".join(rendered(log)) for log in MODELS
]
NUMBERS = re.compile(r"(?<![0-9.])[0-9]+(?:\.[0-9]+)?")


@given(
    st.sampled_from(EVERY_LOG),
    st.lists(st.tuples(st.integers(0, 200), st.sampled_from(["0", "1", "9" * 17, "-3", "0.0"]))),
    st.sampled_from([None, "gpt-oss-20b", "deepseek-v3", "qwen3.5-27b", "llama-3.1-8b"]),
)
@settings(max_examples=300, deadline=None)
def test_no_number_in_a_log_breaks_the_audit(
    text: str, changes: list[tuple[int, str]], model: str | None
) -> None:
    """A log without figures is refused; any other is audited."""
    found = list(NUMBERS.finditer(text))
    for index, number in sorted(changes, reverse=True):
        if index < len(found):
            text = text[: found[index].start()] + number + text[found[index].end() :]
    try:
        log = read_startup_log(text.splitlines())
    except InputError:
        return
    assert audit(log, get_model(model) if model else None).notes
