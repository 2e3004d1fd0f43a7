"""Rows of the page's tables that the terminal's table does not have."""

from __future__ import annotations

from kvsim.report.text import Row, tier_rows

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
        "Layer groups: % of the capacity, averaged over the measured time",
        (
            Row("Padding layers (%)", "layer_groups.padding", 100, 2),
            Row("Out of the window (%)", "layer_groups.out_of_window", 100, 2),
        ),
    ),
    (
        "Physical pages of blocks in the measured time",
        (
            Row("Page sets", "pages.page_sets"),
            Row("  each (MiB)", "pages.page_set_bytes", 2**-20, 1),
            Row("Pinned by held blocks", "pages.held_page_sets", 1, 1),
            Row("Pinned by cached blocks only", "pages.cached_page_sets", 1, 1),
            Row("Pinned at most, whole run", "pages.peak_page_sets"),
            Row("Pinned and not filled (%)", "pages.unfilled", 100, 2),
            Row("Freed by evicting half of the cache, at the end", "pages.freed_by_half_page_sets"),
        ),
    ),
    ("Prefixes in the host's memory, whole run", tier_rows("host")),
    ("Prefixes on disk, whole run", tier_rows("disk")),
    (
        "Branches: shared blocks in the measured time, copies of the whole run",
        (
            Row("Logical blocks", "sharing.logical_blocks", 1, 1),
            Row("Physical blocks", "sharing.physical_blocks", 1, 1),
            Row("  with prompt tokens (%)", "sharing.prompt_share", 100, 2),
            Row("  with generated tokens only (%)", "sharing.generated_share", 100, 2),
            Row("Saved by sharing (%)", "sharing.saving", 100, 2),
            Row("  by the paper's rule (%)", "sharing.saving_by_step", 100, 2),
            Row("Copies", "sharing.copies"),
            Row("  copied tokens", "sharing.copied_tokens"),
            Row("  copied (MB)", "sharing.copied_bytes", 1e-6, 1),
        ),
    ),
    (
        "Swapping, whole run",
        (
            Row("Swapped out (requests)", "swap.swapped_out_groups"),
            Row("  blocks", "swap.swapped_out_blocks"),
            Row("  tokens", "swap.swapped_out_tokens"),
            Row("Swapped in (requests)", "swap.swapped_in_groups"),
            Row("  blocks", "swap.swapped_in_blocks"),
            Row("  tokens", "swap.swapped_in_tokens"),
            Row("Moved both ways (MB)", "swap.swapped_bytes", 1e-6, 1),
            Row("  steps waited for it (s)", "swap.swap_s", 1, 3),
            Row("Most blocks on the host", "swap.peak_host_blocks"),
            Row("Recomputed for lack of them", "swap.recomputed_for_lack_of_host_blocks"),
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
