"""The recorder of vLLM's own scheduler, as far as it runs without vLLM."""

from __future__ import annotations

import gzip
import json
import subprocess
import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

from kvsim.recordings.reader import Recording
from tools.vllm_recorder import cli
from tools.vllm_recorder.errors import RecordError
from tools.vllm_recorder.inputs import Case, case_of_files, case_of_recording
from tools.vllm_recorder.output import write_lines
from tools.vllm_recorder.random_case import random_case
from tools.vllm_recorder.tokens import Tokens

ROOT = Path(__file__).resolve().parents[1]
TOOL = ROOT / "tools" / "record_vllm.py"
DATA = ROOT / "tests" / "recordings" / "data"
SOURCE = next(DATA.rglob("y34.jsonl.gz"))
SEEDS = range(120)


def _run(*arguments: str, python: tuple[str, ...] = ()) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, *python, str(TOOL), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=300)


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in gzip.decompress(path.read_bytes()).splitlines()]


def _write_inputs(folder: Path, case: Case) -> tuple[Path, Path]:
    config, requests = folder / "config.json", folder / "requests.jsonl"
    config.write_text(json.dumps(case.config))
    write_lines(requests, iter(case.requests))
    return config, requests


@pytest.fixture(scope="module")
def cases() -> list[Case]:
    return [random_case(seed) for seed in SEEDS]


def test_the_help_needs_no_vllm() -> None:
    result = _run("--help", python=("-S",))
    assert result.returncode == 0, result.stderr
    assert "--from" in result.stdout


def test_a_missing_vllm_is_named_with_the_way_to_install_it(tmp_path: Path) -> None:
    out = tmp_path / "new.jsonl.gz"
    result = _run("--random", "1", "-o", str(out), python=("-S",))
    assert result.returncode == 2
    assert "pip install --no-deps vllm==" in result.stderr
    assert str(ROOT / "tools" / "vllm_recorder" / "requirements.txt") in result.stderr
    assert not out.exists()


def test_the_installation_in_the_docs_is_the_one_in_the_message() -> None:
    from tools.vllm_recorder.engine import INSTALL

    page = (ROOT / "docs" / "verification.md").read_text(encoding="utf-8")
    for line in INSTALL.splitlines()[1:]:
        assert line.strip().replace(f"{ROOT}/", "") in page


def test_random_cases_are_inputs_that_kvsim_reads(cases: list[Case], tmp_path: Path) -> None:
    path = tmp_path / "case.jsonl.gz"
    for case in cases:
        header = {"format": 1, "vllm_version": "0", "config": case.config}
        requests = [{"req": request} for request in case.requests]
        write_lines(path, [{"header": header}, *requests, {"step": 0}, {"end": {}}])
        recording = Recording(path)
        assert recording.config == case.config
        assert recording.requests == case.requests
        assert case_of_recording(path) == case


def test_a_seed_is_always_the_same_case(cases: list[Case]) -> None:
    assert [random_case(seed) for seed in SEEDS] == cases


def test_random_cases_cover_every_mode(cases: list[Case]) -> None:
    configs = [case.config for case in cases]
    for name in (
        "async_scheduling",
        "enable_chunked_prefill",
        "enable_prefix_caching",
        "scheduler_reserve_full_isl",
    ):
        assert {config[name] for config in configs} == {True, False}
    assert {config["policy"] for config in configs} == {"fcfs", "priority"}
    assert {config["spec"]["method"] for config in configs if config["spec"]} == {
        "ngram",
        "draft_model",
        "eagle",
    }
    assert {len(config["kv_groups"] or ()) for config in configs} >= {0, 1, 2, 3}
    assert any(
        len({group.get("block_size") for group in config["kv_groups"] or ()}) > 1
        for config in configs
    )
    assert {type(config["retention_interval"]) for config in configs} == {int, type(None)}
    fields = {name for case in cases for request in case.requests for name in request}
    assert {"segments", "hash_ids", "prefix_group", "priority", "abort_step"} <= fields


def test_random_cases_leave_out_what_recordings_do_not_cover(cases: list[Case]) -> None:
    for config, _ in cases:
        spec = config["spec"]
        groups = config["kv_groups"] or [{"type": "full"}]
        sizes = {group["type"]: group.get("block_size", config["block_size"]) for group in groups}
        if spec:
            assert not config["async_scheduling"]
            assert spec["method"] != "eagle" or "sliding" not in sizes
        assert sizes.get("full", 0) <= min(sizes.values())


def test_inputs_of_an_existing_recording_are_its_own() -> None:
    for path in sorted(DATA.rglob("*.gz")):
        recording = Recording(path)
        assert case_of_recording(path) == Case(recording.config, recording.requests)


def test_config_and_requests_come_from_two_files(cases: list[Case], tmp_path: Path) -> None:
    assert case_of_files(*_write_inputs(tmp_path, cases[0])) == cases[0]


CONFIG_MISTAKES: list[dict[str, Any]] = [
    {"block_size": 0},
    {"async_scheduling": None},
    {"watermark": 1},
    {"policy": "lifo"},
    {"step_time_s": 0.1},
    {"retention_interval": -1},
    {"max_num_seq": 4},
    {"kv_groups": []},
    {"kv_groups": [{"type": "mamba"}]},
    {"kv_groups": [{"type": "sliding"}]},
    {"spec": {"method": "medusa", "num_speculative_tokens": 2, "accept_pattern": [1]}},
    {"spec": {"method": "ngram", "num_speculative_tokens": 2, "accept_pattern": []}},
    {
        "async_scheduling": True,
        "spec": {"method": "ngram", "num_speculative_tokens": 2, "accept_pattern": [1]},
    },
]


@pytest.mark.parametrize("mistake", CONFIG_MISTAKES, ids=str)
def test_a_wrong_config_is_refused(mistake: dict[str, Any], tmp_path: Path) -> None:
    recording = Recording(SOURCE)
    case = Case({**recording.config, **mistake}, recording.requests)
    config, requests = _write_inputs(tmp_path, case)
    with pytest.raises(RecordError, match=r"config\.json: "):
        case_of_files(config, requests)


REQUEST_MISTAKES: list[dict[str, Any]] = [
    {"id": ""},
    {"prompt_tokens": 0},
    {"output_tokens": "3"},
    {"arrival_step": -1},
    {"abort_step": -1},
    {"priority": 0.5},
    {"segments": [["a", 1]]},
    {"hash_ids": [1, 2, 3, 4]},
    {"prefix_group": "g", "prefix_tokens": 21},
    {"prefix_group": "g", "prefix_tokens": 3, "segments": [["a", 20]]},
    {"stop": [1]},
]


@pytest.mark.parametrize("mistake", REQUEST_MISTAKES, ids=str)
def test_a_wrong_request_is_refused_with_its_line(mistake: dict[str, Any], tmp_path: Path) -> None:
    request = {"id": "a", "arrival_step": 0, "prompt_tokens": 20, "output_tokens": 2}
    case = Case(Recording(SOURCE).config, [request, {**request, **mistake}])
    with pytest.raises(RecordError, match=r"requests\.jsonl:2: "):
        case_of_files(*_write_inputs(tmp_path, case))


def test_an_id_that_occurs_twice_is_refused(tmp_path: Path) -> None:
    request = {"id": "a", "arrival_step": 0, "prompt_tokens": 20, "output_tokens": 2}
    case = Case(Recording(SOURCE).config, [request, request])
    with pytest.raises(RecordError, match="'a' occurs twice"):
        case_of_files(*_write_inputs(tmp_path, case))


@pytest.mark.parametrize("content", [b"", b"{}\n", b"[1]\n", b"{\n", b"\x1f\x8bnonsense"])
def test_what_is_no_recording_is_refused(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "no.jsonl"
    path.write_bytes(content)
    with pytest.raises(RecordError, match=r"no\.jsonl"):
        case_of_recording(path)


def test_a_recording_is_written_whole_or_not_at_all(tmp_path: Path) -> None:
    def broken() -> Iterator[dict[str, Any]]:
        yield {"header": {}}
        raise RecordError("vLLM fails")

    for name in ("a.jsonl", "a.jsonl.gz"):
        with pytest.raises(RecordError, match="vLLM fails"):
            write_lines(tmp_path / name, broken())
    assert list(tmp_path.iterdir()) == []


def test_the_same_rows_are_the_same_bytes(tmp_path: Path) -> None:
    first, second = tmp_path / "first.jsonl.gz", tmp_path / "second.jsonl.gz"
    for path in (first, second):
        write_lines(path, [{"step": number} for number in range(100)])
    assert first.read_bytes() == second.read_bytes()
    assert _lines(first)[99] == {"step": 99}


def test_a_recording_does_not_replace_its_source(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(cli, "installed_version", lambda: "0")
    source = tmp_path / "a.jsonl.gz"
    source.write_bytes(SOURCE.read_bytes())
    assert cli.main(["--from", str(source), "-o", str(tmp_path)]) == 2
    assert "would replace" in capsys.readouterr().err


def test_tokens_are_equal_where_the_format_says_so_and_nowhere_else() -> None:
    tokens = Tokens(hash_id_tokens=4)

    def prompt(name: str, length: int, **sharing: Any) -> list[int]:
        return tokens.prompt({"id": name, "prompt_tokens": length, **sharing})

    first = prompt("a", 5, segments=[["s", 3], ["out:b", 2]])
    assert prompt("c", 5, segments=[["s", 5]])[:3] == first[:3]
    assert [tokens.output("b", position) for position in range(2)] == first[3:]
    assert prompt("d", 6, hash_ids=[7, 8])[4:] == prompt("e", 2, hash_ids=[8])
    shared = prompt("f", 6, prefix_group="g", prefix_tokens=4)
    other = prompt("h", 6, prefix_group="g", prefix_tokens=5)
    assert shared[:4] == other[:4]
    assert set(shared[4:]).isdisjoint(other)
    everything = [first, prompt("i", 6), prompt("j", 6), shared, prompt("d", 6, hash_ids=[7, 8])]
    assert len({token for one in everything for token in one}) == sum(map(len, everything))


@pytest.mark.skipif(find_spec("vllm") is None, reason="vllm is not installed")
@pytest.mark.slow
def test_the_installed_vllm_decides_as_recorded(tmp_path: Path) -> None:
    from importlib.metadata import version

    source, out = SOURCE, tmp_path / "y34.jsonl.gz"
    result = _run("--from", str(source), "-o", str(out))
    assert result.returncode == 0, result.stderr
    recorded, again = _lines(source), _lines(out)
    assert again[0]["header"]["config"] == recorded[0]["header"]["config"]
    assert again[0]["header"]["vllm_version"] == version("vllm")
    if version("vllm") == recorded[0]["header"]["vllm_version"]:
        assert again == recorded
