"""What branches share: closed forms against the allocators, and both against published numbers."""

from __future__ import annotations

import csv
import io
import math

import numpy as np
import plotly.graph_objects as go
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.group_memory import group_blocks
from kvsim.errors import InputError
from kvsim.report.branch_forms import (
    Kind,
    Sharing,
    bounds,
    closed_form,
    expected_ancestors,
)
from kvsim.report.figures.branching import branch_steps_figure, branch_width_figure
from kvsim.report.sharing_lab import by_width, sharing_csv, simulate

EXACT: tuple[Kind, ...] = ("parallel", "independent", "prefix")


@pytest.mark.parametrize(
    ("beams", "expected"),
    [
        (2, [2.0, 1.5, 1.25, 1.125]),
        (4, [4.0, 2.734, 2.147, 1.806]),
        (6, [6.0, 3.991, 3.072, 2.538]),
    ],
)
def test_neutral_beams_have_the_expected_number_of_ancestors(
    beams: int, expected: list[float]
) -> None:
    assert expected_ancestors(beams, 3) == pytest.approx(expected, abs=5e-4)


@given(
    kind=st.sampled_from(EXACT),
    width=st.integers(1, 8),
    prompt=st.integers(1, 60),
    output=st.integers(2, 50),
    block_size=st.sampled_from([1, 2, 7, 16, 64]),
    own=st.integers(1, 20),
)
@settings(max_examples=120, deadline=None)
def test_the_simulation_of_samples_and_prefixes_is_the_closed_form_in_every_step(
    kind: Kind, width: int, prompt: int, output: int, block_size: int, own: int
) -> None:
    one = Sharing(kind, width, prompt, output, block_size, own)
    formula, found = closed_form(one), simulate(one).mean
    for wanted, seen in zip(formula, found, strict=True):
        assert seen.tolist() == wanted.tolist()


def test_four_samples_of_200_tokens_in_blocks_of_16() -> None:
    """By hand: 12 whole prompt blocks once; of 263 tokens 17 blocks, 5 of them each its own."""
    counts = simulate(Sharing("parallel", 4, 200, 64, 16)).mean
    assert (counts.logical[-1], counts.physical[-1], counts.copies[-1]) == (68, 32, 3)
    assert (counts.logical[0], counts.physical[0], counts.copies[0]) == (13, 13, 0)
    assert simulate(Sharing("parallel", 4, 192, 64, 16)).mean.copies[-1] == 0


def test_samples_hold_what_the_core_counts_before_it_admits_them() -> None:
    one = Sharing("parallel", 5, 37, 30, 8)
    wanted = [37 // 8 + 1] + [group_blocks(37, step, 5, 8) for step in range(1, 30)]
    assert closed_form(one).physical.tolist() == wanted


def test_six_requests_save_five_times_the_whole_blocks_of_their_prefix() -> None:
    """Closed form 6: (m - 1) floor(p / B)."""
    counts = simulate(Sharing("prefix", 6, 100, 10, 16, 5)).mean
    assert (counts.logical - counts.physical)[1:].tolist() == [5 * 6] * 9


@pytest.mark.parametrize(("width", "block_size", "prompt"), [(2, 1, 3), (4, 4, 6), (6, 16, 16)])
def test_neutral_beams_hold_and_copy_what_is_expected_of_them(
    width: int, block_size: int, prompt: int
) -> None:
    """Means of 100 groups, five standard errors; the spread is that of the groups themselves."""
    one = Sharing("wright_fisher", width, prompt, 24, block_size)
    formula = closed_form(one)
    singles = [simulate(one, seed=1000 + seed).mean for seed in range(100)]
    for field in ("physical", "copies"):
        found = np.array([getattr(single, field) for single in singles])
        error = 5 * found.std(axis=0, ddof=1) / math.sqrt(len(singles))
        assert (abs(found.mean(axis=0) - getattr(formula, field)) <= error + 1e-9).all()
    least, most = bounds(one)
    for single in (*singles, formula):
        assert (least <= single.physical + 1e-9).all()
        assert (single.physical <= most + 1e-9).all()


def test_the_mean_over_groups_is_that_of_their_seeds() -> None:
    one = Sharing("wright_fisher", 3, 5, 12, 4)
    found = simulate(one, groups=3, seed=7)
    singles = [simulate(one, seed=seed).mean for seed in (7, 8, 9)]
    assert found.mean.physical == pytest.approx(np.mean([s.physical for s in singles], axis=0))
    lasts = [float(single.physical[-1]) for single in singles]
    assert found.last_physical == (min(lasts), max(lasts))


def test_the_saving_of_samples_grows_as_one_minus_one_over_n() -> None:
    """Closed form 4, on average over the steps but the first, which shares nothing yet."""
    rows = by_width(Sharing("parallel", 1, 64, 200, 16), (1, 2, 4))
    assert [row.width for row in rows] == [1, 2, 4]
    assert rows[0].simulated_saving == 0
    assert rows[2].simulated_saving / rows[1].simulated_saving == pytest.approx(1.5, rel=0.01)
    assert all(row.formula == row.simulated for row in rows)


@pytest.mark.parametrize(
    ("change", "where"),
    [
        ({"width": 65}, "width"),
        ({"width": 0}, "width"),
        ({"output_tokens": 1}, "output_tokens"),
        ({"block_size": 0}, "block_size"),
        ({"kind": "tree"}, "kind"),
    ],
)
def test_an_experiment_that_cannot_be_run_is_refused(change: dict[str, int], where: str) -> None:
    one = Sharing("parallel", 2, 8, 8, 4)._replace(**change)  # type: ignore[arg-type]
    for run in (closed_form, simulate):
        with pytest.raises(InputError) as caught:
            run(one)
        assert caught.value.where == where


def test_formula_and_simulation_stand_on_one_chart() -> None:
    one = Sharing("wright_fisher", 3, 20, 700, 16)
    formula, found = closed_form(one), simulate(one)
    figure = branch_steps_figure(formula, found.mean, bounds(one))
    go.Figure(figure)
    lines = {trace["name"]: trace for trace in figure["data"]}
    assert max(len(trace["x"]) for trace in lines.values()) == 300
    physical = lines["with sharing (physical), formula"]
    assert (physical["x"][-1], physical["y"][-1]) == (
        699,
        pytest.approx(formula.physical[-1], rel=1e-5),
    )
    rows = by_width(one._replace(kind="parallel", output_tokens=5))
    widths = branch_width_figure(rows, "samples (n)")
    go.Figure(widths)
    by_name = {trace["name"]: trace["y"] for trace in widths["data"]}
    # 24 tokens: one whole prompt block, and one more for each of n.
    assert by_name["with sharing (physical), simulated"] == [n + 1 for n in range(1, 9)]
    assert by_name["without sharing (logical), formula"] == [2 * n for n in range(1, 9)]
    assert by_name["copies, simulated"] == list(range(8))


def test_the_csv_holds_what_the_chart_shows() -> None:
    rows = by_width(Sharing("parallel", 1, 20, 5, 16))
    table = list(csv.DictReader(io.StringIO(sharing_csv(rows).decode())))
    assert [int(row["width"]) for row in table] == list(range(1, 9))
    assert [float(row["physical_simulated"]) for row in table] == [n + 1 for n in range(1, 9)]
    assert [float(row["copies_formula"]) for row in table] == list(range(8))
