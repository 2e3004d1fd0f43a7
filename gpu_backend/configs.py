"""Launch settings of the kernels: a plain table per class of GPU.

The settings are what compiles without spilling and within 128 registers (`python -m
gpu_backend.aot_check`, with Triton 3.6 and 3.9); no GPU was at hand to choose between them by time.
Nothing is tuned at run time: which kernel runs follows from this table alone.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class DecodeConfig:
    """Settings of the decode kernel.

    `tile`: tokens read at once. `chunk`: tokens per program, a multiple of `tile`; a longer context
    is split, and its parts are reduced. `warps` and `stages` as Triton counts them. `registers`: an
    upper bound given to the assembler, None for its own choice.
    """

    tile: int
    chunk: int
    warps: int
    stages: int
    registers: int | None = None

    def __post_init__(self) -> None:
        _check_tile("tile", self.tile)
        if self.chunk < self.tile or self.chunk % self.tile:
            raise ValueError(f"chunk {self.chunk} is no multiple of tile {self.tile}")


@dataclass(frozen=True)
class PrefillConfig:
    """Settings of the prefill kernel: `rows` (queries x heads of a group) against `tile` tokens.

    `warps`, `stages` and `registers` as in `DecodeConfig`.
    """

    rows: int
    tile: int
    warps: int
    stages: int
    registers: int | None = None

    def __post_init__(self) -> None:
        _check_tile("rows", self.rows)
        _check_tile("tile", self.tile)


def _check_tile(name: str, value: int) -> None:
    """Tensor cores take no fewer than 16 rows, Triton only powers of two."""
    if value < 16 or value & (value - 1):
        raise ValueError(f"{name} {value} is no power of two from 16 on")


# (bytes per element, padded head size) -> settings. A chunk of 512 tokens costs a reduce that
# reads and writes 1.6 % of the chunk's bytes (4 query heads per KV head, bf16), and no program is
# longer than that, however skewed the batch.
_DECODE = {
    (2, 64): DecodeConfig(tile=64, chunk=512, warps=4, stages=3),
    (2, 128): DecodeConfig(tile=64, chunk=512, warps=4, stages=3),
    (2, 256): DecodeConfig(tile=32, chunk=512, warps=8, stages=3),
    (4, 64): DecodeConfig(tile=32, chunk=512, warps=8, stages=3),
    (4, 128): DecodeConfig(tile=32, chunk=512, warps=8, stages=3),
    (4, 256): DecodeConfig(tile=16, chunk=512, warps=8, stages=3),
}
_PREFILL_FLOAT32 = {
    (4, 64): PrefillConfig(rows=32, tile=32, warps=8, stages=3),
    (4, 128): PrefillConfig(rows=32, tile=32, warps=8, stages=3),
    (4, 256): PrefillConfig(rows=16, tile=16, warps=8, stages=3),
}
_PREFILL_MMA = _PREFILL_FLOAT32 | {
    (2, 64): PrefillConfig(rows=64, tile=32, warps=4, stages=3, registers=128),
    (2, 128): PrefillConfig(rows=32, tile=64, warps=8, stages=3),
    (2, 256): PrefillConfig(rows=32, tile=32, warps=8, stages=3, registers=128),
}
# Hopper's matrix instructions read their operands from shared memory, which leaves room for rows.
_PREFILL_WGMMA = _PREFILL_FLOAT32 | {
    (2, 64): PrefillConfig(rows=128, tile=64, warps=8, stages=3),
    (2, 128): PrefillConfig(rows=128, tile=32, warps=8, stages=3, registers=128),
    (2, 256): PrefillConfig(rows=64, tile=32, warps=16, stages=3),
}
DECODE = {"sm_80": _DECODE, "sm_90": _DECODE, "default": _DECODE}
PREFILL = {"sm_80": _PREFILL_MMA, "sm_90": _PREFILL_WGMMA, "default": _PREFILL_MMA}

# The interpreter takes 5 ms for a tile of any size, and tests want several tiles and chunks.
INTERPRETED_DECODE = DecodeConfig(tile=16, chunk=32, warps=1, stages=1)
INTERPRETED_PREFILL = PrefillConfig(rows=32, tile=16, warps=1, stages=1)


def gpu_class(device: torch.device) -> str:
    """The table's name for a CUDA device; "default" where it is not one of the table's."""
    major, minor = torch.cuda.get_device_capability(device)
    name = f"sm_{major}{minor}"
    return name if name in DECODE else "default"


def padded(head_dim: int) -> int:
    """The head size as kernels hold it: a power of two, at least the 16 a matrix unit needs."""
    return max(16, 1 << (head_dim - 1).bit_length())


def decode_config(name: str, head_dim: int, element_bytes: int) -> DecodeConfig:
    """The decode settings of GPU class `name`; "interpreter" is one too."""
    if name == "interpreter":
        return INTERPRETED_DECODE
    return DECODE[name][element_bytes, max(64, padded(head_dim))]


def prefill_config(name: str, head_dim: int, element_bytes: int) -> PrefillConfig:
    """The prefill settings of GPU class `name`; "interpreter" is one too."""
    if name == "interpreter":
        return INTERPRETED_PREFILL
    return PREFILL[name][element_bytes, max(64, padded(head_dim))]
