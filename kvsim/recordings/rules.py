"""Which rule of the scheduler a differing field of a row belongs to."""

from __future__ import annotations

from typing import Any

RULES: tuple[tuple[str, str], ...] = (
    ("rejected", "refusal: a prompt of max_model_len tokens or more never enters"),
    ("aborted", "abort: a request that has not finished leaves at once"),
    ("upd", "engine loop: which output is processed when (two steps in flight if asynchronous)"),
    ("preempted", "preemption: when memory runs out, and who is the victim"),
    ("admitted", "admission: queue order, memory gate, watermark, and the prefix look-up's hit"),
    ("sched", "scheduling: running order, token budgets, chunk threshold and cap"),
    ("waiting", "admission: the head of the queue blocks everything behind it"),
    ("running", "running order: order of admission"),
    ("computed", "accounting of computed tokens: cached, scheduled and rejected ones"),
    ("blocks", "block allocation: how many blocks a sequence holds, look-ahead and windows"),
    ("evicted", "eviction: free blocks without a content are handed out first"),
    ("free", "block allocation: what is free after scheduling"),
    ("hashes", "prefix cache: which full blocks get a content, and when"),
    ("crc_tables", "free queue: the order in which blocks are handed out"),
    ("crc_free", "free queue: where freed blocks go (without content front, with content back)"),
    ("drafts", "speculation: how many drafts are verified"),
    ("finished", "update: when a request ends, and in which order"),
    ("free_end", "update: what is free after the finished requests left"),
)
"""Fields in the order in which a cause shows: the first differing one names the rule."""


def first_rule(difference: dict[str, tuple[Any, Any]]) -> str:
    """The rule behind a row's difference."""
    for field, rule in RULES:
        if field in difference:
            return rule
    return "totals" if difference else ""
