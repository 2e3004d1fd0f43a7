"""Kernel speed by block size, from files that were measured elsewhere."""

from __future__ import annotations

import json
from typing import Any

import plotly.graph_objects as go
import pytest

from kvsim.cost.profile import LayoutConstants, digest
from kvsim.errors import InputError
from kvsim.report.figures.kernels import kernel_figure
from kvsim.report.kernel_sizes import MAX_CURVES, fitted_sizes, kernel_sizes


def profile(**layouts: tuple[float, float, float]) -> bytes:
    """A profile with these decode_s, decode_row_s and decode_context_s by layout."""
    zero = dict.fromkeys(LayoutConstants._fields, 0.0)
    names = ("decode_s", "decode_row_s", "decode_context_s")
    error = {"points": 3, "median": 0.01, "p90": 0.02, "bias": 0.0}
    point = {"decodes": [4], "chunks": [], "copy_tokens": 0}
    document: dict[str, Any] = {
        "format": "kvsim-profile-1",
        "model": {"name": "nano", "layers": 2},
        "device": {"name": "a CPU", "mode": "eager"},
        "limits": {
            "max_num_seqs": 10,
            "max_num_batched_tokens": 64,
            "max_model_len": 100,
            "slots": 1000,
        },
        "measured_layers": [2],
        "constants": {
            "tokens": [[1, 0.1]],
            "rows": [[1, 0.1]],
            "layouts": {
                name.replace("_", "-"): zero | dict(zip(names, values, strict=True))
                for name, values in layouts.items()
            },
        },
        "errors": {"fitted": error, "held_out": error, "held_out_by_kind": {}, "depth_check": None},
        "noise": error,
        "probe": [{"layout": "paged-16", "layers": 2, "point": point, "wall_s": 0.1}],
    }
    return json.dumps({**document, "sha256": digest(document)}).encode()


def test_a_profile_tells_the_time_that_attention_adds_to_a_full_step() -> None:
    content = profile(
        paged_64=(0.0, 0.0, 1e-3),
        paged_16=(0.5, 0.05, 1e-3),
        contiguous=(0.0, 0.05, 5e-4),
    )
    found = kernel_sizes(content, "profile.json")
    (curve,) = found.curves
    assert found.source == "profile"
    assert found.device.startswith("nano on a CPU; two runs of a batch differ by 1.0%")
    assert curve.sizes == (16, 64)
    # Contiguous memory takes 10 * 0.05 + 1000 * 0.0005 = 1 s, the paged ones 2 s and 1 s.
    assert curve.speed == (0.5, 1.0)


def rows(*entries: dict[str, Any]) -> bytes:
    return "".join(json.dumps(entry) + "\n" for entry in entries).encode()


def decode(batch: int, size: int, share: float) -> dict[str, Any]:
    return {
        "kind": "decode",
        "batch": batch,
        "context": 100,
        "block_size": size,
        "share": share,
        "kv_bytes": batch * 1000,
    }


def test_the_decode_rows_of_the_bench_are_shares_of_its_read_ceiling() -> None:
    found = kernel_sizes(
        rows(
            {"kind": "ceiling", "gb_per_s": 3000.0},
            decode(1, 16, 0.2),
            decode(8, 64, 0.9),
            decode(8, 16, 0.85),
            {"kind": "decode", "batch": 9, "context": 9, "block_size": 8, "skipped": "no room"},
        ),
        "decode.jsonl",
    )
    assert found.source == "decode"
    assert [(curve.label, curve.sizes, curve.speed) for curve in found.curves] == [
        ("8 x 100 tokens", (16, 64), (0.85, 0.9)),
        ("1 x 100 tokens", (16,), (0.2,)),
    ]


def test_the_paging_rows_of_the_bench_tell_what_a_random_table_costs() -> None:
    row = {"batch": 2, "context": 40, "block_size": 16, "paging_cost": 0.25, "table_cost": 0.1}
    (curve,) = kernel_sizes(rows(row, {**row, "block_size": 64, "paging_cost": 0.0}), "p").curves
    assert (curve.sizes, curve.speed) == ((16, 64), (0.8, 1.0))


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (b"\xff\xfe", "is not UTF-8 text"),
        (b"", "holds no measured block size"),
        (b"not json", "is no row of a bench"),
        (b"[1, 2]", "is no row of a bench"),
        (b"[" * 100_000, "is no row of a bench"),
        (b'{"format": "kvsim-profile-1"}', "sha256"),
        (rows({"kind": "ceiling"}), "holds no measured block size"),
        (rows(decode(1, 16, 0.2), {"paging_cost": 0.1}), "mixes rows of two sections"),
        (rows({**decode(1, 16, 0.2), "block_size": "16"}), "block_size must be a whole number"),
        (rows({**decode(1, 16, 0.2), "batch": -1}), "batch must be a whole number"),
        (rows({**decode(1, 16, 0.2), "share": 1e308}), "holds no measured block size"),
        (b"\n" * 30_000, "more than 20,000 rows"),
        (b" " * 4_000_001, "is larger than 4,000,000 bytes"),
    ],
)
def test_a_file_of_another_kind_is_refused_by_what_is_wrong(content: bytes, problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        kernel_sizes(content, "upload.json")


def test_the_fitted_line_is_that_of_the_shipped_scenario() -> None:
    """Fit of Fig. 18b as docs/reproductions.md states it: 0.30, 0.33, 0.33, 0.53 up to 8."""
    fitted = fitted_sizes()
    assert fitted.sizes == (1, 2, 4, 8, 16, 32, 64, 128, 256)
    assert fitted.speed == (0.3, 0.33, 0.33, 0.53, 1, 1, 1, 1, 1)


def test_the_figure_draws_few_curves_and_tells_the_fit_from_what_was_measured() -> None:
    found = kernel_sizes(rows(*(decode(batch, 16, 0.5) for batch in range(1, 10))), "d")
    figure = kernel_figure(found.curves, fitted_sizes())
    go.Figure(figure)
    assert len(figure["data"]) == MAX_CURVES + 1
    assert figure["data"][0]["name"] == "9 x 100 tokens"
    assert figure["data"][0]["y"] == [50]
    assert figure["data"][-1]["line"]["dash"] == "dot"
