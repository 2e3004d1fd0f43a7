"""CPU decode attention as a fraction of the read bandwidth of the same process and threads.

One memory holds the KV caches of several layers and is also what the read ceiling reads; it is at
least four times as large as the last-level cache, and every measurement uses the next layer, so all
of them read cold memory.

Noise of a shared machine: each round measures every case and, right after it, a read of as many
bytes on as many threads; a case's fraction is the median over the rounds of (the read's seconds) /
(the step's seconds). It is computed from wall time and from CPU time, and the targets are asserted
on the lower of the two.

    python benchmarks/bench_cpu_attention.py [--rounds N] [--threads 1 2] [--memory-gib G]
"""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from gpu_backend.cpu.attention import contiguous_decode, paged_decode
from gpu_backend.cpu.bandwidth import last_level_cache_bytes, read_once
from gpu_backend.cpu.threads import available_threads
from gpu_backend.cpu.timing import Seconds, timed

Floats = npt.NDArray[np.float32]

SEQUENCES, CONTEXT, HEADS, KV_HEADS, DIM = 16, 2048, 32, 8, 128
BLOCK_SIZES = (16, 32, 64, 128)
STEP_BYTES = 2 * 4 * SEQUENCES * CONTEXT * KV_HEADS * DIM
POOL_FLOATS = 2 * SEQUENCES * CONTEXT * KV_HEADS * DIM
"""Keys (or values) of one layer: twice what a step reads, so that random tables scatter."""
TARGETS = {"random 16": 0.2, "random 64": 0.4}
"""Fractions of the ceiling that must be reached (issue 5)."""


class Layer(NamedTuple):
    """One layer's flat key and value memory."""

    key: Floats
    value: Floats


def layers(memory_bytes: int) -> list[Layer]:
    """At least `memory_bytes` of filled layers; two at least."""
    count = max(2, -(-memory_bytes // (2 * 4 * POOL_FLOATS)))
    generator = np.random.default_rng(0)
    some = generator.standard_normal(1 << 22, dtype=np.float32)
    memory = np.tile(some, 2 * count * POOL_FLOATS // some.size).reshape(count, 2, POOL_FLOATS)
    return [Layer(pair[0], pair[1]) for pair in memory]


def cases(out: Floats) -> dict[str, Callable[[Layer, int], Any]]:
    """Name -> a decode step on one layer with some threads."""
    generator = np.random.default_rng(1)
    query = generator.standard_normal((SEQUENCES, HEADS, DIM), dtype=np.float32)
    contexts = np.full(SEQUENCES, CONTEXT, np.int32)
    options = {"scale": DIM**-0.5, "out": out}

    def paged(table: npt.NDArray[np.int32], size: int, layer: Layer, threads: int) -> None:
        key, value = (flat.reshape(-1, KV_HEADS, size, DIM) for flat in layer)
        paged_decode(query, key, value, table, contexts, num_threads=threads, **options)

    def contiguous(starts: npt.NDArray[np.int64], layer: Layer, threads: int) -> None:
        key, value = (flat.reshape(KV_HEADS, -1, DIM).swapaxes(0, 1) for flat in layer)
        contiguous_decode(query, key, value, starts, contexts, num_threads=threads, **options)

    found: dict[str, Callable[[Layer, int], Any]] = {}
    for size in BLOCK_SIZES:
        used = SEQUENCES * CONTEXT // size
        ids = generator.permutation(2 * used)[:used].astype(np.int32)
        found[f"random {size}"] = partial(paged, ids.reshape(SEQUENCES, -1), size)
        order = np.arange(used, dtype=np.int32)
        found[f"identity {size}"] = partial(paged, order.reshape(SEQUENCES, -1), size)
    found["contiguous"] = partial(contiguous, np.arange(SEQUENCES) * CONTEXT)
    return found


def measure(
    memory: list[Layer], threads: int, rounds: int
) -> dict[str, list[tuple[Seconds, Seconds]]]:
    """Per case and round: the step's seconds and those of a read of as many bytes."""
    out = np.empty((SEQUENCES, HEADS, DIM), np.float32)
    steps = cases(out)
    for step in steps.values():
        step(memory[0], threads)
    seconds: dict[str, list[tuple[Seconds, Seconds]]] = {name: [] for name in steps}
    turn = 0
    for _ in range(rounds):
        for name, step in steps.items():
            layer, other = (memory[(turn + i) % len(memory)] for i in (0, 1))
            turn += 2 if len(memory) % 2 else 3
            flat = other.key  # half of a layer: as many bytes as a step
            spent = timed(partial(step, layer, threads))
            read = timed(partial(read_once, flat, num_threads=threads))
            seconds[name].append((spent, read))
    return seconds


def fraction(pairs: list[tuple[Seconds, Seconds]], kind: str) -> float:
    """Median over the rounds of the read's time over the step's."""
    return statistics.median(getattr(read, kind) / getattr(step, kind) for step, read in pairs)


def report(threads: int, seconds: dict[str, list[tuple[Seconds, Seconds]]]) -> list[str]:
    """Print one table; return the targets missed."""
    missed = []
    reads = [read for pairs in seconds.values() for _, read in pairs]
    for kind in Seconds._fields:
        rates = [STEP_BYTES / getattr(read, kind) / 1e9 for read in reads]
        print(
            f"read ceiling, {threads} thread(s), {kind}: median {statistics.median(rates):.1f} GB/s"
        )
    print(f"{'case':14} {'GB/s wall':>10} {'of ceiling':>11} {'by CPU time':>12}")
    for name, pairs in seconds.items():
        rate = statistics.median(STEP_BYTES / step.wall / 1e9 for step, _ in pairs)
        wall, cpu = fraction(pairs, "wall"), fraction(pairs, "cpu")
        print(f"{name:14} {rate:10.1f} {wall:11.2f} {cpu:12.2f}")
        if min(wall, cpu) < TARGETS.get(name, 0):
            missed.append(f"{name} with {threads} thread(s): {min(wall, cpu):.2f}")
    return missed


def main() -> None:
    """Measure, print and check the targets."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--threads", type=int, nargs="+", default=[1, 2])
    parser.add_argument("--memory-gib", type=float, help="default: four last-level caches")
    given = parser.parse_args()
    wanted = int(given.memory_gib * 2**30) if given.memory_gib else 4 * last_level_cache_bytes()
    memory = layers(wanted)
    print(
        f"decode, {SEQUENCES} x {CONTEXT} tokens, {HEADS}/{KV_HEADS} heads, head size {DIM}, fp32: "
        f"{STEP_BYTES / 1e6:.0f} MB per step, {len(memory)} layers in turn"
    )
    missed = []
    for threads in given.threads:
        if threads > available_threads():
            print(f"{threads} threads: not measured, {available_threads()} CPU(s) available")
            continue
        missed += report(threads, measure(memory, threads, given.rounds))
    if missed:
        raise SystemExit("below the target: " + "; ".join(missed))


if __name__ == "__main__":
    main()
