"""A dashboard in a process of its own, and a browser page on it that notes every request."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

IDLE = "document.querySelector('[data-testid=stApp]')?.dataset.testScriptState === 'notRunning'"
WAIT_MS = 90_000


@contextmanager
def dashboard(data: Path, *words: str) -> Iterator[str]:
    """The address of `kvsim dashboard`, which ends with the block."""
    code = "from kvsim.cli import main; main()"
    command = [sys.executable, "-c", code, "dashboard", "--no-browser", "--json"]
    with subprocess.Popen(
        [*command, "--data", str(data), *words],
        stdout=subprocess.PIPE,
        text=True,
        env={name: value for name, value in os.environ.items() if name != "KVSIM_TRACES"},
    ) as process:
        assert process.stdout is not None
        try:
            said = json.loads("".join(iter(process.stdout.readline, "}\n")) + "}")
            yield said["url"]
        finally:
            process.send_signal(signal.SIGINT)
            process.wait(30)


class Visit:
    """A page of the browser; `outside` are the requests that left this machine."""

    def __init__(self, browser: Any, address: str, screenshots: Path, **context: Any) -> None:
        viewport = {"width": 1280, "height": 900}
        self.context = browser.new_context(viewport=viewport, accept_downloads=True, **context)
        self.context.grant_permissions(["clipboard-read", "clipboard-write"])
        self.page = self.context.new_page()
        self.address = address
        self.outside: list[str] = []
        self.page.on("request", self._note)
        self._screenshots = screenshots

    def _note(self, request: Any) -> None:
        if not request.url.startswith((self.address, "data:", "blob:")):
            self.outside.append(request.url)

    def open(self, path: str = "/") -> None:
        """Open a page and wait until it is drawn."""
        from playwright.sync_api import Error

        for _ in range(100):
            try:
                self.page.goto(self.address + path)
                break
            except Error as error:  # the server may not be up yet
                if "ERR_CONNECTION_REFUSED" not in str(error):
                    raise
                self.page.wait_for_timeout(200)
        self.settle()

    def settle(self) -> None:
        """Wait until the page's script has run and nothing changes any more."""
        self.page.wait_for_selector("[data-testid=stHeading]", timeout=WAIT_MS)
        before, until = "", time.monotonic() + WAIT_MS / 1000
        while time.monotonic() < until:
            self.page.wait_for_timeout(300)  # a change reaches the server first
            self.page.wait_for_function(IDLE, timeout=WAIT_MS)
            now = str(self.page.inner_text("[data-testid=stApp]"))
            if now == before:
                return
            before = now

    def shot(self, name: str) -> None:
        """The page, or the upper part of a long one, as a picture for a person to read."""
        height = self.page.evaluate("document.querySelector('[data-testid=stMain]').scrollHeight")
        self.page.set_viewport_size({"width": 1280, "height": min(max(900, height + 80), 2600)})
        self.page.wait_for_timeout(800)
        self.page.screenshot(path=str(self._screenshots / f"dashboard-{name}.png"))
        self.page.set_viewport_size({"width": 1280, "height": 900})

    def figures(self) -> list[str]:
        """The large figures of the page, which has some."""
        self.page.locator("[data-testid=stMetricValue]").first.wait_for(timeout=WAIT_MS)
        self.settle()
        return list(self.page.locator("[data-testid=stMetricValue]").all_inner_texts())

    def text(self) -> str:
        """What the page says."""
        return str(self.page.inner_text("[data-testid=stMain]"))
