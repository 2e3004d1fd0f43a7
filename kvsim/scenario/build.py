"""Checked settings -> running objects. Objects get numbers; none of them holds a scenario."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvsim.catalog import Budget, Gpu, Model, NoKvMemoryError, compute_budget, get_gpu, get_model
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Allocator, Scheduler
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.errors import InputError
from kvsim.scenario.build_clock import PredictiveClock, build_clock
from kvsim.scenario.checks import SettingsError
from kvsim.scenario.engine import KV_CACHE_BYTES, EngineSettings
from kvsim.scenario.memory import ContiguousMemory, GrowMemory, PagedMemory
from kvsim.scenario.settings import Scenario


@dataclass(frozen=True)
class Sizing:
    """What follows from the settings of one variant before anything is allocated."""

    num_blocks: int
    max_model_len: int
    clock: PredictiveClock
    budget: Budget | None
    """How `num_blocks` was computed; None where the scenario gives it."""
    model_name: str | None
    gpu_name: str | None
    """Names in the catalogue, whatever alias the scenario uses."""


@dataclass(frozen=True)
class Server:
    """One variant, ready to run: fresh objects that share nothing with another variant's."""

    allocator: Allocator
    scheduler: Scheduler
    sizing: Sizing


def size_server(settings: Scenario) -> Sizing:
    """Blocks, longest request and clock of one variant.

    Raises `SettingsError` for a name the catalogue lacks, a model that leaves no KV memory, and
    limits that the model does not allow.
    """
    model = gpu = budget = None
    if settings.model is not None:
        with _blamed_on("model"):
            model = get_model(settings.model)
    if settings.hardware is not None:
        with _blamed_on("hardware.gpu"):
            gpu = get_gpu(settings.hardware.gpu)
    max_model_len = _max_model_len(settings.engine, model)
    _check_lengths(settings.engine, max_model_len)
    num_blocks = settings.memory.num_blocks
    if num_blocks is None:
        assert model is not None  # kvsim.scenario.checks
        assert gpu is not None
        budget = _budget(settings, model, gpu, max_model_len)
        num_blocks = budget.num_blocks
    with _blamed_on("hardware"):
        clock = build_clock(settings, model, gpu)
    names = (model.name if model else None, gpu.name if gpu else None)
    return Sizing(num_blocks, max_model_len, clock, budget, *names)


def build_server(settings: Scenario) -> Server:
    """Construct allocator, scheduler and clock of one variant. Raises as `size_server` does."""
    sizing = size_server(settings)
    allocator = _allocator(settings, sizing.num_blocks, sizing.max_model_len)
    scheduler = SCHEDULERS[settings.engine.scheduler](settings, allocator, sizing.max_model_len)
    return Server(allocator, scheduler, sizing)


@contextmanager
def _blamed_on(path: str) -> Iterator[None]:
    """Errors of other boxes, which know no settings, as errors of the setting at `path`."""
    try:
        yield
    except SettingsError:
        raise
    except InputError as error:
        setting = "hardware.count" if error.where == "tp" else path
        raise SettingsError(setting, f"cannot be used: {error.problem}", error.fix) from error


@contextmanager
def _settings_named() -> Iterator[None]:
    """Ways out of the memory budget as settings of a scenario."""
    try:
        yield
    except NoKvMemoryError as error:
        ways = []
        if error.utilization is not None:
            ways.append(f"engine.gpu_memory_utilization to {error.utilization:g}")
        if error.tp is not None:
            ways.append(f"hardware.count to {error.tp}")
        larger = f"Set {' or '.join(ways)}, or" if ways else "Set"
        fix = f"{larger} hardware.gpu to one with more memory or model to a smaller one"
        raise InputError(error.problem, fix=fix) from None


def _max_model_len(engine: EngineSettings, model: Model | None) -> int:
    """The engine's limit, which may not be above the model's own."""
    wanted = engine.max_model_len
    if model is None:
        assert wanted is not None  # kvsim.scenario.checks
        return wanted
    if wanted is None:
        wanted = model.max_position
    elif wanted > model.max_position:
        raise SettingsError(
            "engine.max_model_len",
            f"must be <= {model.max_position} tokens, the limit of {model.name}, got {wanted}",
            "Lower it, or choose a model with a longer context",
        )
    return wanted


def _check_lengths(engine: EngineSettings, max_model_len: int) -> None:
    """Limits that depend on the longest request."""
    budget = engine.max_num_batched_tokens
    whole_prompts = {
        "vllm": None if engine.enable_chunked_prefill else "without chunked prefill",
        "orca": "with engine.scheduler = orca, which computes whole prompts",
        "static": None,
    }[engine.scheduler]
    if whole_prompts and budget < max_model_len:
        raise SettingsError(
            "engine.max_num_batched_tokens",
            f"must be >= max_model_len = {max_model_len} tokens {whole_prompts}, got {budget}",
            "Raise it, or lower max_model_len",
        )
    if engine.long_prefill_token_threshold > max_model_len:
        raise SettingsError(
            "engine.long_prefill_token_threshold",
            f"must be <= max_model_len = {max_model_len} tokens,"
            f" got {engine.long_prefill_token_threshold}",
            "Lower it, or set it to 0 for no limit",
        )


def _budget(settings: Scenario, model: Model, gpu: Gpu, max_model_len: int) -> Budget:
    engine, block_size = settings.engine, settings.memory.block_size
    with _blamed_on("hardware"), _settings_named():
        budget = compute_budget(
            model,
            gpu,
            tp=settings.hardware.count if settings.hardware else 1,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            block_size=block_size,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            kv_dtype_bytes=KV_CACHE_BYTES[engine.kv_cache_dtype],
        )
    slots = budget.num_blocks * block_size
    if max_model_len > slots:
        raise SettingsError(
            "engine.max_model_len",
            f"= {max_model_len} tokens is more than the KV memory that {model.name} leaves on"
            f" {gpu.name}: {budget.num_blocks} blocks of {block_size} = {slots} tokens",
            f"Lower it to {slots} or less, or raise engine.gpu_memory_utilization or"
            " hardware.count",
        )
    return budget


def _allocator(settings: Scenario, num_blocks: int, max_model_len: int) -> Allocator:
    memory = settings.memory
    match memory:
        case PagedMemory():
            return PagedAllocator(num_blocks, memory.block_size, null_block=memory.null_block)
        case ContiguousMemory():
            return ContiguousAllocator(
                num_blocks,
                memory.block_size,
                max_model_len=max_model_len,
                reserve=memory.reserve,
                placement=memory.placement,
                max_chunk_tokens=memory.max_chunk_tokens,
                compaction=memory.compaction,
            )
        case GrowMemory():
            return GrowAllocator(num_blocks, memory.block_size)


def _vllm(settings: Scenario, allocator: Allocator, max_model_len: int) -> Scheduler:
    engine = settings.engine
    return VllmScheduler(
        allocator,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        enable_chunked_prefill=engine.enable_chunked_prefill,
        long_prefill_token_threshold=engine.long_prefill_token_threshold,
        watermark=engine.watermark,
        reserve_full_isl=engine.scheduler_reserve_full_isl,
        on_never_fits=engine.on_never_fits,
    )


def _orca(settings: Scenario, allocator: Allocator, max_model_len: int) -> Scheduler:
    engine = settings.engine
    return OrcaScheduler(
        allocator,
        max_num_seqs=engine.max_num_seqs,
        max_num_batched_tokens=engine.max_num_batched_tokens,
        max_model_len=max_model_len,
        on_never_fits=engine.on_never_fits,
    )


def _static(settings: Scenario, allocator: Allocator, max_model_len: int) -> Scheduler:
    engine = settings.engine
    grows = isinstance(settings.memory, GrowMemory)
    return StaticScheduler(
        allocator,
        max_num_seqs=engine.max_num_seqs,
        max_model_len=max_model_len,
        pad_prompts=grows if engine.pad_prompts is None else engine.pad_prompts,
        on_never_fits=engine.on_never_fits,
    )


SCHEDULERS: dict[str, Callable[[Scenario, Allocator, int], Scheduler]] = {
    "vllm": _vllm,
    "orca": _orca,
    "static": _static,
}
