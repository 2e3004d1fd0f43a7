"""What follows from the settings of one variant before anything is allocated."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from kvsim.catalog import (
    Budget,
    Gpu,
    GroupingRule,
    KvGroups,
    Model,
    NoKvMemoryError,
    blocks_per_request,
    compute_budget,
    get_gpu,
    get_model,
    kv_groups,
    tokens_per_page,
    uniform_groups,
)
from kvsim.cost import PredictiveClock
from kvsim.errors import InputError
from kvsim.scenario.build_clock import build_clock
from kvsim.scenario.engine import KV_CACHE_BYTES, EngineSettings
from kvsim.scenario.findings import SettingsError
from kvsim.scenario.group_checks import group_findings
from kvsim.scenario.memory import PagedMemory, VmmMemory
from kvsim.scenario.pages import blocks_per_page
from kvsim.scenario.settings import Scenario


@dataclass(frozen=True)
class Sizing:
    """Blocks, longest request and clock of one variant."""

    num_blocks: int
    max_model_len: int
    clock: PredictiveClock
    budget: Budget | None
    """How `num_blocks` was computed; None where the scenario gives it."""
    model: Model | None
    gpu: Gpu | None
    groups: KvGroups
    """Groups of layers that share the pool; without a model one that keeps every token."""
    block_size: int
    """Tokens per block, or per page set."""

    @property
    def model_name(self) -> str | None:
        """Name in the catalogue, whatever alias the scenario uses."""
        return self.model.name if self.model else None

    @property
    def gpu_name(self) -> str | None:
        """Name in the catalogue, whatever alias the scenario uses."""
        return self.gpu.name if self.gpu else None


def size_server(settings: Scenario) -> Sizing:
    """Blocks, longest request and clock of one variant.

    Raises `SettingsError` for a name the catalogue lacks, a model that leaves no KV memory, and
    limits that the model does not allow.
    """
    model = gpu = budget = None
    groups = uniform_groups()
    if settings.model is not None:
        with _blamed_on("model"):
            model = get_model(settings.model)
    if settings.hardware is not None:
        with _blamed_on("hardware.gpu"):
            gpu = get_gpu(settings.hardware.gpu)
    if model is not None:
        with _blamed_on("model"):
            groups = _groups(settings, model)
    for finding in group_findings(settings, groups):
        raise SettingsError(*finding)
    max_model_len = _max_model_len(settings.engine, model)
    _check_lengths(settings.engine, max_model_len)
    block_size = _block_size(settings, model, groups)
    num_blocks = settings.memory.num_blocks
    if num_blocks is None:
        assert model is not None  # kvsim.scenario.checks
        assert gpu is not None
        budget = _budget(settings, model, gpu, block_size)
        _check_longest(settings, budget, groups, block_size, max_model_len)
        num_blocks = budget.num_blocks
    blocks_per_page(settings, model)
    with _blamed_on("hardware"):
        clock = build_clock(settings, model, gpu)
    return Sizing(num_blocks, max_model_len, clock, budget, model, gpu, groups, block_size)


def layer_rule(settings: Scenario) -> GroupingRule:
    """How layers are grouped; memory without block tables knows one group only."""
    memory = settings.memory
    return memory.layer_groups if isinstance(memory, PagedMemory) else "max_if_close"


def _groups(settings: Scenario, model: Model) -> KvGroups:
    return kv_groups(
        model,
        tp=settings.hardware.count if settings.hardware else 1,
        kv_dtype_bytes=KV_CACHE_BYTES[settings.engine.kv_cache_dtype],
        rule=layer_rule(settings),
    )


def _block_size(settings: Scenario, model: Model | None, groups: KvGroups) -> int:
    """Tokens of one block, which for pages and beside states follow from the model."""
    memory = settings.memory
    if not isinstance(memory, VmmMemory):
        return groups.block_tokens(memory.block_size)
    assert model is not None  # kvsim.scenario.checks
    tp = settings.hardware.count if settings.hardware else 1
    width = KV_CACHE_BYTES[settings.engine.kv_cache_dtype]
    try:
        return tokens_per_page(model, memory.page_kib, tp=tp, kv_dtype_bytes=width)
    except InputError as error:
        places = {"tp": "hardware.count", "page_kib": "memory.page_kib"}
        setting = places.get(error.where or "", "memory.kind")
        raise SettingsError(setting, f"cannot be used: {error.problem}", error.fix) from error


@contextmanager
def _blamed_on(path: str) -> Iterator[None]:
    """Errors of other boxes, which know no settings, as errors of the setting at `path`."""
    try:
        yield
    except SettingsError:
        raise
    except InputError as error:
        places = {"tp": "hardware.count", "layer_groups": "memory.layer_groups"}
        setting = places.get(error.where or "", path)
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


def _budget(settings: Scenario, model: Model, gpu: Gpu, block_size: int) -> Budget:
    engine = settings.engine
    with _blamed_on("hardware"), _settings_named():
        return compute_budget(
            model,
            gpu,
            tp=settings.hardware.count if settings.hardware else 1,
            gpu_memory_utilization=engine.gpu_memory_utilization,
            block_size=block_size,
            max_num_batched_tokens=engine.max_num_batched_tokens,
            max_num_seqs=engine.max_num_seqs,
            kv_dtype_bytes=KV_CACHE_BYTES[engine.kv_cache_dtype],
            cuda_graphs_in_budget=engine.cuda_graphs_in_budget,
            layer_groups=layer_rule(settings),
        )


def _check_longest(
    settings: Scenario, budget: Budget, groups: KvGroups, block_size: int, max_model_len: int
) -> None:
    """A server starts only if its memory holds one request of max_model_len."""
    in_flight = tokens_in_flight(settings.engine)

    def fits(tokens: int) -> bool:
        need = blocks_per_request(groups, tokens, block_size=block_size, max_in_flight=in_flight)
        return need <= budget.num_blocks

    if fits(max_model_len):
        return
    most = bisect_left(range(max_model_len), True, key=lambda tokens: not fits(tokens)) - 1
    shared = "" if groups.is_uniform else f" in {groups.num_groups} groups of layers"
    raise SettingsError(
        "engine.max_model_len",
        f"= {max_model_len} tokens is more than the KV memory that {settings.model} leaves on"
        f" {settings.hardware.gpu if settings.hardware else 'the GPU'}: {budget.num_blocks} blocks"
        f" of {block_size}{shared} = {most} tokens",
        f"Lower it to {most} or less, or raise engine.gpu_memory_utilization or hardware.count",
    )


def tokens_in_flight(engine: EngineSettings) -> int:
    """Most tokens that are computed before a window moves on."""
    return engine.max_num_batched_tokens * (2 if engine.async_scheduling else 1)
