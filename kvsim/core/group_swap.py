"""Preemption by swap: which groups go to host memory, and which of them comes back next.

Sources: SOSP'23 section 4.5 (all sequences of a group are swapped together, nothing is admitted
until all of them are back) and vLLM's V0 engine (`swap_space`).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

from kvsim.core.group_memory import GroupMemory, SwapMemory
from kvsim.core.plan import Transfer
from kvsim.core.sequence_group import SequenceGroup

PREEMPTIONS = ("recompute", "swap", "auto")

SwapIsCheaper = Callable[[int, int, int], bool]
"""(tokens, blocks, recompute_tokens): whether moving so many tokens in so many blocks out and back
takes less time than computing `recompute_tokens` tokens again."""


class GroupSwap:
    """Swapped groups in the order in which they come back, and counts since the start."""

    def __init__(self, memory: SwapMemory, is_cheaper: SwapIsCheaper | None) -> None:
        """Without `is_cheaper` every group is swapped."""
        self.waiting: deque[SequenceGroup] = deque()
        """First come first served: whoever is preempted was admitted before all that are here."""
        self._memory = memory
        self._is_cheaper = is_cheaper
        self._counts = {
            "swapped_out_groups": 0,
            "swapped_in_groups": 0,
            "swapped_out_blocks": 0,
            "swapped_in_blocks": 0,
            "swapped_out_tokens": 0,
            "swapped_in_tokens": 0,
            "recomputed_for_lack_of_host_blocks": 0,
        }

    def move_out(self, group: SequenceGroup) -> Transfer | None:
        """Swap a preempted group out. None if it is to be recomputed; nothing changed then.

        A group whose known tokens do not fit the whole memory could never come back, so it is not
        swapped.
        """
        branches, memory = group.active, self._memory
        if not memory.fits_empty(branches, group.missing()):
            return None
        tokens, blocks = memory.footprint(branches)
        if self._is_cheaper is not None and not self._is_cheaper(
            tokens, blocks, group.recompute_tokens()
        ):
            return None
        transfer = memory.swap_out(branches)
        if transfer is None:
            self._counts["recomputed_for_lack_of_host_blocks"] += 1
            return None
        self.waiting.appendleft(group)
        self._count("out", transfer)
        return transfer

    def head_fits(self, new_tokens: list[int], free_blocks: int) -> bool:
        """Whether the next group and its tokens fit so many blocks."""
        return self._memory.blocks_to_swap_in(self.waiting[0].active, new_tokens) <= free_blocks

    def move_in(self) -> Transfer:
        """Swap the next group in. The caller has asked whether it fits."""
        transfer = self._memory.swap_in(self.waiting.popleft().active)
        assert transfer is not None
        self._count("in", transfer)
        return transfer

    def _count(self, way: str, transfer: Transfer) -> None:
        self._counts[f"swapped_{way}_groups"] += 1
        self._counts[f"swapped_{way}_blocks"] += transfer.blocks
        self._counts[f"swapped_{way}_tokens"] += transfer.tokens

    def counts(self) -> dict[str, int]:
        """Groups, blocks and tokens moved each way, and the most host blocks held."""
        return {**self._counts, "peak_host_blocks": self._memory.peak_host_blocks()}


def swap_for(
    preemption: str, memory: GroupMemory, is_cheaper: SwapIsCheaper | None
) -> GroupSwap | None:
    """What swaps for a scheduler; None for `recompute`.

    Raises `ValueError` for an unknown `preemption`, memory that cannot swap, and `auto` without a
    comparison.
    """
    if preemption not in PREEMPTIONS:
        raise ValueError(f"preemption (={preemption!r}) must be one of {PREEMPTIONS}")
    if preemption == "recompute":
        return None
    if not isinstance(memory, SwapMemory):
        raise ValueError(f"preemption (={preemption!r}) needs memory that can swap")
    if preemption == "swap":
        return GroupSwap(memory, None)
    if is_cheaper is None:
        raise ValueError("preemption auto needs swap_is_cheaper")
    return GroupSwap(memory, is_cheaper)
