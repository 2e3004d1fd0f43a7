"""Who is told how a run gets on."""

from __future__ import annotations

from typing import Protocol


class Watcher(Protocol):
    """Is told how a run gets on."""

    def note(self, text: str) -> None:
        """Something the reader of the results must know."""

    def start(self, variant: str, requests: int) -> None:
        """A variant begins; `requests` will reach their end."""

    def advance(self, requests: int) -> None:
        """So many requests reached their end."""


class SilentWatcher:
    """Does not watch."""

    def note(self, text: str) -> None:
        """Nothing."""

    def start(self, variant: str, requests: int) -> None:
        """Nothing."""

    def advance(self, requests: int) -> None:
        """Nothing."""
