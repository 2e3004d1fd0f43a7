"""The synchronous engine without arrivals and rows, for comparing speeds."""

from __future__ import annotations

from typing import Any

from tests.reference.request import RefRequest
from tests.reference.scheduler import Output, ReferenceScheduler
from tests.reference.settings import Settings


class ReferenceLoop:
    """Call `schedule` and `complete` in turn until nothing waits or runs."""

    def __init__(self, config: dict[str, Any]) -> None:
        self.scheduler = ReferenceScheduler(Settings.of(config))
        self.output = Output(-1)

    @property
    def waiting(self) -> list[RefRequest]:
        return self.scheduler.waiting

    @property
    def running(self) -> list[RefRequest]:
        return self.scheduler.running

    def add(self, request: RefRequest) -> bool:
        return self.scheduler.add(request)

    def schedule(self) -> Output:
        self.output = self.scheduler.schedule(self.output.step + 1)
        return self.output

    def complete(self) -> list[str]:
        return [name for name, _ in self.scheduler.update(self.output).finished]
