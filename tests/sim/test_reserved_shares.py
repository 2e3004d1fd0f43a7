"""Closed form 2: what reserved memory holds, on average over iterations (FIELD.md section 3)."""

from __future__ import annotations

import csv
import gzip
import random
from pathlib import Path
from typing import NamedTuple

import pytest

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler

MAX_LEN = 2048


class Shares(NamedTuple):
    tokens: float
    reservation: float
    internal: float


def simulated(lengths: list[tuple[int, int]], reserve: str) -> Shares:
    """Shares of the reserved slots, summed over every iteration of every request."""
    batch = 1000
    blocks = batch * MAX_LEN
    allocator = ContiguousAllocator(
        blocks, 1, max_model_len=MAX_LEN, reserve=reserve, placement="first_fit"
    )
    scheduler = VllmScheduler(
        allocator, max_num_seqs=batch, max_num_batched_tokens=blocks, max_model_len=MAX_LEN
    )
    for index, (prompt, output) in enumerate(lengths):
        scheduler.add(Request(f"r{index}", 0, prompt, output))
    live = final = reserved = 0
    while scheduler.has_work():
        plan = scheduler.schedule()
        live += plan.live_tokens
        final += allocator.usage.final_tokens
        reserved += allocator.usage.reserved_tokens
        scheduler.complete(plan)
    return Shares(live / reserved, (final - live) / reserved, (reserved - final) / reserved)


def closed_form(lengths: list[tuple[int, int]], reserve: str) -> Shares:
    tokens = reservation = reserved = 0
    for prompt, output in lengths:
        power = 1
        while power < output:
            power *= 2
        estimate = {"max": MAX_LEN, "pow2": prompt + power, "oracle": prompt + output}[reserve]
        tokens += prompt * output + output * (output - 1) // 2
        reservation += output * (output + 1) // 2
        reserved += min(estimate, MAX_LEN) * output
    internal = reserved - tokens - reservation
    return Shares(tokens / reserved, reservation / reserved, internal / reserved)


@pytest.mark.parametrize("reserve", ["max", "pow2", "oracle"])
def test_simulated_shares_equal_the_closed_form(reserve: str) -> None:
    generator = random.Random(5)
    lengths = [(generator.randint(1, 900), generator.randint(1, 900)) for _ in range(700)]
    assert simulated(lengths, reserve) == pytest.approx(closed_form(lengths, reserve), rel=1e-12)


@pytest.mark.parametrize(
    ("reserve", "published"),
    [
        ("max", (22.42, 14.10, 63.48)),
        ("pow2", (46.86, 29.47, 23.67)),
        ("oracle", (61.39, 38.61, 0.0)),
    ],
)
def test_shares_of_the_sharegpt_lengths_are_the_published_ones(
    reserve: str, published: tuple[float, float, float], shared: Path
) -> None:
    """ShareGPT with OPT's tokenizer, prompt + output < 2048; E[S] = 155,182.94 token-steps."""
    with gzip.open(shared / "traces" / "sharegpt_opt_lengths.csv.gz", "rt") as file:
        rows = [tuple(map(int, row)) for row in list(csv.reader(file))[1:]]
    lengths = [(prompt, output) for prompt, output, *_ in rows if prompt + output < MAX_LEN]
    token_steps = sum(p * o + o * (o - 1) // 2 for p, o in lengths) / len(lengths)
    assert round(token_steps, 2) == 155_182.94
    shares = simulated(lengths[::7], reserve)
    assert shares == pytest.approx(closed_form(lengths[::7], reserve), rel=1e-12)
    assert [round(100 * share, 2) for share in closed_form(lengths, reserve)] == list(published)
