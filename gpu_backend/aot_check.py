"""`python -m gpu_backend.aot_check`: compiles the kernels for GPUs that are not here.

Every default configuration, for sm_80 and sm_90, as a launch on that GPU would compile it: the
launches are the real ones, only the driver is a stub. Exit status 1 unless all compile, none spills
registers to memory, cached keys and values are read 128 bits at a time, and attention takes at most
128 registers per thread (two blocks of 256 threads per multiprocessor).
"""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import triton
from triton.backends.compiler import GPUTarget
from triton.runtime import driver

from gpu_backend import checks, configs, launches
from gpu_backend.kernels import common
from gpu_backend.launches import Attention, Launch

ARCHITECTURES = (80, 90)
MAX_REGISTERS = 128
WIDE_BYTES = 16
VARIANT = "variant:"  # the settings were not chosen for it: its registers are shown, not judged
SEQS, KV_HEADS, GROUP, BLOCKS = 4, 8, 4, 8
_COLUMNS = ("kernel", "registers", "stack", "spills", "shared bytes", "K/V load bytes", "verdict")


@dataclass(frozen=True)
class Compiled:
    """What the assembler made of one launch.

    Per thread: `registers`, `stack` bytes, `spills` (instructions that touch local memory). Per
    block: `shared` bytes. `load_bytes`: the widths of the loads of cached keys and values, which a
    kernel that `attends` must have.
    """

    name: str
    registers: int
    stack: int
    spills: int
    shared: int
    load_bytes: tuple[int, ...]
    attends: bool

    @property
    def is_variant(self) -> bool:
        """Whether the settings were chosen for something else."""
        return self.name.startswith(VARIANT)

    def faults(self) -> list[str]:
        """What is wrong with it, in words."""
        found = []
        if not self.is_variant and (self.stack or self.spills):
            found.append("spills")
        if not self.is_variant and self.registers > MAX_REGISTERS:
            found.append(f"more than {MAX_REGISTERS} registers")
        if self.load_bytes and min(self.load_bytes) < WIDE_BYTES:
            found.append("narrow K/V loads")
        if self.attends and not self.load_bytes:
            found.append("no K/V loads found")
        return found


class _NoDevice:
    """The part of Triton's driver that compiling needs; each architecture is a device of its own,
    since Triton compiles once per device."""

    def __init__(self, architecture: int) -> None:
        self._architecture = architecture

    def get_current_target(self) -> GPUTarget:
        return GPUTarget("cuda", self._architecture, 32)

    def get_current_device(self) -> int:
        return self._architecture

    def get_current_stream(self, device: int) -> int:
        return 0

    def get_active_torch_device(self) -> torch.device:
        return torch.device("cpu")

    def map_python_to_cpp_type(self, name: str) -> str:
        return name


def cases(name: str) -> Iterator[tuple[str, Launch]]:
    """(label, launch) of every default configuration of GPU class `name`, and two variants."""
    for dtype in (torch.bfloat16, torch.float32):
        for head_dim in (64, 128, 256):
            label = f"{str(dtype).removeprefix('torch.')} d={head_dim}"
            yield f"paged decode, {label}", _decode(name, _Case(dtype, head_dim))[0]
            yield f"paged prefill, {label}", _prefill(name, _Case(dtype, head_dim))
    yield "decode reduce", _decode(name, _Case())[1]
    yield "contiguous decode, float16 d=128", _decode(name, _Case(paged=False))[0]
    yield "contiguous prefill, float16 d=128", _prefill(name, _Case(paged=False))
    yield from _copies()
    odd = _Case(head_dim=96, block_size=24, attention=Attention(0.1, window=1000, soft_cap=30.0))
    yield f"{VARIANT} decode, float16 d=96, block 24, window, cap", _decode(name, odd)[0]
    yield f"{VARIANT} prefill, float16 d=96, block 24, window, cap", _prefill(name, odd)


@dataclass(frozen=True)
class _Case:
    """The tensors that a launch is compiled for."""

    dtype: torch.dtype = torch.float16
    head_dim: int = 128
    block_size: int = 16
    paged: bool = True
    attention: Attention = field(default_factory=lambda: Attention(scale=0.1))

    def tensors(self) -> tuple[torch.Tensor, checks.CacheView, torch.Tensor]:
        """Queries, cache and context lengths; nothing is ever read from them."""
        query = torch.empty(SEQS, KV_HEADS * GROUP, self.head_dim, dtype=self.dtype)
        shape = (BLOCKS, self.block_size, KV_HEADS, self.head_dim)
        cache = torch.empty(shape, dtype=self.dtype)
        lens = torch.empty(SEQS, dtype=torch.int32)
        if self.paged:
            table = torch.empty(SEQS, 1024, dtype=torch.int32)
            return query, checks.paged_view(cache, cache, table, "nhd"), lens
        arena, starts = cache.flatten(0, 1), torch.empty(SEQS, dtype=torch.int64)
        return query, checks.contiguous_view(arena, arena, starts), lens


def _decode(name: str, case: _Case) -> list[Launch]:
    query, view, lens = case.tensors()
    config = configs.decode_config(name, case.head_dim, case.dtype.itemsize)
    out = torch.empty_like(query)
    return launches.decode_launches(out, query, view, lens, case.attention, 4096, config)


def _prefill(name: str, case: _Case) -> Launch:
    query, view, lens = case.tensors()
    config = configs.prefill_config(name, case.head_dim, case.dtype.itemsize)
    starts = torch.empty(SEQS + 1, dtype=torch.int32)
    out = torch.empty_like(query)
    return launches.prefill_launch(out, query, view, starts, lens, case.attention, config)


def _copies() -> Iterator[tuple[str, Launch]]:
    cache = torch.empty(BLOCKS, 16, KV_HEADS, 128, dtype=torch.bfloat16)
    fresh = torch.empty(SEQS, KV_HEADS, 128, dtype=torch.bfloat16)
    slots = torch.empty(SEQS, dtype=torch.int64)
    strides = checks.cache_strides(cache, cache, "nhd")
    yield "cache write", launches.write_launch(fresh, fresh, cache, cache, slots, strides, 16)
    pairs = torch.empty(2, 2, dtype=torch.int64)
    yield "block copy", launches.copy_launch(cache, cache, pairs)
    buffer = torch.empty(2, SEQS, 16, KV_HEADS, 128, dtype=torch.bfloat16)
    for out in (True, False):
        label = "out" if out else "in"
        yield f"block swap {label}", launches.swap_launch(buffer, cache, cache, slots, out)


def compile_all(architecture: int) -> list[Compiled]:
    """Compiles every case for one architecture, in this process."""
    # Triton 3.9 warns unless told; multiply-adds are fused, as on the GPU by default.
    os.environ["TRITON_DEFAULT_FP_FUSION"] = "1"
    driver.set_active(_NoDevice(architecture))
    name = f"sm_{architecture}"
    with tempfile.TemporaryDirectory() as folder:
        os.environ["TRITON_CACHE_DIR"] = folder
        return [
            _inspect(label, _compile(launch), Path(folder), attends="PAGED" in launch.constants)
            for label, launch in cases(name)
        ]


def _compile(launch: Launch) -> Any:
    return launch.kernel.warmup(*launch.arguments, grid=launch.grid, **launch.constants)


def _inspect(name: str, kernel: Any, folder: Path, *, attends: bool) -> Compiled:
    cubin = folder / "kernel.cubin"
    cubin.write_bytes(kernel.asm["cubin"])
    usage = _tool("cuobjdump", "--dump-resource-usage", str(cubin))
    found = re.search(r"REG:(\d+) STACK:(\d+)", usage)
    if found is None:
        raise RuntimeError(f"cuobjdump does not name the registers: {usage}")
    spills = re.findall(r"\b(?:LDL|STL)\b", _tool("nvdisasm", "-ndf", "-c", str(cubin)))
    return Compiled(
        name,
        registers=int(found[1]),
        stack=int(found[2]),
        spills=len(spills),
        shared=int(kernel.metadata.shared),
        load_bytes=tuple(sorted(set(_cache_loads(kernel.asm["ptx"])))),
        attends=attends,
    )


def _tool(name: str, *arguments: str) -> str:
    path = Path(triton.__file__).parent / "backends" / "nvidia" / "bin" / name
    return subprocess.run([path, *arguments], check=True, capture_output=True, text=True).stdout


def _cache_loads(ptx: str) -> Iterator[int]:
    """Bytes of each load of cached keys or values: those that come from `common.load_tile`."""
    lines, first = inspect.getsourcelines(common.load_tile.fn)
    source = re.search(r'\.file\s+(\d+) ".*/kernels/common\.py"', ptx)
    within = False
    for line in ptx.splitlines():
        if location := re.match(r"\s*\.loc\s+(\d+) (\d+)", line):
            row = int(location[2])
            within = source is not None and location[1] == source[1]
            within = within and first <= row < first + len(lines)
        elif within and (width := _load_width(line)):
            yield width


def _load_width(line: str) -> int:
    """Bytes that one PTX instruction loads from global memory, 0 if it does not."""
    if found := re.search(r"cp\.async\.\w+\.shared\.global .*, (0x[0-9a-f]+|\d+), ", line):
        return int(found[1], 0)
    if found := re.search(r"\bld\.global[\w.:]*?(?:\.v(\d))?\.[bfsu](\d+) ", line):
        return int(found[1] or 1) * int(found[2]) // 8
    return 0


def table(rows: list[Compiled]) -> str:
    """The results as text, a line each."""
    cells: list[tuple[str, ...]] = [_COLUMNS]
    for row in rows:
        widths = "/".join(str(width) for width in row.load_bytes) or "-"
        numbers = (row.registers, row.stack, row.spills, row.shared)
        verdict = ", ".join(row.faults()) or ("compiles" if row.is_variant else "ok")
        cells.append((row.name, *(str(number) for number in numbers), widths, verdict))
    widest = [max(len(line[column]) for line in cells) for column in range(len(_COLUMNS))]
    return "".join(
        "  ".join(cell.ljust(width) for cell, width in zip(line, widest, strict=True)).rstrip()
        + "\n"
        for line in cells
    )


def main(arguments: list[str]) -> int:
    """Compiles for one architecture ("80"), or for all, prints tables, returns the exit status."""
    if not arguments:
        return _all_architectures()
    if launches.interpreted():
        sys.stderr.write("TRITON_INTERPRET is set: nothing would be compiled\n")
        return 2
    rows = compile_all(int(arguments[0]))
    sys.stdout.write(f"sm_{arguments[0]}, Triton {triton.__version__}\n{table(rows)}")
    return int(any(row.faults() for row in rows))


def _all_architectures() -> int:
    """One process each, side by side: Triton's driver, and the interpreter, are set per process."""
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    children = [
        subprocess.Popen(
            [sys.executable, "-m", "gpu_backend.aot_check", str(architecture)],
            stdout=subprocess.PIPE,
            text=True,
            env=environment,
        )
        for architecture in ARCHITECTURES
    ]
    for child in children:
        sys.stdout.write(child.communicate()[0])
    return max(child.returncode != 0 for child in children)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
