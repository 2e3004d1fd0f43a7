from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from gpu_backend.bench.headline import fastest_peer, headline
from gpu_backend.bench.page import NotAResult, main, page
from gpu_backend.bench.results import Results

ROOT = Path(__file__).resolve().parents[2]
MACHINE: dict[str, Any] = {
    "name": "NVIDIA X1", "device": "cuda", "tiny": False, "date": "2030-01-02 03:04 UTC",
    "driver": "999.1", "cuda": "13.0", "torch": "2.11", "triton": "3.6.0", "numpy": "2.5",
    "sm_count": 132, "l2_bytes": 60 << 20, "memory_bytes": 139 << 30, "minutes": 8.0,
}  # fmt: skip
TIMED = {"us": 125.0, "low_us": 124.0, "high_us": 126.0, "replays": 9, "timing": "graph"}


def decode_row(share: float, met: bool | None, block_size: int = 16) -> dict[str, Any]:
    return {
        "kind": "decode", "batch": 64, "context": 2048, "block_size": block_size, **TIMED,
        "gb_per_s": 3900.0, "share": share, "goal_met": met,
    }  # fmt: skip


def peer_row(peer: str, status: str, factor: float | None = None) -> dict[str, Any]:
    row = {"peer": peer, "paged": True, "batch": 8, "context": 512, "block_size": 16}
    extra = {"factor": factor, "us": 10.0, "ours_us": 12.0} if factor else {"why": "a|b"}
    return row | {"status": status} | extra


def folder(tmp_path: Path, **machine: Any) -> Path:
    results = Results(tmp_path / "out")
    results.replace("machine", MACHINE | machine)
    rows: dict[str, list[dict[str, Any]]] = {
        "correctness": [
            {"case": "paged decode", "correct": True, "max_error": 0.001},
            {"case": "paged prefill", "correct": False, "max_error": float("nan")},
        ],
        "decode": [
            {"kind": "ceiling", "gb_per_s": 4300.0},
            decode_row(0.91, True), decode_row(0.80, False), decode_row(0.95, None, 8),
            {"kind": "decode", "batch": 256, "skipped": "too large"},
        ],
        "paging": [
            {
                "block_size": 16, "batch": 64, "context": 2048, "contiguous_us": 120.0,
                "table_cost": 0.01, "order_cost": 0.02, "paging_cost": cost,
            }
            for cost in (0.03, 0.05)
        ],
        "peers": [
            peer_row("fast", "measured", 1.5), peer_row("fast", "measured", 1.1),
            peer_row("slow", "measured", 0.5), peer_row("odd", "wrong"),
        ],
        "prefill": [{"kind": "prefill", "chunk": 512, "prior": 0, **TIMED,
                     "tflop_per_s": 400.0, "share": 0.6}],
        "cache_ops": [{"operation": "copy_blocks", "block_size": 16, "count": 64, **TIMED,
                       "gb_per_s": 3000.0}],
        "framework": [
            {
                "policy": "grow every token", "limit_bytes": 1 << 29, "framework": None,
                "simulated": {
                    "peak_allocated_bytes": 1 << 20, "peak_reserved_bytes": 2 << 20,
                    "mean_idle_share": 0.25, "retries": 0, "refused": 3,
                },
            }
        ],
    }  # fmt: skip
    for name, content in rows.items():
        for row in content:
            results.append(name, row)
    sections = {"decode": {"status": "partial", "why": "time ran out", "rows": 4}}
    results.replace("summary", {"sections": sections, "headline": headline(results.folder)})
    return results.folder


def test_the_headline_of_a_run(tmp_path: Path) -> None:
    found = headline(folder(tmp_path))
    assert found == {
        "correct_cases": 1,
        "wrong_cases": ["paged prefill"],
        "decode_share_of_ceiling_median": pytest.approx(0.855),
        "decode_goal_met": 1,
        "decode_goal_points": 2,
        "paging_cost_percent_median": pytest.approx(4.0),
        "fastest_peer": "fast",
        "fastest_peer_factor_median": pytest.approx(1.3),
        "wrong_peers": ["odd"],
    }


def test_a_run_that_has_measured_nothing_has_no_headline(tmp_path: Path) -> None:
    assert headline(tmp_path) == {}
    assert fastest_peer([peer_row("a", "unavailable")]) is None


def test_the_page_names_the_machine_and_shows_every_section(tmp_path: Path) -> None:
    text = page(folder(tmp_path))
    assert text.startswith("# GPU results\n")
    for part in (
        "**NVIDIA X1** (132 multiprocessors, 60 MiB L2, 139 GiB)", "2030-01-02 03:04 UTC",
        "driver 999.1, CUDA 13.0, torch 2.11, Triton 3.6.0, numpy 2.5",
        "| decode | partial | 4 | time ran out |",
        "1 of 2 cases agree with float64", "| paged prefill | nan |  |",
        "Read ceiling 4300 to 4300 GB/s",
        "| 16 | 64 | 2048 | 125.0 | 3900 | 91.0 % | met |", "| 80.0 % | missed |",
        "| 8 | 64 | 2048 | 125.0 | 3900 | 95.0 % |  |",
        "| 16 | 64 | 2048 | 120.0 | 1.0 % | 2.0 % | 3.0 % |",
        "| fast | 16 | 8 | 512 | measured | 10.0 | 12.0 | 1.500 |  |",
        "| odd | 16 | 8 | 512 | wrong | - | - | - | a\\|b |",
        "| 512 | 0 | 125.0 | 400.0 | 60.0 % |",
        "| copy_blocks | 16 | 64 | 125.0 | 3000 |",
        "| grow every token | 512 MiB | simulated | 1.000 | 2.000 | 25.0 % | 0 | 3 |",
    ):  # fmt: skip
        assert part in text, part


def test_every_table_is_a_table(tmp_path: Path) -> None:
    for block in page(folder(tmp_path)).split("\n\n"):
        lines = [line for line in block.splitlines() if line.startswith("|")]
        widths = {len(re.findall(r"(?<!\\)\|", line)) for line in lines}
        assert len(widths) <= 1, block


@pytest.mark.parametrize("machine", [{"device": "cpu"}, {"tiny": True}])
def test_a_trial_run_makes_no_page(machine: dict[str, Any], tmp_path: Path) -> None:
    with pytest.raises(NotAResult, match="times mean nothing"):
        page(folder(tmp_path, **machine))


def test_the_page_as_a_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    where = folder(tmp_path)
    assert main([str(where)]) == 0
    assert capsys.readouterr().out == page(where)
    assert main([str(tmp_path)]) == 2
    assert "is not the folder of a run" in capsys.readouterr().err
    assert main([]) == 2
    (where / "machine.json").write_text("[]")
    assert main([str(where)]) == 2


def test_the_published_page_is_a_runs_or_says_that_there_is_none() -> None:
    text = (ROOT / "docs" / "gpu-results.md").read_text(encoding="utf-8")
    assert "python -m gpu_backend.bench" in text
    if "not run on a GPU yet" in text:
        assert not re.search(r"GB/s|TFLOP|\d %|\| ", text)
    else:
        assert "multiprocessors" in text
