"""What must be said beside the figures of a set-up, so that they are not misread."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.catalog import (
    GIB,
    GqaAttention,
    MlaAttention,
    kv_bytes_per_token,
    naive_kv_bytes_per_token,
)
from kvsim.catalog.compressed import CompressedAttention
from kvsim.catalog.compressed_bytes import compresses, kept_bytes
from kvsim.catalog.model import DTYPE_BYTES
from kvsim.planning.document import request_bytes
from kvsim.planning.fit import Fit
from kvsim.planning.pool_groups import image_tokens

OFFLOAD = (
    "Offloading KV to CPU memory or to disk does not lift the limit of one request: the KV of a"
    " running request must be in GPU memory. Nor does it let more requests run at once."
)
PREALLOCATED = (
    "The pool is allocated in full at start: the server takes its share of the GPU however small"
    " the model, and memory in use says nothing about the load."
)
NOT_MONOTONIC = (
    "A longer max_model_len or more max_num_batched_tokens can shrink the pool, and not evenly:"
    " they set the tokens of the profiling step. Compare with --what-if."
)
_NAIVE_FACTOR = 1.01
"""From here on the formula with every head is worth a word."""


def advice(found: Fit) -> list[str]:
    """Sentences that hold for this set-up, the ones about its verdict first."""
    said = [PREALLOCATED] if found.verdict == "fits" else [OFFLOAD]
    return [
        *said,
        *(f"{text[0].upper()}{text[1:]}." for text in found.model.assumptions),
        *_of_encoder(found),
        *_of_ranks(found),
        *_of_layers(found),
        *_of_images(found),
        *_of_heads(found),
        *_of_precision(found),
        NOT_MONOTONIC,
    ]


def _of_encoder(found: Fit) -> Iterator[str]:
    """What is profiled of it, and by name what is not known."""
    encoder = found.model.encoder
    if encoder is None:
        return
    if found.release.encoder is None:
        yield (
            "vLLM v0 profiles a batch of prompts full of images, 1 to 37 GiB in start-up logs:"
            " it is not in the figures; give --measured activation_peak=GIB."
        )
        return
    for what in encoder.unknown:
        yield (
            f"Of the encoder, {what} is not known here; what your server prints replaces it:"
            " --measured weights=GIB,activation_peak=GIB."
        )
    taken = [term.bytes for term in found.budget.further if term.name.startswith("encoder_")]
    if found.encoder is not None:
        back = "gives that back" if found.release.encoder.leaves_out == "all" else "saves the run"
        yield (
            f"The encoder takes {sum(taken) / GIB:.2f} GiB and a profiled run of"
            f" {found.encoder.items:,} {found.encoder.modality} items: without images,"
            f" limit-mm-per-prompt 0 {back}."
        )


def _of_ranks(found: Fit) -> Iterator[str]:
    tp, stages = found.settings.tensor_parallel_size, found.settings.pipeline_parallel_size
    if stages > 1:
        yield (
            f"Figures are those of the one of {stages} pipeline stages with the least room,"
            f" {found.model.layers} of {found.whole.layers} layers; its blocks are those of all."
        )
    yield from _of_further_ranks(found)
    if tp == 1:
        return
    yield f"Figures are per GPU of {tp}; the one with the least memory sets the blocks of all."
    attention = found.model.attention
    if isinstance(attention, MlaAttention | CompressedAttention):
        yield (
            f"The latent cache is not divided by tensor parallelism: each of the {tp} GPUs holds"
            " all of it."
        )
    elif attention.kv_heads < tp:
        yield (
            f"The {attention.kv_heads} KV heads are replicated over {tp} GPUs: more than"
            f" {attention.kv_heads} do not shrink a token's KV."
        )


def _of_further_ranks(found: Fit) -> Iterator[str]:
    """Replicas, dealt tokens, drafts and adapters."""
    given = found.settings.given
    if given.data_parallel_size > 1:
        yield (
            f"Each of {given.data_parallel_size} replicas has a pool of its own: a request lives in"
            " one of them, so more replicas serve more requests, not longer ones."
        )
        if found.model.moe is not None:
            yield "Replicas share the routed experts; everything else each of them holds again."
    dcp = given.decode_context_parallel_size
    if dcp > 1:
        yield (
            f"The tokens of a request are dealt to {dcp} GPUs that would hold the same otherwise:"
            f" the pool holds {dcp} times the tokens."
        )
    if given.speculative is not None and given.speculative != "ngram":
        yield "The draft's layer takes part in the KV pool: a token needs one layer more."
    if given.max_loras:
        yield "Room for adapters is taken at start; the server prints it within the weights."


def _of_layers(found: Fit) -> Iterator[str]:
    """Layers that do not keep every token, and what makes their groups equal.

    A state beside a layer's attention counts as a layer, as it does in the pool.
    """
    if compresses(found.model):
        yield from _of_compressed(found)
        return
    layers = {"full": 0, "sliding": 0, "chunked": 0, "state": 0}
    for group in found.model.groups:
        if group.kind in layers:
            layers[group.kind] += group.layers
        if group.beside is not None:
            layers["state"] += group.layers
    every = sum(layers.values())
    if layers["full"] == every:
        return
    kept = [f"{layers['full']} of {every} layers keep every token"]
    if layers["sliding"] or layers["chunked"]:
        kept.append(f"{layers['sliding'] + layers['chunked']} a window or chunk")
    if layers["state"]:
        kept.append(f"{layers['state']} one state per request whatever its length")
    yield f"Only {', '.join(kept)}: no single number of bytes per token holds."
    groups = found.layout.groups
    if groups.padding_layers:
        share = groups.padding_layers / (groups.num_groups * groups.layers)
        yield (
            f"Groups of {groups.layers} layers are filled up with {groups.padding_layers} layers"
            f" that hold nothing: {100 * share:.0f} % of the pool."
        )


def _of_images(found: Fit) -> Iterator[str]:
    """What an image takes of the pool where layers attend to it."""
    least, most = image_tokens(found.model)
    if not most:
        return
    size = found.layout.block_tokens
    layers = sum(group.layers for group in found.model.groups if group.kind == "cross")
    yield (
        f"An image takes {-(-least // size):,} to {-(-most // size):,} blocks more, for {least:,}"
        f" to {most:,} tokens; the printed concurrency counts the text alone. Every block has room"
        f" in all {found.model.layers} layers, though only {layers} read the image and the others"
        " the text."
    )


def _of_compressed(found: Fit) -> Iterator[str]:
    """The past in entries for several tokens each, and what a server counts beside it."""
    length, request = found.settings.max_model_len, request_bytes(found)
    real = kept_bytes(found.model, length, 1)
    yield (
        "Layers keep a window and entries that stand for several tokens: no single number of bytes"
        f" per token holds; a request of {length:,} tokens needs {real / length:,.0f} per token."
    )
    yield (
        f"The server counts {request / real:.1f} times that for it: windows and compressor states"
        f" are given room for {found.settings.max_in_flight:,} tokens in flight; fewer"
        " max_num_batched_tokens let more requests in."
    )
    yield (
        "The cache is counted in 8 bits, 584 bytes per entry, at any kv_cache_dtype: many releases"
        " start with fp8 alone. FlashInfer's rows on Blackwell are smaller."
    )


def _of_heads(found: Fit) -> Iterator[str]:
    model, attention = found.model, found.model.attention
    if compresses(model):
        real = kept_bytes(model, found.settings.max_model_len, 1)
        factor = found.naive_request_bytes / real
    else:
        real = kv_bytes_per_token(model)
        factor = naive_kv_bytes_per_token(model) / real if real else 1.0
    if factor < _NAIVE_FACTOR:
        return
    cached = "Only a latent vector is cached"
    if isinstance(attention, GqaAttention):
        cached = f"Only {attention.kv_heads} of {attention.heads} heads are cached"
    yield f"{cached}: formulas that charge every head give {factor:.1f} times as much."


def _of_precision(found: Fit) -> Iterator[str]:
    """Quantised weights beside a cache of full precision."""
    model, flags = found.model, found.settings
    bits = 8 * DTYPE_BYTES[model.expert_dtype]
    if bits < 8 * model.kv_dtype_bytes and flags.kv_cache_dtype == "auto":
        yield (
            f"Quantised weights ({model.expert_dtype}) do not shrink the KV: it keeps"
            f" {8 * model.kv_dtype_bytes} bits per element unless kv_cache_dtype changes that."
        )
