"""The section `clock` -> a clock that predicts step times."""

from __future__ import annotations

from pathlib import Path

from kvsim.catalog import Gpu, Model
from kvsim.cost import (
    CalibratedClock,
    DraftingClock,
    FixedClock,
    LinearClock,
    MappingClock,
    PredictiveClock,
    ProfileClock,
    RooflineClock,
    TransferClock,
    read_profile,
)
from kvsim.cost.profile import layout_key
from kvsim.scenario.build_offload import offload_links
from kvsim.scenario.build_swap import swap_links
from kvsim.scenario.clock import (
    FixedClockSettings,
    LinearClockSettings,
    ProfileClockSettings,
    RooflineClockSettings,
)
from kvsim.scenario.engine import KV_CACHE_BYTES
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.memory import VmmMemory
from kvsim.scenario.settings import Scenario


def build_clock(settings: Scenario, model: Model | None, gpu: Gpu | None) -> PredictiveClock:
    """The clock of one variant. `model` and `gpu` are there when its kind needs them."""
    clock = _of_kind(settings, model, gpu)
    memory = settings.memory
    if isinstance(memory, VmmMemory) and memory.map_page_s:
        clock = MappingClock(clock, map_page_s=memory.map_page_s)
    links = {**offload_links(settings, model), **swap_links(settings, model)}
    if links:
        clock = TransferClock(clock, links)
    drafts = settings.engine.speculative_config
    return DraftingClock(clock, draft_step_s=drafts.draft_step_s) if drafts else clock


def _of_kind(settings: Scenario, model: Model | None, gpu: Gpu | None) -> PredictiveClock:
    clock = settings.clock
    if isinstance(clock, FixedClockSettings):
        return FixedClock(clock.step_s, copy_token_s=clock.copy_token_s)
    if isinstance(clock, LinearClockSettings):
        return LinearClock(
            base_s=clock.base_s,
            prefill_token_s=clock.prefill_token_s,
            context_token_s=clock.context_token_s,
            decode_s=clock.decode_s,
            copy_token_s=clock.copy_token_s,
            read_efficiency=_read_efficiency(settings, clock),
        )
    assert model is not None  # kvsim.scenario.checks
    if isinstance(clock, ProfileClockSettings):
        return _profile_clock(settings, clock, model)
    assert gpu is not None
    assert settings.hardware is not None
    tp = settings.hardware.count
    kv_dtype_bytes = KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
    if isinstance(clock, RooflineClockSettings):
        return RooflineClock(model, gpu, tp=tp, t0_s=clock.t0_s, kv_dtype_bytes=kv_dtype_bytes)
    return CalibratedClock(model, gpu, tp=tp, engine=clock.engine, kv_dtype_bytes=kv_dtype_bytes)


def _read_efficiency(settings: Scenario, clock: LinearClockSettings) -> float:
    memory = settings.memory
    if clock.read_efficiency is None or isinstance(memory, VmmMemory):
        return 1.0
    return clock.read_efficiency.get(str(memory.block_size), 1.0)


def _profile_clock(settings: Scenario, clock: ProfileClockSettings, model: Model) -> ProfileClock:
    profile = read_profile(Path(clock.path), sha256=clock.sha256)
    if profile.model != model.name:
        raise SettingsError(
            "clock.path",
            f"names a profile of {profile.model}, the model is {model.name}",
            f"Calibrate again with model {model.name}",
        )
    memory = settings.memory
    if memory.kind == "grow":
        raise SettingsError(
            "clock.kind",
            "= profile needs memory.kind = paged or contiguous, got grow",
            "Choose another clock",
        )
    layout = layout_key(memory.block_size if memory.kind == "paged" else None)
    return ProfileClock(profile, layout)
