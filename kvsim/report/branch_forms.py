"""Closed forms of what branches of one request share, block by block (SOSP'23, section 4.4).

A request has P prompt tokens; after step j (j = 0 is the prefill) each of its k branches has KV of
P + j tokens. Whole prompt blocks exist once. A block behind them exists once for every distinct
ancestor, at the block's last token, of the branches of now: k times where each branch continues
itself, fewer times where survivors are drawn.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from kvsim.errors import InputError

Floats = npt.NDArray[np.float64]
Kind = Literal["parallel", "independent", "wright_fisher", "prefix"]
KINDS: tuple[Kind, ...] = ("parallel", "independent", "wright_fisher", "prefix")
"""Samples; beams that continue themselves; beams drawn uniformly; requests with a common prefix."""
MAX_WIDTH, MAX_TOKENS, MAX_BLOCK_SIZE = 64, 8192, 256


class Sharing(NamedTuple):
    """One experiment: who shares what.

    `prompt_tokens` are common to all of `width`; with the kind `prefix` each of them has
    `own_tokens` of prompt behind these, otherwise the field means nothing.
    """

    kind: Kind
    width: int
    prompt_tokens: int
    output_tokens: int
    block_size: int
    own_tokens: int = 1


class BlockCounts(NamedTuple):
    """Of every step: blocks counted for each holder, blocks counted once, copies made so far."""

    logical: Floats
    physical: Floats
    copies: Floats

    @property
    def saving(self) -> float:
        """Share of the blocks that sharing saves, over all steps: `1 - sum physical / logical`."""
        return 1 - float(self.physical.sum() / self.logical.sum())


def check_sharing(one: Sharing) -> None:
    """Raise `InputError` unless the experiment can be run."""
    limits = {
        "width": (one.width, 1, MAX_WIDTH),
        "prompt_tokens": (one.prompt_tokens, 1, MAX_TOKENS),
        "output_tokens": (one.output_tokens, 2, MAX_TOKENS),
        "block_size": (one.block_size, 1, MAX_BLOCK_SIZE),
        "own_tokens": (one.own_tokens, 1, MAX_TOKENS),
    }
    for name, (value, low, high) in limits.items():
        if not low <= value <= high:
            raise InputError(
                f"must be from {low} to {high:,}, got {value:,}", where=name, fix="Change it"
            )
    if one.kind not in KINDS:
        raise InputError(
            f"must be one of {', '.join(KINDS)}, got {one.kind!r}", where="kind", fix="Change it"
        )


def expected_ancestors(width: int, generations: int) -> list[float]:
    """Mean distinct ancestors of `width` beams 0, 1, ... `generations` selections back.

    Every survivor draws its parent uniformly (neutral Wright-Fisher). Exact: the number of
    different parents of a lines is that of a throws into `width` boxes that hit different ones.
    """
    hits = np.zeros((width + 1, width + 1))
    hits[0, 0] = 1.0
    boxes = np.arange(width + 1)
    for lines in range(1, width + 1):
        hits[lines] = hits[lines - 1] * boxes / width
        hits[lines, 1:] += hits[lines - 1, :-1] * (width - boxes[:-1]) / width
    lines_left = np.zeros(width + 1)
    lines_left[width] = 1.0
    means = []
    for _ in range(generations + 1):
        means.append(float(lines_left @ boxes))
        lines_left = lines_left @ hits
    return means


def closed_form(one: Sharing) -> BlockCounts:
    """The counts of every step, exactly; with `wright_fisher` their expectations.

    Raises `InputError` as `check_sharing` does.
    """
    check_sharing(one)
    if one.kind == "prefix":
        return _prefix(one)
    size, prompt, width = one.block_size, one.prompt_tokens, one.width
    ancestors = np.full(one.output_tokens + 1, float(width))
    if one.kind == "wright_fisher":
        ancestors = np.array(expected_ancestors(width, one.output_tokens))
    whole = prompt // size
    logical, physical, copies = [], [], []
    copied = 0.0
    for step in range(one.output_tokens):
        tokens = prompt + step
        blocks = -(-tokens // size)
        if step == 0:
            logical.append(blocks)
            physical.append(float(blocks))
        else:
            if (tokens - 1) % size:  # the last block was partial and shared: all but one copy it
                copied += width - (1.0 if step == 1 else float(ancestors[1]))
            ends = np.minimum(np.arange(whole + 1, blocks + 1) * size, tokens)
            logical.append(width * blocks)
            physical.append(whole + float(ancestors[tokens - ends].sum()))
        copies.append(copied)
    return BlockCounts(np.array(logical, float), np.array(physical), np.array(copies))


def _prefix(one: Sharing) -> BlockCounts:
    """Requests that find the first one's whole prefix blocks: each saves `p // B` (form 6).

    The first one is a step ahead: the others come once its prompt is computed.
    """
    steps = np.arange(one.output_tokens)
    tokens = one.prompt_tokens + one.own_tokens + steps
    first = -(-tokens // one.block_size)
    later = np.where(steps > 0, -(-(tokens - 1) // one.block_size), 0) * (one.width - 1)
    saved = np.where(steps > 0, (one.width - 1) * (one.prompt_tokens // one.block_size), 0)
    logical = (first + later).astype(float)
    return BlockCounts(logical, logical - saved, np.zeros(len(steps)))


def bounds(one: Sharing) -> tuple[Floats, Floats]:
    """Least and most physical blocks that `width` beams of any ancestry hold, step by step.

    At most as many as samples that share the prompt only; at least all but the last block of every
    beam once (FIELD: closed form 5).
    """
    most = closed_form(one._replace(kind="independent"))
    least = most.logical / one.width - 1 + one.width
    least[0] = most.physical[0]  # nothing is forked yet
    return least, most.physical
