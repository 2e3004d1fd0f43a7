"""Small workloads on the torch runtime, on the CPU in Triton's interpreter."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gpu_backend.executor import Engine, Executor, ModelShape
from gpu_backend.executor.addresses import addresses_in
from gpu_backend.executor.runtime import Settings
from gpu_backend.executor.torch_runtime import TorchRuntime
from tests.gpu_backend_executor.runs import Case, Memory, Steps, replay

TINY = ModelShape(hidden=16, heads=2, kv_heads=1, head_dim=8, intermediate=24, vocab=97)
"""One KV head: a tile costs the interpreter milliseconds."""


def torch_executor(
    memory: Memory,
    engine: Engine,
    *,
    shape: ModelShape = TINY,
    layers: int = 1,
    dtype: str = "fp32",
    layout: str = "nhd",
    check_every: int = 1,
    torch_device: str = "cpu",
    **settings: Any,
) -> Executor:
    rows, max_tokens = engine.max_num_seqs, engine.max_model_len
    addresses = addresses_in(memory, rows=rows, max_tokens=max_tokens)
    runtime = TorchRuntime(
        memory,
        addresses,
        Settings(shape, layers, rows, max_tokens, **settings),
        dtype=dtype,
        layout=layout,
        torch_device=torch_device,
    )
    return Executor(
        engine, addresses, runtime, device="cpu", vocab=shape.vocab, check_every=check_every
    )


def torch_run(
    case: Case, *, prepare: Callable[[Executor], None] = lambda executor: None, **settings: Any
) -> tuple[Executor, Steps]:
    """As `runs.run`."""
    memory, engine, requests = case()
    executor = torch_executor(memory, engine, **settings)
    prepare(executor)
    return executor, replay(executor, engine, requests)
