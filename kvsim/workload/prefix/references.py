"""The blocks that requests look up and make, in items that are always used together."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from kvsim.workload.prefix.trace import PrefixTrace

Ints = npt.NDArray[np.int64]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True)
class References:
    """What the requests of a trace do to a cache of `block_size`-token blocks.

    An item is a run of blocks, one behind the other in a prompt, that the same requests use in the
    same way. Request i uses the items `items[starts[i]:starts[i + 1]]`, in prompt order:

    - the blocks up to the one with the prompt's last token are looked up, and made where they are
      not found;
    - that block, if the prompt fills it, and the blocks of generated tokens are always made
      (`made`): the last token is always computed, and vLLM computes the whole block with it;
    - `rest[i]` more blocks follow that no other request can use.
    """

    block_size: int
    starts: Ints
    items: Ints
    made: Bools
    weights: Ints
    """Blocks of each item."""
    rest: Ints
    needs: Ints
    """Blocks a request holds at its end, a partial last one included."""
    partial: Ints
    """1 where the last block is partial: it has no hash, so nothing finds it again."""

    @classmethod
    def of(cls, trace: PrefixTrace, block_size: int) -> References:
        """The references of every request of `trace`."""
        looked_up = (trace.prompts - 1) // block_size
        owners, nodes, low, high, made = _parts(trace, block_size, looked_up)
        atoms, places, owner, is_made = _atoms(owners, nodes, low, high, made)
        items, weights, keep = _merged(places, owner, is_made, atoms)
        full = trace.totals // block_size
        covered = np.zeros(len(trace), dtype=np.int64)
        np.maximum.at(covered, owners, high)
        counts = np.bincount(owner[keep], minlength=len(trace))
        return cls(
            block_size,
            np.concatenate([[0], np.cumsum(counts)]).astype(np.int64),
            items,
            is_made[keep],
            weights,
            full - covered,
            -(-trace.totals // block_size),
            (trace.totals % block_size > 0).astype(np.int64),
        )

    def __len__(self) -> int:
        return len(self.needs)

    @property
    def owners(self) -> Ints:
        """The request of each reference."""
        return np.repeat(np.arange(len(self)), np.diff(self.starts))


def _parts(
    trace: PrefixTrace, block_size: int, looked_up: Ints
) -> tuple[Ints, Ints, Ints, Ints, Bools]:
    """Blocks [low, high) of a node, looked up or made; a part of the trace gives two of these.

    A block belongs to the node of its last token, which stands for all tokens before it.
    """
    owners = np.repeat(trace.owners, 2)
    border = np.repeat(looked_up[trace.owners], 2)
    low, high = (np.repeat(tokens // block_size, 2) for tokens in (trace.begins, trace.ends))
    made = np.tile([False, True], len(trace.nodes))
    low = np.where(made, np.maximum(low, border), low)
    high = np.where(made, high, np.minimum(high, border))
    keep = high > low
    nodes = np.repeat(trace.nodes, 2)
    return owners[keep], nodes[keep], low[keep], high[keep], made[keep]


def _atoms(
    owners: Ints, nodes: Ints, low: Ints, high: Ints, made: Bools
) -> tuple[Ints, Ints, Ints, Bools]:
    """Cut nodes wherever some request stops or turns from looking up to making.

    Returns the weight of each atom, and of each reference the atom, the request, whether made.
    """
    step = int(high.max(initial=0)) + 1
    cuts = np.unique(nodes * step + high)
    first = np.searchsorted(cuts, nodes * step + low, side="right")
    count = np.searchsorted(cuts, nodes * step + high, side="right") - first
    node_low = np.full(int(nodes.max(initial=-1)) + 1, step, dtype=np.int64)
    np.minimum.at(node_low, nodes, low)
    begin = cuts % step
    begin[1:] = begin[:-1]
    is_first = np.append(True, cuts[1:] // step != cuts[:-1] // step)[: len(cuts)]
    begin[is_first] = node_low[cuts[is_first] // step]
    ends = np.cumsum(count)
    places = np.arange(ends[-1] if len(ends) else 0) + np.repeat(first - (ends - count), count)
    return cuts % step - begin, places, np.repeat(owners, count), np.repeat(made, count)


def _merged(places: Ints, owner: Ints, made: Bools, weights: Ints) -> tuple[Ints, Ints, Ints]:
    """Join atoms that follow each other in every request that has one of them.

    A request with a block has all blocks before it, so equally many references mean the same ones.
    Returns the items, their weights, and which references remain.
    """
    uses = np.bincount(places, minlength=len(weights)) * (len(owner) + 1)
    uses += np.bincount(places[made], minlength=len(weights))
    head = np.ones(len(places), dtype=np.bool_)
    head[1:] = (owner[1:] != owner[:-1]) | (uses[places[1:]] != uses[places[:-1]])
    keep = np.flatnonzero(head)
    sums = np.add.reduceat(weights[places], keep) if len(keep) else weights[:0]
    _, where, items = np.unique(places[keep], return_index=True, return_inverse=True)
    return items.astype(np.int64), sums[where], keep
