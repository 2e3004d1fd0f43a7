from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.results import read_summary
from kvsim.results.summary_checks import summary_problem

GOOD: dict[str, Any] = {
    "scenario": "s",
    "kvsim_version": "0",
    "seeds": [3, 5],
    "workload": {
        "source": "generated",
        "digest": "d",
        "per_seed": [{"seed": 3, "digest": "a"}, {"seed": 5, "digest": "b"}],
    },
    "variants": {
        "workload": {
            "steps": 1.5,
            "setup": {"model": None},
            "intervals": {"steps": [-4.9, 7.9]},
            "per_seed": [{"seed": 3, "steps": 1}, {"seed": 5, "steps": 2}],
        }
    },
}


def test_a_summary_of_several_seeds_is_read() -> None:
    assert summary_problem(GOOD) is None


def edit(*path: Any) -> Callable[[dict[str, Any]], None]:
    """Sets the last of `path` at the place that the others lead to."""

    def change(summary: dict[str, Any]) -> None:
        *keys, last, value = path
        place: Any = summary
        for key in keys:
            place = place[key]
        place[last] = value

    return change


VARIANT = ("variants", "workload")


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (edit("scenario", 3), "`scenario`"),
        (edit("kvsim_version", None), "`kvsim_version`"),
        (edit("workload", "source", 3), "`source` and `digest`"),
        (edit("workload", []), "`source` and `digest`"),
        (edit(*VARIANT, "setup", []), "`setup` of variant 'workload'"),
        (edit(*VARIANT, "setup", "model", 3), "`setup` of variant 'workload'"),
        (edit("seeds", 3), "`seeds` must be 2 to 1000 distinct"),
        (edit("seeds", [3]), "`seeds` must be"),
        (edit("seeds", [3, 3]), "`seeds` must be"),
        (edit("seeds", [3, True]), "`seeds` must be"),
        (edit("seeds", [3, "5"]), "`seeds` must be"),
        (edit("seeds", list(range(1001))), "`seeds` must be"),
        (edit("seeds", [5, 3]), "`per_seed` of 'workload' must have one"),
        (edit(*VARIANT, "per_seed", {}), "`per_seed` of 'workload' must have one"),
        (edit(*VARIANT, "per_seed", 0, 3), "`per_seed` of 'workload' must have one"),
        (edit(*VARIANT, "per_seed", 0, "seed", 4), "`per_seed` of 'workload' must have one"),
        (edit("workload", "per_seed", 0, "digest", 4), "text `digest` each"),
        (edit(*VARIANT, "intervals", []), "pairs of numbers, low first"),
        (edit(*VARIANT, "intervals", "steps", 3), "pairs of numbers, low first"),
        (edit(*VARIANT, "intervals", "steps", [1]), "pairs of numbers, low first"),
        (edit(*VARIANT, "intervals", "steps", [2, 1]), "pairs of numbers, low first"),
        (edit(*VARIANT, "intervals", "steps", ["1", 2]), "pairs of numbers, low first"),
        (lambda summary: summary.pop("seeds"), "`per_seed` needs `seeds`"),
        (lambda summary: summary["workload"].pop("per_seed"), "`per_seed` of 'workload'"),
    ],
)
def test_what_readers_rely_on_is_checked(
    tmp_path: Path, change: Callable[[dict[str, Any]], None], problem: str
) -> None:
    summary = copy.deepcopy(GOOD)
    change(summary)
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(summary))
    with pytest.raises(InputError) as caught:
        read_summary(path)
    assert problem in caught.value.problem
    assert caught.value.where == str(path)


@pytest.mark.parametrize("number", ["1e19", "-1e19", "1e999", "9223372036854775808"])
def test_numbers_that_no_run_has_are_refused(tmp_path: Path, number: str) -> None:
    path = tmp_path / "summary.json"
    path.write_text(json.dumps(GOOD).replace("1.5", number))
    with pytest.raises(InputError, match="too large a number"):
        read_summary(path)
