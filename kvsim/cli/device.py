"""What the commands that run a device share: the extra they need, and a bar of the time."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.scenario.replicas import ClockMaker
    from kvsim.scenario.settings import Scenario

PACKAGES = ("llvmlite", "numba", "scipy", "torch", "triton")


@contextmanager
def backend() -> Iterator[None]:
    """Around imports and calls of the GPU backend: a package that is missing is an input error."""
    try:
        yield
    except ModuleNotFoundError as error:
        if error.name is None or error.name.partition(".")[0] not in PACKAGES:
            raise
        raise InputError(
            f"needs {error.name}, which is not installed",
            where="device",
            fix="Install it with `pip install 'kvsim[gpu]'`",
        ) from None


@contextmanager
def share_bar(title: str) -> Iterator[Callable[[float], None]]:
    """A progress bar on stderr, where that is a terminal; it is told the share that is done."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    bar = Progress(
        TextColumn("{task.description}", markup=False),
        BarColumn(),
        TimeElapsedColumn(),
        console=Console(stderr=True),
        transient=True,
        disable=not sys.stderr.isatty(),
    )
    with bar:
        task = bar.add_task(title, total=1.0)
        yield lambda share: bar.update(task, completed=share)


def device_clocks(scenario: Scenario, device: str) -> ClockMaker:
    """Clocks that run the steps of this scenario on a device; `InputError` for what none runs."""
    with backend():
        from gpu_backend.scenario_clock import DeviceClocks

        return DeviceClocks(scenario, device)
