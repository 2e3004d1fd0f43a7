"""A fit as plain data, and as the rows of a table with a column per set-up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from kvsim.catalog import Term
from kvsim.planning.commands import flags_of
from kvsim.planning.fit import Fit
from kvsim.planning.start import printed_gib
from kvsim.planning.ways import Way

DEFINITIONS = {
    "total": "Memory of one GPU as CUDA reports it (GiB).",
    "budget": "total * gpu_memory_utilization (GiB).",
    "weights": "The model's parameters on one GPU (GiB).",
    "activation_peak": "Most memory that one profiling step needs beside weights and KV (GiB).",
    "non_torch": "CUDA context and communication buffers outside the framework (GiB).",
    "cuda_graphs": "Captured CUDA graphs; within the budget from vLLM 0.21 on (GiB).",
    "kv_pool": "What is left for the KV cache of one GPU (GiB).",
    "kv_request": "KV of one request of max_model_len tokens on one GPU (GiB).",
    "naive_request": "The same by the formula that charges every query head, on all GPUs (GiB).",
    "margin": "kv_pool less kv_request: below zero the server refuses to start (GiB).",
    "num_blocks": "KV blocks of one GPU (blocks).",
    "kv_tokens": "What the server prints as GPU KV cache size (tokens).",
    "max_concurrency": "Requests of max_model_len tokens that the blocks hold (requests).",
    "longest_request": "Tokens of the longest request that the blocks hold (tokens).",
    "lora_adapters": "Room taken at start for adapters on one GPU (GiB).",
    "encoder_weights": "Towers of images and sound on one GPU, printed within the weights (GiB).",
    "encoder_cache": "Vectors of images that are kept for the decoder while it is profiled (GiB).",
    "draft_model": "Weights of a draft model on one GPU (GiB).",
    "all_tokens": "Tokens that the pools of all replicas hold (tokens).",
    "all_concurrency": "Requests of max_model_len tokens in all replicas (requests).",
}
"""One sentence and unit for every figure."""


def request_bytes(found: Fit) -> int:
    """KV of one request of max_model_len tokens on one GPU, as the server counts it."""
    flags = found.settings
    blocks = found.layout.blocks_per_request(flags.max_model_len, max_in_flight=flags.max_in_flight)
    return blocks * found.layout.checked_bytes


def document(found: Fit, ways: Sequence[Way] = (), *, command: str = "") -> dict[str, Any]:
    """Everything as plain data; bytes are whole numbers, intervals 80 %."""
    start, low, high = found.start, found.start_low, found.start_high
    refusal = start.refusal
    return {
        "model": found.model.name,
        "gpu": found.gpu.name,
        "release": found.release.name,
        "flags": flags_of(found),
        "verdict": found.verdict,
        "margin_bytes": found.margin_bytes,
        "terms": [_term(term) for term in found.budget.terms()],
        "block_bytes": found.layout.block_bytes,
        "block_tokens": found.layout.block_tokens,
        "num_blocks": start.num_blocks,
        "num_blocks_80_percent": [low.num_blocks, high.num_blocks],
        "kv_tokens": start.kv_tokens,
        "kv_tokens_80_percent": [low.kv_tokens, high.kv_tokens],
        "max_concurrency": start.max_concurrency,
        "max_concurrency_80_percent": [low.max_concurrency, high.max_concurrency],
        "longest_request_tokens": start.longest_request_tokens,
        "longest_request_tokens_80_percent": [
            low.longest_request_tokens,
            high.longest_request_tokens,
        ],
        "replicas": _replicas(found),
        "encoder": _encoder(found),
        "request_bytes": request_bytes(found),
        "naive_request_bytes": found.naive_request_bytes,
        "refusal": None if refusal is None else refusal.rule,
        "ways_out": [way.what for way in ways],
        "command": command,
    }


def _replicas(found: Fit) -> dict[str, Any]:
    count = found.settings.given.data_parallel_size
    return {
        "count": count,
        "gpus": found.settings.given.gpus,
        "kv_tokens": count * found.start.kv_tokens,
        "max_concurrency": count * found.start.max_concurrency,
    }


def _encoder(found: Fit) -> dict[str, Any] | None:
    """The server's line about the profiled run of the encoder."""
    profile = found.encoder
    if profile is None:
        return None
    return {
        "budget_tokens": profile.budget_tokens,
        "modality": profile.modality,
        "items": profile.items,
        "item_tokens": profile.item_tokens,
    }


def _term(term: Term) -> dict[str, Any]:
    return {
        "name": term.name,
        "bytes": term.bytes,
        "bytes_80_percent": [term.low, term.high],
        "formula": term.formula,
        "source": term.source,
    }


class Line(NamedTuple):
    """A row of the table: a figure and its cell for each set-up."""

    key: str
    label: str
    cells: tuple[str, ...]


def lines(fits: Mapping[str, Fit]) -> list[Line]:
    """The rows, in the order of the subtraction, then what follows from the pool."""
    found = list(fits.values())
    rows = [
        Line(
            name,
            name.replace("_", " ") + " (GiB)",
            tuple(_span(_by_name(one).get(name), name, one) for one in found),
        )
        for name in _names(found)
    ]
    rows.append(
        Line("kv_pool", "KV pool (GiB)", tuple(_span(one.budget.kv_pool, "", one) for one in found))
    )
    rows += [
        Line(key, label, tuple(_figure(one, key) for one in found))
        for key, label in (
            ("kv_request", "one request of max_model_len (GiB)"),
            ("naive_request", "  by the naive formula, all GPUs (GiB)"),
            ("margin", "margin (GiB)"),
        )
    ]
    for key, label in (
        ("num_blocks", "KV blocks"),
        ("kv_tokens", "GPU KV cache size (tokens)"),
        ("max_concurrency", "concurrency at max_model_len"),
        ("longest_request", "longest request (tokens)"),
    ):
        rows.append(Line(key, label, tuple(_start_span(one, key) for one in found)))
    if any(one.settings.given.data_parallel_size > 1 for one in found):
        sums = [_replicas(one) for one in found]
        tokens = tuple(f"{one['kv_tokens']:,}" for one in sums)
        rows.append(Line("all_tokens", "all replicas' KV cache (tokens)", tokens))
        requests = tuple(f"{one['max_concurrency']:,.2f}" for one in sums)
        rows.append(Line("all_concurrency", "all replicas' concurrency", requests))
    rows.append(Line("verdict", "verdict", tuple(one.verdict for one in found)))
    return rows


def _names(fits: Sequence[Fit]) -> list[str]:
    """The terms above the pool that any of the set-ups has, in the order of the subtraction."""
    further = {term.name: None for one in fits for term in one.budget.further}
    return ["total", "budget", "weights", *further, "activation_peak", "non_torch", "cuda_graphs"]


def _by_name(found: Fit) -> dict[str, Term]:
    return {term.name: term for term in found.budget.terms()}


def _span(term: Term | None, name: str, found: Fit) -> str:
    if term is None:
        return ""
    text = printed_gib(term.bytes)
    if term.low != term.high:
        text += f" ({printed_gib(term.low)} to {printed_gib(term.high)})"
    outside = name == "cuda_graphs" and not found.release.graphs_in_budget
    return f"{text}, on top" if outside else text


def _figure(found: Fit, key: str) -> str:
    value = {
        "kv_request": request_bytes(found),
        "naive_request": found.naive_request_bytes,
        "margin": found.margin_bytes,
    }[key]
    return printed_gib(value)


def _start_span(found: Fit, key: str) -> str:
    name = "longest_request_tokens" if key == "longest_request" else key
    digits = 2 if key == "max_concurrency" else 0
    middle, low, high = (
        f"{getattr(one, name):,.{digits}f}"
        for one in (found.start, found.start_low, found.start_high)
    )
    return middle if low == high else f"{middle} ({low} to {high})"
