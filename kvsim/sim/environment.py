"""SimPy's environment, with a way to let time pass without an event."""

from __future__ import annotations

import simpy


class Environment(simpy.Environment):
    """A busy replica spends most of its time in steps during which nothing else happens."""

    def passes(self, now: int) -> bool:
        """Move time on to `now` if nothing is due until then, that moment included.

        False, and nothing moved, where something is. A time that has passed already moves nothing.
        """
        if self.peek() <= now:
            return False
        self._now = max(now, self.now)
        return True
