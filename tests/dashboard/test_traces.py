from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pytest

from apps.dashboard import uploads
from kvsim.cli import build_app
from kvsim.report.traffic import traffic_of, traffic_rows
from kvsim.workload import preset
from tests.dashboard.conftest import Open

ROWS = [(0, 1000, 10, [0, 1]), (0, 600, 20, [0, 2]), (2, 513, 1, [0, 3]), (4, 1000, 10, [0, 1])]


def mooncake() -> bytes:
    lines = [
        json.dumps({"timestamp": 1000 * t, "input_length": p, "output_length": o, "hash_ids": ids})
        for t, p, o, ids in ROWS
    ]
    return "\n".join(lines).encode()


def keep(data: Path, content: bytes, name: str = "mine.jsonl") -> str:
    return uploads.keep(data / "uploads", "trace", name, content).upload_id


def metrics(app: Any) -> dict[str, str]:
    return {one.label: one.value for one in app.metric}


def texts(app: Any) -> str:
    parts = [*app.caption, *app.info, *app.error, *app.warning, *app.markdown]
    return "\n".join(one.value.replace("\\", "") for one in parts)


def test_the_figures_of_a_preset_are_those_of_its_requests(open_page: Open) -> None:
    shown = metrics(open_page("traces", like="azure-code-2023", n="400", tseed="3"))
    workload = preset("azure-code-2023", num_requests=400, seed=3)
    rows = {row.name: row.value for row in traffic_rows(traffic_of(workload))}
    assert shown["requests"] == "400"
    assert shown["rate (requests/s)"] == f"{rows['rate']:,.4g}"
    assert shown["prompt p99 (tokens)"] == f"{rows['prompt tokens, p99']:,.0f}"
    assert shown["output p50 (tokens)"] == f"{rows['output tokens, p50']:,.4g}"


def test_the_prefix_curve_is_what_the_command_prints(
    open_page: Open, data: Path, tmp_path: Path
) -> None:
    from typer.testing import CliRunner

    path = tmp_path / "mine.jsonl"
    path.write_bytes(mooncake())
    words = ["prefix", str(path), "--json", "--belady", "3", "--model", "llama-3-8b"]
    printed = json.loads(CliRunner().invoke(build_app(), words).stdout)
    link = {"from": "upload", "upload": keep(data, mooncake()), "kvmodel": "llama-3-8b"}
    app = open_page("traces", **link, prefix="true", best="true")
    (shown,) = (one.value for one in app.dataframe if "LRU hit" in one.value.columns)
    found = shown.set_index("capacity (tokens)")
    assert len(printed["capacities"]) > 2
    for row in printed["capacities"]:
        line = found.loc[f"{row['tokens']:,}"]
        assert line["LRU hit"] == f"{row['lru']['hit_rate']:.2%}"
        assert line["GiB of KV (llama-3-8b)"] == f"{row['gib']:,.2f}"
        assert line["best hit"] in ("not computed", f"{row['best_hit_rate']:.2%}")
    bound = printed["bound"]["hit_tokens"] / printed["prompt_tokens"]
    assert f"Without eviction: {bound:.2%} found" in texts(app)


def test_the_analysis_waits_until_it_is_asked_for(open_page: Open, data: Path) -> None:
    app = open_page("traces", **{"from": "upload", "upload": keep(data, mooncake())})
    assert "turn Analyse on" in texts(app)
    assert not any("LRU hit" in one.value.columns for one in app.dataframe)


def test_blocks_that_do_not_fit_the_chunks_are_refused_in_place(
    open_page: Open, data: Path
) -> None:
    link = {"from": "upload", "upload": keep(data, mooncake()), "prefix": "true", "pblock": "100"}
    app = open_page("traces", **link)
    assert "must divide the trace's chunks of 512 tokens" in texts(app)
    assert metrics(app)["requests"] == "4"


def test_a_source_without_prefixes_says_so(open_page: Open) -> None:
    app = open_page("traces", n="50")
    assert "does not say which prompts share a prefix" in texts(app)
    assert "does not say which request continues which" in texts(app)


def test_the_generated_chat_has_sessions_and_its_scenario_runs_its_requests(
    open_page: Open,
) -> None:
    app = open_page("traces", **{"from": "chat"})
    assert "Known because a prompt repeats the answer to an earlier one" in texts(app)
    (scenario,) = (one.value for one in app.code if one.language == "yaml")
    assert "conversations: 300" in scenario


@pytest.mark.parametrize(
    ("name", "content", "problem"),
    [
        ("a.csv", b"colour,size\nred,3\n", "no known format has the columns colour, size"),
        ("b.csv", b"arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,x,2\n", "b.csv:3"),
        ("c.gz", b"\x1f\x8b" + b"\0" * 30, "cannot be read to its end"),
        ("d.csv", b"arrival_s,prompt_tokens,output_tokens\n0,0,2\n", "no usable row"),
    ],
)
def test_a_bad_upload_is_an_error_in_place_without_the_folder_of_the_server(
    open_page: Open, data: Path, name: str, content: bytes, problem: str
) -> None:
    app = open_page("traces", **{"from": "upload", "upload": keep(data, content, name)})
    (error,) = (one.value.replace("\\", "") for one in app.error)
    assert problem in error
    assert str(data) not in error
    assert "/uploads/" not in error
    assert app.title[0].value == "Trace explorer"


@pytest.mark.parametrize(
    ("limit", "value", "problem"),
    [("MAX_TRACE_ROWS", 2, "more than 2 rows"), ("MAX_TRACE_BYTES", 99, "more than 99 bytes")],
)
def test_rows_and_decompressed_bytes_of_an_upload_are_limited(
    open_page: Open,
    data: Path,
    monkeypatch: pytest.MonkeyPatch,
    limit: str,
    value: int,
    problem: str,
) -> None:
    monkeypatch.setattr(uploads, limit, value)
    content = b"arrival_s,prompt_tokens,output_tokens\n" + b"0,1,2\n" * 500 + limit.encode()
    link = {"from": "upload", "upload": keep(data, gzip.compress(content), "z.csv.gz")}
    assert problem in texts(open_page("traces", **link))


def test_bad_rows_are_dropped_and_counted_where_that_is_asked_for(
    open_page: Open, data: Path
) -> None:
    content = b"arrival_s,prompt_tokens,output_tokens\n0,1,2\n1,x,2\n3,4,0\n5,6,7\n"
    link = {"from": "upload", "upload": keep(data, content, "b.csv"), "drop": "true"}
    app = open_page("traces", **link)
    assert metrics(app)["requests"] == "2"
    assert "1 bad_value" in texts(app)
    assert "1 zero_output" in texts(app)


def test_a_list_of_lengths_shows_no_arrivals(open_page: Open, data: Path) -> None:
    content = b"prompt_tokens,output_tokens\n5,6\n9,8\n"
    app = open_page("traces", **{"from": "upload", "upload": keep(data, content, "l.csv")})
    assert "holds lengths only" in texts(app)
    assert "rate (requests/s)" not in metrics(app)
    (scenario,) = (one.value for one in app.code if one.language == "yaml")
    assert "kind: poisson" in scenario
    assert "path: l.csv" in scenario


def test_a_name_of_an_upload_is_never_markup(open_page: Open, data: Path) -> None:
    name = "![x](http:evil) **b** `c`.csv"
    content = b"prompt_tokens,output_tokens\n5,6\n"
    app = open_page("traces", **{"from": "upload", "upload": keep(data, content, name)})
    shown = [one.value for one in app.caption if "evil" in one.value]
    assert shown
    assert all(r"\!\[x\]\(http\:evil\)" in one for one in shown)


def test_published_traces_that_are_not_there_are_listed_with_how_to_get_them(
    open_page: Open, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    app = open_page("traces", **{"from": "trace"})
    (listed,) = (one.value for one in app.dataframe if "how to get it" in one.value.columns)
    assert "mooncake-conversation" in listed["trace"].tolist()
    assert all("github.com" in one or "githubusercontent" in one for one in listed["how to get it"])
    assert "Choose a trace in the sidebar" in texts(app)


def test_an_upload_that_is_gone_leaves_the_page_alive(open_page: Open) -> None:
    app = open_page("traces", **{"from": "upload", "upload": "trace-0123456789abcdef"})
    assert "Choose a trace in the sidebar" in texts(app)
