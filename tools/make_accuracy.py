"""Write docs/accuracy.md: what `kvsim fit` says against what real servers printed.

Run `python tools/make_accuracy.py` after changing how the terms of a start-up are estimated.
"""

from __future__ import annotations

import json
import re
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

from kvsim.catalog import GIB, Model, get_gpu, model_from_config
from kvsim.catalog.start_rules import SORTED, UNSORTED, StartRules
from kvsim.planning.accuracy import TERMS, Accuracy, Row, StartUp, accuracy, compared, fitted
from kvsim.planning.fit import FitSettings
from kvsim.planning.releases import release_of

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests" / "planning" / "data" / "memory_logs.jsonl"
SETTINGS = ROOT / "tests" / "planning" / "data" / "start_up_settings.jsonl"
CONFIGS = ROOT / "tests" / "catalog" / "data" / "model_configs.jsonl"
CATALOGUE = ROOT / "kvsim" / "catalog" / "data" / "models.json"
PAGE = ROOT / "docs" / "accuracy.md"
FLAGS = ("gpu_memory_utilization", "max_model_len", "max_num_seqs", "max_num_batched_tokens")
PRINTED = {
    "weights": "weights_gib",
    "activation_peak": "activation_peak_gib",
    "non_torch": "non_torch_gib",
    "cuda_graphs": "cudagraph_gib",
    "kv_pool": "available_kv_gib",
}


def _lines(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def excluded() -> dict[str, str]:
    """Start-ups of vLLM that cannot be predicted from settings alone, and why."""
    return {one["id"]: one["excluded"] for one in _lines(SETTINGS) if "excluded" in one}


def start_ups() -> list[StartUp]:
    """Start-ups of vLLM whose model, GPU and flags are known."""
    printed = {one["id"]: one for one in _lines(LOGS)}
    return [start_up(printed[one["id"]], one) for one in _lines(SETTINGS) if "excluded" not in one]


def start_up(printed: dict[str, Any], known: dict[str, Any]) -> StartUp:
    """A start-up from what its log says and what is known besides."""
    version = known.get("version") or re.sub("^[~>=]+", "", printed["version"])
    release = release_of(version, printed.get("engine"))
    flags = {name: printed[name] for name in FLAGS if printed.get(name) is not None}
    flags |= known.get("flags", {})
    model = _model(known, printed["model"])
    if flags.get("max_model_len", 0) > model.max_position:
        model = replace(model, max_position=flags["max_model_len"])
    fp8 = str(printed.get("kv_cache_dtype")).startswith("fp8")
    total = known.get("total_gib")
    return StartUp(
        name=known["id"],
        source=printed["source"],
        model=model,
        gpu=get_gpu(known["gpu"]),
        release=release,
        settings=FitSettings(
            tensor_parallel_size=printed.get("tp") or 1,
            kv_cache_dtype="fp8" if fp8 else "auto",
            measured_bytes={} if total is None else {"total": round(total * GIB)},
            **flags,
        ),
        reported=_reported(printed, release.graphs_in_budget),
        assumed=tuple(known["assumed"]),
        refused=printed.get("error_class") is not None,
        note=known.get("note", ""),
    )


def _reported(printed: dict[str, Any], graphs_in_budget: bool) -> dict[str, float]:
    """GiB by term; the pool of the rank that decides, from its tokens where only they are given."""
    found = {
        term: float(printed[key]) for term, key in PRINTED.items() if printed.get(key) is not None
    }
    tokens, token_bytes = printed.get("kv_tokens"), printed.get("bytes_per_token_per_gpu")
    if tokens and token_bytes and (printed["status"] == "inconsistent" or "kv_pool" not in found):
        found["kv_pool"] = tokens * token_bytes / GIB
    if graphs_in_budget:
        found.pop("cuda_graphs", None)
        if printed.get("cudagraph_estimate_gib") is not None:
            found["cuda_graphs"] = printed["cudagraph_estimate_gib"]
    return found


def _model(known: dict[str, Any], printed: str) -> Model:
    """A model of the catalogue, of the configurations of the tests, or of its own shapes."""
    name = known.get("model", printed)
    config = known["config"] if "config" in known else _configs()[name]
    quantization = known.get("quantization_config")
    if quantization is not None:
        config = {**config, "quantization_config": quantization}
    return model_from_config(config, name=name, source=known["id"])


@cache
def _configs() -> dict[str, dict[str, Any]]:
    shipped = json.loads(CATALOGUE.read_text(encoding="utf-8"))["models"]
    configs = {one["model"]: one["config"] for one in _lines(CONFIGS)}
    return configs | {one["name"]: one["config"] for one in shipped}


def page() -> str:
    """The page, from the rows and the constants as they are."""
    found = start_ups()
    rows = compared(found)
    alone = [row for row in rows if row.start_up.settings.tensor_parallel_size == 1]
    several = [row for row in rows if row.start_up.settings.tensor_parallel_size > 1]
    groups = {"one GPU": alone, "several GPUs": several, "all": rows}
    others = sum(one["server"] != "vllm" for one in _lines(LOGS))
    return (
        "\n\n".join(
            [
                INTRODUCTION.format(
                    rows=len(rows),
                    alone=len(alone),
                    left=len(excluded()),
                    totals=", ".join(one.name for one in found if one.settings.measured_bytes),
                ),
                _figures({name: accuracy(part) for name, part in groups.items()}),
                CONSTANTS,
                _constants(found),
                "## Start-ups on one GPU",
                _rows(alone),
                "## Start-ups on several GPUs",
                _rows(several),
                "## Every printed term",
                _terms(rows),
                "## Start-ups that are not predicted",
                f"Beside these, {others} start-ups are of other servers.",
                "\n".join(["| start-up | why |", "|---|---|"])
                + "".join(f"\n| {name} | {why} |" for name, why in excluded().items()),
            ]
        )
        + "\n"
    )


INTRODUCTION = """# How accurate `kvsim fit` is

`kvsim fit` estimates what a vLLM server would print at start-up from its settings alone: model, \
GPU, release and flags. This page compares it with {rows} real start-ups ({alone} on one GPU); \
{left} more cannot be predicted, with the reason at the end. `python tools/make_accuracy.py` \
writes it.

* Bytes are GiB per GPU. A GPU's memory is that of the catalogue; where the GPU is not in it \
({totals}) the printed total.
* A flag that nobody says is vLLM's default of that release; the column *assumed* lists it.
* Constants are fitted to the same start-ups. Each start-up is therefore predicted with constants \
fitted to those of every *other source* (leave one source out). The form of the rules was chosen \
with all of them in sight.
* *inside*: the printed value lies in the 80 % interval. Of right intervals, 80 % do.
* A *false fit* is a server that refused, or died of memory, and was promised to fit; a *false \
refusal* one that started and was said not to fit. "Too close to call" is neither.
* p90 is the nearest rank."""

CONSTANTS = """## Constants

Medians of the rows, and 10th and 90th percentiles as ends of the intervals; what is shipped is \
rounded. Not fitted, for want of rows: memory outside the framework for several GPUs, graphs of \
large mixtures of experts, the upper end from 0.16 on (a log of an unnamed model), and all before \
0.6.4, where the cache of the allocator counts and only the size is known."""


def _table(head: tuple[str, ...], rows: list[tuple[str, ...]]) -> str:
    lines = [head, tuple("---" for _ in head), *rows]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def _figures(groups: dict[str, Accuracy]) -> str:
    head = ("", *groups)
    found = list(groups.values())

    def share(hit: int, count: int) -> str:
        return f"{hit} of {count} ({100 * hit / count:.0f} %)" if count else "-"

    rows = [
        ("start-ups with a printed pool", *(str(one.rows) for one in found)),
        ("error of the KV pool, median (GiB)", *(f"{one.median_gib:.2f}" for one in found)),
        ("error of the KV pool, p90 (GiB)", *(f"{one.p90_gib:.2f}" for one in found)),
        ("error of the weights, median", *(f"{100 * one.weights_median:.2f} %" for one in found)),
    ]
    rows += [(f"inside: {name}", *(share(*one.inside[name]) for one in found)) for name in TERMS]
    rows += [
        ("inside: all values", *(f"{100 * one.coverage:.0f} %" for one in found)),
        ("false fits", *(", ".join(one.false_fits) or "none" for one in found)),
        ("false refusals", *(", ".join(one.false_refusals) or "none" for one in found)),
    ]
    return _table(head, rows)


def constants(rules: StartRules, unsorted: StartRules) -> dict[str, tuple[float, ...]]:
    """What is fitted, by name."""
    return {
        "copies of the logits, 0.6.4 to 0.15": tuple(rules.sampler),
        "copies of the logits, 0.16 and later": tuple(unsorted.sampler),
        "activation peak, fractions below and above": rules.peak_error,
        "weights, fractions below and above": rules.weights_error,
        "outside the framework, one GPU (GiB)": tuple(rules.non_torch_gib[1]),
        "the same, more with HIP (GiB)": (rules.amd_non_torch_gib,),
        "CUDA graphs, dense models (GiB)": tuple(rules.dense_graphs_gib),
    }


def _constants(found: list[StartUp]) -> str:
    fit_all = fitted(found)
    ours, theirs = constants(SORTED, UNSORTED), constants(fit_all(SORTED), fit_all(UNSORTED))

    def text(values: tuple[float, ...]) -> str:
        return " / ".join(f"{value:.3g}" for value in values)

    rows = [(name, text(values), text(theirs[name])) for name, values in ours.items()]
    return _table(("constant (low / middle / high)", "shipped", "fitted to all rows"), rows)


def _rows(rows: list[Row]) -> str:
    head = ("start-up", "release", "model", "GPUs", "assumed", "KV printed", "predicted", "error")
    return _table(
        (*head, "80 % interval", "inside", "verdict", "reason of a miss"),
        [(*_set_up(row), *_pool(row), *_verdict(row)) for row in rows],
    )


def _set_up(row: Row) -> tuple[str, ...]:
    one = row.start_up
    gpus = f"{one.settings.tensor_parallel_size} x {one.gpu.name}"
    if "total" in one.settings.measured_bytes:
        gpus = f"{one.settings.tensor_parallel_size} x {row.fit.budget.total.bytes / GIB:.2f} GiB"
    return one.name, one.release.name, one.model.name, gpus, ", ".join(one.assumed) or "-"


def _pool(row: Row) -> tuple[str, ...]:
    pool = row.terms.get("kv_pool")
    if pool is None:
        return ("-",) * 5
    interval = f"{pool.low:.2f} to {pool.high:.2f}"
    inside = "yes" if pool.inside else "no"
    return f"{pool.reported:.2f}", f"{pool.predicted:.2f}", f"{pool.error:+.2f}", interval, inside


def _verdict(row: Row) -> tuple[str, str]:
    happened = " (refused)" if row.start_up.refused else ""
    return row.fit.verdict + happened, row.reason or "-"


def _terms(rows: tuple[Row, ...]) -> str:
    names = [name for name in TERMS if name != "kv_pool"]
    lines = []
    for row in rows:
        found = [row.terms.get(name) for name in names]
        if any(found):
            cells = (
                "-"
                if one is None
                else f"{one.reported:.2f} : {one.predicted:.2f}" + ("" if one.inside else " *")
                for one in found
            )
            lines.append((row.start_up.name, *cells))
    head = ("start-up", *(name.replace("_", " ") for name in names))
    return "Printed : predicted; * outside its interval.\n\n" + _table(head, lines)


if __name__ == "__main__":
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
