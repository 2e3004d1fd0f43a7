"""Settings of the section `memory`: which allocator, with how many blocks."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import MAX_BLOCKS, Seconds, Section, Tokens

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
    eviction: Literal["lru", "fifo", "lfu", "belady"] = Field(
        default="lru",
        description="which cached block that nobody holds is given up first: lru (vLLM: used least"
        " recently), fifo (filled first), lfu (found least often), belady (needed again last, which"
        " only a simulation can know)",
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
