"""kvsim decides what the real vLLM 0.33.0 decided, row for row."""

from __future__ import annotations

import gzip
import json
import os
import tracemalloc
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.recordings import Recording, verify
from kvsim.recordings.replay import Replay
from kvsim.recordings.verify import recording_files

DATA = Path(__file__).parent / "data"
SPEC = {"method": "eagle", "num_speculative_tokens": 2, "accept_pattern": [1]}
FULL = {"type": "full"}
SLIDING = {"type": "sliding", "window": 32}


@pytest.mark.parametrize(("folder", "count"), [(DATA, 52), (DATA / "fuzz", 96)], ids=str)
def test_every_row_of_the_kept_recordings_is_reproduced(folder: Path, count: int) -> None:
    report = verify([folder])
    assert report.last_line() == f"{count} passed, 0 failed, 0 skipped"
    assert min(result.rows for result in report.results) > 40


def test_all_recordings_of_the_shared_folder_are_reproduced(shared: Path) -> None:
    golden = shared / "vllm" / "golden"
    assert verify([golden, golden / "fuzz"]).last_line() == "148 passed, 0 failed, 0 skipped"


@pytest.mark.parametrize(
    ("patch", "name"),
    [
        ({"kv_groups": [{"type": "mamba"}]}, "layer group 'mamba'"),
        ({"spec": {**SPEC, "method": "dflash"}}, "speculation method 'dflash'"),
        ({"spec": SPEC, "async_scheduling": True}, "speculative decoding with asynchronous"),
        ({"spec": SPEC, "kv_groups": [FULL, SLIDING]}, "eagle with several layer groups"),
    ],
)
def test_what_the_rules_do_not_cover_is_named_and_fails_unless_only_supported_are_asked(
    patch: dict[str, Any], name: str, tmp_path: Path
) -> None:
    path = changed(
        tmp_path,
        "h1_max_model_len.jsonl.gz",
        lambda lines: lines[0]["header"]["config"].update(patch),
    )
    (result,) = verify([path]).results
    assert result.outcome == "failed"
    assert f"not covered: {name}" in result.reason
    assert not result.malformed
    assert verify([path], only_supported=True).last_line() == "0 passed, 0 failed, 1 skipped"


def test_a_folder_means_its_own_files_and_a_file_named_twice_counts_once(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    for name in ("b.jsonl", "a.jsonl", "notes.txt", "inner/c.jsonl"):
        (tmp_path / name).write_text("")
    files = recording_files([tmp_path, tmp_path / "a.jsonl", inner / ".." / "b.jsonl"])
    assert [path.name for path in files] == ["a.jsonl", "b.jsonl"]


def changed(tmp_path: Path, name: str, change: Any) -> Path:
    text = gzip.decompress((DATA / name).read_bytes()).decode()
    lines = [json.loads(line) for line in text.splitlines()]
    change(lines)
    path = tmp_path / "changed.jsonl"
    path.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    return path


def test_the_first_differing_row_is_reported_with_both_sides_and_its_line(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        rows = [line for line in lines if "step" in line]
        rows[7]["free"] += 1
        rows[9]["free"] += 1

    path = changed(tmp_path, "h1_max_model_len.jsonl.gz", change)
    (result,) = verify([path]).results
    row = json.loads(path.read_text().splitlines()[result.line - 1])
    assert result.outcome == "failed"
    assert result.reason == f"step {row['step']} differs"
    assert result.difference == {"free": (row["free"], row["free"] - 1)}
    assert result.rule == "block allocation: what is free after scheduling"
    assert result.vllm_version == "0.33.0"


def test_wrong_totals_fail_although_every_row_agrees(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[-1]["end"]["preemptions"] += 1

    (result,) = verify([changed(tmp_path, "h1_max_model_len.jsonl.gz", change)]).results
    assert (result.outcome, result.difference) == ("failed", {"preemptions": (1, 0)})


def test_a_missing_last_row_fails(tmp_path: Path) -> None:
    path = changed(tmp_path, "h1_max_model_len.jsonl.gz", lambda lines: lines.pop(-2))
    assert verify([path]).results[0].outcome == "failed"


@pytest.mark.parametrize(
    ("patch", "value"),
    [
        ("max_num_batched_tokens", 127),
        ("long_prefill_token_threshold", 99),
        ("watermark", 0.2),
        ("max_num_seqs", 3),
    ],
)
def test_a_scheduler_with_another_setting_is_told_apart(
    tmp_path: Path, patch: str, value: float
) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        lines[0]["header"]["config"][patch] = value

    name = "e2_long_prefill_threshold" if "threshold" in patch else "b2_tight_no_full_isl"
    assert not verify([changed(tmp_path, f"{name}.jsonl.gz", change)]).ok


BAD_FILES = {
    "empty": ("", "empty"),
    "not JSON": ("{]", "not JSON"),
    "a list": ("[]", "not a JSON object"),
    "no header": ('{"step": 1}', "header is not a JSON object"),
    "other format": ('{"header": {"format": 2}}', "format 2 is not 1"),
    "config lacks a flag": ('{"header": {"format": 1, "config": {}}}', "config.num_gpu_blocks"),
    "deeply nested": ("[" * 100_000, "not JSON"),
}
BAD_CONFIGS: list[tuple[str, Any]] = [
    ("num_gpu_blocks", 10**9),
    ("num_gpu_blocks", 1),
    ("block_size", 10**8),
    ("long_prefill_token_threshold", -1),
    ("watermark", 1.5),
    ("watermark", "x"),
    ("kv_groups", 5),
    ("kv_groups", ["full"]),
    ("kv_groups", [{"type": "sliding", "window": 0}]),
    ("kv_groups", [{"type": "full", "window": 8}]),
    ("retention_interval", -1),
    ("spec", {"method": "ngram", "num_speculative_tokens": 0, "accept_pattern": [1]}),
    ("spec", {"method": "ngram", "num_speculative_tokens": 1, "accept_pattern": []}),
    ("spec", 3),
    ("policy", None),
    ("async_scheduling", 1),
]


@pytest.mark.parametrize(("field", "value"), BAD_CONFIGS)
def test_a_malformed_config_names_its_field_and_line(
    field: str, value: Any, tmp_path: Path
) -> None:
    path = changed(
        tmp_path,
        "h1_max_model_len.jsonl.gz",
        lambda lines: lines[0]["header"]["config"].update({field: value}),
    )
    with pytest.raises(InputError, match=rf"changed.jsonl:1: config.{field}.* (must be|is not)"):
        Recording(path)


def test_a_recording_without_rows_or_end_is_reported(tmp_path: Path) -> None:
    def rows_only(lines: list[dict[str, Any]]) -> None:
        del lines[-1]

    def no_rows(lines: list[dict[str, Any]]) -> None:
        lines[:] = [line for line in lines if "step" not in line]

    name = "h1_max_model_len.jsonl.gz"
    (cut,) = verify([changed(tmp_path, name, rows_only)]).results
    assert cut.malformed
    assert "no end line" in cut.reason
    assert verify([changed(tmp_path, name, no_rows)]).last_line() == "0 passed, 1 failed, 0 skipped"


def test_a_far_arrival_costs_no_idle_steps(tmp_path: Path) -> None:
    def change(lines: list[dict[str, Any]]) -> None:
        late = {"id": "late", "arrival_step": 90_000_000, "prompt_tokens": 3, "output_tokens": 1}
        lines.insert(1, {"req": late})

    (result,) = verify([changed(tmp_path, "h1_max_model_len.jsonl.gz", change)]).results
    assert result.reason == "step 90000000 differs"


def test_many_far_apart_arrivals_are_found_one_after_the_other() -> None:
    """Each idle stretch is one look-up, not a search through all that is still to come."""
    config = Recording(DATA / "h1_max_model_len.jsonl.gz").config
    requests = [
        {"id": f"r{index}", "arrival_step": 1000 * index, "prompt_tokens": 3, "output_tokens": 1}
        for index in range(20_000)
    ]
    replay = Replay(config, requests)
    assert [row["step"] for row in replay] == [1000 * index for index in range(20_000)]
    assert replay.totals["last_step"] == 19_999_001


def test_rows_are_not_kept_in_memory(tmp_path: Path) -> None:
    """A small file of many rows with many small values is read row by row."""
    path = tmp_path / "many.jsonl"
    config = json.loads(
        gzip.decompress((DATA / "h1_max_model_len.jsonl.gz").read_bytes()).splitlines()[0]
    )
    row = json.dumps({"step": 0, "sched": [[str(i), i] for i in range(20_000)]})
    path.write_text("\n".join([json.dumps(config), *([row] * 60), '{"end": {"steps": 1}}']))
    tracemalloc.start()
    for _ in Recording(path).rows():
        pass
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 20 * 2**20


@pytest.mark.parametrize("case", BAD_FILES)
def test_a_malformed_recording_is_an_error_with_file_line_and_way_out(
    case: str, tmp_path: Path
) -> None:
    text, expected = BAD_FILES[case]
    path = tmp_path / "bad.jsonl"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        Recording(path)
    assert str(path) in str(caught.value)
    assert expected in str(caught.value)
    assert caught.value.fix


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *(("id", value) for value in (None, -1, 1.5, True, [], "\x1b]0;x", "\ud800")),
        *(("abort_step", value) for value in (-1, "5", [], 10**12)),
        *(
            (field, value)
            for field in ("prompt_tokens", "output_tokens", "arrival_step")
            for value in (None, -1, "7", 1.5, True, [], 10**12)
        ),
    ],
)
def test_a_malformed_request_names_its_field_and_line(
    field: str, value: Any, tmp_path: Path
) -> None:
    path = changed(
        tmp_path, "h1_max_model_len.jsonl.gz", lambda lines: lines[3]["req"].update({field: value})
    )
    with pytest.raises(InputError, match=rf"changed.jsonl:4: req.{field} must be"):
        Recording(path)


@pytest.mark.parametrize(
    "parts",
    [
        {"segments": 5},
        {"segments": [1, 2]},
        {"segments": [["a", 1, 3]]},
        {"segments": [[["a"], 3]]},
        {"segments": [["a", -1]]},
        {"hash_ids": [{}]},
        {"prefix_group": [], "prefix_tokens": 3},
        {"prefix_group": "g"},
    ],
    ids=str,
)
def test_a_malformed_prompt_is_an_error_with_its_line(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    path = changed(
        tmp_path, "h1_max_model_len.jsonl.gz", lambda lines: lines[3]["req"].update(parts)
    )
    (result,) = verify([path]).results
    assert result.malformed
    assert "changed.jsonl:4: " in result.reason


def test_a_malformed_file_does_not_hide_the_others(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text("[]")
    (tmp_path / "b.jsonl.gz").write_bytes((DATA / "h1_max_model_len.jsonl.gz").read_bytes())
    os.mkfifo(tmp_path / "pipe.jsonl")
    report = verify([tmp_path])
    assert report.last_line() == "1 passed, 1 failed, 0 skipped"
    assert report.malformed
    assert "a.jsonl:1: line is not a JSON object" in report.results[0].reason


def test_blank_lines_without_end_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "blank.jsonl"
    path.write_text("\n" * 20_000)
    with pytest.raises(InputError, match=r"blank.jsonl:10001: too many blank lines"):
        Recording(path)


def test_a_truncated_gzip_file_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "cut.jsonl.gz"
    path.write_bytes((DATA / "h1_max_model_len.jsonl.gz").read_bytes()[:3000])
    (result,) = verify([path]).results
    assert result.malformed
    assert "cannot be read" in result.reason
