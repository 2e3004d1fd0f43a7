from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from apps.dashboard import uploads
from apps.dashboard.upload_control import under_name
from kvsim.errors import InputError
from kvsim.report.export_vllm_json import vllm_json_export
from tests.cli.conftest import Command, kvsim
from tests.dashboard.conftest import Open
from tests.planning.test_beside_log import C001
from tests.report.small_run import small_run
from tests.report.test_bench import SMALL

__all__ = ["kvsim"]

ACTING = re.compile(r"(?<!\\)[<\[$]|\x1b")
"""Markup, links, pictures and formulas that are not escaped."""
HOSTILE = "</script><b>x</b>![a](http://evil.example/a.png)\x1b[31m$x$"


def frame(app: Any, column: str) -> dict[str, list[str]]:
    """The first table with this column."""
    frames = [one.value.to_dict("list") for one in app.dataframe]
    found: dict[str, list[str]] = next(one for one in frames if column in one)
    return found


def kept(data: Path, kind: str, content: str | bytes, name: str = "mine.txt") -> str:
    content = content.encode() if isinstance(content, str) else content
    return uploads.keep(data / "uploads", kind, name, content).upload_id


def texts(app: Any) -> list[str]:
    shown = (*app.markdown, *app.caption, *app.error, *app.info, *app.warning, *app.success)
    return [one.value for one in shown]


def test_without_an_upload_the_page_says_what_to_drop_in(open_page: Open) -> None:
    assert "kvsim fit --from-log" in open_page("recordings").info[0].value
    bench = open_page("recordings", recording="Benchmark")
    assert any("vllm bench serve" in one.value for one in bench.info)


def test_a_log_is_shown_with_the_checks_of_the_command_line(
    open_page: Open, data: Path, tmp_path: Path, kvsim: Command
) -> None:
    path = tmp_path / "server.log"
    path.write_text(C001)
    answer = json.loads(kvsim("fit", "--from-log", str(path), "--json").out)
    app = open_page("recordings", log=kept(data, "log", C001))
    checks = frame(app, "because")
    assert checks["figure"] == [check["what"] for check in answer["checks"]]
    assert checks["agrees"] == ["✓ agrees"] * len(answer["checks"])
    assert checks["line"] == [str(check["line"]) for check in answer["checks"]]
    assert app.success[0].value == "4 of 4 figures agree with the others"
    settings = frame(app, "of several")
    assert settings["name"] == list(answer["settings"])
    assert settings["line"] == [str(one["line"]) for one in answer["settings"].values()]


def test_the_prediction_beside_a_log_is_that_of_fit(
    open_page: Open, data: Path, kvsim: Command
) -> None:
    answer = json.loads(
        kvsim(
            *("fit", "llama-3.1-8b", "--gpu", "l4", "--vllm", "0.6.4", "--json"),
            *("--max-model-len", "20000", "--max-num-batched-tokens", "20000"),
            *("--gpu-memory-utilization", "0.9", "--measured", "total=23.58"),
        ).out
    )
    app = open_page("recordings", log=kept(data, "log", C001), log_gpu="l4")
    table = frame(app, "80 % interval")
    at = table["figure"].index("num blocks")
    low, high = answer["num_blocks_80_percent"]
    assert table["predicted"][at] == f"{answer['num_blocks']:,}"
    assert table["80 % interval"][at] == f"{low:,} to {high:,}"
    assert (table["printed"][at], table["line"][at]) == ("1,952", "5")
    assert table["inside"][at] == "✓ inside"


def test_another_model_does_not_agree(open_page: Open, data: Path) -> None:
    app = open_page("recordings", log=kept(data, "log", C001), log_model="qwen3-8b")
    assert "2 of 4 figures agree" in app.error[0].value
    assert frame(app, "because")["agrees"][0] == "✗ DOES NOT AGREE"


def test_an_uploaded_config_can_be_the_model(open_page: Open, data: Path) -> None:
    config = {
        **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32},
        **{"num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336},
        **{"vocab_size": 128256, "max_position_embeddings": 131072, "torch_dtype": "bfloat16"},
    }
    bundle = json.dumps({"config": config, "beside": {}})
    model = kept(data, "config", bundle, "config.json")
    app = open_page("recordings", log=kept(data, "log", C001), log_model=model)
    assert app.success[0].value == "4 of 4 figures agree with the others"


HOSTILE_LOGS = [
    *("nothing to see\n" * 100, "\x1b[31m\x00" * 50, "x" * 1_000_000),
    *('{"log":' * 50_000, f"INFO: # GPU blocks: {'9' * 5000}, # CPU blocks: 1\n"),
    C001.replace("max_seq_len=20000", "max_seq_len=" + "9" * 25),
    C001.replace("tensor_parallel_size=1", "tensor_parallel_size=7777777777"),
    C001.replace("block_size=16", "block_size=0"),
    C001 + "\nGPU KV cache size: NaN tokens\n[INFO] max_total_num_tokens=1, chunked",
]


def test_hostile_logs_give_messages_and_keep_the_page(open_page: Open, data: Path) -> None:
    ids = [kept(data, "log", content) for content in HOSTILE_LOGS]
    app = open_page("recordings")
    for one in ids:
        app.selectbox(key="log").set_value(one).run()
        assert not app.exception
        assert app.title[0].value == "Recordings"
        assert not [text for text in texts(app) if str(data) in text]


def test_texts_of_a_log_and_its_name_stay_text(open_page: Open, data: Path) -> None:
    text = C001.replace("Llama-3.1-8B-Instruct", HOSTILE).replace("v0.6.4", "v0.6.4" + HOSTILE)
    app = open_page("recordings", log=kept(data, "log", text, f"{HOSTILE}.log"))
    for shown in texts(app):
        assert not ACTING.search(shown)


def test_a_compressed_log_is_refused_under_its_own_name(open_page: Open, data: Path) -> None:
    app = open_page("recordings", log=kept(data, "log", b"\x1f\x8b\x08rest", "server.log.gz"))
    assert app.error[0].value.startswith("**server\\.log\\.gz**: is compressed")


def test_files_above_the_limit_of_their_kind_are_refused_by_size(
    data: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert uploads.MAX_BYTES["log"] == 20 << 20
    assert uploads.MAX_BYTES["bench"] == 50 << 20
    monkeypatch.setattr(uploads, "MAX_BYTES", {"log": 100})
    with pytest.raises(InputError, match="the limit is 100"):
        kept(data, "log", "x" * 101)


@pytest.fixture
def bench(data: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    """A run that the dashboard lists, and what it exports as an upload."""
    run = small_run(tmp_path)
    monkeypatch.setenv("KVSIM_DASHBOARD_RUNS", str(tmp_path / "run"))
    ((_, chunks),) = vllm_json_export(run, list(run.folders)).files
    return kept(data, "bench", b"".join(chunks), "bench.jsonl")


def test_what_the_run_exported_agrees_with_it_to_zero(open_page: Open, bench: str) -> None:
    app = open_page("recordings", recording="Benchmark", bench=bench)
    assert app.success[0].value.startswith("The loads are the same")
    table = frame(app, "error (%)")
    assert len(table["figure"]) == 22
    assert set(table["difference"]) == {"+0"}
    assert set(table["error (%)"]) == {"+0.0"}
    second = open_page("recordings", recording="Benchmark", bench=bench, bench_result="2")
    chosen = next(one for one in second.selectbox if one.key == "bench_variant")
    assert chosen.options[1] == "2: contiguous-max"


def test_another_load_is_said_to_be_one(open_page: Open, data: Path, bench: str) -> None:
    other = kept(data, "bench", json.dumps({**SMALL, "p95_itl_ms": 1.5, "label": HOSTILE}))
    app = open_page("recordings", recording="Benchmark", bench=other)
    said = app.warning[0].value.replace("\\", "")
    assert said.startswith("Different loads are compared: mean prompt length 100 measured, 4 simul")
    table = frame(app, "error (%)")
    at = table["figure"].index("mean_ttft_ms")
    assert table["measured"][at] == "50"
    assert any("p95" in one.value for one in app.caption)
    for shown in texts(app):
        assert not ACTING.search(shown)


HOSTILE_RESULTS = [
    *("not json", "[" * 100_000, '{"duration": 1}', "[]", json.dumps(SMALL) + "\n{"),
    json.dumps({**SMALL, "mean_ttft_ms": "12 secret"}),
    json.dumps({**SMALL, "mean_ttft_ms": float("nan")}),
]


def test_hostile_results_give_messages_and_keep_the_page(
    open_page: Open, data: Path, bench: str
) -> None:
    ids = [kept(data, "bench", content) for content in HOSTILE_RESULTS]
    app = open_page("recordings", recording="Benchmark", bench=bench)
    for one in ids:
        app.selectbox(key="bench").set_value(one).run()
        assert not app.exception
        assert app.error[0].value.startswith("**mine\\.txt**: ")
        assert "secret" not in app.error[0].value
        assert str(data) not in app.error[0].value
        assert app.selectbox(key="bench_run")


def test_without_a_run_the_page_says_where_to_make_one(open_page: Open, data: Path) -> None:
    upload = kept(data, "bench", json.dumps(SMALL))
    app = open_page("recordings", recording="Benchmark", bench=upload)
    assert "page Run" in app.info[0].value


def test_an_error_keeps_its_text_under_another_name() -> None:
    error = under_name(InputError("is wrong", where="/srv/x/content", fix="Mend it"), "mine.json")
    assert str(error) == "mine.json: is wrong. Mend it"
