"""A scenario -> what runs its steps on a device: shapes, layouts, depths, grids."""

from __future__ import annotations

from typing import NamedTuple

from gpu_backend.device import DeviceSpec
from gpu_backend.executor import ModelShape
from gpu_backend.executor.build import DEVICES
from gpu_backend.grid import GridSpec
from gpu_backend.layouts import CacheLayout
from gpu_backend.server_spec import ServerSpec
from kvsim.catalog import Model
from kvsim.errors import InputError
from kvsim.scenario.build import orca_settings, vllm_settings
from kvsim.scenario.build_memory import contiguous_settings
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.memory import ContiguousMemory, PagedMemory
from kvsim.scenario.sampling import served_as
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import Sizing, size_server
from kvsim.scenario.variants import variants


class Runnable(NamedTuple):
    """One variant of a scenario as a device runs it."""

    name: str
    settings: Scenario
    sizing: Sizing
    model: Model
    shape: ModelShape
    layout: CacheLayout
    server: ServerSpec
    device: DeviceSpec


def runnable_variants(scenario: Scenario, device: str) -> list[Runnable]:
    """Every variant; raises `InputError` naming the first setting that no device runs."""
    if device not in DEVICES:
        raise InputError(
            f"must be {' or '.join(DEVICES)}, got {device[:40]!r}", where="--device", fix="Use cpu"
        )
    return [_runnable(name, settings, device) for name, settings in variants(scenario).items()]


def grid_of(scenario: Scenario, device: str) -> GridSpec:
    """The calibration that covers all variants. Raises as `runnable_variants` does."""
    runnables = runnable_variants(scenario, device)
    first = runnables[0]
    for other in runnables:
        if other.model.name != first.model.name:
            raise InputError(
                f"{other.name} has another model than {first.name}: a profile is of one model",
                where="model",
                fix="Calibrate a scenario with one model",
            )
    engines = [runnable.settings.engine for runnable in runnables]
    sizes = [r.sizing.num_blocks * r.sizing.block_size for r in runnables]
    spec = first.device
    return GridSpec(
        model=first.model.name,
        shape=first.shape,
        layers=spec.layers,
        measured_layers=spec.measured_layers,
        layouts=tuple(dict.fromkeys(runnable.layout for runnable in runnables)),
        slots=max(sizes),
        max_num_seqs=max(engine.max_num_seqs for engine in engines),
        max_num_batched_tokens=max(engine.max_num_batched_tokens for engine in engines),
        max_model_len=max(runnable.sizing.max_model_len for runnable in runnables),
        device=device,
        num_threads=spec.num_threads,
        dtype=spec.dtype,
        attention_only=spec.attention_only,
    )


def _runnable(name: str, settings: Scenario, device: str) -> Runnable:
    sizing = size_server(settings)
    if sizing.model is None:
        raise SettingsError("model", "is missing: a device runs a model", "Name one")
    _refuse(settings, device)
    model = sizing.model
    layout = CacheLayout(
        settings.memory.block_size if isinstance(settings.memory, PagedMemory) else None
    )
    return Runnable(
        name,
        settings,
        sizing,
        model,
        ModelShape.of(model),
        layout,
        _server(settings, sizing),
        _device(settings, device, model.layers),
    )


def _device(settings: Scenario, device: str, layers: int) -> DeviceSpec:
    wanted = settings.device
    depths = tuple(sorted(wanted.measured_layers or ())) or (layers,)
    if len(depths) == 2 and not depths[0] < depths[1] < layers:
        raise SettingsError(
            "device.measured_layers",
            f"must be two different depths below the model's {layers} layers, got {list(depths)}",
            "Leave it out to run the whole model",
        )
    return DeviceSpec(
        device,
        layers,
        depths,
        num_threads=wanted.num_threads if device == "cpu" else None,
        dtype=wanted.dtype or DEVICES[device][0],
        attention_only=wanted.attention_only,
        check_every=wanted.check_every,
    )


def _server(settings: Scenario, sizing: Sizing) -> ServerSpec:
    engine, memory = settings.engine, settings.memory
    build = vllm_settings if engine.scheduler == "vllm" else orca_settings
    scheduler = build(engine, sizing.max_model_len)
    if isinstance(memory, ContiguousMemory):
        arguments = contiguous_settings(memory, sizing)
        return ServerSpec(engine.scheduler, scheduler, "contiguous", arguments)
    assert isinstance(memory, PagedMemory)
    arguments = {
        "num_blocks": sizing.num_blocks,
        "block_size": memory.block_size,
        "null_block": memory.null_block,
        "eviction": memory.eviction if engine.enable_prefix_caching else None,
    }
    return ServerSpec(engine.scheduler, scheduler, "paged", arguments)


def _refuse(settings: Scenario, device: str) -> None:
    engine, memory = settings.engine, settings.memory
    cases = (
        (engine.scheduler == "static", "engine.scheduler", "static batches"),
        (
            device == "cuda" and memory.kind == "paged" and memory.block_size > 128,
            "memory.block_size",
            "blocks of more than 128 tokens",
        ),
        (engine.async_scheduling, "engine.async_scheduling", "asynchronous scheduling"),
        (engine.speculative_config is not None, "engine.speculative_config", "speculation"),
        (engine.preemption_mode != "recompute", "engine.preemption_mode", "memory on the host"),
        (served_as(settings) is not None, "sampling", "requests with several outputs"),
        (memory.kind == "grow", "memory.kind", "memory that grows by reallocation"),
        (memory.kind == "vmm", "memory.kind", "memory over virtual addresses"),
        (
            memory.kind == "paged" and memory.eviction == "belady",
            "memory.eviction",
            "eviction that knows the future",
        ),
        (
            memory.kind == "paged" and memory.eviction == "page_aware",
            "memory.eviction",
            "eviction by pages",
        ),
        (
            memory.kind == "paged" and memory.offload is not None,
            "memory.offload",
            "tiers outside its memory",
        ),
        (
            settings.hardware is not None and settings.hardware.count > 1,
            "hardware.count",
            "more than one GPU",
        ),
    )
    for is_refused, path, what in cases:
        if is_refused:
            raise SettingsError(
                path, f"cannot be run on {device}: the executor has no {what}", "Change it"
            )
