"""Triton kernels, and nothing else: launching and checking them is `gpu_backend.ops`."""
