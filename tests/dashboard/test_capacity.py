from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.cli import build_app
from tests.dashboard.configs import CONFIG
from tests.dashboard.conftest import Open


def _command(*words: str) -> dict[str, Any]:
    """What `kvsim fit ... --json` prints."""
    from typer.testing import CliRunner

    result = CliRunner().invoke(build_app(), ["fit", *words, "--json"])
    assert result.exit_code == 0, result.output
    document: dict[str, Any] = json.loads(result.stdout)
    return document


def _metrics(app: Any) -> dict[str, str]:
    return {one.label: one.value for one in app.metric}


def _serve_line(app: Any) -> str:
    (line,) = (one.value for one in app.code if one.language == "bash")
    return str(line)


def _table(app: Any) -> dict[str, list[str]]:
    table: dict[str, list[str]] = app.dataframe[0].value.to_dict("list")
    return table


def test_the_page_shows_the_numbers_of_the_command_line(open_page: Open) -> None:
    app = open_page(model="llama-3.1-70b", gpu="h100", tp="4", len="32768", prompt="3000")
    wanted = _command(
        *("llama-3.1-70b", "--gpu", "h100", "--tp", "4", "--max-model-len", "32768"),
        *("--prompt-tokens", "3000", "--output-tokens", "250"),
    )
    shown = _metrics(app)
    assert shown["KV blocks"] == f"{wanted['num_blocks']:,}"
    assert shown["KV cache (tokens)"] == f"{wanted['kv_tokens']:,}"
    assert shown["Requests of full length"] == f"{wanted['max_concurrency']:,.2f}"
    assert shown["Longest request (tokens)"] == f"{wanted['longest_request_tokens']:,}"
    assert shown["Requests of my lengths"] == f"{wanted['load']['concurrency']:,.1f}"
    assert _serve_line(app) == wanted["command"]
    assert app.success[0].value.startswith("**Fits**")


def test_a_link_restores_every_control(open_page: Open) -> None:
    app = open_page(
        model="qwen3-32b", gpu="a100-80gb", tp="2", util="0.85", seqs="64", kv="fp8", law="sharegpt"
    )
    command = _serve_line(app)
    assert "--tensor-parallel-size 2" in command
    assert "--gpu-memory-utilization 0.85" in command
    assert "--max-num-seqs 64" in command
    assert "--kv-cache-dtype fp8" in command
    assert app.selectbox(key="law").value == "sharegpt"


def test_what_if_columns_stand_beside_the_set_up(open_page: Open) -> None:
    app = open_page(model="llama-3.1-8b", whatif=["kv_cache_dtype=fp8", "tp=2"])
    table = _table(app)
    assert list(table)[2:] == ["kv_cache_dtype=fp8", "tp=2"]
    blocks = table["figure"].index("KV blocks")
    wanted = _command("llama-3.1-8b", "--gpu", "h100", "--kv-cache-dtype", "fp8")
    assert table["kv_cache_dtype=fp8"][blocks].startswith(f"{wanted['num_blocks']:,} (")


def test_a_column_that_cannot_be_leaves_the_others(open_page: Open) -> None:
    app = open_page(model="qwen2.5-7b", whatif=["tp=8", "tp=2"])  # 28 heads
    assert "heads" in app.error[0].value
    assert list(_table(app))[2:] == ["tp=2"]


def test_a_release_brings_its_own_share_of_the_memory(open_page: Open) -> None:
    app = open_page(model="llama-3.1-8b", release="0.8")
    wanted = _command("llama-3.1-8b", "--gpu", "h100", "--vllm", "0.8")
    assert _serve_line(app) == wanted["command"]
    app = open_page(model="llama-3.1-8b")
    assert app.slider(key="util").value == 0.92
    app.selectbox(key="release").set_value("0.8").run()
    assert app.slider(key="util").value == 0.9
    assert _serve_line(app) == wanted["command"]


def test_a_what_if_that_is_none_is_named_and_the_rest_stays(open_page: Open) -> None:
    app = open_page(model="llama-3.1-8b", whatif=["speed=9", "tp=2"])
    assert "is no setting" in app.error[0].value
    assert list(_table(app))[2:] == ["tp=2"]


def test_what_does_not_fit_has_ways_out_that_the_button_takes(open_page: Open) -> None:
    app = open_page(model="llama-3.1-70b", gpu="a100-40gb", tp="2")
    assert app.error[0].value.startswith("**Does not fit**")
    wanted = _command("llama-3.1-70b", "--gpu", "a100-40gb", "--tp", "2")
    assert wanted["ways_out"][0].split()[0] in "".join(
        one.value.replace("\\", "") for one in app.markdown
    )
    app.button(key="way_0").click().run()
    assert not app.exception
    assert app.success[0].value.startswith("**Fits**")


def test_settings_that_cannot_be_are_an_error_in_their_place(open_page: Open) -> None:
    app = open_page(model="llama-3.1-8b", len="500000")
    assert "max\\_model\\_len" in app.error[0].value
    assert app.selectbox(key="model").value == "llama-3.1-8b"


def test_values_that_a_control_does_not_have_are_said_or_ignored(open_page: Open) -> None:
    app = open_page(model="config-0123456789abcdef", gpu="<script>", tp="3", util="7")
    assert "There is no model config-0123456789abcdef" in app.warning[0].value.replace("\\", "")
    assert len(app.warning) == 2
    assert app.selectbox(key="model").value == "llama-3.1-8b"
    assert app.slider(key="util").value == 0.92


def test_a_load_says_what_binds(open_page: Open) -> None:
    app = open_page(model="llama-3.1-8b", rps="2", prompt="1000", output="250")
    text = " ".join(one.value.replace("\\", "") for one in app.markdown)
    words = ("--rps", "2", "--prompt-tokens", "1000", "--output-tokens", "250")
    wanted = _command("llama-3.1-8b", "--gpu", "h100", *words)
    assert f"{wanted['load']['binding']} binds" in text
    assert f"{wanted['load']['sustained_rps']:.2f} requests/s" in text


@pytest.mark.parametrize("server", ["sglang", "tensorrt-llm", "llama.cpp"])
def test_other_servers_answer_by_their_own_rules(open_page: Open, server: str) -> None:
    app = open_page(model="llama-3.1-8b", server=server, len="8192")
    words = ("--server", server, "--max-model-len", "8192")
    wanted = _command("llama-3.1-8b", "--gpu", "h100", *words)
    assert f"{wanted['kv_tokens']:,}" in _metrics(app).values()
    said = " ".join(one.value.replace("\\", "") for one in app.caption)
    assert "vLLM's scheduler" in said
    assert "for vLLM only" in said


def _upload(app: Any, *files: tuple[str, bytes]) -> Any:
    for name, content in files:
        app.file_uploader(key="config_files").upload(name, content, "application/json")
    app.run()
    app.button(key="use_config").click().run()
    assert not app.exception
    return app


PICTURE = "![x](http://example.com/a.png)"


def test_an_uploaded_config_is_answered_and_kept_by_an_id(
    open_page: Open, data: Path, tmp_path: Path
) -> None:
    app = _upload(open_page(), ("config.json", json.dumps(CONFIG).encode()))
    chosen = app.selectbox(key="model").value
    assert chosen.startswith("config-")
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    wanted = _command(str(tmp_path / "config.json"), "--gpu", "h100")
    assert _metrics(app)["KV blocks"] == f"{wanted['num_blocks']:,}"
    again = open_page(model=chosen)
    assert _metrics(again) == _metrics(app)


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"{", "is not a JSON document"),
        (b"[" * 9_000, "is not a JSON document"),
        (b"[" * 100_000, "more than 20,000 lists"),
        (b"[1]", "must be a JSON object"),
        (json.dumps({**CONFIG, "num_hidden_layers": 10**12}).encode(), "num_hidden_layers"),
        (json.dumps({**CONFIG, "hidden_size": PICTURE}).encode(), "hidden_size"),
    ],
)
def test_a_broken_config_is_refused_and_the_page_lives_on(
    open_page: Open, content: bytes, problem: str
) -> None:
    app = _upload(open_page(), ("config.json", content))
    said = app.error[0].value.replace("\\", "")
    assert problem in said
    assert "![" not in app.error[0].value
    assert "KV blocks" in _metrics(app)


def test_the_page_as_a_file_holds_the_answer_and_asks_nothing_of_the_network() -> None:
    from apps.dashboard.capacity_parts import _page
    from kvsim.catalog import get_gpu, get_model
    from kvsim.planning.answer import answer
    from kvsim.planning.fit import FitSettings

    found = answer(get_model("llama-3.1-8b"), "a<b", get_gpu("h100"), FitSettings())
    text = _page(found).decode()
    assert "num_blocks = " in text
    assert f"{found.first.start.num_blocks:,}" in text
    assert "vllm serve &#39;a&lt;b&#39;" in text
    assert "<script src" not in text
