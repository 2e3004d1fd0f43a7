"""Rows of the page's tables that the terminal's table does not have."""

from __future__ import annotations

from kvsim.report.text import Row

MORE_MEMORY_ROWS = (
    Row("largest free extent, smallest (tokens)", "memory.largest_free_extent_tokens.min"),
    Row("KV utilization (%)", "memory.kv_utilization", 100, 2),
    Row("peak allocated (%)", "memory.peak_allocated", 100, 2),
    Row("batch, mean by time (requests)", "batch.mean_by_time", 1, 2),
)

BY_ITERATION_TITLE = "Averaged over steps instead of time"
BY_ITERATION_ROWS = tuple(
    Row(f"{name.replace('_', ' ')}, by step (%)", f"memory.by_iteration.{name}", 100, 2)
    for name in ("live", "reservation", "internal", "external", "usable_free")
)

PAPER_TITLE = "By the PagedAttention paper's rule, averaged over steps"
PAPER_ROWS = tuple(
    Row(f"{name.replace('_', ' ')}, paper's rule (%)", f"memory.paper.{name}", 100, 2)
    for name in ("tokens", "reservation", "internal", "external_and_others")
)

WHOLE_RUN_ROWS = (
    (
        "Requests of the whole run",
        (
            Row("Submitted", "requests.submitted"),
            Row("Finished", "requests.finished"),
            Row("  cut at max_model_len", "requests.truncated"),
            Row("Rejected", "requests.rejected"),
            Row("  prompt_too_long", "requests.rejected_by_reason.prompt_too_long"),
            Row("  never_fits", "requests.rejected_by_reason.never_fits"),
            Row("Aborted", "requests.aborted"),
            Row("Unfinished", "requests.unfinished"),
        ),
    ),
    (
        "Tokens of the whole run",
        (
            Row("Prompt tokens", "tokens.prompt"),
            Row("Output tokens", "tokens.output"),
            Row("Scheduled tokens", "tokens.scheduled"),
            Row("  recomputed", "tokens.recomputed"),
        ),
    ),
    (
        "Prefix cache, whole run",
        (
            Row("Prompt tokens looked up", "prefix_cache.query_tokens"),
            Row("Found (%)", "prefix_cache.hit_rate", 100, 2),
            Row("  found (tokens)", "prefix_cache.hit_tokens"),
            Row("  never seen (tokens)", "prefix_cache.never_seen_tokens"),
            Row("  evicted (tokens)", "prefix_cache.evicted_tokens"),
            Row("  block rounding (tokens)", "prefix_cache.block_rounding_tokens"),
            Row("  last-token rule (tokens)", "prefix_cache.last_token_tokens"),
            Row("Found again after a preemption (tokens)", "prefix_cache.resumed_hit_tokens"),
            Row("Evicted blocks", "prefix_cache.evicted_blocks"),
        ),
    ),
    (
        "Speculation, whole run",
        (
            Row("Draft tokens", "speculation.draft_tokens"),
            Row("  accepted (tokens)", "speculation.accepted_tokens"),
            Row("  accepted (%)", "speculation.acceptance_rate", 100, 2),
            Row("Tokens per decode", "speculation.tokens_per_decode", 1, 3),
        ),
    ),
    (
        "Mapping of pages, whole run",
        (
            Row("Mapped (page sets)", "mapping.mapped_page_sets"),
            Row("Found mapped (page sets)", "mapping.reused_page_sets"),
        ),
    ),
    (
        "Steps of the whole run",
        (
            Row("Simulated time (s)", "duration_s", 1, 2),
            Row("Steps", "steps"),
            Row("  in the measured time", "measured.steps"),
            Row("Steps with a queue", "queued_steps"),
            Row("  at max_num_seqs", "queued_steps_at_max_num_seqs"),
            Row("  at the token budget", "queued_steps_at_token_budget"),
            Row("Head short of memory (steps)", "short_of_memory_steps"),
        ),
    ),
)
