"""Host memory for the KV of swapped sequence groups."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from collections.abc import Sequence as Seq
from itertools import chain

from kvsim.core.request import Sequence

SWAP_OUT, SWAP_IN = "swap_out", "swap_in"
"""Links of the transfers to the host and back."""


def distinct(tables: Iterable[Seq[int]]) -> list[int]:
    """Every block of some tables once, in the order in which it first appears."""
    return list(dict.fromkeys(chain.from_iterable(tables)))


def footprint(branches: Seq[Sequence], tables: Seq[Seq[int]], block_size: int) -> tuple[int, int]:
    """Filled slots and physical blocks of some tables, shared ones once."""
    filled = {
        block: min(block_size, branch.computed - index * block_size)
        for branch, table in zip(branches, tables, strict=True)
        for index, block in enumerate(table)
    }
    return sum(filled.values()), len(filled)


class HostPool:
    """Equal blocks in host memory and the tables of the sequences that are swapped out.

    Branches that shared a block on the device share its copy here. Any free block serves any
    sequence.
    """

    def __init__(self, num_blocks: int, block_size: int) -> None:
        """`block_size` is the device's, in slots. Raises `ValueError` for `num_blocks` < 0."""
        if num_blocks < 0:
            raise ValueError(f"host_blocks (={num_blocks}) must be >= 0")
        self.num_blocks = num_blocks
        self.block_size = block_size
        self.tables: dict[Sequence, list[int]] = {}
        """Host block ids by logical block index, of every sequence that is swapped out."""
        self.peak_blocks = 0
        """Most blocks ever held at once."""
        self._free = list(range(num_blocks - 1, -1, -1))
        self._holders: dict[int, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that nobody holds."""
        return len(self._free)

    @property
    def num_held(self) -> int:
        """Blocks that hold KV."""
        return len(self._holders)

    def num_entries(self) -> int:
        """Table entries: a block counts for every branch that holds it."""
        return sum(self._holders.values())

    def store(self, branches: Seq[Sequence], device_tables: Seq[Seq[int]]) -> None:
        """Give each branch a table like its device table. The caller has checked the room."""
        blocks = distinct(device_tables)
        copies = {block: self._free.pop() for block in blocks}
        for branch, device_table in zip(branches, device_tables, strict=True):
            table = [copies[block] for block in device_table]
            self.tables[branch] = table
            for block in table:
                self._holders[block] = self._holders.get(block, 0) + 1
        self.peak_blocks = max(self.peak_blocks, self.num_held)

    def discard(self, sequence: Sequence) -> None:
        """Give up the sequence's table, if it has one."""
        for block in self.tables.pop(sequence, ()):
            self._holders[block] -= 1
            if not self._holders[block]:
                del self._holders[block]
                self._free.append(block)

    def blocks_to_return(self, branches: Seq[Sequence], new_tokens: Seq[int]) -> int:
        """Device blocks for these tables and the tokens that each branch writes behind them.

        Shared partial blocks that several branches write are copied but for the last of them.
        """
        tables = [self.tables[branch] for branch in branches]
        need = len(distinct(tables))
        tails = Counter(table[-1] for table in tables)
        writers: Counter[int] = Counter()
        for branch, table, tokens in zip(branches, tables, new_tokens, strict=True):
            need += -(-(branch.computed + tokens) // self.block_size) - len(table)
            if tokens and branch.computed % self.block_size:
                writers[table[-1]] += 1
        return need + sum(min(count, tails[block] - 1) for block, count in writers.items())

    def check_integrity(self) -> None:
        """Every block is free or held, never both, and held as often as the tables say."""
        held = Counter(chain.from_iterable(self.tables.values()))
        assert held == self._holders, (
            f"host table entries {dict(held)} != reference counts {self._holders}"
        )
        owned = sorted([*self._free, *held])
        assert owned == list(range(self.num_blocks)), (
            f"host blocks free and held {owned} are not 0..{self.num_blocks - 1}"
        )
