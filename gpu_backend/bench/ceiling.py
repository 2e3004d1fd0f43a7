"""What the device can do at most, measured beside the kernels: reading, and matrix products."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import torch

from gpu_backend.bench.bench import Bench
from gpu_backend.bench.results import Row
from gpu_backend.bench.timing import Sample, interleave
from gpu_backend.kernels.read import read_kernel

# (int32 per tile, tiles per program, warps)
READ_CONFIGS = [
    *((2048, tiles, 4) for tiles in (1, 4)),
    *((4096, tiles, 4) for tiles in (1, 4)),
    *((4096, tiles, 8) for tiles in (1, 4)),
    *((8192, tiles, 8) for tiles in (1, 2)),
]
TINY_CONFIGS = [(256, 1, 1), (256, 2, 1)]
READ_BYTES = 2 << 30
MATMUL_SIZES = (4096, 8192)


class ReadCeiling:
    """Bytes per second of a read-only maximum over a buffer of at least 4 times the L2 cache."""

    def __init__(self, bench: Bench, buffer: torch.Tensor) -> None:
        """`buffer`: any contiguous tensor; its first 2 GiB, or all of it, are read.

        Raises ValueError where it is smaller than 4 times the L2 cache.
        """
        configs = TINY_CONFIGS if bench.tiny else READ_CONFIGS
        unit = max(tile * tiles for tile, tiles, _ in configs)
        ints = buffer.view(-1).view(torch.int32)
        count = min(ints.numel(), READ_BYTES // 4) // unit * unit
        if 4 * count < bench.cold_bytes:
            raise ValueError(f"a buffer of {4 * count} bytes is below {bench.cold_bytes}")
        self.bytes = 4 * count
        self._values = ints[:count]
        self._largest = torch.zeros(count // 256, dtype=torch.int32, device=buffer.device)
        samples = [self._sample(bench, config) for config in configs]
        timed = interleave(samples, budget_s=1.0, replays=(2, 2) if bench.tiny else (5, 40))
        best = min(range(len(configs)), key=lambda index: timed[index].us)
        self.config, self._best = configs[best], samples[best]
        self._replays = (2, 2) if bench.tiny else (5, 20)

    def gb_per_s(self) -> float:
        """Measured now, with the settings that were best at first; 1e9 bytes per second."""
        (timed,) = interleave([self._best], budget_s=0.05, replays=self._replays)
        return self.bytes / timed.us / 1e3

    def row(self) -> Row:
        """The ceiling as a row of its own."""
        tile, tiles, warps = self.config
        settings = {"tile": tile, "tiles": tiles, "warps": warps}
        return {"kind": "ceiling", "bytes": self.bytes, "gb_per_s": self.gb_per_s(), **settings}

    def _sample(self, bench: Bench, config: tuple[int, int, int]) -> Sample:
        return bench.stopwatch.prepare([partial(self.read, config)])

    def read(self, config: tuple[int, int, int]) -> torch.Tensor:
        """Reads everything once; the programs' maxima, int32."""
        tile, tiles, warps = config
        programs = self._values.numel() // (tile * tiles)
        largest = self._largest[:programs]
        read_kernel[(programs,)](self._values, largest, TILE=tile, TILES=tiles, num_warps=warps)
        return largest


class MatmulCeiling:
    """Floating-point operations per second of torch's bfloat16 matrix product, the best size."""

    def __init__(self, bench: Bench) -> None:
        sizes = (32, 64) if bench.tiny else MATMUL_SIZES
        self._replays = (2, 2) if bench.tiny else (5, 20)
        self._products = [(size, self._sample(bench, size)) for size in sizes]

    def tflop_per_s(self) -> float:
        """Measured now; 1e12 operations per second, a multiply-add being two."""
        samples = [sample for _, sample in self._products]
        timed = interleave(samples, budget_s=0.1, replays=self._replays)
        return max(
            2 * size**3 / result.us / 1e6
            for (size, _), result in zip(self._products, timed, strict=True)
        )

    def _sample(self, bench: Bench, size: int) -> Sample:
        shape = (2, size, size)
        left, right = torch.randn(
            shape, device=bench.device, dtype=torch.bfloat16, generator=bench.random()
        )
        product: Callable[[], object] = partial(torch.mm, left, right)
        return bench.stopwatch.prepare([product])
