"""PagedAttention paper, Table 1: KV slots by the artifact's sizing rule."""

from __future__ import annotations

from kvsim.catalog import GIB, get_model
from kvsim.catalog.weights import weight_bytes
from kvsim.papers.target import Figure, Job, Target, within

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


def measure(job: Job) -> dict[str, float]:
    """Slots in thousands, to the one decimal the paper prints."""
    blocks = {
        model: num_blocks(model, gpus=gpus, memory_gib=memory)
        for model, (gpus, memory, _) in SERVERS.items()
    }
    return {model: round(count * BLOCK_SIZE / 1000, 1) for model, count in blocks.items()}


TABLE1 = Figure(
    name="sosp23-table1",
    title="PagedAttention (SOSP'23), Table 1: KV slots of three servers",
    how="The sizing rule of the artifact with this project's weights by shape; rounded to the"
    " decimal that the paper prints.",
    measure=measure,
    targets=tuple(
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
    remarks=(
        "One parameter per kind of GPU is a fit, its memory as CUDA reports it: 39.40 GiB"
        " (A100-40GB, for two of the rows) and 79.16 GiB (A100-80GB). The paper does not print it;"
        " the table's slots follow from 39.398 to 39.415 and 79.15 to 79.205 GiB, and real servers"
        " print 39.4 to 39.6 and 79.1 to 79.3.",
    ),
)
