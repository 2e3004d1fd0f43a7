"""`clock: {kind: profile}` of a scenario: where the file is found, and what it must match."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.cost import ProfileClock
from kvsim.errors import InputError
from kvsim.scenario.loader import load_scenario, resolved
from kvsim.scenario.sizing import size_server
from kvsim.scenario.variants import variants
from tests.cost.test_profile import LAYOUT, document

SCENARIO = """
version: 1
profile: plain
model: llama-nano
engine: {max_num_seqs: 4, max_num_batched_tokens: 64, max_model_len: 128}
memory: {kind: paged, block_size: 16, num_blocks: 64}
clock: {kind: profile, path: p.json}
workload:
  num_requests: 3
  arrivals: {kind: all_at_once}
  lengths: {prompt: {kind: constant, tokens: 9}, output: {kind: constant, tokens: 3}}
"""


def write(folder: Path, scenario: str = SCENARIO, **changes: Any) -> Path:
    constants = {**document()["constants"], "layouts": {"paged-16": LAYOUT, "contiguous": LAYOUT}}
    (folder / "p.json").write_text(json.dumps(document(**{"constants": constants, **changes})))
    path = folder / "s.yaml"
    path.write_text(scenario)
    return path


def test_the_file_beside_the_scenario_gives_the_clock_of_each_memory(tmp_path: Path) -> None:
    contiguous = "compare: {arena: {memory: {kind: contiguous, num_blocks: 64, reserve: max}}}\n"
    scenario = load_scenario(str(write(tmp_path, SCENARIO + contiguous)))
    for settings in variants(scenario).values():
        assert isinstance(size_server(settings).clock, ProfileClock)


def test_the_digest_of_the_profile_is_noted_and_holds_when_the_run_is_repeated(
    tmp_path: Path,
) -> None:
    scenario = load_scenario(str(write(tmp_path)))
    repeated = tmp_path / "elsewhere" / "again.yaml"
    repeated.parent.mkdir()
    repeated.write_text(resolved(scenario))
    assert load_scenario(str(repeated)).clock == scenario.clock
    write(tmp_path, limits={"max_num_batched_tokens": 65})
    with pytest.raises(InputError, match="the scenario asks for"):
        load_scenario(str(repeated))


def test_a_profile_outside_the_folder_needs_a_digest_or_the_command_line(tmp_path: Path) -> None:
    inner = tmp_path / "inner"
    inner.mkdir()
    write(tmp_path)
    path = inner / "s.yaml"
    path.write_text(SCENARIO.replace("p.json", "../p.json"))
    with pytest.raises(InputError, match=r"clock\.path leads out of the scenario's folder"):
        load_scenario(str(path))
    option = f"clock.path={tmp_path / 'p.json'}"
    assert load_scenario(str(path), [option]).clock.kind == "profile"


@pytest.mark.parametrize(
    ("before", "after", "message"),
    [
        ("block_size: 16", "block_size: 8", "no constants of paged-8 memory"),
        ("model: llama-nano\n", "", "clock.kind is profile"),
        ("model: llama-nano", "model: llama-3-8b", "profile of llama-nano, the model is"),
        ("path: p.json", "path: q.json", "cannot be read"),
        (
            "engine: {max",
            "engine: {scheduler: static, max",
            "memory.kind = paged or contiguous, got grow",
        ),
    ],
)
def test_what_does_not_match_the_profile_is_refused(
    tmp_path: Path, before: str, after: str, message: str
) -> None:
    text = SCENARIO.replace(before, after)
    if "grow" in message:
        text = text.replace("kind: paged", "kind: grow")
    path = write(tmp_path, text, model={"name": "llama-nano", "layers": 2})
    with pytest.raises(InputError, match=message):
        load_scenario(str(path))


def test_a_variant_may_name_another_profile_only(tmp_path: Path) -> None:
    path = write(tmp_path, SCENARIO + "compare: {other: {clock: {path: q.json}}}\n")
    (tmp_path / "q.json").write_text(json.dumps(document(seed=7)))
    digests = [v.clock.sha256 for v in variants(load_scenario(str(path))).values()]  # type: ignore[union-attr]
    assert digests[0] != digests[1] == document(seed=7)["sha256"]
