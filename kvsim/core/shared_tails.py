"""Partial blocks that several block tables end with."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq


class SharedTail:
    """A partially filled block that is the last one of several tables."""

    __slots__ = ("tails", "tokens")

    def __init__(self, tokens: int, tail: int) -> None:
        self.tokens = tokens
        """Slots filled: whoever writes the next one takes a copy first."""
        self.tails = [tail]
        """Slots of the block that each holder's final length leaves empty, in no order."""

    @property
    def never_filled(self) -> int:
        """Slots of the block that no holder would ever fill."""
        return min(self.tails)


def check_tails(
    tails: Mapping[int, SharedTail], holders: Mapping[int, int], ends: Mapping[int, Seq[int]]
) -> int:
    """Slots of last blocks that are never filled, once the shared ones are as the tables say.

    `holders` counts the table entries of each block, `ends` lists what each table that ends with a
    block would leave empty of it.
    """
    for block, tail in tails.items():
        assert sorted(tail.tails) == sorted(ends.get(block, [])), (
            f"tails of shared block {block} {tail.tails} != {ends.get(block)}"
        )
        assert holders[block] == len(tail.tails) > 1, f"block {block} is not a shared tail"
    return sum(min(own) if block in tails else sum(own) for block, own in ends.items())
