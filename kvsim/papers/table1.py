"""PagedAttention paper, Table 1: KV slots by the artifact's sizing rule."""

from __future__ import annotations

from bisect import bisect_left, bisect_right

from kvsim.catalog import GIB, get_model
from kvsim.catalog.weights import weight_bytes
from kvsim.papers.target import Figure, Interval, Job, Target, within

MAX_BATCHED_TOKENS = 2560
WORKSPACE_BYTES = GIB
MEMORY_SHARE = 0.95
BLOCK_SIZE = 16
ELEMENT_BYTES = 2

SERVERS = {
    "opt-13b": (1, 39.40, 15.7),
    "opt-66b": (4, 39.40, 9.7),
    "opt-175b": (8, 79.16, 60.1),
}
"""GPUs, memory of one in GiB as CUDA reports it, and the paper's KV slots in thousands."""
GPUS = {"A100-40GB": ("opt-13b", "opt-66b"), "A100-80GB": ("opt-175b",)}
"""The models whose slots set the bounds of each GPU's memory."""


def num_blocks(model: str, *, gpus: int, memory_gib: float) -> int:
    """Blocks of 16 that the artifact's memory analysis leaves on each GPU.

    `(floor(0.95 memory) - weights - activations - 1 GiB) / block bytes`, activations being the
    largest of attention, feed-forward and logits for 2,560 tokens, at 16 bits.
    """
    shapes = get_model(model)
    tokens, hidden = MAX_BATCHED_TOKENS, shapes.hidden
    widest = max(3 * tokens * hidden // gpus, tokens * shapes.intermediate // gpus)
    activations = 2 * max(2 * (widest + tokens * hidden), 2 * tokens * shapes.vocab)
    block_bytes = 2 * ELEMENT_BYTES * shapes.layers * (BLOCK_SIZE * hidden // gpus)
    budget = int(MEMORY_SHARE * memory_gib * GIB)
    weights = weight_bytes(shapes, tp=gpus)
    return (budget - weights - activations - WORKSPACE_BYTES) // block_bytes


def printed_slots(model: str, memory_gib: float) -> float:
    """Slots in thousands, to the one decimal the paper prints."""
    blocks = num_blocks(model, gpus=SERVERS[model][0], memory_gib=memory_gib)
    return round(blocks * BLOCK_SIZE / 1000, 1)


def memory_interval(model: str) -> Interval:
    """The memories, in steps of 0.001 GiB of one GPU, from which the paper's slots follow."""
    slots = SERVERS[model][2]
    memories = range(32_000, 96_000)

    def printed(milli_gib: int) -> float:
        return printed_slots(model, milli_gib / 1000)

    low = bisect_left(memories, slots, key=printed)
    high = bisect_right(memories, slots, key=printed) - 1
    return Interval(memories[low] / 1000, memories[high] / 1000)


def measure(job: Job) -> dict[str, float]:
    """The slots, and the memories from which those of the paper follow."""
    values = {model: printed_slots(model, memory) for model, (_, memory, _) in SERVERS.items()}
    for gpu, models in GPUS.items():
        lows, highs = zip(*map(memory_interval, models), strict=True)
        values |= {f"{gpu}/low": max(lows), f"{gpu}/high": min(highs)}
    return values


def _end(gpu: str, end: str, adjective: str) -> Target:
    return Target(
        key=f"{gpu}/{end}",
        what=f"{adjective} memory of an {gpu} for these slots",
        unit="GiB",
        paper=None,
        tag="OURS",
        basis="closed form",
        digits=3,
    )


TABLE1 = Figure(
    name="sosp23-table1",
    title="PagedAttention (SOSP'23), Table 1: KV slots of three servers",
    how="The sizing rule of the artifact with this project's weights by shape; rounded to the"
    " decimal that the paper prints.",
    measure=measure,
    targets=(
        *(
            Target(
                key=model,
                what=f"{model}, {gpus} GPU{'s' * (gpus > 1)}",
                unit="thousand slots",
                paper=paper,
                tag="READ",
                basis="fit",
                accepted=within(paper, 1e-9),
                digits=1,
            )
            for model, (gpus, _, paper) in SERVERS.items()
        ),
        *(
            _end(gpu, end, adjective)
            for gpu in GPUS
            for end, adjective in (("low", "least"), ("high", "most"))
        ),
    ),
    remarks=(
        "One parameter per kind of GPU is a fit, its memory as CUDA reports it: 39.40 GiB"
        " (A100-40GB, for two of the rows) and 79.16 GiB (A100-80GB). The paper does not print it;"
        " the last rows are the memories between which its slots follow, and real servers print"
        " 39.4 to 39.6 and 79.1 to 79.3.",
    ),
)
