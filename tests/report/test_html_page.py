from __future__ import annotations

import json
import re
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest

from kvsim.errors import InputError
from kvsim.report.definitions import DEFINITIONS
from kvsim.report.html import MAX_BYTES, write_report
from kvsim.report.html_embed import content_security_policy, embed_json, script_hash
from kvsim.report.text import OPTIONAL_PATHS
from kvsim.results import RequestsRecorder
from tests.report.reports import (
    SCENARIO,
    edit_json,
    hostile_run,
    large_run,
    small_run,
    summary_of,
)

RTL = "\u202eevil\u202c שלום مرحبا"
HOSTILE = [
    "</script><script>alert(1)</script><img src=x onerror=alert(2)>",
    "=cmd()",
    "x" * 10_240,
    RTL,
    "a\u2028b\x00\x1b[31m{{ 7*7 }}%{x}",
]


class Page(HTMLParser):
    """What a browser would see: elements, the text of each, table rows."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.scripts: list[str] = []
        self.rows: list[list[str]] = []
        self.texts: dict[str, str] = {}
        self._open: list[tuple[str, str | None]] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        if tag == "script":
            self.scripts.append("")
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append("")
        if tag not in ("meta", "link", "img", "br"):
            self._open.append((tag, dict(attrs).get("id")))

    def handle_endtag(self, tag: str) -> None:
        self._open.pop()

    def handle_data(self, data: str) -> None:
        if self._open and self._open[-1][0] == "script":
            self.scripts[-1] += data
        elif self.rows and self.rows[-1] and any(tag in ("td", "th") for tag, _ in self._open):
            self.rows[-1][-1] += data
        for _, name in self._open:
            if name:
                self.texts[name] = self.texts.get(name, "") + data

    def figures(self) -> dict[str, Any]:
        data: dict[str, Any] = json.loads(self.scripts[0])
        return data

    def row(self, label: str, after: str = "") -> list[str]:
        """The cells of the first row with this label (after the row `after`)."""
        labels = [row[0] if row else "" for row in self.rows]
        start = labels.index(after) + 1 if after else 0
        return self.rows[labels.index(label, start)][1:]


@pytest.fixture(scope="module")
def run_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return small_run(tmp_path_factory.mktemp("report"))


@pytest.fixture(scope="module")
def text(run_dir: Path) -> str:
    return write_report(run_dir).path.read_text("utf-8")


@pytest.fixture(scope="module")
def page(text: str) -> Page:
    return Page(text)


@pytest.mark.parametrize(
    ("label", "after", "path", "scale", "digits"),
    [
        ("capacity (slots)", "", "memory.capacity_slots", 1, 0),
        ("live (%)", "", "memory.by_time.live", 100, 2),
        ("over_reservation (%)", "", "memory.by_time.detail.internal.over_reservation", 100, 2),
        ("roundup (%)", "", "memory.by_time.detail.internal.roundup", 100, 2),
        ("external (%)", "", "memory.by_time.external", 100, 2),
        ("free fragmentation (% of free)", "", "memory.free_fragmentation", 100, 2),
        ("usable free (%)", "", "memory.by_time.usable_free", 100, 2),
        ("peak allocated (%)", "", "memory.peak_allocated", 100, 2),
        ("usable free, by step (%)", "", "memory.by_iteration.usable_free", 100, 2),
        ("tokens, paper's rule (%)", "", "memory.paper.tokens", 100, 2),
        ("reservation, paper's rule (%)", "", "memory.paper.reservation", 100, 2),
        ("internal, paper's rule (%)", "", "memory.paper.internal", 100, 2),
        (
            "external and others, paper's rule (%)",
            "",
            "memory.paper.external_and_others",
            100,
            2,
        ),
        ("Scheduled tokens", "", "tokens.scheduled", 1, 0),
        ("at the token budget", "", "queued_steps_at_token_budget", 1, 0),
        ("P90 normalized (ms/token)", "", "normalized_latency_s_per_token.p90", 1000, 2),
        ("empty tail (slots/request)", "", "memory.empty_tail_slots_per_sequence", 1, 2),
        ("batch, mean (requests)", "live (%)", "batch.mean", 1, 2),
        ("Successful requests", "", "measured.finished", 1, 0),
        ("Benchmark duration (s)", "", "measured.duration_s", 1, 2),
        ("Output token throughput (tok/s)", "", "throughput.output_tokens_per_s", 1, 2),
        ("Request goodput (req/s)", "", "throughput.goodput_rps", 1, 2),
        ("P99 TTFT (ms)", "", "ttft_s.p99", 1000, 2),
        ("Median TPOT (ms)", "", "tpot_s.p50", 1000, 2),
        ("P90 E2EL (ms)", "", "e2e_s.p90", 1000, 2),
    ],
)
def test_a_figure_of_a_table_is_that_of_the_summary_to_the_printed_digit(
    page: Page, run_dir: Path, label: str, after: str, path: str, scale: float, digits: int
) -> None:
    expected = []
    for entry in summary_of(run_dir)["variants"].values():
        value: Any = entry
        for key in path.split("."):
            value = value[key]
        expected.append(f"{value * scale:,.{digits}f}")
    assert page.row(label, after) == expected


def test_every_figure_of_a_table_links_to_its_definition(page: Page) -> None:
    anchors = {attrs["id"] for tag, attrs in page.tags if tag == "dt"}
    links = [attrs for tag, attrs in page.tags if tag == "a" and "title" in attrs]
    assert len(links) > 50
    for link in links:
        assert (link["href"] or "")[1:] in anchors
        assert link["title"]
    assert {"def-ttft-s", "def-memory-by-time-live"} <= anchors
    always = [name for name in DEFINITIONS if not name.startswith(OPTIONAL_PATHS)]
    assert len(anchors) > len(always)
    assert {(link["href"] or "")[1:] for link in links} == anchors  # none without its value


def test_the_sentence_has_the_numbers_of_the_summary(page: Page, run_dir: Path) -> None:
    variants = summary_of(run_dir)["variants"]
    batch = {name: f"{entry['batch']['mean']:.1f}" for name, entry in variants.items()}
    waste = variants["contiguous-max"]["memory"]["by_time"]["detail"]["internal"]
    over = f"{100 * waste['over_reservation']:.1f} %"
    prompts = sum(1 + i * 7 % 29 for i in range(80))
    decodes = sum(i * i * 5 % 31 for i in range(80))
    with_prefills = max(
        batch
        for batch in range(1, 41)
        if 0.01 + 0.001 * batch + 0.0001 * round(batch * prompts / decodes) <= 0.05
    )
    assert page.texts["summary"] == (
        f"paged runs {batch['paged']} requests at once where contiguous-max runs "
        f"{batch['contiguous-max']}; {over} of contiguous-max's memory is over-reservation; "
        f"compute would allow 40 decodes at once, {with_prefills} with this traffic's "
        "prefills between them; memory binds contiguous-max and paged."
    )


def test_paging_is_said_to_address_capacity_not_bandwidth(page: Page) -> None:
    assert page.texts["not-bandwidth"].startswith("Paging addresses capacity, not bandwidth")


def test_the_page_loads_nothing_from_anywhere(text: str, page: Page) -> None:
    assert not [attrs for _, attrs in page.tags if {"src", "srcset", "action"} & set(attrs)]
    assert not [tag for tag, _ in page.tags if tag in ("link", "iframe", "object", "base", "form")]
    links = [attrs["href"] or "" for tag, attrs in page.tags if tag == "a"]
    assert all(link.startswith("#") for link in links)
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if "content" in attrs)
    assert policy.startswith("default-src 'none'; script-src 'sha256-")
    assert "unsafe-eval" not in policy
    assert "url(" not in text[: text.index('<script type="application/json"')]


def test_only_the_two_scripts_of_the_page_may_run(page: Page) -> None:
    data, plotly, own = page.scripts
    json.loads(data)
    policy = next(attrs["content"] or "" for tag, attrs in page.tags if "content" in attrs)
    assert policy == content_security_policy(plotly, own)
    assert script_hash("alert(1)") == "'sha256-bhHHL3z2vDgxUt0W3dWQOrprscmda2Y5pLsLg4GF+pI='"


@pytest.mark.parametrize("hostile", HOSTILE)
def test_embedded_data_is_read_back_and_cannot_leave_its_element(hostile: str) -> None:
    embedded = embed_json({hostile: [hostile, "\ud800"]})
    assert json.loads(embedded) == {hostile: [hostile, "\ud800"]}
    assert embedded.isascii()
    assert not set("<>&") & set(embedded)


def test_hostile_names_and_ids_stay_text(tmp_path: Path) -> None:
    text = write_report(hostile_run(tmp_path, HOSTILE)).path.read_text("utf-8")
    page = Page(text)
    assert len(page.scripts) == 3
    assert not [tag for tag, _ in page.tags if tag == "img"]
    assert not [name for _, attrs in page.tags for name in attrs if name.startswith("on")]
    assert "alert(1)" not in page.scripts[2]
    assert "{{ 7*7 }}" in text
    assert not re.search("[\u202a-\u202e\u2066-\u2069\x00\x1b]", text)
    assert "x" * 1000 not in text
    ids = {row[1] for option in page.figures()["map"]["options"] for row in option["holders"]}
    assert "=cmd()" in ids
    assert max(map(len, ids)) <= 60


@pytest.mark.slow
def test_a_hundred_thousand_requests_make_a_page_of_at_most_six_megabytes(tmp_path: Path) -> None:
    run_dir = large_run(tmp_path, requests=100_000, steps=300_000, variants=4)
    report = write_report(run_dir)
    assert report.bytes == report.path.stat().st_size <= MAX_BYTES == 6_000_000
    text = report.path.read_text("utf-8")
    assert "Down-sampled: averages over 300 equal intervals" in text
    assert "Drawn from up to 100,000 requests" in text
    assert "The overview is drawn in cells of" in text


def test_a_page_that_stays_too_large_is_refused(
    run_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kvsim.report.html.MAX_BYTES", 1000)
    with pytest.raises(InputError, match="it may have 1,000"):
        write_report(run_dir)


def test_many_variants_are_drawn_and_listed_up_to_a_limit_that_the_page_names(
    tmp_path: Path,
) -> None:
    run_dir = large_run(tmp_path, requests=50, steps=50, variants=70, maps=False)
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    warnings = [attrs for _, attrs in page.tags if attrs.get("class") == "warning"]
    assert len(warnings) >= 2
    text = (run_dir / "report.html").read_text("utf-8")
    assert "The charts show the first 12 of 70 variants." in text
    assert "The tables show the first 60 of 70 variants." in text
    names = {trace["name"] for trace in page.figures()["load"]["figure"]["data"]}
    assert names == {f"variant-{index}" for index in range(12)}
    assert max(len(row) for row in page.rows) == 7


def test_intervals_of_several_seeds_are_in_the_tables(tmp_path: Path) -> None:
    run_dir = small_run(tmp_path)
    summary = summary_of(run_dir)
    entry = summary["variants"]["paged"]
    entry["batch"]["mean"] = 5.25
    entry["intervals"] = {"batch.mean": [5.0, 5.5]}
    edit_json(run_dir / "summary.json", variants=summary["variants"])
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    assert page.row("batch, mean (requests)")[0] == "5.25 ± 0.25"
    assert page.texts["summary"].startswith("paged runs 5.2 ± 0.2 requests at once")


def test_a_run_of_several_seeds_shows_the_first_and_pools_the_requests(tmp_path: Path) -> None:
    scenario = """\
version: 1
engine: {max_num_seqs: 8, max_num_batched_tokens: 64, max_model_len: 64}
memory: {kind: paged, block_size: 4, num_blocks: 41}
clock: {kind: linear, base_s: 0.01, decode_s: 0.001}
workload:
  arrivals: {kind: poisson, rate_rps: 20}
  lengths:
    prompt: {kind: uniform, low: 4, high: 20}
    output: {kind: uniform, low: 4, high: 20}
  num_requests: 40
seeds: [0, 1]
"""
    from kvsim.scenario import load_scenario
    from kvsim.scenario.run import run_scenario

    (tmp_path / "seeds.yaml").write_text(scenario)
    run_scenario(load_scenario(str(tmp_path / "seeds.yaml")), out=tmp_path / "run", workers=1)
    text = write_report(tmp_path / "run").path.read_text("utf-8")
    assert "Seed 0 of 2." in text
    assert "Drawn from up to 80 requests" in text
    assert "Means over 2 seeds ± half the width of their 95 % interval." in text


@pytest.mark.parametrize("mode", ["summary", "series"])
def test_a_run_without_rows_of_steps_still_has_a_report(tmp_path: Path, mode: str) -> None:
    from tests.report.reports import SCENARIO

    run_dir = small_run(tmp_path, SCENARIO + f"record: {{mode: {mode}, interval_s: 0.5}}\n")
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    drawn = set(page.figures())
    everything = {"memory", "load", "latency", "block_size", "waterfall", "map"}
    assert drawn == ({"waterfall"} if mode == "summary" else everything)
    assert page.row("steps with a queue (%)") == ["83.0", "95.3", "94.2"]
    assert page.row("binds")[1] == "memory"


def test_a_scenario_that_cannot_be_read_costs_its_limits_only(tmp_path: Path) -> None:
    run_dir = small_run(tmp_path)
    (run_dir / "scenario.yaml").write_text("version: 99\n")
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    assert page.row("compute would allow (decodes)") == ["-", "-", "-"]
    assert page.row("live (%)")


def test_the_scenario_and_a_quoted_command_to_run_it_again_are_shown(tmp_path: Path) -> None:
    folder = tmp_path / "it's; rm -rf $HOME"
    folder.mkdir()
    run_dir = small_run(folder)
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    import shlex

    path = str(run_dir / "scenario.yaml")
    assert shlex.split(page.texts["command"]) == ["kvsim", "run", path]
    assert page.texts["scenario"] == Path(path).read_text()


@pytest.mark.parametrize(
    ("workload", "named"),
    [
        ("{trace: azure-conv-2023}", True),
        ("{sosp23: {trace: sharegpt-opt-lengths, rate_rps: 2}}", True),
        ("{sosp23: {preset: sharegpt, rate_rps: 2}}", False),
        ("{lengths: {trace: sharegpt-opt-lengths}, LAW}", True),
        ("{lengths: {preset: sharegpt}, LAW}", False),
        ("{lengths: {path: trace.csv}, LAW}", False),
        ("{preset: azure-conv-2023}", False),
        ("{path: trace.csv}", False),
    ],
)
def test_whoever_runs_it_again_is_told_of_a_named_trace(
    tmp_path: Path, workload: str, named: bool
) -> None:
    run_dir = small_run(tmp_path)
    resolved = run_dir / "scenario.yaml"
    law = "arrivals: {kind: poisson, rate_rps: 2}, num_requests: 5"
    (run_dir / "trace.csv").write_text("prompt_tokens,output_tokens\n1,1\n")
    text = SCENARIO.replace("{path: trace.csv}", workload.replace("LAW", law))
    assert text.count(workload.split()[0]) == 1
    resolved.write_text(text)
    page = write_report(run_dir).path.read_text("utf-8")
    assert ("It reads a named trace from the folder" in page) is named


def test_a_reason_that_rejected_no_request_counts_0(page: Page) -> None:
    assert page.row("never_fits") == ["0", "0", "0"]


def test_the_same_run_gives_the_same_page(run_dir: Path, tmp_path: Path) -> None:
    pages = [write_report(run_dir, tmp_path / name).path.read_bytes() for name in "ab"]
    assert pages[0] == pages[1]


def test_a_page_is_replaced_only_by_a_complete_one(
    run_dir: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "page.html"
    out.write_text("old")

    def full(self: Path, content: bytes) -> int:
        self.open("wb").close()
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(Path, "write_bytes", full)
    with pytest.raises(InputError, match="No space left on device"):
        write_report(run_dir, out)
    assert [path.name for path in tmp_path.iterdir()] == ["page.html"]
    assert out.read_text() == "old"


def test_a_page_cannot_be_written_into_a_missing_folder(run_dir: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError) as caught:
        write_report(run_dir, tmp_path / "missing" / "page.html")
    assert "--out" in (caught.value.fix or "")


def test_an_empty_run_has_a_page(tmp_path: Path) -> None:
    run_dir = small_run(tmp_path, requests=1)
    folder = run_dir / "variants" / "paged"
    from kvsim.results.rows import STEP_COLUMNS, StepsRecorder
    from kvsim.results.run_folder import _write_parquet
    from tests.results.fakes import FakeAllocator

    steps = StepsRecorder(FakeAllocator()).columns()
    assert set(steps) == set(STEP_COLUMNS)
    _write_parquet(steps, folder / "steps.parquet")
    _write_parquet(RequestsRecorder().columns(), folder / "requests.parquet")
    page = Page(write_report(run_dir).path.read_text("utf-8"))
    assert page.row("steps with a queue (%)")[0] == "0.0"
