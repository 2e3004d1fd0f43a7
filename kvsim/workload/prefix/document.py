"""The prefix analysis as plain data."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from kvsim.workload.base import Workload
from kvsim.workload.prefix.analysis import PrefixAnalysis, PromptTokens
from kvsim.workload.prefix.in_flight import hit_tokens_in_flight

_MANY, _SOME = 60, 12


def prefix_document(
    workload: Workload,
    analysis: PrefixAnalysis,
    capacities: Iterable[int],
    *,
    best: bool = False,
    in_flight: int = 0,
    bytes_per_token: int | None = None,
    advance: Callable[[int], None] = lambda rows: None,
) -> dict[str, Any]:
    """Everything `kvsim prefix --json` prints but the definitions; `capacities` are in blocks.

    `best` asks for the optimum too, `in_flight` for the engine with so many requests at once,
    `bytes_per_token` (of KV) for capacities in GiB. `advance` is told of every capacity done.
    """
    rows = []
    for blocks in capacities:
        row = _row(analysis, blocks, best, bytes_per_token)
        if in_flight:
            row["in_flight"] = _in_flight(workload, analysis, blocks, in_flight)
        rows.append(row)
        advance(1)
    chunks = analysis.chunks
    return {
        "trace": workload.source,
        "digest": workload.digest,
        "rows": workload.counts.as_dict(),
        "requests": len(analysis.trace),
        "prompt_tokens": analysis.prompt_tokens,
        "block_size": analysis.block_size,
        "chunk_tokens": analysis.chunk_tokens,
        "largest_request_blocks": analysis.largest,
        "no_eviction_blocks": analysis.enough,
        "one_pass": analysis.is_one_pass,
        "bound": _tokens(analysis.bound),
        "chunks": chunks
        and {
            "chunks": chunks.chunks,
            "full_chunk_tokens": chunks.full_chunk_tokens,
            "mean_of_requests": chunks.mean_of_requests,
        },
        "capacities": rows,
    }


def prefix_curve(
    workload: Workload,
    block_size: int,
    *,
    best: bool = False,
    bytes_per_token: int | None = None,
) -> dict[str, Any]:
    """A `prefix_document` to draw: LRU at many capacities, with `best` the optimum at some.

    Raises `InputError` as `PrefixAnalysis` does.
    """
    analysis = PrefixAnalysis(workload, block_size)
    # Where one pass does not give every capacity, LRU is replayed for each, like the optimum.
    many = _MANY if analysis.is_one_pass else _SOME
    some = analysis.capacities(_SOME) if best else []
    rest = [blocks for blocks in analysis.capacities(many) if blocks not in some]
    document = prefix_document(workload, analysis, rest, bytes_per_token=bytes_per_token)
    rows = [_row(analysis, blocks, True, bytes_per_token) for blocks in some]
    rows += document["capacities"]
    return document | {"capacities": sorted(rows, key=lambda row: row["blocks"])}


def _row(
    analysis: PrefixAnalysis, blocks: int, best: bool, bytes_per_token: int | None
) -> dict[str, Any]:
    tokens = blocks * analysis.block_size
    most = analysis.best_hit_tokens(blocks) if best else None
    return {
        "blocks": blocks,
        "tokens": tokens,
        "gib": None if bytes_per_token is None else tokens * bytes_per_token / 2**30,
        "lru": _tokens(analysis.lru(blocks)),
        "best_hit_tokens": most,
        "best_hit_rate": None if most is None else most / analysis.prompt_tokens,
    }


def _in_flight(
    workload: Workload, analysis: PrefixAnalysis, blocks: int, requests: int
) -> dict[str, Any]:
    found = hit_tokens_in_flight(
        workload, blocks=blocks, block_size=analysis.block_size, in_flight=requests
    )
    alone = analysis.lru(blocks).hit
    return {
        "requests": requests,
        "hit_tokens": found,
        "hit_rate": found / analysis.prompt_tokens,
        "difference": (found - alone) / analysis.prompt_tokens,
    }


def _tokens(where: PromptTokens) -> dict[str, Any]:
    return {
        "hit_rate": where.hit / where.total,
        "hit_tokens": where.hit,
        "evicted_tokens": where.evicted,
        "never_seen_tokens": where.never_seen,
        "rounding_tokens": where.rounding,
        "last_token_tokens": where.last_token,
        "rejected_tokens": where.rejected,
    }
