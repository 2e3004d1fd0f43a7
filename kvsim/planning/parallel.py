"""What spreading a server over more GPUs, adapters and draft models do to the KV pool.

Pure functions on figures of one GPU. Rules: FIELD.md section 2 and vLLM's own.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

from kvsim.errors import InputError

DraftMethod = Literal["ngram", "eagle", "mtp"]
DRAFT_LAYERS: dict[DraftMethod, int] = {"ngram": 0, "eagle": 1, "mtp": 1}
"""Layers with keys and values that a method of speculation adds to the model's."""


def stage_layers(
    layers: int, stages: int, partition: Sequence[int] | None = None
) -> tuple[int, ...]:
    """Layers of each pipeline stage, first to last, as vLLM splits them.

    Equal parts; layers left over go one each to the stages before the last, from the back: the
    last has the head, and the first gets one only if all others did. `partition` is the user's own
    (VLLM_PP_LAYER_PARTITION). Raises `InputError` where a stage would be empty or layers be lost.
    """
    if not 1 <= stages <= layers:
        raise InputError(
            f"{layers} layers cannot be split into {stages} stages",
            where="pipeline_parallel_size",
            fix=f"Use 1 to {layers}",
        )
    if partition is not None:
        given = tuple(partition)
        if len(given) != stages or min(given) < 1 or sum(given) != layers:
            raise InputError(
                f"{given} does not split {layers} layers into {stages} stages",
                where="partition",
                fix="Give one number of layers per stage, whose sum is the model's",
            )
        return given
    split = [layers // stages] * stages
    for stage in range(layers % stages):
        split[-2 - stage] += 1
    return tuple(split)


@dataclass(frozen=True, slots=True)
class SmallestStage:
    """The stage whose blocks the whole pipeline gets."""

    stage: int
    """From 0."""
    num_blocks: int
    """Of every stage: the smallest of what each would have."""
    unused_bytes: tuple[int, ...]
    """Per stage, per GPU: memory for KV that no block is made of."""


def smallest_stage(
    available_bytes: Sequence[int], layers: Sequence[int], layer_block_bytes: int
) -> SmallestStage:
    """Blocks of a pipeline: the minimum over its stages, each with its own layers.

    `available_bytes` of one GPU of each stage; `layer_block_bytes` of one layer's block. Not always
    the stage with most layers: embeddings and head take memory of the first and the last.
    """
    if len(available_bytes) != len(layers) or not layers:
        raise InputError(
            f"{len(available_bytes)} stages have memory, {len(layers)} have layers", where="layers"
        )
    if layer_block_bytes < 1 or min(layers) < 1:
        raise InputError("every stage needs a layer, and a block bytes", where="layers")
    sizes = [count * layer_block_bytes for count in layers]
    blocks = [max(left, 0) // size for left, size in zip(available_bytes, sizes, strict=True)]
    least = min(blocks)
    unused = (left - least * size for left, size in zip(available_bytes, sizes, strict=True))
    return SmallestStage(blocks.index(least), least, tuple(unused))


def stage_weight_bytes(
    layers: Sequence[int], *, layer_bytes: int, embedding_bytes: int, head_bytes: int
) -> tuple[int, ...]:
    """Weights of one GPU of each stage: embeddings on the first, final norm and head on the last.

    Tied embeddings are on both ends, so `head_bytes` is then the embeddings' size again.
    """
    weights = [count * layer_bytes for count in layers]
    weights[0] += embedding_bytes
    weights[-1] += head_bytes
    return tuple(weights)


def virtual_engine_blocks(num_blocks: int, stages: int) -> int:
    """Blocks that one request can use in vLLM v0: each stage's virtual engine has its part."""
    return num_blocks // stages


@dataclass(frozen=True, slots=True)
class Replicas:
    """Data parallel engines."""

    tokens: int
    """Of all pools."""
    requests: int
    """That run at once in all of them."""
    longest_request_tokens: int
    """A request lives in one replica: more replicas do not lengthen it."""


def replicas(
    count: int, *, tokens: int, max_num_seqs: int, longest_request_tokens: int
) -> Replicas:
    """What `count` engines have together; arguments are one engine's."""
    if count < 1:
        raise InputError(f"must be at least 1, got {count}", where="data_parallel_size")
    return Replicas(count * tokens, count * max_num_seqs, longest_request_tokens)


def context_parallel_tokens(num_blocks: int, block_size: int, dcp: int) -> int:
    """Tokens of a pool that `dcp` GPUs share by position: each holds every dcp-th token."""
    return num_blocks * block_size * dcp


def context_parallel_blocks(tokens: int, block_size: int, dcp: int) -> int:
    """Blocks of one request on each GPU under decode context parallelism."""
    return -(-tokens // (block_size * dcp))


def check_context_parallel(dcp: int, *, tp: int, kv_heads: int) -> None:
    """Decode context parallelism splits only what tensor parallelism replicates.

    `kv_heads` is 1 for a latent cache. Raises `InputError` where `dcp` does not divide the
    `tp / kv_heads` copies.
    """
    copies = max(1, tp // kv_heads)
    if dcp < 1 or copies % dcp:
        raise InputError(
            f"decode context parallelism of {dcp} does not divide the {copies} copies of the KV at"
            f" tensor parallel size {tp}",
            where="decode_context_parallel_size",
            fix=f"Use a divisor of {copies}",
        )


def lora_bytes(
    matrices: Iterable[tuple[int, int]],
    *,
    max_loras: int,
    max_lora_rank: int,
    element_bytes: int = 2,
) -> int:
    """Bytes that room for adapters takes: `max_loras * max_lora_rank * sum(in + out) * bytes`.

    `matrices` are (in, out) elements of every adapted product of one GPU, all layers. The room is
    taken at start, whatever the adapters' own ranks.
    """
    return max_loras * max_lora_rank * sum(map(sum, matrices)) * element_bytes


def kv_layers_with_draft(layers: int, method: DraftMethod) -> int:
    """Layers with keys and values of a model and its draft: EAGLE and MTP add one."""
    return layers + DRAFT_LAYERS[method]
