"""`kvsim fit`: what a server would do at start-up."""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from pathlib import Path

import pytest

from kvsim.catalog import GIB, get_model
from kvsim.planning.document import DEFINITIONS
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]

QWEN = {
    "model_type": "qwen3",
    "num_hidden_layers": 36,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "head_dim": 128,
    "intermediate_size": 12288,
    "vocab_size": 151936,
    "max_position_embeddings": 40960,
    "torch_dtype": "bfloat16",
}


def test_the_columns_are_the_set_up_and_what_if(kvsim: Command) -> None:
    """Half the bytes per token hold twice the tokens of the pool, which is the same."""
    found = kvsim(
        "fit", "llama-3.1-8b", "--gpu", "a100-80gb", "--max-model-len", "8192", "--json",
        "--what-if", "kv_cache_dtype=fp8", "--what-if", "tp=2",
    )  # fmt: skip
    assert found.status == 0, found.err
    answer = json.loads(found.out)
    assert answer["verdict"] == "fits"
    assert answer["request_bytes"] == 8192 * 131_072
    assert answer["naive_request_bytes"] == 8192 * 4 * 32 * 32 * 128
    fp8 = answer["what_if"]["kv_cache_dtype=fp8"]
    assert fp8["num_blocks"] in (2 * answer["num_blocks"], 2 * answer["num_blocks"] + 1)
    assert answer["what_if"]["tp=2"]["request_bytes"] == 8192 * 131_072 // 2
    shown = kvsim("fit", "llama-3.1-8b", "--gpu", "a100-80gb", "--max-model-len", "8192")
    assert f"{answer['kv_tokens']:,}" in shown.out
    assert "fits" in shown.out


def test_measured_terms_replace_estimated_ones_and_give_the_printed_blocks(kvsim: Command) -> None:
    """A real start (C062): Qwen3-8B on an A100-40GB, vLLM 0.9.2, prints 18.69 GiB and 8,505."""
    total = (18.69 + 15.2683 + 2.24) / 0.9  # whatever the log does not print is in the total
    found = kvsim(
        "fit", "qwen3-8b", "--gpu", "a100-40gb", "--vllm", "0.9.2", "--json",
        "--measured", f"total={total},weights=15.2683,activation_peak=2.24,non_torch=0",
    )  # fmt: skip
    answer = json.loads(found.out)
    terms = {term["name"]: term for term in answer["terms"]}
    assert terms["weights"]["source"] == "measured"
    assert terms["kv_pool"]["bytes"] == pytest.approx(18.69 * GIB, abs=8)
    assert answer["num_blocks"] == pytest.approx(8505, abs=2.5)
    assert round(answer["max_concurrency"], 2) == 3.32
    assert answer["num_blocks_80_percent"] == [answer["num_blocks"]] * 2


def test_what_does_not_fit_has_ways_out_that_do(kvsim: Command) -> None:
    """Each, tried as a set-up of its own, fits; the command to paste is the first one's."""
    arguments = ["fit", "llama-3.1-8b", "--gpu", "rtx4090", "--json"]
    answer = json.loads(kvsim(*arguments).out)
    assert answer["verdict"] == "does not fit"
    assert answer["margin_bytes"] < 0
    assert len(answer["ways_out"]) >= 2
    for way in answer["ways_out"]:
        name, value = way.split(" ")
        tried = json.loads(kvsim(*arguments, "--what-if", f"{name}={value}").out)
        assert tried["what_if"][f"{name}={value}"]["verdict"] == "fits", way
    name, value = answer["ways_out"][0].split(" ")
    assert f"--{name.replace('_', '-')} {value}" in answer["command"]


def test_a_config_is_read_from_a_file_and_from_stdin(kvsim: Command, tmp_path: Path) -> None:
    """With the same answer as the catalogue's model of these shapes."""
    path = tmp_path / "it's; rm -rf" / "config.json"
    path.parent.mkdir()
    path.write_text(json.dumps(QWEN))
    of_file = json.loads(kvsim("fit", str(path), "--gpu", "h100", "--json").out)
    of_name = json.loads(kvsim("fit", "qwen3-8b", "--gpu", "h100", "--json").out)
    assert of_file["num_blocks"] == of_name["num_blocks"]
    assert shlex.split(of_file["command"])[2] == str(path.parent)
    code = "import sys; from kvsim.cli import main; sys.argv[0] = 'kvsim'; main()"
    run = subprocess.run(
        [sys.executable, "-c", code, "fit", "-", "--gpu", "h100", "--json"],
        input=json.dumps(QWEN),
        capture_output=True,
        text=True,
        check=True,
    )
    assert json.loads(run.stdout)["num_blocks"] == of_name["num_blocks"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["no-such-model"], "is not in the catalogue"),
        (["llama-3-8b", "--max-model-len", "9000"], "must be from 2 to 8,192 tokens"),
        (["llama-3-8b", "--kv-cache-dtype", "int3"], "must be auto or fp8"),
        (["llama-3-8b", "--tp", "3"], "cannot be divided over tensor parallel size 3"),
        (["llama-3-8b", "--tp", "0"], "must be from 1 to"),
        (["llama-3-8b", "--gpu-memory-utilization", "1.5"], "must be in (0, 1]"),
        (["llama-3-8b", "--what-if", "tp"], "is not NAME=VALUE"),
        (["llama-3-8b", "--what-if", "tp=two"], "must be a number"),
        (["llama-3-8b", "--what-if", "tp=1.5"], "must be a whole number"),
        (["llama-3-8b", "--what-if", "tp=1e400"], "must be a number"),
        (["llama-3-8b", "--what-if", "color=2"], "is no setting"),
        (["llama-3-8b", "--measured", "weight=2"], "is no measured term"),
        (["llama-3-8b", "--measured", "weights=-2"], "must be from 0"),
        (["llama-3-8b", "--vllm", "newest"], "is not understood"),
        (["nowhere/config.json"], "cannot be read"),
    ],
)
def test_bad_input_is_refused_with_status_2(
    kvsim: Command, arguments: list[str], message: str
) -> None:
    """Never a traceback."""
    found = kvsim("fit", *arguments, "--gpu", "h100")
    assert found.status == 2
    assert message in found.err
    assert "Traceback" not in found.err


@pytest.mark.parametrize(
    "text", ["", "[]", "null", "{", "[" * 100_000, '{"model_type": "qwen3"}', "\x00", "NaN"]
)
def test_a_hostile_config_is_refused(kvsim: Command, tmp_path: Path, text: str) -> None:
    """With the file's name."""
    path = tmp_path / "config.json"
    path.write_text(text)
    found = kvsim("fit", str(path), "--gpu", "h100")
    assert found.status == 2
    assert "config.json" in found.err
    assert "Traceback" not in found.err


def test_the_set_up_is_printed_as_a_file_for_the_server(kvsim: Command, tmp_path: Path) -> None:
    """YAML that reads back as the flags; whatever the folder's name holds stays one text."""
    from ruamel.yaml import YAML

    folder = tmp_path / 'a: "b" #c'
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(QWEN))
    found = kvsim("fit", str(folder), "--gpu", "h100", "--tp", "2", "--yaml")
    assert found.status == 0, found.err
    read = YAML(typ="safe", pure=True).load(found.out)
    assert read["model"] == str(folder)
    assert read["tensor-parallel-size"] == 2
    assert read["max-model-len"] == 40_960


def test_explain_shows_every_formula_and_definition(kvsim: Command) -> None:
    """Of every term and figure in the table, with the numbers: 8,192 tokens in blocks of 16."""
    found = kvsim("fit", "llama-3-8b", "--gpu", "h100", "--explain")
    seen = ("encoder_weights", "encoder_cache")
    asked = ("lora_adapters", "draft_model", "all_tokens", "all_concurrency", *seen)
    for name in DEFINITIONS:
        assert (f"\n{name} = " in found.out) == (name not in asked), name
    more = kvsim(
        "fit", "llama-3-8b", "--gpu", "h100", "--explain",
        "--dp", "2", "--max-loras", "1", "--speculative", "eagle",
    )  # fmt: skip
    images = kvsim("fit", "gemma-3-27b", "--gpu", "h100", "--explain").out
    for name in DEFINITIONS:
        assert f"\n{name} = " in (images if name in seen else more.out), name
    assert "79.20 GiB * 0.92" in found.out
    assert "512 blocks * 2,097,152 B, 16 tokens of 32 layers = 1.00 GiB" in found.out


def test_what_is_often_misread_is_said(kvsim: Command) -> None:
    """Of a set-up that does not fit: offloading is no way out. Of grouped heads: what they save."""
    answer = json.loads(kvsim("fit", "llama-3-70b", "--gpu", "h100", "--json").out)
    notes = " ".join(answer["notes"])
    assert "does not lift the limit of one request" in notes
    assert "Only 8 of 64 heads are cached" in notes
    shown = " ".join(kvsim("fit", "llama-3-70b", "--gpu", "h100").out.split())
    assert answer["notes"][0] in shown


def test_an_encoder_has_terms_of_its_own(kvsim: Command, tmp_path: Path) -> None:
    """Of a file with several parts: tower, kept vectors, and the processor's largest image."""
    whole = {"model_type": "qwen3_vl", "text_config": QWEN, "vision_config": {"depth": 27}}
    (tmp_path / "config.json").write_text(json.dumps(whole))
    answer = json.loads(kvsim("fit", str(tmp_path), "--gpu", "h100", "--json").out)
    terms = {term["name"]: term["bytes"] for term in answer["terms"]}
    assert 0.8e9 < terms["encoder_weights"] < 1.3e9
    assert answer["encoder"]["item_tokens"] == 16_384
    processor = {"size": {"longest_edge": 4_194_304, "shortest_edge": 65_536}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(processor))
    fewer = json.loads(
        kvsim("fit", str(tmp_path), "--gpu", "h100", "--json",
              "--limit-mm-per-prompt", "video=0").out
    )  # fmt: skip
    assert fewer["encoder"] == {
        "budget_tokens": 8192, "modality": "image", "items": 2, "item_tokens": 4096,
    }  # fmt: skip
    (tmp_path / "config.json").write_text(json.dumps(QWEN))
    plain = json.loads(kvsim("fit", str(tmp_path), "--gpu", "h100", "--json").out)
    assert plain["encoder"] is None
    assert not any("encoder" in note for note in plain["notes"])


def test_limits_of_images_are_options_and_flags(kvsim: Command) -> None:
    """In either spelling, and as a column without the encoder."""
    base = ("fit", "gemma-3-27b", "--gpu", "h100", "--tp", "2", "--json")
    answers = [
        json.loads(kvsim(*base, "--limit-mm-per-prompt", text).out)
        for text in ("image=0", '{"image": 0}')
    ]
    assert answers[0]["terms"] == answers[1]["terms"]
    words = shlex.split(answers[0]["command"])
    assert json.loads(words[words.index("--limit-mm-per-prompt") + 1]) == {"image": 0}
    column = json.loads(kvsim(*base, "--what-if", "language_model_only=1").out)
    other = column["what_if"]["language_model_only=1"]
    assert other["num_blocks"] == answers[0]["num_blocks"] > column["num_blocks"]
    assert (
        "--language-model-only" in json.loads(kvsim(*base, "--language-model-only").out)["command"]
    )


def test_a_refusal_is_said_in_the_servers_figures(kvsim: Command) -> None:
    """What is needed, what is there, what would fit: the same numbers as in the document."""
    arguments = ("fit", "llama-3.1-8b", "--gpu", "rtx4090")
    answer = json.loads(kvsim(*arguments, "--json").out)
    shown = kvsim(*arguments).out
    assert "one request of 131,072 tokens needs" in shown
    assert f"{answer['request_bytes'] / GIB:.2f} GiB of KV" in shown
    assert f"has {answer['longest_request_tokens']:,} tokens" in shown


def test_it_answers_within_a_second_and_without_numpy(tmp_path: Path) -> None:
    """From a cold start; the slow imports are those of other commands."""
    code = (
        "import sys; sys.argv = ['kvsim', 'fit', 'llama-3-8b', '--gpu', 'h100']\n"
        "import kvsim.cli\n"
        "try:\n    kvsim.cli.main()\nexcept SystemExit:\n    pass\n"
        "print([m for m in ('numpy', 'simpy', 'pyarrow', 'ruamel') if m in sys.modules])"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert run.stdout.splitlines()[-1] == "[]"


def test_layers_with_windows_and_states_have_their_own_blocks(kvsim: Command) -> None:
    """What a request of full length needs is the server's count, not tokens times bytes."""
    gemma = json.loads(kvsim("fit", "gemma-3-27b", "--gpu", "h100", "--json").out)
    naive = 131_072 * 507_904
    assert gemma["request_bytes"] < 0.3 * naive
    assert get_model("gemma-3-27b").max_position == 131_072


def test_replicas_adapters_and_drafts_are_options_and_columns(kvsim: Command) -> None:
    """As options, and the same as a column."""
    base = ("fit", "mixtral-8x7b", "--gpu", "h200", "--tp", "2", "--json")
    options = ("--dp", "2", "--enable-expert-parallel", "--max-loras", "2", "--max-lora-rank", "8")
    first = json.loads(kvsim(*base, *options).out)
    text = "dp=2,enable_expert_parallel=1,max_loras=2,max_lora_rank=8"
    second = json.loads(kvsim(*base, "--what-if", text).out)["what_if"][text]
    assert first["num_blocks"] == second["num_blocks"]
    assert first["flags"]["enable-expert-parallel"] is True
    assert first["replicas"]["gpus"] == 4
    assert "lora_adapters" in [term["name"] for term in first["terms"]]


@pytest.mark.parametrize(
    ("options", "named"),
    [
        (("--speculative", "magic"), "ngram or eagle or mtp"),
        (("--dcp", "2"), "decode_context_parallel_size"),
        (("--dp", "0"), "data_parallel_size"),
        (("--max-loras", "-1"), "max_loras"),
        (("--what-if", "enable_expert_parallel=2"), "must be 0 or 1"),
        (("--server", "sglang", "--dp", "2"), "data_parallel_size"),
        (("--server", "sglang", "--rps", "2"), "--rps"),
        (("--server", "sglang", "--what-if", "tp=2"), "--what-if"),
        (("--server", "sglang", "--vllm", "0.11"), "--vllm"),
        (("--server", "sglang", "--output-tokens", "3"), "--output-tokens"),
        (("--fraction", "0.9"), "--gpu-memory-utilization"),
        (("--limit-mm-per-prompt", "image=0.5"), "image must be a whole number"),
        (("--limit-mm-per-prompt", "{"), "is not a JSON object"),
        (("--limit-mm-per-prompt", '{"image": {"count": 1}}'), "image must be a whole number"),
        (("--limit-mm-per-prompt", "image=1"), "has no encoder"),
        (("--server", "sglang", "--language-model-only"), "language_model_only"),
        (("--pp", "2", "--dp", "0", "--enable-expert-parallel"), "data_parallel_size"),
        (("--pp", "2", "--tp", "0"), "tensor_parallel_size"),
        (("--pp", "0"), "pipeline_parallel_size"),
    ],
)
def test_settings_that_cannot_be_had_are_named(
    kvsim: Command, options: tuple[str, ...], named: str
) -> None:
    """With exit code 2, and never left out silently."""
    for model in ("llama-3.1-8b", "mixtral-8x7b"):
        found = kvsim("fit", model, "--gpu", "h100", *options)
        assert found.status == 2
        assert named in found.err
