"""The result of a validation as one HTML page that loads nothing."""

from __future__ import annotations

from collections.abc import Sequence
from importlib.resources import files
from typing import Any

import jinja2

from gpu_backend.validate.definitions import DEFINITIONS, FRAMEWORK_DEFINITIONS
from gpu_backend.validate.figures import free_figure, lockstep_figure, saturation_figure
from gpu_backend.validate.framework import framework_rows
from gpu_backend.validate.tables import (
    Document,
    check_groups,
    closed_rates,
    conditions,
    control_row,
    free_groups,
    headline,
    load_name,
    percent,
    profile_errors,
    sides,
    step_errors,
)
from kvsim.report.html_embed import content_security_policy, embed_json, plotly_js
from kvsim.report.text import plain

MAX_FAILURES = 60
MAX_POINTS = 8_000
"""Steps drawn, all variants together."""
MAX_CURVE_POINTS = 8_000
"""Moments drawn of a side, all runs together."""


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
    environment.filters |= {"plain": plain, "percent": percent}
    variants = document["variants"]
    framework = framework_rows(document.get("framework", {}))
    return environment.get_template("validation.html.j2").render(
        document=document,
        sentence=headline(document),
        max_failures=MAX_FAILURES,
        conditions=conditions(document),
        profile_errors=profile_errors(document["profile"]),
        checks=check_groups(document["checks"]),
        step_errors=[(name, step_errors(one["lockstep"])) for name, one in variants.items()],
        free=[(name, free_groups(one["free"])) for name, one in variants.items()],
        rates=[(name, sides(row)) for name, row in closed_rates(variants).items()],
        ratios=[(name, sides(row)) for name, row in document["ratios"].items()],
        framework=framework,
        definitions={**DEFINITIONS, **(FRAMEWORK_DEFINITIONS if framework else {})},
        controls=[control_row(control, document["checks"]) for control in document["controls"]],
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


def _draw(document: Document) -> tuple[dict[str, Any], dict[str, tuple[str, list[str]]]]:
    """Figures by name, and the prompt and labels of the select above each."""
    variants = document["variants"]
    rates = closed_rates(variants)
    figures: dict[str, Any] = {"lockstep": [], "free": []}
    runs = sum(len(one["free"]) for one in variants.values())
    for key, one in variants.items():
        name, steps = plain(key), one["lockstep"]
        points = _thinned(steps["points"], MAX_POINTS // len(variants))
        note = f"{name}: {steps['steps']:,} steps, {len(points):,} of them drawn."
        drawing = lockstep_figure({**steps, "points": points})
        figures["lockstep"].append({"label": name, "note": note, "figure": drawing})
        for load, found in one["free"].items():
            label = f"{name}, {load_name(load)}"
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
