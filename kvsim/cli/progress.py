"""A progress bar on stderr, where stderr is a terminal."""

from __future__ import annotations

import sys
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from kvsim.cli.console import say


class ConsoleWatcher:
    """Shows one bar per variant; notes are printed in any case."""

    def __init__(self) -> None:
        self._progress = Progress(
            TextColumn("{task.description}", markup=False),
            BarColumn(),
            MofNCompleteColumn(),
            TimeElapsedColumn(),
            console=Console(stderr=True),
            transient=True,
            disable=not sys.stderr.isatty(),
        )
        self._task = self._progress.add_task("", total=None, visible=False)

    def __enter__(self) -> ConsoleWatcher:
        self._progress.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._progress.stop()

    def note(self, text: str) -> None:
        """Print a line."""
        say(f"note: {text}")

    def start(self, variant: str, requests: int) -> None:
        """Start the bar of a variant."""
        self._progress.remove_task(self._task)
        self._task = self._progress.add_task(variant, total=requests)

    def advance(self, requests: int) -> None:
        """Move the bar."""
        self._progress.advance(self._task, requests)
