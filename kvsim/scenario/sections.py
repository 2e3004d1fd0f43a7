"""Sections that only some variants have in a summary, and who gathers them.

A feature adds one function to `SECTIONS`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from kvsim.catalog import KvGroups, kv_bytes_per_token
from kvsim.core.fan_out import FanOutScheduler
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.host_pool import SWAP_IN, SWAP_OUT
from kvsim.core.offload import OffloadingAllocator
from kvsim.core.page_pins import PinningPool
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import Recorder, Scheduler
from kvsim.core.vmm import VmmAllocator
from kvsim.results.layers import LimitedType, PaddedType, PaddingRecorder, UnneededRecorder
from kvsim.results.pages import PagesRecorder
from kvsim.results.requests import Window
from kvsim.results.sharing import SharingRecorder
from kvsim.scenario.build import Server
from kvsim.scenario.build_swap import swap_links
from kvsim.scenario.engine import KV_CACHE_BYTES
from kvsim.scenario.pages import page_set_bytes
from kvsim.scenario.sampling import served_as
from kvsim.scenario.settings import Scenario


class Extra(NamedTuple):
    """A section of one variant's entry."""

    name: str
    counts: Callable[[], dict[str, Any]]
    """The section, once the run has ended."""
    recorder: Recorder | None = None
    """What watches the run; None where an allocator or scheduler counts by itself."""


MakeExtra = Callable[[Scenario, Server, Window | None], Extra | None]


def extras(settings: Scenario, server: Server, window: Window | None) -> list[Extra]:
    """The sections of a variant; `window` is the measured time."""
    made = (make(settings, server, window) for make in SECTIONS)
    return [extra for extra in made if extra is not None]


def _mapping(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    allocator = server.allocator
    if isinstance(allocator, VmmAllocator):
        return Extra("mapping", allocator.mapping_counts)
    return None


def _sharing(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    if served_as(settings) is None:
        return None
    scheduler = server.scheduler
    groups = scheduler.groups.values if isinstance(scheduler, GroupScheduler) else None
    recorder = SharingRecorder(server.allocator, groups=groups, window=window)
    per_token = token_bytes(settings, server)
    return Extra("sharing", lambda: recorder.counts(per_token), recorder)


def _swap(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    scheduler = inner_scheduler(server.scheduler)
    links = swap_links(settings, server.sizing.model)
    if not links or not isinstance(scheduler, GroupScheduler):
        return None

    def counts() -> dict[str, Any]:
        found = scheduler.swap_counts()
        seconds = bytes_ = 0.0
        for link, way in ((links[SWAP_OUT], "out"), (links[SWAP_IN], "in")):
            tokens = found[f"swapped_{way}_tokens"]
            bytes_ += tokens * link.bytes_per_token
            seconds += link.seconds(tokens, found[f"swapped_{way}_blocks"])
        return {**found, "swapped_bytes": int(bytes_), "swap_s": seconds}

    return Extra("swap", counts)


def inner_scheduler(scheduler: Scheduler) -> Scheduler:
    """What plans the steps, behind whatever splits requests into samples."""
    return scheduler.inner if isinstance(scheduler, FanOutScheduler) else scheduler


def _offload(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    allocator = server.allocator
    if isinstance(allocator, OffloadingAllocator):
        return Extra("offload", allocator.offload_counts)
    return None


def _layer_groups(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    """Models whose layers keep different tokens."""
    model, allocator, groups = server.sizing.model, server.allocator, server.sizing.groups
    if model is None:
        return None
    if isinstance(allocator, GroupedAllocator):
        padding = PaddingRecorder(allocator, _padded(groups), window=window)
        return Extra(
            "layer_groups", lambda: {"padding": padding.share(), "out_of_window": None}, padding
        )
    limited = [
        LimitedType(one.kind, one.layers, one.limit_tokens)
        for one in model.groups
        if one.limit_tokens is not None
    ]
    if not limited or not isinstance(allocator, PagedAllocator):
        return None
    unneeded = UnneededRecorder(
        allocator, server.scheduler.running, limited, layers=model.layers, window=window
    )
    return Extra(
        "layer_groups", lambda: {"padding": 0.0, "out_of_window": unneeded.share()}, unneeded
    )


def _padded(groups: KvGroups) -> list[PaddedType]:
    """The types of layers, whose groups the allocator has one type after the other."""
    found, first = [], 0
    for one in groups.types:
        layers = one.groups * groups.layers
        members = tuple(range(first, first + one.groups))
        found.append(PaddedType(members, layers - one.layers, layers))
        first += one.groups
    return found


def _pages(settings: Scenario, server: Server, window: Window | None) -> Extra | None:
    allocator, model = server.allocator, server.sizing.model
    if not isinstance(allocator, PagedAllocator) or not isinstance(allocator.pool, PinningPool):
        return None
    assert model is not None  # kvsim.scenario.pages
    pool, set_bytes = allocator.pool, page_set_bytes(settings, model)
    recorder = PagesRecorder(pool.pages, window=window)

    def counts() -> dict[str, Any]:
        cached = [] if pool.cache is None else pool.cache.free.ids()
        freed = pool.pages.freed_by(cached[: len(cached) // 2])
        return {**recorder.counts(set_bytes), "freed_by_half_page_sets": freed}

    return Extra("pages", counts, recorder)


def token_bytes(settings: Scenario, server: Server) -> int | None:
    """KV bytes of a token on one GPU; None without a model."""
    model = server.sizing.model
    if model is None:
        return None
    tp = settings.hardware.count if settings.hardware else 1
    width = KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
    return kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=width)


SECTIONS: tuple[MakeExtra, ...] = (_mapping, _offload, _sharing, _swap, _layer_groups, _pages)
