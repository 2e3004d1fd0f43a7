"""Rows of a grid -> constants: what is put in comes out, at any depth, through noise."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("numba")
pytest.importorskip("scipy")

from gpu_backend.calibrate import ROWS_FILE, calibrate_from
from gpu_backend.executor import ModelShape
from gpu_backend.executor.padding import padded_rows
from gpu_backend.fit import Fit, gather, noise
from gpu_backend.grid import GridSpec, Row, fit_points, held_out_points, probe_points
from gpu_backend.layouts import CacheLayout
from gpu_backend.profile_document import profile_document
from gpu_backend.steps import Point
from kvsim.cost.profile import profile_from
from kvsim.errors import InputError
from tests.gpu_backend_validate.server import SHAPE

SPEC = GridSpec(
    "llama-nano",
    ModelShape(**SHAPE),
    layers=2,
    measured_layers=(2,),
    layouts=(CacheLayout(16), CacheLayout(None)),
    slots=2048,
    max_num_seqs=12,
    max_num_batched_tokens=128,
    max_model_len=512,
    num_threads=1,
)


def truth(layout: str, layers: int, point: Point) -> float:
    """Seconds by a formula of the fitted form, whose table has a jump at the padding."""
    tokens = padded_rows(point.tokens)
    once = 2e-4 + 3e-6 * tokens + (6e-4 if point.rows > 2 else 0) + 2e-5 * padded_rows(point.rows)
    each = 1e-4 + 2e-5 * tokens + (1e-4 if tokens > 2 else 0)
    slow = 1.0 if layout == "contiguous" else 1.2
    rows, context = len(point.decodes), sum(point.decodes)
    if point.chunks:
        pairs = sum(new * (prior + new / 2) for new, prior in point.chunks)
        each += 5e-5 * len(point.chunks) + 4e-8 * pairs * slow + 6e-7 * context * slow
    else:
        each += 1e-5 * rows + 2e-7 * context * slow
    return once + layers * each + 1e-6 * point.copy_tokens * layers


def rows(
    spec: GridSpec = SPEC, *, rounds: int = 3, factor: Callable[[], float] = lambda: 1.0
) -> list[Row]:
    return [
        Row(use, layout.name, layers, point, number, seconds, seconds, 0.0)
        for number in range(rounds)
        for layout in spec.layouts
        for layers in spec.measured_layers
        for use, points in (("fit", fit_points(spec)), ("held_out", held_out_points(spec, 0)))
        for point in points
        for seconds in [truth(layout.name, layers, point) * factor()]
    ]


def held_out(entries: list[Any]) -> list[Any]:
    return [entry for entry in entries if entry.use == "held_out"]


def test_batches_that_were_not_fitted_are_predicted() -> None:
    measured = gather(rows())
    found = Fit(measured, 2).errors(held_out(measured))
    assert found.points == 48
    # The truth is linear within the grid except for the padding between two measured sizes.
    assert found.median < 0.005
    assert found.p90 < 0.02


def test_two_depths_say_what_the_whole_model_takes() -> None:
    spec = SPEC._replace(layers=10, measured_layers=(2, 4))
    measured = gather(rows(spec))
    fit = Fit(measured, 10)
    for layout in ("paged-16", "contiguous"):
        for point in held_out_points(spec, 1):
            assert fit.predict(layout, 10, point) == pytest.approx(
                truth(layout, 10, point), rel=0.04
            )
    clock_constants = fit.constants()
    assert clock_constants.layouts["paged-16"].decode_context_s == pytest.approx(2.4e-6, rel=0.02)


def test_the_constants_of_the_profile_predict_what_the_fit_does() -> None:
    fit = Fit(gather(rows()), 2)
    constants = fit.constants()
    sizes, rows_s = dict(constants.tokens), dict(constants.rows)
    paged = constants.layouts["paged-16"]
    point = Point((100, 200, 300))
    # Three rows are padded to four: the table has the same value for both.
    assert sizes[3] == sizes[4]
    expected = (
        sizes[3]
        + rows_s[3]
        + paged.decode_s
        + 3 * paged.decode_row_s
        + 600 * paged.decode_context_s
    )
    assert fit.predict("paged-16", 2, point) == pytest.approx(expected, rel=1e-9)


def test_noise_and_outliers_move_the_predictions_little() -> None:
    draw = random.Random(0)

    def factor() -> float:
        return draw.uniform(0.95, 1.05) * (3.0 if draw.random() < 0.03 else 1.0)

    measured = gather(rows(rounds=5, factor=factor))
    fit = Fit(measured, 2)
    for entry in held_out(measured):
        assert fit.predict(entry.layout, 2, entry.point) == pytest.approx(
            truth(entry.layout, 2, entry.point), rel=0.06
        )


def test_noise_is_the_difference_of_two_rounds() -> None:
    values = iter([1.0, 1.1] * 10_000)
    measured = gather(rows(rounds=2, factor=lambda: 1.0))
    changed = [
        entry._replace(rounds=tuple(wall * next(values) for wall in entry.rounds))
        for entry in measured
    ]
    found = noise(changed)
    assert found.median == pytest.approx(0.1 / 1.05)
    assert found.p90 == pytest.approx(0.1 / 1.05)


def test_one_depth_says_nothing_about_another() -> None:
    with pytest.raises(InputError, match=r"the rows are of \[2\] layers, which says nothing"):
        Fit(gather(rows()), 3)
    with pytest.raises(InputError, match="of no layers"):
        Fit([], 2)


def test_a_grid_stays_within_the_limits_and_holds_out_other_batches() -> None:
    fitted = fit_points(SPEC)
    others = held_out_points(SPEC, 0)
    assert held_out_points(SPEC, 0) == others != held_out_points(SPEC, 1)
    assert not set(fitted) & set(others)
    assert set(probe_points(SPEC)) <= set(fitted)
    for point in [*fitted, *others]:
        assert 1 <= point.tokens <= 128
        assert len(point.decodes) + len(point.chunks) <= 12
        assert point.slots(16) <= SPEC.slots
        assert all(new + prior <= 512 for new, prior in point.chunks)
    sizes = {len(point.decodes) for point in fitted if not point.chunks}
    assert sizes >= {1, 2, 4, 8, 12}


@pytest.mark.parametrize("slots", [96, 160, 300])
@pytest.mark.parametrize("seqs", [1, 2, 3])
def test_a_grid_of_a_tiny_server_is_not_empty(slots: int, seqs: int) -> None:
    spec = SPEC._replace(slots=slots, max_num_seqs=seqs, max_num_batched_tokens=8, max_model_len=64)
    spec = spec._replace(layouts=(CacheLayout(4), CacheLayout(None)))
    assert fit_points(spec)
    assert held_out_points(spec, 0)
    assert probe_points(spec)


def test_rows_and_grids_survive_a_file() -> None:
    assert GridSpec.from_dict(json.loads(json.dumps(SPEC.as_dict()))) == SPEC
    for row in rows()[::50]:
        assert Row.from_dict(json.loads(json.dumps(row.as_dict()))) == row


def test_what_a_bare_machine_saved_is_fitted_elsewhere(tmp_path: Path) -> None:
    head = {"grid": SPEC.as_dict(), "device_name": "a GPU", "seed": 3}
    lines = [json.dumps(data) for data in [head, *(row.as_dict() for row in rows())]]
    path = tmp_path / ROWS_FILE
    path.write_text("\n".join(lines) + '\n{"use": "fit", "lay')
    document = calibrate_from(tmp_path)
    profile = profile_from(document, where="p.json")
    assert profile.device == "a GPU"
    assert profile.error_median < 0.005
    assert document["seed"] == 3
    expected = profile_document(SPEC, "a GPU", rows(), seed=3)
    assert document["constants"] == expected["constants"]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "holds no rows"),
        ('{"grid": {}}\n', "no row of a calibration"),
        ("[1]\n", "no row of a calibration"),
        ("{\n", "no row of a calibration"),
    ],
)
def test_a_folder_with_something_else_is_refused_with_its_line(
    tmp_path: Path, text: str, message: str
) -> None:
    (tmp_path / ROWS_FILE).write_text(text)
    with pytest.raises(InputError, match=message):
        calibrate_from(tmp_path)


def test_a_folder_without_rows_says_who_writes_them(tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        calibrate_from(tmp_path)
    assert "gpu_backend.bench" in (caught.value.fix or "")


@pytest.mark.parametrize("share", [0.02, 0.3, 0.6])
def test_a_grid_that_was_cut_off_early_is_refused(tmp_path: Path, share: float) -> None:
    head = {"grid": SPEC.as_dict(), "device_name": "a GPU", "seed": 0}
    found = rows(rounds=2)
    lines = [json.dumps(head), *(json.dumps(row.as_dict()) for row in found)]
    (tmp_path / ROWS_FILE).write_text("\n".join(lines[: round(share * len(lines) / 2) + 2]) + "\n")
    with pytest.raises(InputError, match=r"the grid was cut off|says nothing"):
        calibrate_from(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"measured_layers": []},
        {"measured_layers": [1, 2, 3]},
        {"layouts": []},
        {"layouts": ["arena"]},
        {"slots": None},
        {"layers": "a"},
        {"max_num_seqs": 10**12},
        {"device": ["cuda"]},
        {"dtype": "int4"},
        {"unknown": 1},
    ],
)
def test_a_grid_with_something_else_in_it_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    head = {"grid": {**SPEC.as_dict(), **changes}, "device_name": "a GPU", "seed": 0}
    (tmp_path / ROWS_FILE).write_text(json.dumps(head) + "\n")
    with pytest.raises(InputError, match="is no row of a calibration"):
        calibrate_from(tmp_path)


@pytest.mark.parametrize(
    "changes",
    [
        {"wall_s": 0},
        {"wall_s": -1},
        {"wall_s": float("nan")},
        {"wall_s": float("inf")},
        {"layers": float("inf")},
        {"use": "bogus"},
        {"layout": "arena"},
        {"point": {"decodes": [], "chunks": [], "copy_tokens": 0}},
        {"point": {"decodes": ["a"], "chunks": [], "copy_tokens": 0}},
    ],
)
def test_a_row_with_something_else_in_it_is_refused(
    tmp_path: Path, changes: dict[str, Any]
) -> None:
    head = {"grid": SPEC.as_dict(), "device_name": "a GPU", "seed": 0}
    lines = [head, rows()[0].as_dict(), {**rows()[1].as_dict(), **changes}]
    (tmp_path / ROWS_FILE).write_text("".join(json.dumps(line) + "\n" for line in lines))
    with pytest.raises(InputError, match="is no row of a calibration") as caught:
        calibrate_from(tmp_path)
    assert str(caught.value.where).endswith(":3")
