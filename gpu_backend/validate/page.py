"""The result of a validation as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from importlib.resources import files
from statistics import median
from typing import Any, NamedTuple

import jinja2

from gpu_backend.validate.figures import KINDS, free_figure, lockstep_figure, saturation_figure
from gpu_backend.validate.framework import framework_rows
from gpu_backend.validate.free import CLOSED
from kvsim.report.html_embed import content_security_policy, embed_json, plotly_js
from kvsim.report.text import plain

Document = Mapping[str, Any]
"""What `gpu_backend.validate.document.validate` returns."""

MAX_BROKEN = 10
"""Bounds listed of a negative control; the others are counted."""
MAX_FAILURES = 60
MAX_POINTS = 8_000
"""Steps drawn, all variants together."""
MAX_CURVE_POINTS = 8_000
"""Moments drawn of a side, all runs together."""
_NONE = "-"
_COUNTS = "counts"


class _Figure(NamedTuple):
    label: str
    scale: float
    digits: int
    anchor: str


_FIGURES = {
    "requests_per_s": _Figure("rate (requests/s)", 1, 2, "def-rate"),
    "kv_usage": _Figure("KV usage (%)", 100, 1, "def-kv-usage"),
    "batch": _Figure("batch (requests)", 1, 2, "def-batch"),
    "preemptions": _Figure("preemptions (per run)", 1, 1, "def-preemptions"),
    "ttft_p50_s": _Figure("TTFT p50 (ms)", 1e3, 1, "def-ttft"),
    "ttft_p99_s": _Figure("TTFT p99 (ms)", 1e3, 1, "def-ttft"),
    "tpot_p50_s": _Figure("TPOT p50 (ms)", 1e3, 2, "def-tpot"),
    "tpot_p99_s": _Figure("TPOT p99 (ms)", 1e3, 2, "def-tpot"),
}


def validation_page(document: Document) -> str:
    """The whole page as text, the same bytes for the same document.

    Step times and latencies are in ms, rates in requests/s, errors and KV usage in %.
    """
    figures, choices = _draw(document)
    script, plotly = _report_file("report.js"), plotly_js()
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(_template_file),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters |= {"plain": plain, "percent": _percent, "spread": _spread}
    variants = document["variants"]
    return environment.get_template("validation.html.j2").render(
        document=document,
        sentence=_headline(document),
        max_failures=MAX_FAILURES,
        layers=_layers(document["profile"]),
        speed=_speed(document["slowness"]),
        disturbed=_disturbed(variants),
        checks=_check_groups(document["checks"]),
        step_errors=[(name, _step_errors(one["lockstep"])) for name, one in variants.items()],
        free=[(name, _free_groups(one["free"])) for name, one in variants.items()],
        rates=[(name, _row(row)) for name, row in _closed_rates(variants).items()],
        ratios=[(name, _row(row)) for name, row in document["ratios"].items()],
        framework=framework_rows(document.get("framework", {})),
        controls=[_control(control, document["checks"]) for control in document["controls"]],
        policy=content_security_policy(plotly, script),
        css=_report_file("report.css"),
        choices=choices,
        drawn=set(figures),
        figures=embed_json(figures),
        plotly=plotly,
        script=script,
    )


def _template_file(name: str) -> str:
    return files("gpu_backend.validate").joinpath("templates", name).read_text("utf-8")


def _report_file(name: str) -> str:
    return files("kvsim.report").joinpath("templates", name).read_text("utf-8")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"


def _signed(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:+.1f} %"


def _draw(document: Document) -> tuple[dict[str, Any], dict[str, tuple[str, list[str]]]]:
    """Figures by name, and the prompt and labels of the select above each."""
    variants = document["variants"]
    rates = _closed_rates(variants)
    figures: dict[str, Any] = {"lockstep": [], "free": []}
    runs = sum(len(one["free"]) for one in variants.values())
    for key, one in variants.items():
        name, steps = plain(key), one["lockstep"]
        points = _thinned(steps["points"], MAX_POINTS // len(variants))
        note = f"{name}: {steps['steps']:,} steps, {len(points):,} of them drawn."
        drawing = lockstep_figure({**steps, "points": points})
        figures["lockstep"].append({"label": name, "note": note, "figure": drawing})
        for load, found in one["free"].items():
            label = f"{name}, {_load_name(load)}"
            curves = {
                side: _thinned(curve, MAX_CURVE_POINTS // runs)
                for side, curve in found["curves"].items()
            }
            drawing = free_figure({**found, "curves": curves})
            figures["free"].append({"label": label, "note": f"{label}.", "figure": drawing})
    prompts = {"lockstep": "Variant:", "free": "Variant and load:"}
    choices = {
        name: (prompt, [option["label"] for option in figures[name]])
        for name, prompt in prompts.items()
    }
    drawn = {name: {"options": options} for name, options in figures.items() if options}
    if rates:
        drawn["saturation"] = {"figure": saturation_figure(rates)}
    return drawn, choices


def _thinned(values: Sequence[Any], most: int) -> Sequence[Any]:
    """Every n-th, at most so many: the page stays small with many variants."""
    return values[:: max(1, -(-len(values) // max(most, 1)))]


def _load_name(load: str) -> str:
    return "closed loop" if load == CLOSED else f"load {plain(load)}"


def _headline(document: Document) -> str:
    checks, controls, device = document["checks"], document["controls"], document["device"]
    held = sum(check["ok"] for check in checks)
    noticed = sum(control["noticed"] for control in controls)
    text = (
        f"{'Not validated' if document['failures'] else 'Validated'} on {plain(device['name'])} "
        f"({plain(device['kind'])}): {held:,} of {len(checks):,} bounds held, {noticed:,} of "
        f"{len(controls):,} simulations that are wrong on purpose were noticed."
    )
    for label, start, end in (
        ("median error of the step times", "step time", "median"),
        ("90th percentile of their errors", "step time", "p90"),
        ("error of the saturation rates", "saturation rate", ""),
    ):
        found = [c for c in checks if c["name"].startswith(start) and c["name"].endswith(end)]
        if found:
            worst = max(found, key=lambda check: float(check["value"]))
            kind = plain(worst["name"]).removeprefix("step time (").partition(")")[0]
            where = f"{plain(worst['variant'])}, {KINDS.get(kind, 'closed loop')}"
            bound = _percent(worst["bound"])
            text += f" Largest {label}: {_percent(worst['value'])} ({where}; bound {bound})."
    return text


def _layers(profile: Document) -> str:
    depths = profile.get("measured_layers") or []
    if len(depths) < 2:
        return f"all {depths[0]:,} layers were run" if depths else "not recorded"
    whole = f" to the model's {profile['layers']:,}" if profile.get("layers") else ""
    text = f"runs of {depths[0]:,} and {depths[1]:,} layers, extrapolated{whole}"
    check = profile["errors"].get("depth_check")
    if not check:
        return f"{text}. That was not checked at the model's own depth"
    return (
        f"{text}. At the model's own depth the clock is off by {_percent(check['median'])} "
        f"(median), {_percent(check['p90'])} (p90)"
    )


def _speed(slowness: Sequence[float]) -> str:
    if not slowness:
        return "The clock was not scaled: the device was taken to be as fast as at its calibration"
    ends = f"{min(slowness):.3f} to {max(slowness):.3f} times, median {median(slowness):.3f} times"
    return (
        "The clock was scaled by the device's speed during each run, measured on probe batches that"
        f" are not steps of the traffic. Slowness in {len(slowness):,} runs: {ends}"
    )


def _disturbed(variants: Document) -> str:
    """How many free runs other processes disturbed, in words; empty where that is not known."""
    seeds = [
        seed for one in variants.values() for load in one["free"].values() for seed in load["seeds"]
    ]
    shares = [seed["cpu_share"] for seed in seeds if seed.get("cpu_share") is not None]
    if not shares:
        return ""
    again = sum(seed["attempts"] > 1 for seed in seeds)
    return (
        f"Every run had the CPU for at least {_percent(min(shares))} of its measured time; "
        f"{again:,} of {len(seeds):,} runs were disturbed by other processes and measured again"
    )


def _spread(found: Mapping[str, float]) -> list[str]:
    return [_percent(found["median"]), _percent(found["p90"]), _signed(found["bias"])]


def _check_groups(checks: Sequence[Document]) -> list[tuple[str, bool, list[list[str]]]]:
    """Title, whether its rows failed, rows: the failed ones first."""
    groups = []
    for ok, title in ((False, "Past the bound"), (True, "Within the bound")):
        rows = [_check_row(check) for check in checks if bool(check["ok"]) is ok]
        if rows:
            groups.append((f"{title}: {len(rows):,} of {len(checks):,}", not ok, rows))
    return groups


def _check_row(check: Document) -> list[str]:
    mark = "✓ held" if check["ok"] else "✗ FAILED"
    numbers = [_percent(check["value"]), _percent(check["bound"])]
    if check["name"] == _COUNTS:
        numbers = ["equal" if check["ok"] else "differ", "equal"]
    return [plain(check["variant"], 170), plain(check["name"]), *numbers, mark]


def _step_errors(steps: Document) -> list[tuple[str, list[str]]]:
    rows = []
    for kind, found in steps["errors"].items():
        bounds = steps["bounds"].get(kind, {})
        cells = [f"{found['steps']:,.0f}"]
        for share in ("median", "p90"):
            is_past = found[share] > bounds.get(share, found[share])
            cells.append(_percent(found[share]) + (" ✗" if is_past else ""))
        cells += [_signed(found["bias"]), *_spread(steps["noise"][kind])]
        cells += [_percent(bounds[share]) if share in bounds else "" for share in ("median", "p90")]
        rows.append((KINDS.get(kind, kind), cells))
    return rows


def _free_groups(loads: Document) -> list[tuple[str, list[tuple[str, str, list[str]]]]]:
    """Title of a load, and label, anchor and cells of each of its figures."""
    groups = []
    for load, found in loads.items():
        seeds, rate = found["seeds"], found["rate_rps"]
        title = [_load_name(load), f"{len(seeds):,} seed{'s' * (len(seeds) != 1)}"]
        if rate is not None:
            title.append(f"{rate:.2f} requests/s arrive")
        factors = [seed["slowness"] for seed in seeds]
        title.append(f"clock × {min(factors):.3f} to {max(factors):.3f}")
        lost = [sum(s[side]["unfinished"] for s in seeds) for side in ("measured", "simulated")]
        if any(lost):
            title.append(
                f"not finished: {lost[0]:,.0f} measured, {lost[1]:,.0f} simulated requests"
            )
        rows = []
        for name, row in found["figures"].items():
            known = _FIGURES.get(name, _Figure(plain(name), 1, 4, "definitions"))
            cells = _row(row, known.scale, known.digits)
            rows.append((known.label, known.anchor, cells))
        groups.append((", ".join(title), rows))
    return groups


def _row(row: Mapping[str, Any], scale: float = 1, digits: int = 2) -> list[str]:
    """Measured, simulated, difference and its interval."""
    sides = [f"{scale * row[side]:,.{digits}f}" for side in ("measured", "simulated")]
    ends = [f"{100 * end:+.1f}" for end in row["interval"] or ()]
    return [*sides, _signed(row["difference"]), f"{' to '.join(ends)} %" if ends else _NONE]


def _closed_rates(variants: Document) -> dict[str, Mapping[str, Any]]:
    return {
        key: one["free"][CLOSED]["figures"]["requests_per_s"]
        for key, one in variants.items()
        if CLOSED in one["free"]
    }


def _control(control: Document, checks: Iterable[Document]) -> dict[str, Any]:
    """What a negative control did; bounds that fail only because of it come first."""
    failed = {(check["variant"], check["name"]) for check in checks if not check["ok"]}
    broken = control["broken"]
    new = [check for check in broken if (check["variant"], check["name"]) not in failed]
    old = [check for check in broken if (check["variant"], check["name"]) in failed]
    rows = [_check_row(check) for check in [*new, *old]]
    return {
        **control,
        "rows": [f"{row[0]}: {row[1]} {row[2]}, bound {row[3]}" for row in rows[:MAX_BROKEN]],
        "more": len(rows[MAX_BROKEN:]),
        "broken": len(rows),
        "also": len(old),
    }
