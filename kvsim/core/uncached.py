"""What an allocator without a prefix cache answers."""

from __future__ import annotations

from collections.abc import Sequence as Seq

from kvsim.core.protocols import NO_HIT, Hit
from kvsim.core.request import Sequence


class Uncached:
    """Nothing is ever found, nothing needs a content."""

    seals_ahead = False

    def lookup(self, sequence: Sequence) -> Hit:
        """No cached tokens."""
        return NO_HIT

    def seal(self, sequence: Sequence, upto: int) -> None:
        """Nothing to do."""

    def seal_bulk(self, sequences: Seq[Sequence]) -> None:
        """Nothing to do."""

    def prefix_counts(self) -> dict[str, int] | None:
        """No cache."""
        return None

    def horizon(self, sequence: Sequence, computed: int) -> int:
        """Never asked: appends are regular."""
        raise NotImplementedError
