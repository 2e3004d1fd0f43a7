"""Partial blocks that several block tables end with."""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Sequence as Seq

from kvsim.core.accounting import Usage


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


def check_holders(holders: Mapping[int, int], extra: int) -> None:
    """Table entries are as many as the blocks and their holders beyond the first each."""
    held, entries = len(holders), sum(holders.values())
    assert entries == held + extra, f"table entries {entries} != reference counts {held + extra}"
    assert held <= entries, f"physical blocks {held} > logical {entries}"


def check_usage(
    usage: Usage,
    tails: Mapping[int, SharedTail],
    holders: Mapping[int, int],
    ends: Mapping[int, Seq[int]],
    block_size: int,
) -> None:
    """`usage` is what the tables say; `holders` and `ends` as in `check_tails`."""
    slots = len(holders) * block_size
    assert slots == usage.allocated, f"slots held {slots} != usage.allocated {usage.allocated}"
    never = check_tails(tails, holders, ends)
    assert never == usage.internal_tail, (
        f"never filled tails {never} != usage.internal_tail {usage.internal_tail}"
    )
    shared = sum(
        (count - 1) * (tails[block].tokens if block in tails else block_size)
        for block, count in holders.items()
    )
    assert shared == usage.shared, f"shared slots {shared} != usage.shared {usage.shared}"
