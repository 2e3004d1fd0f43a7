from __future__ import annotations

import io
import re
from typing import Any

import pytest
from rich.console import Console

from kvsim.report import (
    DEFINITIONS,
    fragmentation_table,
    half_width,
    plain,
    print_report,
    result_block,
    summary_sentences,
)
from kvsim.report.text import OPTIONAL_PATHS, TABLE_ROWS
from kvsim.results import Slo, SummaryRecorder
from kvsim.results.requests import LATENCIES
from tests.results.fakes import FakeAllocator, S, plan, sequence


def entry(*, running: int = 4, live: int = 400, slo: Slo | None = None) -> dict[str, Any]:
    """Ten seconds of one step; one request of 5 tokens at 1..5 s."""
    allocator = FakeAllocator()
    recorder = SummaryRecorder(allocator, slo=slo)
    allocator.set(allocated=live + 100, internal_tail=25)
    joined = [sequence(prompt=100), *(sequence(first=1) for _ in range(4))]
    recorder.step(plan(num_running=running, live_tokens=live, joined=joined), 0, 10 * S)
    done = sequence(prompt=100, output=5, scheduled=S // 2, first=S, end=5 * S)
    recorder.request(done, "finished")
    return recorder.summary()


def test_the_result_block_is_laid_out_as_people_know_it() -> None:
    """Layout of `vllm bench serve`: 50 columns, label padded to 40, two decimals."""
    lines = [line.rstrip() for line in result_block({"a": entry(slo=Slo(ttft_s=2))}).splitlines()]
    assert lines == [
        "============ Serving Benchmark Result ============",
        "Successful requests:                     1",
        "Failed requests:                         0",
        "Benchmark duration (s):                  10.00",
        "Total input tokens:                      100",
        "Total generated tokens:                  5",
        "Request throughput (req/s):              0.10",
        "Request goodput (req/s):                 0.10",
        "Output token throughput (tok/s):         0.50",
        "Total token throughput (tok/s):          10.50",
        "---------------Time to First Token----------------",
        "Mean TTFT (ms):                          1000.00",
        "Median TTFT (ms):                        1000.00",
        "P99 TTFT (ms):                           1000.00",
        "-----Time per Output Token (excl. 1st token)------",
        "Mean TPOT (ms):                          1000.00",
        "Median TPOT (ms):                        1000.00",
        "P99 TPOT (ms):                           1000.00",
        "---------------Inter-token Latency----------------",
        "Mean ITL (ms):                           -",
        "Median ITL (ms):                         -",
        "P99 ITL (ms):                            -",
        "----------------End-to-end Latency----------------",
        "Mean E2EL (ms):                          5000.00",
        "Median E2EL (ms):                        5000.00",
        "P99 E2EL (ms):                           5000.00",
        "-------------Queueing (part of TTFT)--------------",
        "Mean queueing (ms):                      500.00",
        "Median queueing (ms):                    500.00",
        "P99 queueing (ms):                       500.00",
        "==================================================",
    ]


def rendered(variants: dict[str, dict[str, Any]], width: int = 120) -> str:
    console = Console(width=width, record=True, color_system=None, file=None, quiet=False)
    with console.capture() as capture:
        print_report(variants, console)
    return capture.get()


def test_the_table_has_a_column_per_variant_with_units_in_the_rows() -> None:
    text = rendered({"paged": entry(), "other": entry(live=200)})
    cells = {
        [part.strip() for part in line.split("│")][1]: [part.strip() for part in line.split("│")][
            2:4
        ]
        for line in text.splitlines()
        if line.count("│") == 4
    }
    assert cells["capacity (slots)"] == ["1,000", "1,000"]
    assert cells["live (%)"] == ["40.00", "20.00"]
    assert cells["reservation (%)"] == ["7.50", "7.50"]
    assert cells["internal (%)"] == ["2.50", "2.50"]
    assert cells["usable free (%)"] == ["50.00", "70.00"]
    assert cells["batch, max (requests)"] == ["4", "4"]
    assert cells["TTFT p99 (ms)"] == ["1,000.0", "1,000.0"]


def test_the_sentences_carry_numbers_and_compare_with_the_first_variant() -> None:
    first, second = summary_sentences({"paged": entry(running=6), "max": entry(running=2)})
    assert first == (
        "paged: live KV fills 40.0% of the memory and 80.0% of what is taken up (reservation "
        "7.5%, internal 2.5%, external 0.0% of the memory stay empty); mean batch 6.0, "
        "0.10 requests/s, median queueing 0.500 s, p99 TTFT 1.000 s."
    )
    assert second.endswith("(batch 0.33 x and throughput 1.00 x that of paged).")


HOSTILE = "[bold red]x[/] \x1b[31m\n\u202ey :smile: [link=http://a]"


def test_hostile_names_are_shown_as_plain_text() -> None:
    text = rendered({HOSTILE: entry(), "other": entry()}, width=400)
    assert "[bold red]x[/] [31my :smile: [link=http…       other\n" in text
    assert "[bold red]x[/] [31my :smile: [link=http://a]: live KV fills" in text
    assert "\x1b" not in text
    assert "\u202e" not in text


@pytest.mark.parametrize(
    ("text", "shown"),
    [("a b", "a b"), ("a\x00\x07\x9bb", "ab"), ("a\u2028b", "ab"), ("x" * 81, "x" * 79 + "…")],
)
def test_plain_text_has_no_control_characters_and_an_end(text: str, shown: str) -> None:
    assert plain(text) == shown


@pytest.mark.parametrize(
    "broken", [{}, {"memory": 3}, {"batch": {"mean": "[red]"}}, {"ttft_s": {"p99": True}}]
)
def test_a_summary_with_missing_or_odd_figures_shows_dashes(broken: dict[str, Any]) -> None:
    text = rendered({"a": broken})
    assert "[red]" not in text
    assert "Mean TTFT (ms):                          -" in text
    assert "no time was measured" in text


def test_free_fragmentation_is_next_to_external_fragmentation() -> None:
    labels = [row.label for row in TABLE_ROWS]
    assert labels[labels.index("external (%)") + 1] == "free fragmentation (% of free)"


def test_a_table_without_variants_is_not_an_error() -> None:
    always = [row for row in TABLE_ROWS if not row.path.startswith(OPTIONAL_PATHS)]
    assert fragmentation_table({}).row_count == len(always)


def test_every_figure_of_the_table_and_of_a_summary_is_defined() -> None:
    def leaves(value: object, path: str) -> list[str]:
        if not isinstance(value, dict):
            return [path]
        return [leaf for key, child in value.items() for leaf in leaves(child, f"{path}.{key}")]

    paths = [path.lstrip(".") for path in leaves(entry(), "")]
    free_form = ("requests.rejected_by_reason", "requests.unfinished_by_reason", "measured.")
    for path in paths + [row.path for row in TABLE_ROWS]:
        name = path.replace("by_iteration", "by_time")
        if name.split(".")[0] in (*LATENCIES, "itl_s"):
            name = name.split(".")[0]
        assert name in DEFINITIONS or path.startswith(free_form), path


def test_a_definition_is_one_sentence_that_ends_with_its_unit() -> None:
    for name, sentence in DEFINITIONS.items():
        assert sentence.endswith(")."), name
        assert ". " not in sentence, name


def test_a_figure_over_seeds_shows_half_the_width_of_its_interval() -> None:
    """A whole number for each seed has a mean that is none, and gets a decimal place."""
    several = {
        "batch": {"mean": 3.5, "max": 7.5},
        "ttft_s": {"p99": 2.0},
        "intervals": {"batch.mean": [3.0, 4.0], "batch.max": [7, 8], "ttft_s.p99": [1.5, 2.5]},
    }
    assert half_width(several, "batch.mean") == 0.5
    assert half_width(several, "steps") is half_width({}, "batch.mean") is None
    console = Console(width=200, record=True, file=io.StringIO())
    print_report({"a": several}, console)
    lines = [re.sub(r"[│\s]+", " ", line).strip() for line in console.export_text().splitlines()]
    assert "batch, mean (requests) 3.50 ± 0.50" in lines
    assert "batch, max (requests) 7.5 ± 0.5" in lines
    assert "P99 TTFT (ms): 2000.00 ± 500.00" in lines
    assert any("mean batch 3.5 ± 0.5, - requests/s" in line for line in lines)


def test_columns_are_as_wide_as_their_widest_figure() -> None:
    entry = {"ttft_s": {"p99": 1234.5}, "intervals": {"ttft_s.p99": [1000.25, 1468.75]}}
    lines = result_block({"a": entry, "b": {}}).splitlines()
    (row,) = [line for line in lines if line.startswith("P99 TTFT")]
    assert row.split(":")[1].split() == ["1234500.00", "±", "234250.00", "-"]
    assert len({len(line) for line in lines if ":" in line}) == 1
