"""One prepared run on a bare CUDA machine: `python -m gpu_backend.bench --minutes 8 --out DIR`.

Needs torch, triton and numpy, and nothing else of what kvsim depends on. Each section is one module
with `measure(bench)`, a generator of rows; `runner` gives it its time and `results` saves its rows.
"""
