"""Settings of the section `memory`: which allocator, with how many blocks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.catalog import GroupingRule
from kvsim.scenario.fields import MAX_BLOCKS, Seconds, Section, Tokens
from kvsim.scenario.offload import OffloadSettings
from kvsim.scenario.swap import SwapSettings

NumBlocks = Annotated[
    int,
    Field(
        ge=2,
        le=MAX_BLOCKS,
        description="KV blocks of the pool; left out, the memory budget of model and GPU decides",
        json_schema_extra={"unit": "block"},
    ),
]
NumPageSets = Annotated[
    int,
    Field(
        ge=2,
        le=MAX_BLOCKS,
        description="page sets of the pool, each one page in the K and the V tensor of every layer;"
        " left out, the memory budget of model and GPU decides",
        json_schema_extra={"unit": "page set"},
    ),
]
BlockSize = Annotated[
    int,
    Field(
        ge=1,
        le=65_536,
        description="tokens per KV block, e.g. 16",
        json_schema_extra={"unit": "token"},
    ),
]


class PagedMemory(Section):
    """Blocks handed out one by one, found through block tables (vLLM)."""

    kind: Literal["paged"]
    block_size: BlockSize = 16
    num_blocks: NumBlocks | None = None
    null_block: bool = Field(
        default=True,
        description="whether block 0 is set aside, as vLLM v1 does (SOSP'23 did not); left out, the"
        " profile's",
    )
    eviction: Literal["lru", "fifo", "lfu", "belady", "page_aware"] = Field(
        default="lru",
        description="which cached block that nobody holds is given up first: lru (vLLM: used least"
        " recently), fifo (filled first), lfu (found least often), belady (needed again last, which"
        " only a simulation can know), page_aware (page by page of page_kib: those that nothing is"
        " held in first, then those with the fewest cached blocks)",
    )
    page_kib: Literal[64, 128, 256, 2048] | None = Field(
        default=None,
        description="size in KiB of the physical pages that blocks lie in (kvcached), one page per"
        " layer in K and in V; left out, nothing is said about pages",
        json_schema_extra={"unit": "KiB"},
    )
    layer_groups: GroupingRule = Field(
        default="max_if_close",
        description="how layers that keep different tokens share the pool, in groups of equally"
        " many layers: max_if_close (as many as the type with most layers has, where that is less"
        " than 1.5 times the fewest, else the fewest; vllm pull 29303), min (the fewest; vLLM"
        " 0.10), gcd (the greatest common divisor, which pads nothing; vllm pull 56445), unified"
        " (one group, in which every layer keeps every token, window or not; vLLM before 0.10,"
        " --disable-hybrid-kv-cache-manager)",
    )
    swap: SwapSettings | None = Field(
        default=None,
        description="host memory for preempted requests, with engine.preemption_mode swap or auto;"
        " left out, 4 GiB for each GPU",
    )
    offload: OffloadSettings | None = Field(
        default=None,
        description="tiers outside the device, from which cached prefixes are fetched; left out,"
        " none",
    )


class ContiguousMemory(Section):
    """One extent per request, reserved before it runs (Orca, FasterTransformer)."""

    kind: Literal["contiguous"]
    block_size: BlockSize = 16
    num_blocks: NumBlocks | None = None
    reserve: Literal["max", "pow2", "oracle", "requested"] = Field(
        default="max",
        description="tokens reserved per request: max (max_model_len), pow2 (prompt + smallest"
        " power of two >= output), oracle (prompt + output), requested (prompt + the request's own"
        " max_tokens; max_model_len where it states none)",
    )
    placement: Literal["buddy", "first_fit", "best_fit", "next_fit"] = Field(
        default="buddy", description="which free extent a request gets"
    )
    max_chunk_tokens: Tokens | None = Field(
        default=None,
        description="largest extent a buddy pool hands out; left out, the whole pool decides",
    )
    compaction: bool = Field(
        default=False,
        description="whether extents are moved together when no hole is large enough",
    )


class GrowMemory(Section):
    """A tensor per batch that is reallocated and copied at every growth: no memory manager."""

    kind: Literal["grow"]
    block_size: BlockSize = 1
    num_blocks: NumBlocks | None = None


class VmmMemory(Section):
    """Virtually contiguous; physical pages are mapped as requests grow (vAttention, kvcached).

    Blocks are page sets: one page in the K and the V tensor of every layer.
    """

    kind: Literal["vmm"]
    page_kib: Literal[64, 128, 256, 2048] = Field(
        default=2048,
        description="size of a physical page in KiB: 2048 with an unchanged driver, less with"
        " vAttention's; with the model it decides how many tokens a page holds",
        json_schema_extra={"unit": "KiB"},
    )
    num_page_sets: NumPageSets | None = None
    keep_mapped_pages: bool = Field(
        default=True,
        description="whether the pages of a request that ends stay mapped for the next one"
        " (vAttention's deferred reclamation)",
    )
    map_page_s: Seconds = Field(
        default=0.0,
        description="seconds added to a step per page set that it maps; 0: mapping is hidden behind"
        " computation, as vAttention does",
    )

    @property
    def num_blocks(self) -> int | None:
        """Page sets are what this memory hands out."""
        return self.num_page_sets


MEMORY_KINDS: dict[str, type[Section]] = {
    "paged": PagedMemory,
    "contiguous": ContiguousMemory,
    "grow": GrowMemory,
    "vmm": VmmMemory,
}
Memory = Annotated[
    PagedMemory | ContiguousMemory | GrowMemory | VmmMemory,
    Field(discriminator="kind", description="the KV memory and its allocator"),
]
