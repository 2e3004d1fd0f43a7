"""Published figures of the public traces, where the machine has them (FIELD.md, section 4)."""

from __future__ import annotations

import time
from pathlib import Path

import numpy as np
import pytest

from kvsim.workload import TraceWorkload
from kvsim.workload.prefix import PrefixAnalysis, PrefixTrace, References, stack_curve
from tests.timing import slow
from tests.workload.test_real_traces import trace


def real(shared: Path, file: str) -> Path:
    path = shared / "traces" / file
    if not path.is_file():
        pytest.skip(f"needs {path}")
    return path


@pytest.mark.parametrize(
    ("name", "chunks", "full_chunk_tokens", "mean_of_requests"),
    [
        ("mooncake-conversation", 0.3664, 0.3819, 0.4094),
        ("mooncake-synthetic", 0.6396, 0.6594, None),
    ],
)
def test_shares_of_repeated_chunks_are_the_published_ones(
    shared: Path,
    name: str,
    chunks: float,
    full_chunk_tokens: float,
    mean_of_requests: float | None,
) -> None:
    """All chunks count, the first one that every conversation shares included."""
    shares = PrefixAnalysis(TraceWorkload(trace(shared, name)), 512).chunks
    assert shares is not None
    assert round(shares.chunks, 4) == chunks
    assert round(shares.full_chunk_tokens, 4) == full_chunk_tokens
    if mean_of_requests is not None:
        assert round(shares.mean_of_requests, 4) == mean_of_requests


@pytest.mark.parametrize(
    ("name", "share"), [("mooncake-conversation", 0.1355), ("mooncake-synthetic", 0.3094)]
)
def test_textbook_lru_of_three_million_tokens_finds_the_published_share(
    shared: Path, name: str, share: float
) -> None:
    """Another model than `kvsim prefix`: every chunk by itself, one after the other.

    5,859 chunks of 512 tokens, partial ones and the prompt's last one found like any other, answers
    not cached, the head of a prompt evicted before its tail; the share is of chunks. A stack of
    requests with one chunk each is just that.
    """
    nodes = PrefixTrace.of(TraceWorkload(trace(shared, name))).nodes
    one, none = np.ones(len(nodes), dtype=np.int64), np.zeros(len(nodes), dtype=np.int64)
    single = References(
        512, np.arange(len(nodes) + 1), nodes, none.astype(np.bool_), one, none, one, none
    )
    curve, copies = stack_curve(single)
    assert copies == 0
    assert round(curve.hit_blocks(3_000_000 // 512) / len(nodes), 4) == share


@pytest.mark.parametrize(
    ("file", "lengths", "share"),
    [
        ("mooncake_conversation_trace.jsonl.gz", None, 0.374),
        ("mooncake_synthetic_trace.jsonl.gz", None, 0.651),
        ("ragpulse_0_trace.jsonl.gz", "ragpulse_chunk_token_lengths.csv.gz", 0.315),
    ],
)
def test_seen_prompt_tokens_are_those_of_the_collection_s_notes(
    shared: Path, file: str, lengths: str | None, share: float
) -> None:
    workload = TraceWorkload(real(shared, file), chunk_lengths=lengths and real(shared, lengths))
    analysis = PrefixAnalysis(workload, 16)
    seen = 1 - analysis.bound.never_seen / analysis.prompt_tokens
    assert seen == pytest.approx(share, abs=0.001)


@pytest.mark.parametrize(
    ("name", "block_size", "capacity"),
    [
        ("mooncake-conversation", 512, 3_000_000 // 512),
        ("mooncake-conversation", 1024, 100_000 // 1024),
        ("mooncake-synthetic", 512, 3_000_000 // 512),
        ("mooncake-synthetic", 128, 1_000_000 // 128),
    ],
)
def test_lru_of_a_whole_trace_equals_a_cache_run_block_by_block(
    shared: Path, name: str, block_size: int, capacity: int
) -> None:
    path = trace(shared, name)
    analysis = PrefixAnalysis(TraceWorkload(path), block_size)
    hits = _block_by_block(TraceWorkload(path), block_size, capacity)
    assert analysis.lru_hit_tokens(capacity) == hits * block_size


def _block_by_block(workload: TraceWorkload, block_size: int, capacity: int) -> int:
    """Blocks found; a block is named by the chunk of its last token and its place in the prompt."""
    queue: dict[object, None] = {}
    unhashed, hits = capacity, 0
    for request in workload:
        total = request.prompt_tokens + request.output_tokens - 1
        need, full = -(-total // block_size), total // block_size
        if need > capacity:
            continue
        chunks = [stream for stream, _ in request.segments or ()]
        names: list[object] = [
            (chunks[((i + 1) * block_size - 1) // 512], i)
            for i in range(request.prompt_tokens // block_size)
        ]
        names += [(request.request_id, i) for i in range(len(names), full)]
        found = 0
        while found < (request.prompt_tokens - 1) // block_size and names[found] in queue:
            del queue[names[found]]
            found += 1
        hits += found
        evicted = max(need - found - unhashed, 0)
        unhashed -= need - found - evicted
        for _ in range(evicted):
            del queue[next(iter(queue))]
        for i in range(full - 1, -1, -1):
            queue[names[i] if names[i] not in queue else ("copy", request.request_id, i)] = None
        unhashed += need - full
    return hits


def test_the_conversation_trace_in_blocks_of_16(shared: Path) -> None:
    """LRU at all capacities and the optimum at some; figures of this project's own."""
    path = trace(shared, "mooncake-conversation")
    start = time.process_time()
    analysis = PrefixAnalysis(TraceWorkload(path), 16)
    assert analysis.is_one_pass
    capacities = [millions * 10**6 // 16 for millions in (1, 3, 10, 30)]
    shares = [round(analysis.lru_hit_tokens(c) / analysis.prompt_tokens, 4) for c in capacities]
    assert time.process_time() - start < slow(5)
    assert shares == [0.0542, 0.1377, 0.29, 0.3651]
    best = [round(analysis.best_hit_tokens(c) / analysis.prompt_tokens, 4) for c in capacities]
    assert best == [0.2517, 0.3585, 0.3736, 0.3736]
    assert analysis.largest * 16 == 126_528
    assert analysis.enough * 16 == 82_031_648
    for capacity in (capacities[0], 3_000):
        tokens = analysis.lru(capacity)
        assert tokens.total == analysis.prompt_tokens == 144_793_823


def test_every_format_with_chunks_is_read_from_its_published_file(shared: Path) -> None:
    blk16 = TraceWorkload(
        real(shared, "llmservingsim_sharegpt-llama-3.1-8b-300-sps10.blk16.jsonl.gz")
    )
    assert (blk16.chunk_tokens, blk16.counts.kept) == (16, 300)
    bailian = TraceWorkload(real(shared, "bailian_format_example.HANDMADE_from_README.jsonl"))
    assert (bailian.chunk_tokens, bailian.counts.kept) == (16, 2)
    assert PrefixAnalysis(bailian, 16).bound.hit == 32
    arxiv = TraceWorkload(real(shared, "mooncake_arxiv_trace.HEAD1000of23608.jsonl.gz"))
    assert (arxiv.chunk_tokens, arxiv.counts.kept) == (512, 1000)
