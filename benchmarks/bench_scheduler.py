"""Speed of the simulated scheduler, with every memory term recorded.

Compared in one run: the calendar against the plain loop of the tests on the same requests (a ratio
of CPU times), and 1,000,000 requests against 100,000 (linear time). Counts are asserted.

    python benchmarks/bench_scheduler.py [--skip-million]
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import random
import resource
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import Speculation, SpeculativeScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.cost import FixedClock
from kvsim.results import SummaryRecorder
from kvsim.sim import run_replica

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from tests.reference import ReferenceLoop, RefRequest  # noqa: E402

STEP_S = 0.02
NUM_BLOCKS = 27_000
LAW_SEED = 2026
"""The bench trace's law: lognormal prompts and outputs with means near 1,000 and 200 tokens."""


def law(count: int, *, arrivals_per_step: float = 0.0) -> Iterator[Request]:
    """Requests of the bench trace's law, at time 0 or as a Poisson stream."""
    generator = random.Random(LAW_SEED)
    now = 0.0
    for index in range(count):
        if arrivals_per_step:
            now += generator.expovariate(arrivals_per_step) * STEP_S
        prompt = min(max(round(generator.lognormvariate(6.5, 0.889)), 1), 7000)
        output = min(max(round(generator.lognormvariate(5.05, 0.691)), 1), 1000)
        yield Request(f"r{index}", round(now * 1e9), prompt, output)


def bench_trace() -> list[Request] | None:
    """The 10,000 recorded requests, all at time 0, or None without the reference material."""
    shared = Path(os.environ.get("KVSIM_SHARED", ROOT.parent / "shared"))
    path = shared / "vllm" / "bench_trace.jsonl.gz"
    if not path.is_file():
        return None
    with gzip.open(path, "rt") as lines:
        rows = [json.loads(line) for line in lines]
    return [Request(row["id"], 0, row["prompt_tokens"], row["output_tokens"]) for row in rows]


class Mode(NamedTuple):
    """How the engine runs the bench configuration."""

    cached: bool = False
    is_async: bool = False
    num_blocks: int = NUM_BLOCKS
    layers: str = "full"
    drafts: int = 0


UNCACHED = Mode()


def engine(mode: Mode) -> VllmScheduler:
    """vLLM's bench configuration: 256 sequences, 8,192 tokens a step and a request."""
    limits: dict[str, Any] = {"max_num_batched_tokens": 8192, "max_model_len": 8192}
    eviction = LruOrder() if mode.cached else None
    allocator: PagedAllocator | GroupedAllocator
    if mode.layers == "full":
        allocator = PagedAllocator(
            mode.num_blocks, 16, eviction=eviction, seals_ahead=not mode.is_async
        )
    else:
        groups = [LayerGroup("full", 16), LayerGroup("sliding", 16, 1024)]
        allocator = GroupedAllocator(
            mode.num_blocks, groups, async_scheduling=mode.is_async, eviction=eviction, **limits
        )
    if mode.drafts:
        speculation = Speculation("ngram", mode.drafts, lambda request, earlier, verified: 1)
        return SpeculativeScheduler(allocator, speculation=speculation, max_num_seqs=256, **limits)
    return VllmScheduler(allocator, max_num_seqs=256, async_scheduling=mode.is_async, **limits)


def simulate(requests: Iterable[Request], mode: Mode = UNCACHED) -> tuple[dict[str, Any], float]:
    """Summary and CPU seconds of a run of vLLM's bench configuration."""
    scheduler = engine(mode)
    allocator = scheduler.allocator
    recorder = SummaryRecorder(allocator)
    start = time.process_time()
    run_replica(requests, scheduler, FixedClock(step_s=STEP_S), recorder)
    return recorder.summary(), time.process_time() - start


def best_of_three(requests: list[Request], mode: Mode = UNCACHED) -> tuple[dict[str, Any], float]:
    """The fastest of three runs: the machine may be busy, and a first run warms up."""
    return min((simulate(requests, mode) for _ in range(3)), key=lambda run: run[1])


def compare_modes(requests: list[Request], uncached: float) -> None:
    """The other modes on the recorded requests, as multiples of the uncached synchronous time."""
    modes = {
        "cached, every prompt hashed": (Mode(cached=True), (8279, 11_807_681, 0)),
        "asynchronous": (Mode(is_async=True), (8279, 11_807_681, 0)),
        "cached and asynchronous": (Mode(cached=True, is_async=True), (8279, 11_807_681, 0)),
        "cached, 12,000 blocks": (
            Mode(cached=True, num_blocks=12_000),
            (12_301, 12_073_572, 840),
        ),
    }
    seconds = {}
    for name, (mode, counts) in modes.items():
        summary, seconds[name] = best_of_three(requests, mode)
        found = (summary["steps"], summary["tokens"]["scheduled"], summary["preemptions"])
        assert mode.is_async or found == counts, (name, found)
        assert found[1] == counts[1], (name, found)
        print(f"{name}: {found}, {seconds[name]:.3f} s CPU, {seconds[name] / uncached:.2f} x")
    assert seconds["asynchronous"] / uncached < 1.3, "asynchronous scheduling costs too much"
    ratio = seconds["cached and asynchronous"] / seconds["cached, every prompt hashed"]
    assert ratio < 1.3, "asynchronous scheduling costs too much with caching"
    for name, mode in (
        ("full and sliding group", Mode(layers="hybrid", num_blocks=54_000)),
        ("full and sliding group, cached", Mode(True, layers="hybrid", num_blocks=54_000)),
        ("3 drafts, 1 accepted", Mode(drafts=3)),
    ):
        summary, taken = simulate(requests, mode)
        print(f"{name}: {summary['steps']:,} steps, {taken:.3f} s CPU, {taken / uncached:.2f} x")


def plain_loop(requests: list[Request]) -> tuple[int, float]:
    """Steps and CPU seconds of the plain loop on the same configuration."""
    loop = ReferenceLoop(
        {
            "num_gpu_blocks": NUM_BLOCKS,
            "block_size": 16,
            "max_num_seqs": 256,
            "max_num_batched_tokens": 8192,
            "max_model_len": 8192,
            "enable_chunked_prefill": True,
            "long_prefill_token_threshold": 0,
            "scheduler_reserve_full_isl": True,
            "watermark": 0.0,
        }
    )
    loop.describe_rows = False
    start = time.process_time()
    for request in requests:
        loop.add(RefRequest(request.request_id, request.prompt_tokens, request.output_tokens))
    steps = 0
    while loop.running or loop.waiting:
        loop.schedule()
        loop.complete()
        steps += 1
    return steps, time.process_time() - start


def main() -> None:
    """Run all comparisons; an assertion fails where a property is lost."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--skip-million", action="store_true")
    options = parser.parse_args()

    recorded = bench_trace()
    if recorded is None:
        print("bench trace: skipped, needs ../shared (or KVSIM_SHARED)")
    else:
        summary, seconds = best_of_three(recorded)
        assert summary["steps"] == 8279, summary["steps"]
        assert summary["tokens"]["scheduled"] == 11_807_681, summary["tokens"]
        print(f"bench trace, all at step 0: 8,279 steps, 11,807,681 tokens, {seconds:.3f} s CPU")
        compare_modes(recorded, seconds)

    sample = list(law(1500))
    summary, fast = best_of_three(sample)
    steps, slow = plain_loop(sample)
    assert summary["steps"] == steps, (summary["steps"], steps)
    print(f"1,500 requests: {steps:,} steps, plain loop / calendar = {slow / fast:.1f}")
    assert slow / fast > 15, "a step no longer costs what changes in it"

    if options.skip_million:
        return
    _, small = simulate(law(100_000, arrivals_per_step=1.15))
    summary, large = simulate(law(1_000_000, arrivals_per_step=1.15))
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    assert summary["requests"]["finished"] == 1_000_000
    print(
        f"1,000,000 requests at 1.15 per step: {summary['steps']:,} steps, {large:.1f} s CPU, "
        f"{large / small:.1f} x the time of 100,000, peak memory {peak_mb:.0f} MB"
    )
    assert large / small < 15, "time is not linear in the number of requests"
    assert peak_mb < 300, "memory grows with the number of requests"


if __name__ == "__main__":
    main()
