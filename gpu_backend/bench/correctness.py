"""Every kernel against `reference` on the device, with everything poisoned that must not be read.

A case is one kernel, one type, one shape. Compiling takes most of the time (one or two seconds per
variant), so the cases vary one thing at a time around the usual shape, the usual ones first.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

import torch

from gpu_backend import ops, reference
from gpu_backend.bench.bench import Bench
from gpu_backend.bench.poison import NAN, Batch, Shape, expected, judge, poisoned_batch
from gpu_backend.bench.results import Row, describe

FP32, FP16, BF16 = torch.float32, torch.float16, torch.bfloat16
# One chunk of 512 tokens, its edges, several chunks, and nothing at all.
DECODE_CONTEXTS = [1, 17, 512, 513, 1100, 0]
SHORT_CONTEXTS = [5, 31, 0, 128]
# A decode, a whole prompt, a sequence that is not asked, a chunk after a prefix, an empty one.
PREFILL = ([190, 77, 9, 300, 0], [1, 77, 0, 140, 0])
TINY_CONTEXTS, TINY_PREFILL = [1, 33, 0], ([18, 5, 0], [1, 5, 0])


@dataclass(frozen=True)
class Case:
    """One attention kernel on one batch; `short`: contexts that are not split into chunks."""

    kind: str
    shape: Shape
    paged: bool = True
    short: bool = False

    @property
    def name(self) -> str:
        """All of it in words."""
        shape = self.shape
        words = [
            "paged" if self.paged else "contiguous",
            self.kind,
            str(shape.dtype).removeprefix("torch."),
            f"d={shape.head_dim}",
            f"group={shape.group}",
        ]
        words += [shape.layout, f"block={shape.block_size}"] if self.paged else []
        words += [f"window={shape.window}"] if shape.window else []
        words += [f"cap={shape.soft_cap}"] if shape.soft_cap else []
        return " ".join(words + ["short"] * self.short)


def attention_cases() -> list[Case]:
    """All of them, what matters most first."""
    usual = Shape()
    odd = replace(usual, block_size=5, head_dim=80, group=3, layout="hnd")
    shapes = [
        *(replace(usual, dtype=dtype) for dtype in (BF16, FP16, FP32)),
        replace(usual, layout="hnd"),
        *(replace(usual, block_size=size, dtype=FP16) for size in (1, 5, 128)),
        *(replace(usual, head_dim=dim) for dim in (64, 80, 256)),
        *(replace(usual, group=group, kv_heads=1) for group in (1, 7, 20)),
        replace(usual, window=9),
        replace(usual, window=600, block_size=5),
        replace(usual, soft_cap=0.7),
        replace(odd, dtype=FP32, window=40),
        replace(odd, dtype=BF16, soft_cap=5.0, window=40),
        replace(usual, dtype=FP32, head_dim=256, block_size=128),
        replace(usual, dtype=FP32, head_dim=64, block_size=1, layout="hnd"),
    ]
    plain = [usual, *(replace(usual, dtype=FP32, window=window) for window in (0, 40))]
    kinds = ("decode", "prefill")
    return [
        *(Case(kind, shape) for shape in shapes[:3] for kind in kinds),
        *(Case(kind, shape, paged=False) for shape in plain[:1] for kind in kinds),
        Case("decode", usual, short=True),
        *(Case(kind, shape) for shape in shapes[3:] for kind in kinds),
        *(Case(kind, shape, paged=False) for shape in plain[1:] for kind in kinds),
        *(Case("decode", replace(usual, dtype=dtype), short=True) for dtype in (FP32, FP16)),
    ]


def tiny_cases() -> list[Case]:
    """One batch per kernel and type, for the interpreter: every dimension once."""
    small = Shape(kv_heads=1, group=2, head_dim=24, block_size=4)
    shapes = [
        replace(small, dtype=FP32, layout="hnd"),
        replace(small, dtype=FP16, block_size=5, window=9),
        replace(small, dtype=BF16, block_size=1, soft_cap=0.7),
    ]
    return [
        *(Case(kind, shape) for shape in shapes for kind in ("decode", "prefill")),
        *(Case(kind, shapes[1], paged=False) for kind in ("decode", "prefill")),
    ]


def measure(bench: Bench) -> Iterator[Row]:
    """One row per case."""
    for case in tiny_cases() if bench.tiny else attention_cases():
        bench.check_time()
        yield {"case": case.name, **check_attention(case, bench)}
    for dtype in (BF16, FP16, FP32):
        for layout in ("nhd", "hnd"):
            for block_size in (3,) if bench.tiny else (1, 5, 16, 128):
                bench.check_time()
                yield from check_cache_ops(bench, dtype, layout, block_size)


def batch_of(case: Case, bench: Bench) -> Batch:
    """The poisoned batch of a case."""
    contexts, queries = TINY_PREFILL if bench.tiny else PREFILL
    if case.kind == "decode":
        full = SHORT_CONTEXTS if case.short else DECODE_CONTEXTS
        contexts = TINY_CONTEXTS if bench.tiny else full
        queries = [1] * len(contexts)
    return poisoned_batch(case.shape, contexts, queries, device=bench.device, seed=bench.seed)


def check_attention(case: Case, bench: Bench) -> Row:
    """Runs the kernel and compares, see `poison.judge`; a kernel that cannot run is wrong."""
    batch = batch_of(case, bench)
    try:
        found = run_kernel(case, batch)
    except Exception as error:  # noqa: BLE001 - the other kernels are still to be checked
        return {"correct": False, **describe(error)}
    wanted = expected(batch, case.kind, paged=case.paged)
    magnitude = expected(batch.magnitude, case.kind, paged=case.paged)
    return judge(found, wanted, magnitude)


def run_kernel(case: Case, batch: Batch) -> torch.Tensor:
    """The kernel's own result, [n, heads, d]."""
    lens, out = batch.context_lens, batch.out
    if case.kind == "decode" and case.paged:
        return ops.paged_decode(
            batch.query, *batch.cache, batch.block_table, lens,
            out=out, **batch.shape.paged_options,
        )  # fmt: skip
    if case.kind == "decode":
        return ops.contiguous_decode(
            batch.query, *batch.arena, batch.start_slots, lens, out=out, **batch.shape.options
        )
    if case.paged:
        return ops.paged_prefill(
            batch.query, *batch.cache, batch.block_table, batch.query_start, lens,
            out=out, **batch.shape.paged_options,
        )  # fmt: skip
    return ops.contiguous_prefill(
        batch.query, *batch.arena, batch.start_slots, batch.query_start, lens,
        out=out, **batch.shape.options,
    )  # fmt: skip


def check_cache_ops(
    bench: Bench, dtype: torch.dtype, layout: str, block_size: int
) -> Iterator[Row]:
    """Writing, copying and swapping: the same bits as `reference`, everywhere in the cache."""
    random = torch.Generator().manual_seed(bench.seed)
    num_blocks, kv_heads, head_dim = 11, 3, 24 if bench.tiny else 80
    inner = (block_size, kv_heads) if layout == "nhd" else (kv_heads, block_size)
    shape = (2, num_blocks, *inner, head_dim)
    pool = torch.randn(shape, generator=random).to(dtype).to(bench.device)
    fresh = torch.randn(2, 6, kv_heads, head_dim, generator=random).to(dtype).to(bench.device)
    last = num_blocks * block_size - 1
    slots = torch.tensor([6, -1, 0, last, 3, -1], device=bench.device)
    pairs = torch.tensor([[0, 6], [3, 1], [0, 2]], device=bench.device)
    gone, back = torch.tensor([[5, 0, 10], [1, 6, 2]], device=bench.device)

    name = f"{str(dtype).removeprefix('torch.')} {layout} block={block_size}"
    found, wanted = pool.clone(), pool.clone()
    mine, theirs = (found[0], found[1]), (wanted[0], wanted[1])
    key, value = fresh
    ops.reshape_and_cache(key, value, mine[0], mine[1], slots, layout=layout)
    reference.reshape_and_cache(key, value, theirs[0], theirs[1], slots, layout=layout)
    yield _same(f"reshape_and_cache {name}", found, wanted)
    ops.copy_blocks(mine[0], mine[1], pairs)
    reference.copy_blocks(theirs[0], theirs[1], pairs)
    yield _same(f"copy_blocks {name}", found, wanted)
    buffer = pool.new_full((2, 3, *pool.shape[2:]), NAN)
    ops.swap_out_blocks(mine[0], mine[1], gone, out=buffer)
    expected_buffer = reference.swap_out_blocks(theirs[0], theirs[1], gone)
    yield _same(f"swap_out_blocks {name}", buffer, expected_buffer)
    ops.swap_in_blocks(buffer, mine[0], mine[1], back)
    reference.swap_in_blocks(buffer, theirs[0], theirs[1], back)
    yield _same(f"swap_in_blocks {name}", found, wanted)


def _same(case: str, found: torch.Tensor, wanted: torch.Tensor) -> Row:
    """Copies have no rounding: every bit must be the same."""
    equal = torch.equal(found, wanted)
    nans = int(found.isnan().sum())
    largest = 0.0 if equal else float((found.double() - wanted.double()).abs().max())
    return {"case": case, "max_error": largest, "tolerance": 0.0, "nan": nans, "correct": equal}
