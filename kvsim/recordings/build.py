"""The engine that a recording's config describes."""

from __future__ import annotations

from typing import Any

from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request
from kvsim.core.speculative_scheduler import Speculation, SpeculativeScheduler
from kvsim.core.vllm_scheduler import VllmScheduler

RecordedAllocator = PagedAllocator | GroupedAllocator


def build_allocator(config: dict[str, Any]) -> RecordedAllocator:
    """One full-attention group, or several layer groups over one pool."""
    speculation = speculation_of(config)
    common: dict[str, Any] = {
        "eviction": LruOrder() if config["enable_prefix_caching"] else None,
        "hash_lookahead": speculation.hash_lookahead if speculation else 0,
        "lookahead_tokens": speculation.lookahead_tokens if speculation else 0,
    }
    groups = layer_groups(config)
    if groups == [LayerGroup("full", config["block_size"])]:
        return PagedAllocator(
            config["num_gpu_blocks"],
            config["block_size"],
            seals_ahead=not config["async_scheduling"],
            **common,
        )
    return GroupedAllocator(
        config["num_gpu_blocks"],
        groups,
        max_model_len=config["max_model_len"],
        max_num_batched_tokens=config["max_num_batched_tokens"],
        async_scheduling=config["async_scheduling"],
        retention_interval=config.get("retention_interval"),
        **common,
    )


def layer_groups(config: dict[str, Any]) -> list[LayerGroup]:
    """The config's groups; none given means one full-attention group."""
    return [
        LayerGroup(
            group["type"], group.get("block_size") or config["block_size"], group.get("window")
        )
        for group in config.get("kv_groups") or [{"type": "full"}]
    ]


def speculation_of(config: dict[str, Any]) -> Speculation | None:
    """Drafts, with the recorded pattern of how many are accepted (SPEC.md section 9)."""
    spec = config.get("spec")
    if not spec:
        return None
    pattern: list[int] = spec["accept_pattern"]

    def accepted(request: Request, earlier: int, verified: int) -> int:
        return pattern[earlier % len(pattern)]

    return Speculation(spec["method"], spec["num_speculative_tokens"], accepted)


def build_scheduler(config: dict[str, Any], allocator: RecordedAllocator) -> VllmScheduler:
    """The scheduler over that memory."""
    settings: dict[str, Any] = {
        "max_num_seqs": config["max_num_seqs"],
        "max_num_batched_tokens": config["max_num_batched_tokens"],
        "max_model_len": config["max_model_len"],
        "enable_chunked_prefill": config["enable_chunked_prefill"],
        "long_prefill_token_threshold": config["long_prefill_token_threshold"],
        "watermark": config["watermark"],
        "reserve_full_isl": config["scheduler_reserve_full_isl"],
        "policy": config["policy"],
        "async_scheduling": config["async_scheduling"],
        "on_never_fits": "block",
    }
    speculation = speculation_of(config)
    if speculation is not None:
        return SpeculativeScheduler(allocator, speculation=speculation, **settings)
    return VllmScheduler(allocator, **settings)
