"""One sentence for every figure of the prefix analysis."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType

PREFIX_DEFINITIONS: Mapping[str, str] = MappingProxyType(
    {
        "model": (
            "One request at a time, in arrival order, whatever the arrival times. Full blocks of "
            "prompt and generated tokens stay cached when their request ends; the last sampled "
            "token never gets a slot."
        ),
        "capacity": "Blocks that requests can use (without vLLM's null block), and their tokens.",
        "hit": (
            "Prompt tokens found in the cache: the longest run of cached blocks from the prompt's "
            "first one on, in tokens, over all prompt tokens of the trace."
        ),
        "lru": (
            "Evicting what was used longest ago, and of one request its last block first, as vLLM "
            "does. Equals a simulation with one request in flight (max_num_seqs 1)."
        ),
        "best": (
            "The most any eviction rule could find with one request in flight: evicting what is "
            "looked up latest (Belady)."
        ),
        "in_flight": (
            "Found by vLLM's scheduler with so many requests at once (8,192 tokens a step, trace "
            "order, a request enters when another leaves), and the difference from LRU with one: "
            "running requests pin blocks, and prompts computed beside each other miss what the "
            "other has not computed yet."
        ),
        "bound": "What a cache that never evicts finds.",
        "evicted": "Prompt tokens in full blocks that had been cached and were evicted since.",
        "never_seen": "Prompt tokens behind the longest prefix that any earlier request had.",
        "rounding": "Prompt tokens seen before, but not to the end of their block.",
        "last_token": (
            "Prompts that end with a block and were seen whole: the block of the last token is "
            "computed again, cached or not, because the last token's logits are needed."
        ),
        "rejected": "Prompt tokens of requests larger than the capacity: they touch nothing.",
        "chunks": (
            "Reuse in the trace's own chunks, for comparison with published figures: repeated "
            "chunks of all chunks; tokens in repeated full chunks of those in full chunks; mean "
            "over requests of the repeated share of their prompt."
        ),
    }
)
