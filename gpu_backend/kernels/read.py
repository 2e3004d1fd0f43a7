"""Reading and nothing else: what a kernel that is bound by memory can reach at most."""

import triton
import triton.language as tl


@triton.jit
def read_kernel(values_ptr, largest_ptr, TILE: tl.constexpr, TILES: tl.constexpr):
    """The largest of `TILES` tiles of `TILE` int32, per program; grid (n // (TILE * TILES)).

    `values_ptr` [n], `largest_ptr` [programs], int32. The tiles of a program lie side by side.
    """
    program = tl.program_id(0).to(tl.int64)
    values = values_ptr + program * (TILE * TILES) + tl.arange(0, TILE)
    largest = tl.load(values)
    for tile in tl.static_range(1, TILES):
        largest = tl.maximum(largest, tl.load(values + tile * TILE))
    tl.store(largest_ptr + program, tl.max(largest, 0))
