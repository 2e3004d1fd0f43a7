"""Attention on the CPU that really measures: numba kernels near the machine's read bandwidth.

fp32 KV caches in blocks ("hnd" or "nhd") or in an arena of contiguous extents; arguments are numpy
arrays or CPU torch tensors, which are used in place. The kernels are compiled for a head size on
its first use (`warm_up`) and kept on disk by numba (`NUMBA_CACHE_DIR` where the package's folder
cannot be written).
"""

from gpu_backend.cpu.attention import (
    contiguous_decode,
    contiguous_prefill,
    paged_decode,
    paged_prefill,
)
from gpu_backend.cpu.cache_ops import copy_blocks, reshape_and_cache
from gpu_backend.cpu.warm_up import warm_up

__all__ = [
    "contiguous_decode",
    "contiguous_prefill",
    "copy_blocks",
    "paged_decode",
    "paged_prefill",
    "reshape_and_cache",
    "warm_up",
]
