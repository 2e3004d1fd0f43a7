"""Our paged decode beside the kernels of other libraries, on the same inputs.

Each result is compared before anything is timed: a wrong one is reported and not timed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import NamedTuple

import torch

from gpu_backend import ops, reference
from gpu_backend.bench import peer_calls
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.peer_calls import Inputs, PeerCall, Unavailable
from gpu_backend.bench.poison import judge
from gpu_backend.bench.pool import Point, Pool
from gpu_backend.bench.results import Row, describe
from gpu_backend.bench.timing import interleave

SHAPES = ((64, 2048), (64, 8192), (8, 8192), (1, 32768))
BLOCK_SIZES = (16, 64)
TINY_SHAPES, TINY_BLOCK_SIZES = ((2, 40),), (8,)
CHECKED_SEQUENCES = 3
COMPILE_SECONDS = 45.0


class Peer(NamedTuple):
    """A kernel of another library; `compiles`: its first call may take a minute."""

    name: str
    paged: bool
    make: Callable[[Inputs], PeerCall]
    compiles: bool = False


PEERS = (
    Peer("sdpa", False, peer_calls.sdpa),
    Peer("fa3 paged", True, peer_calls.fa3_paged),
    Peer("fa3 contiguous", False, peer_calls.fa3_contiguous),
    Peer("xformers paged", True, peer_calls.xformers_paged),
    Peer("flashinfer", True, partial(peer_calls.flashinfer, tensor_cores=True), compiles=True),
    Peer("flex_attention", False, peer_calls.flex_attention),
    Peer(
        "flashinfer, no tensor cores",
        True,
        partial(peer_calls.flashinfer, tensor_cores=False),
        compiles=True,
    ),
)


def measure(bench: Bench, peers: tuple[Peer, ...] = PEERS) -> Iterator[Row]:
    """A row per peer and point; `factor` > 1: the peer is faster than our paged kernel."""
    shapes, sizes = (TINY_SHAPES, TINY_BLOCK_SIZES) if bench.tiny else (SHAPES, BLOCK_SIZES)
    pool = Pool(bench, max(Point(*shape, max(sizes)).tokens for shape in shapes))
    for peer in peers:
        yield from _rows_of(
            pool, peer, [[Point(*shape, size) for shape in shapes] for size in sizes]
        )


def _rows_of(pool: Pool, peer: Peer, groups: list[list[Point]]) -> Iterator[Row]:
    """One peer on all points, a group per block size, of which contiguous peers need only one."""
    bench = pool.bench
    for group in groups if peer.paged else groups[:1]:
        for point in group:
            bench.check_time()
            row = {"peer": peer.name, "paged": peer.paged, **point.row()}
            if peer.compiles and not bench.tiny and bench.seconds_left() < COMPILE_SECONDS:
                yield row | {"status": "skipped", "why": "no time left for its compiler"}
                return
            outcome = peer_row(pool, point, peer)
            yield row | outcome
            if outcome["status"] == "not installed":
                return
            if outcome["status"] == "unavailable":
                break


def peer_row(pool: Pool, point: Point, peer: Peer) -> Row:
    """One peer on one batch: not there, failed, wrong, or its time beside ours."""
    if not pool.fits(point):
        return {"status": "skipped", "why": f"{point.tokens} tokens > {pool.slots} slots"}
    places = _inputs(pool, point)
    try:
        calls = [peer.make(inputs) for inputs in places]
        found = calls[0]()
    except ModuleNotFoundError as reason:
        return {"status": "not installed", "why": str(reason)}
    except Unavailable as reason:
        return {"status": "unavailable", "why": str(reason)}
    except Exception as error:  # noqa: BLE001 - a library fails in ways of its own
        return {"status": "failed", **describe(error)}
    verdict = _compare(found, places[0], paged=peer.paged)
    if not verdict.pop("correct"):
        return {"status": "wrong", "peer_correct": False, **verdict}
    ours = [_ours(inputs) for inputs in places]
    try:
        theirs = pool.bench.stopwatch.prepare(calls)
        # What launching costs without a graph would flatter whoever is captured.
        mine = pool.bench.stopwatch.prepare(ours, graph=theirs.how != "events")
        replays = (2, 2) if pool.bench.tiny else (9, 60)
        theirs_timed, ours_timed = interleave([theirs, mine], budget_s=0.4, replays=replays)
    except Exception as error:  # noqa: BLE001 - as above
        return {"status": "failed", **describe(error)}
    return {
        "status": "measured",
        "peer_correct": True,
        **verdict,
        **theirs_timed.row(),
        **ours_timed.row("ours_"),
        "factor": ours_timed.us / theirs_timed.us,
    }


def _inputs(pool: Pool, point: Point) -> list[Inputs]:
    """The batch at as many places as make it cold, contiguous and (elsewhere) paged."""
    query, lens = pool.queries(point), pool.lens(point)
    key_cache, value_cache = pool.caches(point.block_size)
    size = point.blocks * point.block_size
    whole = (point.batch, size, pool.kv_heads, pool.head_dim)
    places = []
    for index, table in enumerate(pool.tables(point, shuffled=True)):
        slots = slice(index * point.batch * size, (index + 1) * point.batch * size)
        keys, values = pool.pair[:, slots].view(2, *whole)[:, :, : point.context]
        places.append(
            Inputs(
                query, keys, values, key_cache, value_cache, table, lens,
                point.context, point.block_size, pool.scale,
            )
        )  # fmt: skip
    return places


def _ours(inputs: Inputs) -> Callable[[], torch.Tensor]:
    return partial(
        ops.paged_decode, inputs.query, inputs.key_cache, inputs.value_cache, inputs.table,
        inputs.lens, scale=inputs.scale, layout="nhd",
        out=torch.empty_like(inputs.query), max_context=inputs.context,
    )  # fmt: skip


def _compare(found: torch.Tensor, inputs: Inputs, *, paged: bool) -> Row:
    """Some sequences against float64; see `poison.judge`. A wrong shape or type is an error too."""
    if found.shape != inputs.query.shape or found.dtype != inputs.query.dtype:
        return {"why": f"returns {found.dtype} {list(found.shape)}", "correct": False}
    batch = inputs.query.shape[0]
    chosen = sorted({index * (batch - 1) // max(1, CHECKED_SEQUENCES - 1) for index in range(3)})
    rows = torch.tensor(chosen, device=found.device)
    wanted, magnitude = (
        torch.cat([_exact(inputs, row, absolute, paged=paged) for row in chosen])
        for absolute in (False, True)
    )
    return {"checked_sequences": len(chosen), **judge(found[rows], wanted, magnitude)}


def _exact(inputs: Inputs, row: int, absolute: bool, *, paged: bool) -> torch.Tensor:
    """Sequence `row` in float64, [1, heads, d]; `absolute`: with |v| for v."""
    keys, values = inputs.keys[row], inputs.values[row]
    if paged:
        at = torch.arange(inputs.context, device=keys.device)
        blocks = inputs.table[row].long()[at // inputs.block_size]
        keys, values = (
            cache[blocks, at % inputs.block_size]
            for cache in (inputs.key_cache, inputs.value_cache)
        )
    values = values.abs() if absolute else values
    return reference.attend(inputs.query[row : row + 1], keys, values, scale=inputs.scale)
