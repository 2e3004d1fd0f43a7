"""A recording's config with vLLM's defaults (SPEC.md, section 0) and what follows from it."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any


@dataclass(frozen=True)
class Settings:
    """The settings of the reference model."""

    num_gpu_blocks: int
    block_size: int
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    enable_chunked_prefill: bool = True
    enable_prefix_caching: bool = False
    long_prefill_token_threshold: int = 0
    policy: str = "fcfs"
    watermark: float = 0.0
    scheduler_reserve_full_isl: bool = True
    async_scheduling: bool = False
    kv_groups: list[dict[str, Any]] | None = None
    retention_interval: int | None = 0
    spec: dict[str, Any] | None = None
    hash_id_tokens: int = 512

    @classmethod
    def of(cls, config: dict[str, Any]) -> Settings:
        """The fields of a recording's config that decide something."""
        return cls(**{name: config[name] for name in cls.__dataclass_fields__ if name in config})

    @cached_property
    def groups(self) -> list[tuple[str, int, int]]:
        """Type, block size and window of each group."""
        groups = self.kv_groups or [{"type": "full"}]
        return [
            (group["type"], group.get("block_size") or self.block_size, group.get("window") or 0)
            for group in groups
        ]

    @cached_property
    def aligned(self) -> int:
        """The scheduler's block: cacheable lengths are multiples of it (section 6)."""
        return math.lcm(*(size for _, size, _ in self.groups))

    @cached_property
    def hash_block(self) -> int:
        """The block that hashes are computed for (section 6)."""
        return math.gcd(*(size for _, size, _ in self.groups))

    @property
    def max_in_flight(self) -> int:
        """The most tokens scheduled and not yet processed (section 6)."""
        return self.max_num_batched_tokens * (2 if self.async_scheduling else 1)

    @property
    def keep_free(self) -> int:
        """The watermark in blocks (section 3)."""
        return int(self.watermark * self.num_gpu_blocks)

    @property
    def num_drafts(self) -> int:
        """Draft tokens a request and step."""
        return int(self.spec["num_speculative_tokens"]) if self.spec else 0

    @property
    def method(self) -> str:
        """How drafts are made."""
        return str(self.spec["method"]) if self.spec else ""

    @property
    def lookahead(self) -> int:
        """Slots beyond the scheduled tokens (section 3, `lookahead`)."""
        return self.num_drafts if self.method in ("eagle", "draft_model") else 0

    @property
    def draft_slots(self) -> int:
        """What a scheduled request costs beyond its tokens (section 2)."""
        return 1 if self.method == "draft_model" else 0

    @property
    def hash_lookahead(self) -> int:
        """Tokens after a block that its hash covers too (section 5)."""
        return 1 if self.method == "eagle" else 0
