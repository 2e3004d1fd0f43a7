"""Profiles: constants read from a file, and the clock that computes with them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.core.plan import Chunk, Copy, StepPlan
from kvsim.cost import ProfileClock, read_profile
from kvsim.cost.profile import MAX_BYTES, Profile, digest, layout_key, profile_from
from kvsim.errors import InputError

US = 1e-6
ERRORS = {"points": 9, "median": 0.02, "p90": 0.07, "bias": -0.01}
LAYOUT = {
    "decode_s": 3 * US,
    "decode_row_s": 5 * US,
    "decode_context_s": 0.25 * US,
    "prefill_s": 7 * US,
    "chunk_s": 11 * US,
    "pair_s": 0.5 * US,
    "prior_s": 0.125 * US,
    "mixed_row_s": 13 * US,
    "mixed_context_s": 0.75 * US,
    "copy_s": 17 * US,
}


def document(**changes: Any) -> dict[str, Any]:
    content: dict[str, Any] = {
        "format": "kvsim-profile-1",
        "model": {"name": "llama-nano", "layers": 2},
        "device": {"name": "a processor", "mode": "eager"},
        "limits": {
            "max_num_seqs": 6,
            "max_num_batched_tokens": 64,
            "max_model_len": 64,
            "slots": 128,
        },
        "measured_layers": [2],
        "errors": {
            "fitted": ERRORS,
            "held_out": ERRORS,
            "held_out_by_kind": {"decode": ERRORS},
            "depth_check": None,
        },
        "noise": ERRORS,
        "probe": [
            {
                "layout": "paged-16",
                "layers": 2,
                "point": {"decodes": [9], "chunks": [[4, 0]], "copy_tokens": 0},
                "wall_s": 1e-3,
            }
        ],
        "constants": {
            "tokens": [[1, 100 * US], [2, 150 * US], [10, 230 * US]],
            "rows": [[1, 2 * US], [2, 4 * US]],
            "layouts": {"paged-16": LAYOUT},
        },
        **changes,
    }
    return {**content, "sha256": digest(content)}


def clock(**changes: Any) -> ProfileClock:
    return ProfileClock(profile_from(document(), where="p.json"), "paged-16", **changes)


def plan(
    decodes: int = 0, context: int = 0, chunks: tuple[tuple[int, int], ...] = (), joined: int = 0
) -> StepPlan:
    made = StepPlan(0, {})
    made.num_decodes, made.decode_context_tokens = decodes, context
    made.chunks = [Chunk(*chunk) for chunk in chunks]
    made.joined = [object()] * joined  # type: ignore[list-item]
    return made


def test_decodes_take_the_table_plus_rows_plus_context() -> None:
    # Two tokens 150, rows 2 * 2, attention 3 + 2 * 5 + 0.25 * 400.
    assert clock().step_seconds(plan(2, 400)) == pytest.approx((150 + 4 + 113) * US)


def test_the_table_is_linear_between_its_sizes_and_past_the_last() -> None:
    # Without context: table + 7 * rows + 3.
    assert clock().step_seconds(plan(6)) == pytest.approx((190 + 42 + 3) * US)
    assert clock().step_seconds(plan(20)) == pytest.approx((330 + 140 + 3) * US)


def test_chunks_add_pairs_prior_tokens_and_what_decodes_cost_beside_them() -> None:
    mixed = plan(2, 300, ((4, 100), (4, 0)), joined=1)
    pairs = 4 * (100 + 2) + 4 * 2
    expected = 230 + 2 * (2 + 1) + 7 + 2 * 11 + 0.5 * pairs + 0.125 * 100 + 2 * 13 + 0.75 * 300
    assert clock().step_seconds(mixed) == pytest.approx(expected * US)


def test_copies_are_paid_per_token() -> None:
    moved = plan(2, 400)
    moved.copies = [Copy(0, 8, 3), Copy(16, 32, 2)]
    without = clock().step_seconds(plan(2, 400))
    assert clock().step_seconds(moved) - without == pytest.approx(5 * 17 * US)


def test_a_scale_multiplies_every_time() -> None:
    mixed = plan(2, 300, ((4, 100),), joined=1)
    assert clock(scale=1.5).step_seconds(mixed) == pytest.approx(1.5 * clock().step_seconds(mixed))


def test_without_prefill_a_step_of_chunks_costs_one_token() -> None:
    assert clock(prefill=False).step_seconds(plan(chunks=((50, 0),))) == pytest.approx(103 * US)


def test_the_clock_states_its_error_and_explains_its_constants() -> None:
    found = clock()
    assert found.relative_error == 0.07
    assert "2.0%" in found.note
    facts = {fact.name: fact for fact in found.explain()}
    assert facts["paged-16 copy_s"].value == 17 * US
    assert facts["paged-16 copy_s"].unit == "s/token"


def test_a_layout_that_was_not_measured_is_refused_with_those_that_were() -> None:
    with pytest.raises(InputError, match="no constants of paged-32 memory, only of paged-16"):
        ProfileClock(profile_from(document(), where="p.json"), layout_key(32))


def test_a_file_reads_back_as_it_was_written(tmp_path: Path) -> None:
    path = tmp_path / "p.json"
    path.write_text(json.dumps(document(), indent=3))
    profile = read_profile(path)
    assert isinstance(profile, Profile)
    assert profile.constants.tokens[1] == (2, 150 * US)
    assert read_profile(path, sha256=profile.sha256) == profile
    with pytest.raises(InputError, match="the scenario asks for"):
        read_profile(path, sha256="0" * 64)


def _without(key: str) -> dict[str, Any]:
    changed = document()
    del changed[key]
    return {**changed, "sha256": digest(changed)}


def _constants(**changes: Any) -> dict[str, Any]:
    return document(constants={**document()["constants"], **changes})


@pytest.mark.parametrize(
    ("content", "message"),
    [
        ([], "is not a profile"),
        ({"format": "other"}, "is not a profile"),
        ({**document(), "model": {"name": "another"}}, "sha256 is"),
        (_without("limits"), "limits must be a mapping"),
        (document(model={"name": "a\nb", "layers": 1}), "model.name must be a printable text"),
        (document(measured_layers=5), "measured_layers must be a list"),
        (document(measured_layers=["a"]), "measured_layers: depth must be a whole number"),
        (document(device=["x"]), "device must be a mapping"),
        (document(device={"name": "x"}), "device.mode must be a printable text"),
        (document(noise={**ERRORS, "bias": "x"}), "noise.bias must be a number"),
        (document(errors={**document()["errors"], "depth_check": [1]}), "errors.depth_check must"),
        (document(probe=[]), "probe must be a list"),
        (document(probe=[{"wall_s": 0}]), "probe must hold batches that take more than 0"),
        (document(probe=[{**document()["probe"][0], "layers": 0}]), "probe: layers must be"),
        (
            document(probe=[{**document()["probe"][0], "point": {"decodes": ["a"], "chunks": []}}]),
            "probe: copy_tokens must be a number",
        ),
        (_constants(rows=[[1, -1.0]]), "constants.rows: seconds must be in 0"),
        (_constants(rows=[[1, True]]), "constants.rows: seconds must be a number"),
        (_constants(rows=[[1, 2e6]]), "must be in 0..1e+06"),
        (_constants(tokens=[]), "list of 1 to"),
        (_constants(tokens=[[2, 0.1], [1, 0.1]]), "ascending sizes, got 1 after 2"),
        (_constants(tokens=[[1, 0.1], [1.5, 0.1]]), "whole number"),
        (_constants(tokens=[[1, 0.1], 7]), r"must hold \[tokens, seconds\], got 7"),
        (_constants(layouts={}), "must have 1 to"),
        (_constants(layouts={"paged-16": {"decode_s": 1.0}}), "decode_row_s must be a number"),
    ],
)
def test_whatever_is_no_profile_is_refused_and_says_what_is_wrong(
    content: Any, message: str
) -> None:
    with pytest.raises(InputError, match=message.replace("+", r"\+")) as caught:
        profile_from(content, where="p.json")
    assert caught.value.where == "p.json"


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (b"{", "is not JSON"),
        (b"\xff", "is not JSON"),
        (b"[" * 100_000, "is not JSON"),
        (b" " * (MAX_BYTES + 1), "is larger than"),
        (b'{"format": "kvsim-profile-1", "a": NaN}', "not finite"),
    ],
)
def test_a_file_that_cannot_be_read_is_an_input_error(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "p.json"
    path.write_bytes(content)
    with pytest.raises(InputError, match=message):
        read_profile(path)


def test_a_missing_file_is_an_input_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read: No such file"):
        read_profile(tmp_path / "missing.json")
    with pytest.raises(InputError, match="leads nowhere"):
        read_profile(Path("a\0b"))
