"""What branches of one request, or requests with one prefix, share: run on the real allocators."""

from __future__ import annotations

from collections.abc import Sequence as Seq
from typing import NamedTuple

import numpy as np

from kvsim.core.branches import BranchingAllocator
from kvsim.core.eviction import LruOrder
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Branching, Request
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.report.branch_forms import BlockCounts, Sharing, check_sharing, closed_form
from kvsim.report.export_csv import csv_lines
from kvsim.scenario.sampling import neutral_draw

WIDTHS = tuple(range(1, 9))
MAX_GROUPS = 100

SHARING_DEFINITIONS = {
    "logical blocks": "Blocks counted once for every branch (or request) that holds them: what"
    " there would be without sharing.",
    "physical blocks": "Blocks counted once, however many hold them: what the memory really gives.",
    "saving": "1 - sum of physical / sum of logical blocks, over all steps.",
    "copies": "Copies on write: a branch that writes into a partly filled block which others hold"
    " too gets a copy first; the last holder writes in place. Prefix caching shares full blocks"
    " only and never copies.",
    "step": "Step 0 computes the prompt. After step j a branch has KV of prompt + j tokens; the"
    " last sampled token never gets a slot, so the last step is output tokens - 1.",
    "parallel sampling": "n outputs of one prompt. Physical blocks floor(P/B) + n (ceil((P+j)/B) -"
    " floor(P/B)), logical n ceil((P+j)/B); n - 1 copies if the prompt does not fill its last"
    " block, else 0.",
    "beams, independent": "Each beam continues itself: the same blocks as samples.",
    "beams, wright_fisher": "Each survivor of a step continues a beam drawn uniformly: the neutral"
    " model. A block exists once per distinct ancestor of the beams at its last token; the formula"
    " is the exact expectation, the simulation the mean over groups.",
    "bounds": "Beams of any ancestry hold at most what samples hold, and at least all blocks but"
    " the last of every beam once.",
    "common prefix": "m requests that begin with the same p tokens, found in the prefix cache: (m -"
    " 1) floor(p/B) blocks are saved. The first request is a step ahead, so that the others find"
    " its blocks.",
}


class Simulated(NamedTuple):
    """Simulated groups of one experiment."""

    mean: BlockCounts
    """Over the groups."""
    last_physical: tuple[float, float]
    """Least and most physical blocks of a group in the last step."""
    last_copies: tuple[float, float]


class WidthRow(NamedTuple):
    """The last step for one number of branches, and the saving over all steps."""

    width: int
    formula: tuple[float, float, float]
    """Logical blocks, physical blocks, copies."""
    simulated: tuple[float, float, float]
    formula_saving: float
    simulated_saving: float


def simulate(one: Sharing, *, groups: int = 1, seed: int = 0) -> Simulated:
    """Run the experiment; only `wright_fisher` differs between groups, so others run once.

    Raises `InputError` for an experiment that cannot be run.
    """
    check_sharing(one)
    run = _prefix_run if one.kind == "prefix" else _group_run
    count = min(groups, MAX_GROUPS) if one.kind == "wright_fisher" and one.width > 1 else 1
    runs = [run(one, seed + index) for index in range(count)]
    means = [np.mean([counts[field] for counts in runs], axis=0) for field in range(3)]
    lasts = [float(counts.physical[-1]) for counts in runs]
    copies = [float(counts.copies[-1]) for counts in runs]
    return Simulated(BlockCounts(*means), (min(lasts), max(lasts)), (min(copies), max(copies)))


def by_width(
    one: Sharing, widths: Seq[int] = WIDTHS, *, groups: int = 1, seed: int = 0
) -> list[WidthRow]:
    """Formula and simulation for several numbers of branches, beams or requests."""
    rows = []
    for width in widths:
        chosen = one._replace(width=width)
        formula, found = closed_form(chosen), simulate(chosen, groups=groups, seed=seed).mean
        rows.append(WidthRow(width, _last(formula), _last(found), formula.saving, found.saving))
    return rows


def sharing_csv(rows: Seq[WidthRow]) -> bytes:
    """The rows: UTF-8, RFC 4180; blocks and copies of the last step, savings as shares of 1."""
    both = ("physical", "copies", "saving")
    measures = (f"{name}_{how}" for name in both for how in ("formula", "simulated"))
    names = ("width", "logical_blocks", *measures)
    lines = [
        (
            row.width,
            row.formula[0],
            row.formula[1],
            row.simulated[1],
            row.formula[2],
            row.simulated[2],
            row.formula_saving,
            row.simulated_saving,
        )
        for row in rows
    ]
    return b"".join(csv_lines(names, lines))


def _last(counts: BlockCounts) -> tuple[float, float, float]:
    return float(counts.logical[-1]), float(counts.physical[-1]), float(counts.copies[-1])


def _group_run(one: Sharing, seed: int) -> BlockCounts:
    kind = "parallel" if one.kind == "parallel" else "beam"
    ancestry = "independent" if one.kind == "parallel" else one.kind
    branching = Branching(kind, one.width, ancestry) if one.width > 1 else None
    longest = one.prompt_tokens + one.output_tokens
    blocks = one.width * -(-longest // one.block_size)
    memory = BranchingAllocator(blocks, one.block_size, null_block=False)
    scheduler = GroupScheduler(
        memory,
        max_num_seqs=one.width,
        max_num_batched_tokens=one.prompt_tokens + one.width,
        max_model_len=longest,
        draw=neutral_draw(seed),
    )
    scheduler.add(Request("r", 0, one.prompt_tokens, one.output_tokens, branches=branching))
    counts = []
    while scheduler.has_work():
        plan = scheduler.schedule()
        now = memory.sharing_counts()
        counts.append((now["logical_blocks"], now["physical_blocks"], now["copies"]))
        scheduler.complete(plan)
    return _counts(counts)


def _prefix_run(one: Sharing, seed: int) -> BlockCounts:
    """The others arrive when the first one's prompt is computed, and find it in the cache."""
    prompt = one.prompt_tokens + one.own_tokens
    longest = prompt + one.output_tokens
    blocks = one.width * -(-longest // one.block_size)
    memory = PagedAllocator(blocks, one.block_size, null_block=False, eviction=LruOrder())
    scheduler = VllmScheduler(
        memory,
        max_num_seqs=one.width,
        max_num_batched_tokens=one.width * prompt,
        max_model_len=longest,
    )
    arrivals = {0: range(1), 1: range(1, one.width)}
    counts = []
    for step in range(one.output_tokens):
        for rank in arrivals.get(step, ()):
            own = (("prefix", one.prompt_tokens), (("own", rank), one.own_tokens))
            scheduler.add(Request(f"r{rank}", 0, prompt, one.output_tokens, segments=own))
        plan = scheduler.schedule()
        tables = [sequence.table for sequence in scheduler.running()]
        held = [block for table in tables for block in table]
        counts.append((len(held), len(set(held)), 0))
        scheduler.complete(plan)
    return _counts(counts)


def _counts(rows: list[tuple[int, int, int]]) -> BlockCounts:
    columns = np.array(rows, dtype=float).T
    return BlockCounts(columns[0], columns[1], columns[2])
