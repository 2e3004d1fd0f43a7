"""What a block size costs: slots left empty in last blocks, and blocks to look up.

Closed form over the lengths that requests really go through (no simulation): a sequence of length
l leaves `B * ceil(l / B) - l` slots of its last block empty. Over B consecutive lengths the mean is
(B - 1) / 2; real lengths deviate once B nears the length.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

from kvsim.report.export_csv import csv_lines
from kvsim.workload.prefix import Rounding

MAX_BLOCK_SIZE = 256


class BlockSizeCurve(NamedTuple):
    """For the block sizes 1 to `MAX_BLOCK_SIZE`, averaged over every step of every request."""

    sizes: Any
    empty_slots: Any
    """Mean empty slots in the last block of a running request."""
    blocks: Any
    """Mean blocks of a running request: what its block table lists."""
    mean_tokens: float
    """Mean KV length of a running request."""


def block_size_curve(prompts: Any, outputs: Any) -> BlockSizeCurve | None:
    """The curve of requests with these numbers of prompt and output tokens (arrays, tokens).

    A request goes through the lengths prompt .. prompt + output - 1, one step each. None without
    any step.
    """
    prompts = np.asarray(prompts, dtype=np.int64)
    outputs = np.asarray(outputs, dtype=np.int64)
    kept = (outputs > 0) & (prompts > 0)
    first, last = prompts[kept], prompts[kept] + outputs[kept] - 1
    steps = int((last - first + 1).sum())
    if not steps:
        return None
    tokens = float(((last - first + 1.0) * (first + last) / 2).sum()) / steps
    sizes = np.arange(1, MAX_BLOCK_SIZE + 1)
    lows, low_counts = np.unique(first - 1, return_counts=True)
    highs, high_counts = np.unique(last, return_counts=True)
    waste = np.array(
        [
            (_waste_up_to(highs, size) * high_counts).sum()
            - (_waste_up_to(lows, size) * low_counts).sum()
            for size in sizes.tolist()
        ]
    )
    empty = waste / steps
    return BlockSizeCurve(sizes, empty, (tokens + empty) / sizes, tokens)


def curve_csv(curve: BlockSizeCurve) -> bytes:
    """The curve: UTF-8, RFC 4180; slots and blocks per running request."""
    columns = (curve.sizes, curve.empty_slots, curve.blocks)
    rows = zip(*(column.tolist() for column in columns), strict=True)
    return b"".join(csv_lines(("block_size_tokens", "empty_slots", "blocks"), list(rows)))


def rounding_csv(rows: Sequence[Rounding], prompt_tokens: int) -> bytes:
    """Where the prompt tokens go at each block size, in tokens, and their shares."""
    names = ("block_size_tokens", "prompt_tokens", "hit_tokens", "rounding_tokens")
    more = ("last_token_tokens", "repeating_requests", "rounding_share", "lost_per_repeat_tokens")
    lines = (
        (
            one.block_size,
            prompt_tokens,
            one.hit,
            one.rounding,
            one.last_token,
            one.repeats,
            one.rounding / prompt_tokens if prompt_tokens else None,
            one.lost_per_repeat,
        )
        for one in rows
    )
    return b"".join(csv_lines((*names, *more), lines))


def _waste_up_to(length: Any, size: int) -> Any:
    """Sum of `size * ceil(l / size) - l` over l = 1 .. length, elementwise."""
    full, rest = np.divmod(length, size)
    return full * (size * (size - 1) / 2.0) + rest * size - rest * (rest + 1) // 2
