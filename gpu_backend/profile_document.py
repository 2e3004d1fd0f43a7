"""Measured rows -> the document of a profile, with its errors beside the noise."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import numpy as np

import kvsim
from gpu_backend.fit import Errors, Fit, Measured, errors_by_kind, gather, noise
from gpu_backend.grid import GridSpec, Row, probe_points
from kvsim.cost.profile import FORMAT, digest
from kvsim.errors import InputError


def profile_document(
    spec: GridSpec, device_name: str, rows: Sequence[Row], *, seed: int
) -> dict[str, Any]:
    """Fit the rows; the profile as JSON has it, hashed. Raises `InputError` for too few rows."""
    measured = gather(rows)
    _require_enough(spec, measured)
    fit = Fit(measured, spec.layers)
    held_out = [entry for entry in measured if entry.use == "held_out"]
    constants = fit.constants()
    document: dict[str, Any] = {
        "format": FORMAT,
        "kvsim_version": kvsim.__version__,
        "measured_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "model": {"name": spec.model, "shape": spec.shape._asdict(), "layers": spec.layers},
        "device": {
            "name": device_name,
            "kind": spec.device,
            "num_threads": spec.num_threads,
            "dtype": spec.dtype,
            "attention_only": spec.attention_only,
            "mode": "eager",
        },
        "limits": {
            "max_num_seqs": spec.max_num_seqs,
            "max_num_batched_tokens": spec.max_num_batched_tokens,
            "max_model_len": spec.max_model_len,
            "slots": spec.slots,
        },
        "measured_layers": list(spec.measured_layers),
        "seed": seed,
        "constants": {
            "tokens": [list(row) for row in constants.tokens],
            "rows": [list(row) for row in constants.rows],
            "layouts": {name: row._asdict() for name, row in constants.layouts.items()},
        },
        "errors": {
            "fitted": fit.errors([e for e in measured if e.use == "fit"])._asdict(),
            "held_out": fit.errors(held_out)._asdict(),
            "held_out_by_kind": errors_by_kind(fit, held_out),
            "depth_check": _depth_check(spec, fit, measured),
        },
        "noise": noise([e for e in measured if e.use == "fit"])._asdict(),
        "rounds": 1 + max(row.round for row in rows),
        "probe": _probe(spec, measured),
    }
    return {**document, "sha256": digest(document)}


def _require_enough(spec: GridSpec, measured: Sequence[Measured]) -> None:
    """Without two rounds nothing is known of the noise, without held-out batches of the error."""
    known = {(e.layout, e.layers, e.point) for e in measured if len(e.rounds) > 1}
    probes = {(spec.layouts[0].name, spec.measured_layers[-1], p) for p in probe_points(spec)}
    held_out = any(e.use == "held_out" for e in measured)
    others = {e.layers for e in measured if e.use != "depth_check"} - {*spec.measured_layers}
    if others:
        raise InputError(f"the rows are of other depths than the grid: {sorted(others)}")
    if not (probes <= known and held_out):
        raise InputError(
            "the grid was cut off: two rounds of every batch are needed",
            where="calibration",
            fix="Give the bench more minutes, or measure fewer layouts",
        )


def _depth_check(spec: GridSpec, fit: Fit, measured: Sequence[Measured]) -> dict[str, Any] | None:
    """Errors at the model's own depth; None where that was run anyway, or did not fit."""
    if spec.measured_layers == (spec.layers,):
        return None
    found: Errors = fit.errors([e for e in measured if e.use == "depth_check"])
    return found._asdict() if found.points else None


def _probe(spec: GridSpec, measured: Sequence[Measured]) -> list[dict[str, Any]]:
    """Seconds of the batches whose times tell how fast the device is at another time."""
    points, layout = probe_points(spec), spec.layouts[0].name
    layers = spec.measured_layers[-1]
    seconds = {
        entry.point: float(np.median(entry.rounds))
        for entry in measured
        if entry.use == "fit" and entry.layout == layout and entry.layers == layers
    }
    return [
        {
            "layout": layout,
            "layers": layers,
            "point": {
                "decodes": list(point.decodes),
                "chunks": [list(chunk) for chunk in point.chunks],
                "copy_tokens": point.copy_tokens,
            },
            "wall_s": seconds[point],
        }
        for point in points
    ]
