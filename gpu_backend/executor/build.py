"""From an allocator and a scheduler to an executor on a device, or an error that says why not."""

from __future__ import annotations

from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses, addresses_in
from gpu_backend.executor.executor import Executor
from gpu_backend.executor.runtime import Engine, Runtime, Settings
from gpu_backend.executor.shape import ModelShape
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.scheduler_base import QueueScheduler
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.errors import InputError

DEVICES = {"cpu": ("fp32",), "cuda": ("bf16", "fp16", "fp32")}
"""Device -> types of weights and KV that it runs, the default first."""
LAYOUTS = ("nhd", "hnd")
INSTALL = "Install it with `pip install 'kvsim[gpu]'`"


def build_executor(
    allocator: PagedAllocator | ContiguousAllocator,
    scheduler: Engine,
    shape: ModelShape,
    *,
    layers: int,
    device: str = "cpu",
    num_threads: int | None = None,
    dtype: str | None = None,
    layout: str = "nhd",
    attention_only: bool = False,
    seed: int = 0,
    check_every: int = 0,
    fill: float = float("nan"),
) -> Executor:
    """An executor of this scheduler's plans over this allocator's blocks or extents.

    `device` "cpu" (numba and numpy, fp32, on `num_threads` threads; None: all CPUs) or "cuda"
    (torch and Triton on the current CUDA device, in `dtype` "bf16", "fp16" or "fp32"; None: bf16).
    `layout` "nhd" or "hnd" of paged KV on CUDA; the CPU has its own. `attention_only` leaves out
    everything but the attention of every layer. `fill` is what KV memory holds before it is
    written: NaN shows where a slot is read that no step wrote, a number lets steps run on contexts
    that nobody computed.

    `check_every` n > 0: every n-th step, and those with or right after a preemption, a resumption,
    a prefix hit or a copy, are compared with a float64 reference, outside the measured time.

    Compiles the kernels and allocates everything. Raises `InputError` for a device that is not
    there, ValueError or TypeError for what it cannot run: asynchronous scheduling, speculation,
    static batches, layer groups.
    """
    _refuse(allocator, scheduler)
    shape.check()
    if layers < 1 or check_every < 0:
        raise ValueError(f"layers (={layers}) must be >= 1 and check_every (={check_every}) >= 0")
    dtype = _checked_dtype(device, dtype, num_threads, layout)
    rows, max_tokens = scheduler.max_num_seqs, scheduler.max_model_len
    addresses = addresses_in(allocator, rows=rows, max_tokens=max_tokens)
    most = min(scheduler.max_num_batched_tokens, rows * max_tokens)
    settings = Settings(shape, layers, rows, max_tokens, attention_only, seed, fill, most)
    runtime: Runtime
    if device == "cpu":
        runtime = _cpu_runtime(allocator, addresses, settings, num_threads)
    else:
        runtime = _cuda_runtime(allocator, addresses, settings, dtype, layout)
    return Executor(
        scheduler,
        addresses,
        runtime,
        device=device,
        vocab=shape.vocab,
        check_every=check_every,
        num_threads=num_threads,
    )


def _cpu_runtime(
    allocator: PagedAllocator | ContiguousAllocator,
    addresses: PagedAddresses | ContiguousAddresses,
    settings: Settings,
    num_threads: int | None,
) -> Runtime:
    try:
        from gpu_backend.executor.cpu import CpuRuntime
    except ModuleNotFoundError as error:
        raise _missing("cpu", error, ("numba", "llvmlite")) from error
    return CpuRuntime(allocator, addresses, settings, num_threads=num_threads)


def _cuda_runtime(
    allocator: PagedAllocator | ContiguousAllocator,
    addresses: PagedAddresses | ContiguousAddresses,
    settings: Settings,
    dtype: str,
    layout: str,
) -> Runtime:
    try:
        from gpu_backend.executor.torch_runtime import TorchRuntime
    except ModuleNotFoundError as error:
        raise _missing("cuda", error, ("torch", "triton")) from error
    return TorchRuntime(allocator, addresses, settings, dtype=dtype, layout=layout)


def _missing(device: str, error: ModuleNotFoundError, packages: tuple[str, ...]) -> Exception:
    """What to raise where an import for this device failed: some other module is a defect."""
    if error.name is None or error.name.partition(".")[0] not in packages:
        return error
    return InputError(
        f"device {device} needs {error.name}, which is not installed", where="device", fix=INSTALL
    )


def _checked_dtype(device: str, dtype: str | None, num_threads: int | None, layout: str) -> str:
    """The type to run; raises `InputError` for what the device does not offer."""
    if device not in DEVICES:
        known = ", ".join(DEVICES)
        raise InputError(f"{device!r} is no device to run on", where="device", fix=f"Use {known}")
    types = DEVICES[device]
    if dtype is not None and dtype not in types:
        raise InputError(
            f"{dtype!r} does not run on {device}", where="dtype", fix=f"Use {', '.join(types)}"
        )
    if layout not in LAYOUTS:
        known = ", ".join(LAYOUTS)
        raise InputError(f"{layout!r} is no layout of paged KV", where="layout", fix=f"Use {known}")
    if num_threads is not None and device != "cpu":
        raise InputError(f"num_threads is for the CPU, not for {device}", where="num_threads")
    return types[0] if dtype is None else dtype


def _refuse(allocator: object, scheduler: object) -> None:
    if not isinstance(allocator, PagedAllocator | ContiguousAllocator):
        raise TypeError(
            f"the executor runs PagedAllocator and ContiguousAllocator, "
            f"not {type(allocator).__name__}"
        )
    if not isinstance(scheduler, QueueScheduler):
        return  # plans made by hand: nothing behind them to refuse
    if scheduler.allocator is not allocator:
        raise ValueError("the scheduler uses another allocator than the executor")
    if scheduler.is_async:
        raise ValueError("the executor runs one step at a time: switch asynchronous scheduling off")
    if scheduler.delivers_unevenly:
        raise ValueError("the executor has no draft model: switch speculation off")
    if isinstance(scheduler, StaticScheduler):
        raise ValueError("the executor computes no padded rows: static batches are not supported")
