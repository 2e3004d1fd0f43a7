"""Paged memory whose blocks lie in physical pages: `memory.page_kib`."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from kvsim.catalog import Model, kv_bytes_per_token, tokens_per_page
from kvsim.errors import InputError
from kvsim.scenario.engine import KV_CACHE_BYTES
from kvsim.scenario.findings import Finding, SettingsError
from kvsim.scenario.sampling import uses_groups, why_groups

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario


def page_findings(scenario: Scenario) -> Iterator[Finding]:
    """What pages of blocks need and exclude."""
    memory = scenario.memory
    if memory.kind != "paged":
        return
    if memory.eviction == "page_aware" and memory.page_kib is None:
        yield Finding(
            "memory.eviction",
            "= page_aware needs memory.page_kib, the size of the pages",
            "Set memory.page_kib, for example to 2048, or memory.eviction to lru",
        )
    if memory.page_kib is None:
        return
    if scenario.model is None:
        yield Finding(
            "memory.page_kib",
            "needs a model, whose layers say how many blocks a page holds",
            "Name a model, or set memory.page_kib to null",
        )
    if uses_groups(scenario):
        why, instead = why_groups(scenario)
        yield Finding("memory.page_kib", f"is not covered {why}", f"Set it to null, {instead}")


def blocks_per_page(settings: Scenario, model: Model | None) -> int | None:
    """Blocks of a page set; None without pages.

    Raises `SettingsError` for blocks that do not fill pages, and for models whose pages are not
    covered.
    """
    memory = settings.memory
    if memory.kind != "paged" or memory.page_kib is None:
        return None
    assert model is not None  # page_findings
    try:
        tokens = tokens_per_page(
            model, memory.page_kib, tp=_gpus(settings), kv_dtype_bytes=_width(settings)
        )
    except InputError as error:
        raise SettingsError(
            "memory.page_kib", f"cannot be used: {error.problem}", "Set it to null"
        ) from error
    blocks, rest = divmod(tokens, memory.block_size)
    if rest or not blocks:
        raise SettingsError(
            "memory.block_size",
            f"must divide the {tokens} tokens of a page of {memory.page_kib} KiB, got"
            f" {memory.block_size}",
            "Choose a power of two up to that, or set memory.page_kib to null",
        )
    return blocks


def page_set_bytes(settings: Scenario, model: Model) -> int:
    """Bytes of a page in every tensor of one GPU."""
    memory = settings.memory
    assert memory.kind == "paged"
    blocks = blocks_per_page(settings, model)
    assert blocks is not None
    token_bytes = kv_bytes_per_token(model, tp=_gpus(settings), kv_dtype_bytes=_width(settings))
    return blocks * memory.block_size * token_bytes


def _gpus(settings: Scenario) -> int:
    return settings.hardware.count if settings.hardware else 1


def _width(settings: Scenario) -> int | None:
    return KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
