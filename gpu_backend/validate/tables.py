"""What a validation's document says, as titles, cells and sentences: for the page and others."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from statistics import median
from typing import Any, NamedTuple

from gpu_backend.validate.figures import KINDS
from gpu_backend.validate.free import CLOSED
from kvsim.report.export_csv import csv_lines
from kvsim.report.export_parquet import rows_parquet
from kvsim.report.text import plain

Document = Mapping[str, Any]
"""What `gpu_backend.validate.document.validate` returns, or a part of it."""

MAX_BROKEN = 10
"""Bounds listed of a negative control; the others are counted."""
BOUNDS = {
    "step_median": "median of step times",
    "step_p90": "p90 of step times",
    "prefill_median": "median of steps with prefill",
    "kv_usage": "KV usage",
    "saturation": "saturation rate",
    "tpot_p50": "TPOT p50",
    "layout_ratio": "ratio of saturation rates",
}
"""Setting of `validation.bounds` -> what it bounds."""
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


def headline(document: Document) -> str:
    """The verdict, what held, and the largest errors with their bounds."""
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
            bound = percent(worst["bound"])
            text += f" Largest {label}: {percent(worst['value'])} ({where}; bound {bound})."
    return text


def check_groups(checks: Sequence[Document]) -> list[tuple[str, bool, list[list[str]]]]:
    """Title, whether its rows failed, rows: the failed ones first."""
    groups = []
    for ok, title in ((False, "Past the bound"), (True, "Within the bound")):
        rows = [_check_row(check) for check in checks if bool(check["ok"]) is ok]
        if rows:
            groups.append((f"{title}: {len(rows):,} of {len(checks):,}", not ok, rows))
    return groups


def _check_row(check: Document) -> list[str]:
    mark = "✓ held" if check["ok"] else "✗ FAILED"
    numbers = [percent(check["value"]), percent(check["bound"])]
    if check["name"] == _COUNTS:
        numbers = ["equal" if check["ok"] else "differ", "equal"]
    return [plain(check["variant"], 170), plain(check["name"]), *numbers, mark]


def step_errors(steps: Document) -> list[tuple[str, list[str]]]:
    """A row for each kind of step: count, errors (a mark where past), noise, bounds in force."""
    rows = []
    for kind, found in steps["errors"].items():
        bounds = steps["bounds"].get(kind, {})
        cells = [f"{found['steps']:,.0f}"]
        for share in ("median", "p90"):
            is_past = found[share] > bounds.get(share, found[share])
            cells.append(percent(found[share]) + (" ✗" if is_past else ""))
        cells += [_signed(found["bias"]), *_spread(steps["noise"][kind])]
        cells += [percent(bounds[share]) if share in bounds else "" for share in ("median", "p90")]
        rows.append((KINDS.get(kind, kind), cells))
    return rows


def free_groups(loads: Document) -> list[tuple[str, list[tuple[str, str, list[str]]]]]:
    """Title of a load, and label, anchor and cells of each of its figures."""
    groups = []
    for load, found in loads.items():
        seeds, rate = found["seeds"], found["rate_rps"]
        title = [load_name(load), f"{len(seeds):,} seed{'s' * (len(seeds) != 1)}"]
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
            cells = sides(row, known.scale, known.digits)
            rows.append((known.label, known.anchor, cells))
        groups.append((", ".join(title), rows))
    return groups


def free_rows(document: Document, variant: str, load: str) -> list[list[str]]:
    """A row for each figure of a variant's load: name, both sides, difference, interval, bound.

    The last cell is the bound and whether it held; it is empty where nothing bounds the figure.
    """
    checks = {check["name"]: check for check in document["checks"] if check["variant"] == variant}
    named = {
        "kv_usage": f"KV usage at load {load}",
        "tpot_p50_s": f"TPOT p50 at load {load}",
        **({"requests_per_s": "saturation rate"} if load == CLOSED else {}),
    }
    rows = []
    for name, row in document["variants"][variant]["free"][load]["figures"].items():
        known = _FIGURES.get(name, _Figure(plain(name), 1, 4, "definitions"))
        check = checks.get(named.get(name, ""))
        bound = "" if check is None else " ".join(_check_row(check)[3:])
        rows.append([known.label, *sides(row, known.scale, known.digits), bound])
    return rows


def sides(row: Mapping[str, Any], scale: float = 1, digits: int = 2) -> list[str]:
    """Measured, simulated, difference and its interval."""
    sides = [f"{scale * row[side]:,.{digits}f}" for side in ("measured", "simulated")]
    ends = [f"{100 * end:+.1f}" for end in row["interval"] or ()]
    return [*sides, _signed(row["difference"]), f"{' to '.join(ends)} %" if ends else _NONE]


def closed_rates(variants: Document) -> dict[str, Mapping[str, Any]]:
    """The saturation rates of the variants that ran in the closed loop."""
    return {
        key: one["free"][CLOSED]["figures"]["requests_per_s"]
        for key, one in variants.items()
        if CLOSED in one["free"]
    }


def control_row(control: Document, checks: Iterable[Document]) -> dict[str, Any]:
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


def conditions(document: Document) -> list[tuple[str, str]]:
    """Device, profile, how it was measured, and the bounds stated."""
    device, profile = document["device"], document["profile"]
    eager = ": every operation is launched in every step" if device["mode"] == "eager" else ""
    rows = [
        ("device", f"{device['name']} ({device['kind']})"),
        ("mode", f"{device['mode']}{eager}"),
        (
            "type of weights and KV",
            device["dtype"] or "left to the device (fp32 on a CPU, bf16 on a GPU)",
        ),
        ("CPU threads (count)", str(device["num_threads"] or "not set: all CPUs")),
        (
            "part of a layer that is run",
            "attention only" if device["attention_only"] else "whole layer",
        ),
        ("layers", _layers(profile)),
        ("profile (SHA-256)", profile["sha256"]),
        (
            "profile measured",
            f"{profile['measured_at'] or 'at an unknown time'} on {profile['device']}",
        ),
        ("speed of the device", _speed(document["slowness"])),
    ]
    disturbed = _disturbed(document["variants"])
    if disturbed:
        rows.append(("other processes", disturbed))
    stated = (
        f"{BOUNDS.get(name, plain(name))} {percent(bound)}"
        for name, bound in document["bounds"].items()
    )
    return [*rows, ("bounds stated (relative errors)", ", ".join(stated))]


def profile_errors(profile: Document) -> list[tuple[str, list[str]]]:
    """A row for each set of batches of the calibration: count, median, p90 and bias."""
    errors = profile["errors"]
    found = {
        "held-out batches": errors["held_out"],
        **{
            f"held-out batches, {plain(kind)}": of_kind
            for kind, of_kind in (errors.get("held_out_by_kind") or {}).items()
        },
        "fitted batches": errors["fitted"],
        "batches at the model's own depth": errors.get("depth_check"),
        "noise: one measurement against another": profile.get("noise"),
    }
    return [
        (label, [f"{one['points']:,.0f}", *_spread(one)]) for label, one in found.items() if one
    ]


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
        f"{text}. At the model's own depth the clock is off by {percent(check['median'])} "
        f"(median), {percent(check['p90'])} (p90)"
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
        f"Every run had the CPU for at least {percent(min(shares))} of its measured time; "
        f"{again:,} of {len(seeds):,} runs were disturbed by other processes and measured again"
    )


def _spread(found: Mapping[str, float]) -> list[str]:
    """Median, 90th percentile and bias of relative errors."""
    return [percent(found["median"]), percent(found["p90"]), _signed(found["bias"])]


def percent(share: float) -> str:
    """A share as a percentage."""
    return f"{100 * share:.1f} %"


def _signed(share: float | None) -> str:
    return _NONE if share is None else f"{100 * share:+.1f} %"


def load_name(load: str) -> str:
    """What a load is called."""
    return "closed loop" if load == CLOSED else f"load {plain(load)}"


_CHECK_COLUMNS = ("variant", "name", "value", "bound", "ok")


def checks_csv(document: Document) -> str:
    """A line for each bound: variant, figure, error and bound as fractions, held or not."""
    names = _CHECK_COLUMNS
    rows = ([check[name] for name in names] for check in document["checks"])
    return b"".join(csv_lines(names, rows)).decode("utf-8")


def checks_parquet(document: Document) -> bytes:
    """The rows of `checks_csv` as a Parquet file."""
    kinds = ("string", "string", "float64", "float64", "bool")
    columns = dict(zip(_CHECK_COLUMNS, kinds, strict=True))
    rows = ([check[name] for name in columns] for check in document["checks"])
    return rows_parquet(columns, rows)
