"""Real paged-attention kernels behind kvsim's clock seam (extra `gpu`).

The kernels, their PyTorch reference and the executor that measures a step plan on a device live
here. Nothing in kvsim imports this package at module level.
"""
