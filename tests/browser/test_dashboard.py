from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import pytest

from apps.dashboard import uploads
from kvsim.scenario.loader import load_scenario
from kvsim.scenario.run import run_scenario
from tests.browser.dashboards import WAIT_MS, Visit, dashboard
from tests.dashboard.configs import CONFIG

pytestmark = [pytest.mark.browser, pytest.mark.slow]
Enter = Callable[..., Visit]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What the dashboard keeps."""
    return tmp_path_factory.mktemp("dashboard")


@pytest.fixture(scope="module")
def address(folder: Path) -> Iterator[str]:
    pytest.importorskip("streamlit", reason="needs kvsim[dashboard]")
    with dashboard(folder) as url:
        yield url


@pytest.fixture(scope="module")
def made_runs(folder: Path) -> tuple[str, str]:
    """Two runs of the same requests, the second on fewer blocks."""
    names = ("chat-600", "chat-400")
    for name in names:
        settings = [f"memory.num_blocks={name[-3:]}", "workload.num_requests=120", "name=chat"]
        scenario = load_scenario("quickstart", settings)
        run_scenario(scenario, out=folder / "runs" / name, workers=1)
    return names


@pytest.fixture
def enter(browser: Any, address: str, screenshots: Path) -> Iterator[Enter]:
    """Opens pages; after the test, none of them may have asked anything of another machine."""
    visits: list[Visit] = []

    def entered(path: str = "/", **context: Any) -> Visit:
        visit = Visit(browser, address, screenshots, **context)
        visits.append(visit)
        visit.open(path)
        return visit

    yield entered
    for visit in visits:
        visit.context.close()
        assert visit.outside == []


def test_from_a_model_that_does_not_fit_to_a_command_to_paste(enter: Enter) -> None:
    visit = enter("/?model=llama-3.1-70b&gpu=a100-40gb&tp=2")
    assert "Does not fit" in visit.text()
    visit.page.get_by_role("button", name="Apply").first.click()
    visit.page.get_by_text("Fits", exact=True).wait_for(timeout=WAIT_MS)
    visit.settle()
    code = visit.page.locator("[data-testid=stCode]").filter(has_text="vllm serve")
    code.hover()
    code.get_by_role("button").first.click()
    pasted = visit.page.evaluate("navigator.clipboard.readText()")
    assert pasted.startswith("vllm serve meta-llama/Meta-Llama-3.1-70B --tensor-parallel-size")
    assert pasted == code.inner_text().strip()
    visit.shot("capacity")


def test_a_link_restores_the_page_in_another_browser(enter: Enter) -> None:
    first = enter("/")
    box = first.page.get_by_role("combobox", name="GPU", exact=False).first
    box.click()
    first.page.get_by_role("option", name="a100-80gb", exact=True).click()
    first.settle()
    first.page.get_by_label("max_num_seqs").fill("64")
    first.page.keyboard.press("Tab")
    first.settle()
    first.page.get_by_text("Copy link").click()
    link = first.page.locator("[data-testid=stPopoverBody] code").inner_text().strip()
    assert "gpu=a100-80gb" in link
    assert "seqs=64" in link
    second = enter(link.removeprefix(first.address))
    assert second.figures() == first.figures()
    assert "--max-num-seqs 64" in second.text()
    second.shot("deep-link")


def test_a_broken_config_shows_the_error_and_keeps_the_page(enter: Enter, tmp_path: Path) -> None:
    visit = enter("/")
    before = visit.figures()
    broken = tmp_path / "config.json"
    broken.write_text(json.dumps({**CONFIG, "hidden_size": "</script><img src=x>"}))
    visit.page.get_by_text("Upload a config.json").click()
    visit.page.locator("input[type=file]").set_input_files(str(broken))
    visit.settle()
    visit.page.get_by_role("button", name="Use this model").click()
    visit.page.locator("[data-testid=stAlert]").filter(has_text="hidden_size").wait_for(
        timeout=WAIT_MS
    )
    visit.settle()
    assert visit.figures() == before
    visit.shot("broken-config")


def _start(visit: Visit) -> None:
    visit.page.get_by_role("button", name="Start the run").click()
    visit.settle()


def test_a_run_is_cancelled_and_run_again_to_its_report(enter: Enter, address: str) -> None:
    visit = enter("/run?scenario=quickstart")
    visit.page.get_by_label("Requests", exact=True).fill("400000")
    visit.page.keyboard.press("Tab")
    visit.settle()
    _start(visit)
    visit.page.get_by_text("requests,").first.wait_for(timeout=WAIT_MS)
    visit.shot("run-under-way")
    visit.page.get_by_role("button", name="Cancel").click()
    visit.page.get_by_text("This run was cancelled").wait_for(timeout=WAIT_MS)
    visit.settle()
    visit.page.get_by_text("Scenario and settings").click()
    visit.page.get_by_label("Requests", exact=True).fill("150")
    visit.page.keyboard.press("Tab")
    visit.settle()
    _start(visit)
    visit.page.get_by_role("tab", name="Physical map").wait_for(timeout=WAIT_MS)
    visit.settle()
    assert "opened=quickstart-" in visit.page.url
    visit.shot("run-report")
    again = enter(visit.page.url.removeprefix(address))
    again.page.get_by_role("tab", name="Physical map").wait_for(timeout=WAIT_MS)


def test_two_runs_are_compared_and_the_map_steps_through_time(
    enter: Enter, made_runs: tuple[str, str]
) -> None:
    first, second = made_runs
    visit = enter(f"/fragmentation?run={first}&run={second}")
    visit.page.get_by_role("heading", name="Physical map").wait_for(timeout=WAIT_MS)
    visit.settle()
    for heading in ("Memory over time", "Where the memory goes", "From one to the other"):
        assert heading in visit.text()
    slider = visit.page.get_by_role("slider").last
    slider.scroll_into_view_if_needed()
    before = slider.get_attribute("aria-valuetext")
    slider.press("ArrowLeft")
    visit.settle()
    assert slider.get_attribute("aria-valuetext") != before
    assert "moment=" in visit.page.url
    visit.page.locator(".js-plotly-plot .barlayer").last.wait_for(timeout=WAIT_MS)
    visit.shot("fragmentation")


def test_a_broken_trace_shows_the_error_and_keeps_the_page(enter: Enter, tmp_path: Path) -> None:
    visit = enter("/traces?from=upload")
    broken = tmp_path / "trace.csv"
    broken.write_text("arrival_s,prompt_tokens,output_tokens\n0,10,</script><img src=x>\n")
    visit.page.locator("input[type=file]").set_input_files(str(broken))
    alert = visit.page.locator("[data-testid=stAlert]").filter(has_text="output_tokens")
    alert.first.wait_for(timeout=WAIT_MS)
    visit.settle()
    assert "trace.csv:2" in alert.first.inner_text()
    assert visit.page.locator("img[src=x]").count() == 0
    visit.shot("broken-trace")
    visit.open("/traces")
    assert "azure-conv-2023" in visit.text()


PAGES = {
    "": "/?whatif=kv_cache_dtype=fp8&whatif=tp=2",
    "run": "/run",
    "fragmentation": "/fragmentation?run=chat-600&shown=chat-600+%C2%B7+paged",
    "traces": "/traces",
    "lab": "/lab",
    "validation": "/validation",
    "recordings": "/recordings",
}


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_page_is_drawn_in_light_and_dark(
    enter: Enter, scheme: str, made_runs: tuple[str, str]
) -> None:
    visit = enter("/", color_scheme=scheme)
    for name, address in PAGES.items():
        visit.open(address)
        assert "Traceback" not in visit.text()
        assert visit.page.locator("[data-testid=stException]").count() == 0, name
        assert visit.page.evaluate("document.documentElement.scrollWidth") <= 1280, name
        visit.shot(f"{name or 'capacity'}-{scheme}")


def _copied(visit: Visit) -> str:
    """The link in the box, which is opened and closed."""
    visit.page.get_by_text("Copy link").click()
    link = str(visit.page.locator("[data-testid=stPopoverBody] code").inner_text()).strip()
    visit.page.keyboard.press("Escape")
    visit.settle()
    return link


def test_the_link_holds_what_was_moved_inside_a_part_of_the_page(
    enter: Enter, made_runs: tuple[str, str]
) -> None:
    visit = enter(f"/fragmentation?run={made_runs[0]}")
    visit.page.get_by_role("heading", name="Physical map").wait_for(timeout=WAIT_MS)
    visit.settle()
    links = [_copied(visit)]
    for _ in range(2):
        slider = visit.page.get_by_role("slider").last
        slider.scroll_into_view_if_needed()
        slider.press("ArrowLeft")
        visit.settle()
        links.append(_copied(visit))
        assert links[-1] == visit.page.url
    assert ["moment=" in link for link in links] == [False, True, True]
    assert links[1] != links[2]
    visit.open(f"/run?opened={made_runs[0]}")
    visit.page.get_by_role("tab", name="Physical map").click()
    visit.settle()
    assert "view=Physical+map" in _copied(visit)


SHOWN = "[data-testid=stAlert], [data-testid=stCaptionContainer]"
HOSTILE = "http://evil.example/x HTTPS://evil.example www.evil.example/y a@b.example"


def test_addresses_in_texts_of_users_are_no_links(enter: Enter, folder: Path) -> None:
    text = f"version: 1\ndescription: {HOSTILE!r}\nmemory: {{kind: {HOSTILE!r}}}\n"
    scenario = uploads.keep(folder / "uploads", "scenario", "www.evil.example", text.encode())
    trace = uploads.keep(folder / "uploads", "trace", "a@b.example www.evil.example", b"x")
    whatif = urlencode({"whatif": HOSTILE})
    for path in (
        f"/?{whatif}",
        f"/run?scenario={scenario.upload_id}",
        f"/traces?from=upload&upload={trace.upload_id}",
        "/recordings?log=www.evil.example+a@b.example+http://evil.example",
    ):
        visit = enter(path)
        visit.page.locator(SHOWN).filter(has_text="evil.example").first.wait_for(timeout=WAIT_MS)
        visit.settle()
        links = visit.page.locator("a[href]").evaluate_all("found => found.map(one => one.href)")
        assert [one for one in links if not one.startswith(visit.address)] == [], path
