"""What a setting is that a scenario leaves out: the defaults of a named server."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, NamedTuple

from kvsim.catalog import Gpu, get_gpu, get_model
from kvsim.catalog.gpu import GIB
from kvsim.errors import InputError
from kvsim.scenario.fields import Section
from kvsim.scenario.sampling import uses_groups

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario

LARGE_GPU_BYTES = 70 * GIB


class Limits(NamedTuple):
    """Limits of a step."""

    max_num_seqs: int
    max_num_batched_tokens: int


class Profile(NamedTuple):
    """Defaults of one server. What all profiles agree on is the default of the setting itself."""

    limits: Limits
    limits_on_large_gpu: Limits
    """For GPUs of 70 GiB and more that are not A100s."""
    gpu_memory_utilization: float
    cuda_graphs_in_budget: bool
    watermark: float
    enable_prefix_caching: bool
    async_scheduling: bool
    null_block: bool


PROFILES: dict[str, Profile] = {
    "vllm-0.33": Profile(
        limits=Limits(256, 2048),
        limits_on_large_gpu=Limits(1024, 8192),
        gpu_memory_utilization=0.92,
        cuda_graphs_in_budget=True,
        watermark=0.0,
        enable_prefix_caching=True,
        async_scheduling=True,
        null_block=True,
    ),
    "sosp23": Profile(
        limits=Limits(256, 2560),
        limits_on_large_gpu=Limits(256, 2560),
        gpu_memory_utilization=0.9,
        cuda_graphs_in_budget=False,
        watermark=0.01,
        enable_prefix_caching=False,
        async_scheduling=False,
        null_block=False,
    ),
    "plain": Profile(
        limits=Limits(256, 8192),
        limits_on_large_gpu=Limits(256, 8192),
        gpu_memory_utilization=0.9,
        cuda_graphs_in_budget=False,
        watermark=0.0,
        enable_prefix_caching=False,
        async_scheduling=False,
        null_block=True,
    ),
}
"""`vllm-0.33` is `vllm serve`, `sosp23` the PagedAttention paper's artifact, `plain` continuous
batching over paged memory and nothing else."""


def with_profile(scenario: Scenario) -> dict[str, Section]:
    """The sections `engine` and `memory` with what they leave out taken from the profile."""
    profile = PROFILES[scenario.profile]
    engine, memory = scenario.engine, scenario.memory
    caches = engine.scheduler == "vllm" and memory.kind == "paged" and not uses_groups(scenario)
    drafts = engine.speculative_config
    # vLLM turns asynchronous scheduling off by itself for drafters that wait for the CPU.
    waits = drafts is not None and drafts.method != "eagle"
    values = {
        "gpu_memory_utilization": profile.gpu_memory_utilization,
        "cuda_graphs_in_budget": profile.cuda_graphs_in_budget,
        "watermark": profile.watermark,
        "enable_prefix_caching": profile.enable_prefix_caching and caches,
        "async_scheduling": profile.async_scheduling and caches and not waits,
        **_limits(scenario, profile)._asdict(),
    }
    sections: dict[str, Section] = {"engine": _filled(engine, values)}
    if memory.kind == "paged":
        sections["memory"] = _filled(memory, {"null_block": profile.null_block})
    return sections


def _filled(section: Section, values: Mapping[str, Any]) -> Section:
    """A copy in which settings that were left out have these values; they still count as such."""
    unset = {name: value for name, value in values.items() if name not in section.model_fields_set}
    return type(section).model_construct(
        _fields_set=set(section.model_fields_set), **{**section.__dict__, **unset}
    )


def _limits(scenario: Scenario, profile: Profile) -> Limits:
    """As vLLM's arguments settle them: each limit that is left out gives way to the other."""
    engine = scenario.engine
    seqs, tokens = _limits_by_gpu(scenario, profile)
    given = engine.model_fields_set
    if "max_num_seqs" in given:
        seqs = engine.max_num_seqs
    if "max_num_batched_tokens" in given:
        tokens = engine.max_num_batched_tokens
    else:
        longest = _max_model_len(scenario)
        if longest is not None:
            if engine.scheduler == "orca" or not engine.enable_chunked_prefill:
                tokens = max(tokens, longest)
            tokens = min(tokens, seqs * longest)
    return Limits(min(seqs, tokens), tokens)


def _limits_by_gpu(scenario: Scenario, profile: Profile) -> Limits:
    gpu = _gpu(scenario)
    if gpu is None or gpu.reported_bytes < LARGE_GPU_BYTES or "a100" in gpu.full_name.lower():
        return profile.limits
    return profile.limits_on_large_gpu


def _gpu(scenario: Scenario) -> Gpu | None:
    """None without one, and for a name that is refused later."""
    try:
        return get_gpu(scenario.hardware.gpu) if scenario.hardware else None
    except InputError:
        return None


def _max_model_len(scenario: Scenario) -> int | None:
    """None where nothing says it, or names a model that is refused later."""
    if scenario.engine.max_model_len is not None or scenario.model is None:
        return scenario.engine.max_model_len
    try:
        return get_model(scenario.model).max_position
    except InputError:
        return None
