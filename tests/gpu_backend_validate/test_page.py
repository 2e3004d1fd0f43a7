from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest

from gpu_backend.validate.page import validation_page
from kvsim.report.html_embed import content_security_policy, plotly_js
from tests.report.test_html_page import HOSTILE, Page

BOUNDS = {"step_median": 0.05, "step_p90": 0.15, "saturation": 0.08, "tpot_p50": 0.08}


def check(variant: str, name: str, value: float, bound: float) -> dict[str, Any]:
    found = {"variant": variant, "name": name, "value": value, "bound": bound}
    return {**found, "ok": value <= bound}


def control(name: str, variants: list[str], broken: list[dict[str, Any]]) -> dict[str, Any]:
    what = f"what {name} means"
    found = {"name": name, "what": what, "noticed": bool(broken), "broken": broken}
    return {**found, "variants": variants}


def compared(measured: float, simulated: float) -> dict[str, Any]:
    found = {"measured": measured, "simulated": simulated, "difference": None, "interval": None}
    if measured:
        found |= {"difference": simulated / measured - 1, "interval": (-0.02, 0.03)}
    return found


def load(rate_rps: float | None) -> dict[str, Any]:
    values = {"requests_per_s": (8.0, 7.6), "kv_usage": (0.5, 0.51), "batch": (4.25, 4.0)}
    values |= {"preemptions": (0.0, 0.0), "ttft_p50_s": (0.0975, 0.1), "ttft_p99_s": (1.25, 1.5)}
    values |= {"tpot_p50_s": (0.00375, 0.00375), "tpot_p99_s": (0.025, 0.02)}
    both = {"unfinished": 0.0}
    seed = {"slowness": 1.125, "measured": both, "simulated": both}
    shares = [0.0] * 10 + [0.1] * 10
    return {
        "rate_rps": rate_rps,
        "figures": {name: compared(*sides) for name, sides in values.items()},
        "seeds": [{"seed": number, **seed} for number in (0, 1)],
        "usage_shares": {"measured": shares, "simulated": shares[::-1]},
        "curves": {"measured": [[0.0, 0.5, 2.0], [1.5, 0.75, 3.0]], "simulated": [[0.0, 0.5, 2.0]]},
    }


def variant(layout: str) -> dict[str, Any]:
    errors = {"steps": 1240.0, "median": 0.031, "p90": 0.12, "bias": -0.014}
    noise = {"steps": 1240.0, "median": 0.011, "p90": 0.042, "bias": 0.001}
    kinds, bounds = ("all", "decode", "prefill"), {"median": 0.05, "p90": 0.15}
    points = [[0.002 + 0.0001 * i, 0.0021 + 0.0001 * i, int(i % 5 == 0)] for i in range(40)]
    return {
        **{"layout": layout, "knee_rps": 7.6},
        "lockstep": {
            **{"steps": 1240, "repeats": 6, "counts_equal": True, "checked_rows": 321},
            "errors": dict.fromkeys(kinds, errors),
            "noise": dict.fromkeys(kinds, noise),
            "bounds": dict.fromkeys(kinds, bounds),
            "preemptions": 17,
            "points": points,
        },
        "free": {"closed": load(None), "0.9": load(6.84)},
    }


def small_document() -> dict[str, Any]:
    """Two variants, one bound that fails, three controls of which one goes unnoticed."""
    failed = check("paged", "saturation rate", 0.091, 0.08)
    others = [check("whole", f"TPOT p50 at load {n}", 0.5, 0.08) for n in range(12)]
    profile = {"points": 72, "median": 0.04, "p90": 0.1, "bias": -0.02}
    return {
        **{"format": "kvsim-validation-1", "kvsim_version": "0.1.0", "scenario": "tiny"},
        "device": {"name": "Test CPU", "kind": "cpu", "num_threads": 3, "dtype": "fp32"}
        | {"attention_only": False, "mode": "eager"},
        "profile": {
            **{"sha256": "ab" * 32, "device": "Test CPU", "measured_at": "2026-11-30T03:08:21"},
            "errors": {
                "fitted": profile,
                "held_out": {**profile, "median": 0.043},
                "held_out_by_kind": {"decode": profile},
                "depth_check": None,
            },
            "noise": {**profile, "median": 0.017},
            "measured_layers": [2],
        },
        "slowness": [0.9, 1.0, 1.25],
        "bounds": BOUNDS,
        "variants": {"paged": variant("paged-16"), "whole": variant("contiguous")},
        "ratios": {"paged / whole": {**compared(2.0, 1.9), "interval": None}},
        "checks": [
            check("paged", "counts", 0.0, 0),
            check("paged", "step time (all), median", 0.031, 0.05),
            check("paged", "step time (prefill), p90", 0.12, 0.15),
            failed,
            check("whole", "TPOT p50 at load 0.9", 0.012, 0.08),
            check("paged / whole", "ratio of saturation rates", 0.05, 0.1),
        ],
        "controls": [
            control("slow clock", ["paged", "whole"], [failed, *others]),
            control("wrong block size", ["paged"], [check("paged", "counts", 1.0, 0)]),
            control("no prefill", [], []),
        ],
        "failures": [
            "paged: saturation rate is off by 9.1%, past 8.0%",
            "negative control: no prefill was not noticed",
        ],
    }


@pytest.fixture(scope="module")
def text() -> str:
    return validation_page(small_document())


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


def test_the_headline_says_what_held_and_the_largest_errors(page: Page) -> None:
    assert page.texts["summary"] == (
        "✗ Not validated on Test CPU (cpu): 5 of 6 bounds held, 2 of 3 simulations that are wrong "
        "on purpose were noticed. Largest median error of the step times: 3.1 % (paged, all steps; "
        "bound 5.0 %). Largest 90th percentile of their errors: 12.0 % (paged, steps with prefill; "
        "bound 15.0 %). Largest error of the saturation rates: 9.1 % (paged, closed loop; bound "
        "8.0 %)."
    )
    assert "saturation rate is off by 9.1%" in page.texts["failures"]
    assert "no prefill was not noticed" in page.texts["failures"]


def test_a_validation_without_failures_says_so() -> None:
    page = Page(validation_page({**small_document(), "failures": []}))
    assert page.texts["summary"].startswith("✓ Validated on Test CPU (cpu)")
    assert "failures" not in page.texts


@pytest.mark.parametrize(
    ("label", "cells"),
    [
        ("device", ["Test CPU (cpu)"]),
        ("CPU threads (count)", ["3"]),
        ("layers", ["all 2 layers were run"]),
        ("profile (SHA-256)", ["ab" * 32]),
        ("held-out batches", ["72", "4.3 %", "10.0 %", "-2.0 %"]),
        ("noise: one measurement against another", ["72", "1.7 %", "10.0 %", "-2.0 %"]),
        ("rate (requests/s)", ["8.00", "7.60", "-5.0 %", "-2.0 to +3.0 %"]),
        ("KV usage (%)", ["50.0", "51.0", "+2.0 %", "-2.0 to +3.0 %"]),
        ("preemptions (per run)", ["0.0", "0.0", "-", "-"]),
        ("TTFT p50 (ms)", ["97.5", "100.0", "+2.6 %", "-2.0 to +3.0 %"]),
        ("TPOT p99 (ms)", ["25.00", "20.00", "-20.0 %", "-2.0 to +3.0 %"]),
    ],
)
def test_figures_are_shown_with_their_units(page: Page, label: str, cells: list[str]) -> None:
    assert page.row(label) == cells


def test_the_lockstep_tables_show_counts_noise_and_bounds_in_force(page: Page) -> None:
    rows = [row for row in page.rows if row and row[0] == "paged"]
    assert ["paged", "paged-16", "1,240", "6", "✓ equal", "17", "321"] in rows
    cells = ["1,240", "3.1 %", "12.0 %", "-1.4 %", "1.1 %", "4.2 %", "+0.1 %", "5.0 %", "15.0 %"]
    assert page.row("steps with prefill") == cells


def test_saturation_rates_and_their_ratios_are_side_by_side(page: Page) -> None:
    assert ["paged", "8.00", "7.60", "-5.0 %", "-2.0 to +3.0 %"] in page.rows
    assert ["paged / whole", "2.00", "1.90", "-5.0 %", "-"] in page.rows


def test_failed_checks_come_first_and_are_marked_in_words(page: Page) -> None:
    checks = [row for row in page.rows if len(row) == 5 and row[4] in ("✗ FAILED", "✓ held")]
    assert checks[0] == ["paged", "saturation rate", "9.1 %", "8.0 %", "✗ FAILED"]
    assert [row[4] for row in checks[1:]] == ["✓ held"] * 5
    assert ["paged", "counts", "equal", "equal", "✓ held"] in checks


def test_controls_list_ten_bounds_and_say_which_fail_anyway(page: Page) -> None:
    slow, blocks, prefill = map(page.row, ("slow clock", "wrong block size", "no prefill"))
    assert slow[2].count("bound 8.0 %") == 10
    assert "and 3 more" in slow[2]
    assert "1 of these 13 fail without the mistake as well" in slow[2]
    assert "paged: counts differ" in blocks[2]
    assert prefill[1] == "✗ NOT NOTICED"
    assert "In no variant" in prefill[0]


def test_the_speed_that_was_followed_is_stated(page: Page) -> None:
    (speed,) = page.row("speed of the device")
    assert "probe batches that are not steps of the traffic" in speed
    assert "in 3 runs: 0.900 to 1.250 times, median 1.000 times" in speed
    unscaled = Page(validation_page({**small_document(), "slowness": []}))
    assert "not scaled" in unscaled.row("speed of the device")[0]


@pytest.mark.parametrize(
    ("depth_check", "said"),
    [
        (None, "not checked at the model's own depth"),
        ({"points": 9, "median": 0.021, "p90": 0.06, "bias": 0.01}, "off by 2.1 % (median), 6.0 %"),
    ],
)
def test_extrapolated_layers_are_said_and_how_that_was_checked(
    depth_check: dict[str, float] | None, said: str
) -> None:
    document = copy.deepcopy(small_document())
    document["profile"]["measured_layers"] = [2, 6]
    document["profile"]["errors"]["depth_check"] = depth_check
    (layers,) = Page(validation_page(document)).row("layers")
    assert "extrapolated" in layers
    assert said in layers


def test_one_seed_has_no_interval_and_a_lone_side_no_difference() -> None:
    document = copy.deepcopy(small_document())
    for one in document["variants"].values():
        for found in one["free"].values():
            found["seeds"] = found["seeds"][:1]
            found["figures"]["preemptions"] = compared(0.0, 3.0)
            for row in found["figures"].values():
                row["interval"] = None
    page = Page(validation_page(document))
    assert page.row("rate (requests/s)") == ["8.00", "7.60", "-5.0 %", "-"]
    assert page.row("preemptions (per run)") == ["0.0", "3.0", "-", "-"]
    assert ["closed loop, 1 seed, clock × 1.125 to 1.125"] in page.rows


def test_steps_of_one_kind_and_unfinished_requests_are_shown() -> None:
    document = copy.deepcopy(small_document())
    one = document["variants"]["paged"]
    steps = one["lockstep"]
    steps["points"] = [[0.002, 0.002, 0], [0.0, 0.002, 0]]
    for name in ("errors", "noise", "bounds"):
        steps[name] = {kind: steps[name][kind] for kind in ("all", "decode")}
    one["free"]["closed"]["seeds"][0]["measured"] = {"unfinished": 2.0}
    text = validation_page(document)
    assert "not finished: 2 measured, 0 simulated requests" in text
    option = Page(text).figures()["lockstep"]["options"][0]
    assert "steps with prefill" not in json.dumps(option)


@pytest.mark.parametrize("hostile", HOSTILE)
def test_names_from_a_document_stay_text(hostile: str) -> None:
    document = small_document()
    document["scenario"] = document["device"]["name"] = document["device"]["mode"] = hostile
    document["variants"] = {hostile: document["variants"]["paged"]}
    document["variants"][hostile]["layout"] = hostile
    document["checks"].append(check(hostile, hostile, 2.0, 1.0))
    document["ratios"] = {hostile: compared(1.0, 1.0)}
    document["failures"] = [hostile]
    for one in document["controls"]:
        one.update(name=hostile, what=hostile, variants=[hostile])
    text = validation_page(document)
    page = Page(text)
    assert len(page.scripts) == 3
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "alert(1)" not in page.scripts[2]
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    assert "x" * 1000 not in text
    assert "<" not in json.dumps(page.figures()["saturation"]["figure"]["layout"])


def test_the_page_loads_nothing_and_runs_only_its_own_scripts(text: str, page: Page) -> None:
    csp = next(a["content"] for _, a in page.tags if "http-equiv" in a)
    assert csp == content_security_policy(plotly_js(), page.scripts[2])
    assert page.scripts[1] == plotly_js()
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "base")]
    for _, attrs in page.tags:
        assert "src" not in attrs
        assert (attrs.get("href") or "#").startswith("#")
    assert "http" not in text.replace(plotly_js(), "").replace("http-equiv", "")


def test_every_link_leads_to_a_place_in_the_page(page: Page) -> None:
    ids = {attrs["id"] for _, attrs in page.tags if "id" in attrs}
    links = {attrs["href"] for _, attrs in page.tags if "href" in attrs}
    assert {str(link)[1:] for link in links} <= ids


def test_the_same_document_gives_the_same_bytes(text: str) -> None:
    assert validation_page(json.loads(json.dumps(small_document()))) == text


def test_many_variants_with_many_steps_stay_below_six_megabytes() -> None:
    document = small_document()
    one = variant("paged-16")
    one["lockstep"]["points"] = [[0.001 + 1e-6 * i, 0.00112345, i % 2] for i in range(1500)]
    closed = load(None)
    for side in ("measured", "simulated"):
        closed["curves"][side] = [[0.0123456 * i, 0.123456, 7.0] for i in range(300)]
    one["free"] = dict.fromkeys(("closed", "0.5", "0.9", "1.2"), closed)
    document["variants"] = {f"variant {number}": one for number in range(20)}
    text = validation_page(document)
    assert len(text.encode()) < 6_000_000
    assert "1,240 steps, 375 of them drawn" in text
