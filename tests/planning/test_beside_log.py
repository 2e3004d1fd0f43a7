from __future__ import annotations

import csv
import io
import json
from contextlib import suppress

import pytest

from kvsim.catalog import GIB, get_gpu, get_model
from kvsim.errors import InputError
from kvsim.planning.audit import Audit, audit
from kvsim.planning.beside_log import (
    Beside,
    BesideLog,
    beside_document,
    beside_log,
    gpus_of_log,
    settings_of_log,
)
from kvsim.planning.from_log import audit_document, model_of_log
from kvsim.planning.log_csv import COLUMNS, log_csv
from kvsim.startup_logs import read_startup_log
from tests.cli.conftest import Command
from tests.cli.conftest import kvsim as kvsim
from tests.planning.test_audit import ROWS, row
from tests.startup_logs.render import render

__all__ = ["kvsim"]
C001 = "\n".join(render(row("C001"))[0])
"""Llama-3.1-8B on 23.58 GiB, vLLM 0.6.4."""


def audited(text: str, model: str | None = None) -> Audit:
    log = read_startup_log(text.splitlines())
    return audit(log, get_model(model) if model else model_of_log(log))


def beside(text: str, gpu: str = "l4", model: str | None = None) -> BesideLog:
    found = audited(text, model)
    assert found.model is not None
    return beside_log(found, found.model, get_gpu(gpu))


def test_the_prediction_is_what_the_command_says_for_the_same_settings(kvsim: Command) -> None:
    answer = json.loads(
        kvsim(
            *("fit", "llama-3.1-8b", "--gpu", "l4", "--vllm", "0.6.4", "--json"),
            *("--max-model-len", "20000", "--max-num-batched-tokens", "20000"),
            *("--gpu-memory-utilization", "0.9", "--measured", "total=23.58"),
        ).out
    )
    terms = {term["name"]: term for term in answer["terms"]}
    found = {one.name: one for one in beside(C001).figures}
    for name in ("weights", "activation_peak", "non_torch", "kv_pool"):
        low, high = (end / GIB for end in terms[name]["bytes_80_percent"])
        one = found[name]
        assert (one.predicted, one.low, one.high) == (terms[name]["bytes"] / GIB, low, high)
    for name in ("num_blocks", "max_concurrency"):
        one = found[name]
        assert one.predicted == answer[name]
        assert [one.low, one.high] == answer[f"{name}_80_percent"]
    assert beside(C001).verdict == answer["verdict"]


def test_printed_figures_stand_with_their_lines_and_roundings() -> None:
    figures = {one.name: one for one in beside(C001).figures}
    pool = figures["kv_pool"]
    assert (pool.printed, pool.unit, pool.rounding) == (3.81, "GiB", 0.005)
    assert "3.81" in C001.splitlines()[pool.line - 1]
    assert figures["num_blocks"].printed == 1952
    assert pool.difference == pool.predicted - 3.81


@pytest.mark.parametrize(
    ("printed", "inside"), [(1.0, True), (0.995, True), (0.99, False), (2.01, False), (2.0, True)]
)
def test_a_figure_is_inside_where_its_rounding_reaches_the_interval(
    printed: float, inside: bool
) -> None:
    one = Beside("kv_pool", "GiB", printed, 0.005, 1, 1.5, 1.0, 2.0)
    assert one.inside is inside


def test_a_refused_start_is_said_with_what_a_request_needs() -> None:
    """C158: 40,960 tokens of Qwen3-8B need 5.62 GiB."""
    found = beside("\n".join(render(row("C158"))[0]))
    assert found.refused
    assert found.verdict == "does not fit"
    needed = next(one for one in found.figures if one.name == "kv_request")
    assert (needed.printed, needed.predicted, needed.inside) == (5.62, 5.625, True)


def test_settings_that_the_log_does_not_print_have_defaults() -> None:
    given = settings_of_log(read_startup_log(C001.splitlines()))
    assert (given.max_model_len, given.max_num_batched_tokens) == (20000, 20000)
    assert given.max_num_seqs is None
    assert given.measured_bytes == {"total": round(23.58 * GIB)}
    assert "max_num_seqs" not in beside(C001).settings


def test_a_length_above_the_models_own_is_taken_from_the_log() -> None:
    found = beside(C001.replace("max_seq_len=20000", "max_seq_len=200000"))
    assert "max_model_len is above the 131,072 tokens" in found.notes[0]
    assert found.settings["max_model_len"] == 200000


def test_gpus_with_about_the_printed_memory_are_named_the_nearest_first() -> None:
    near = gpus_of_log(read_startup_log(C001.splitlines()))
    sizes = [get_gpu(name).reported_bytes / GIB for name in near]
    assert near[0] == "rtx3090"
    assert sizes == sorted(sizes, key=lambda size: abs(size - 23.58))
    assert "h100" not in near
    refused = "\n".join(render(row("C158"))[0])
    assert gpus_of_log(read_startup_log(refused.splitlines())) == ()


@pytest.mark.parametrize("server", ["sglang", "tensorrt-llm"])
def test_logs_of_servers_with_a_fraction_are_laid_beside_their_own_rules(server: str) -> None:
    compared = []
    for one in ROWS:
        if one["server"] == server:
            found = audited("\n".join(render(one)[0]), "llama-3.1-8b")
            compared += [
                fig.name for fig in beside_log(found, found.model, get_gpu("h100")).figures
            ]  # type: ignore[arg-type]
    assert "kv_tokens" in compared


def test_a_log_of_llama_cpp_is_not_predicted() -> None:
    lines, _ = render(next(one for one in ROWS if one["server"] == "llama.cpp"))
    with pytest.raises(InputError, match="is not predicted from its log"):
        beside("\n".join(lines), model="llama-3.1-8b")


@pytest.mark.parametrize(
    "hostile",
    [
        "max_seq_len=" + "9" * 400,
        "max_seq_len=1",
        "tensor_parallel_size=" + "9" * 30,
        "gpu_memory_utilization=1e308",
        "block_size=7",
        "block_size=0",
        "max_num_seqs=99999999999999999999",
    ],
)
def test_settings_that_no_server_has_give_an_answer_or_a_message(hostile: str) -> None:
    name = hostile.partition("=")[0]
    text = "\n".join(
        line.replace(f"{name}=", f"{hostile}, was=") if f"{name}=" in line else line
        for line in C001.splitlines()
    )
    assert hostile in text or f"{name}=" not in C001
    with suppress(InputError):
        assert beside(text).figures


def test_the_table_holds_every_setting_figure_check_and_prediction() -> None:
    found, side = audited(C001), beside(C001)
    rows = list(csv.DictReader(io.StringIO(log_csv(found, side))))
    document = audit_document(found)
    parts = [one["part"] for one in rows]
    assert tuple(rows[0]) == COLUMNS
    assert parts.count("setting") == len(document["settings"])
    assert parts.count("figure") == len(document["figures"])
    assert parts.count("check") == len(document["checks"])
    assert parts.count("prediction") == len(beside_document(side)["figures"]) == 6
    pool = next(one for one in rows if (one["part"], one["name"]) == ("prediction", "kv_pool"))
    assert (pool["printed"], pool["agrees"]) == ("3.81", "true")
    assert len(log_csv(found, None).splitlines()) == len(rows) - 6 + 1


@pytest.mark.parametrize("begins", ["=1+", "@a", "+1+", " =1+", "＝1+"])
def test_a_spreadsheet_takes_no_text_of_a_log_for_a_formula(begins: str) -> None:
    found = audited(C001.replace("model='", f"model='{begins}"), "llama-3.1-8b")
    rows = list(csv.DictReader(io.StringIO(log_csv(found, None))))
    printed = next(one for one in rows if one["name"] == "model")["printed"]
    assert printed.startswith(f"'{begins}")


def test_the_prediction_as_data_is_json() -> None:
    document = json.loads(json.dumps(beside_document(beside(C001)), allow_nan=False))
    assert document["figures"][0]["inside"] in (True, False)
    assert document["refused"] is False
