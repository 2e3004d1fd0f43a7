"""What a load meets, in words and as plain data."""

from __future__ import annotations

from typing import Any

from kvsim.planning.load import Bounds


def load_document(found: Bounds | float | None) -> dict[str, Any] | None:
    """Rates in requests per second; None where the queue grows for ever.

    A number is how many requests of the asked length the blocks hold.
    """
    if not isinstance(found, Bounds):
        return None if found is None else {"concurrency": found}
    return {
        "concurrency": found.concurrency,
        "rps": found.load.rps,
        "prompt_tokens": found.load.prompt_tokens,
        "output_tokens": found.load.output_tokens,
        "kv_rps": found.kv_rps,
        "max_num_seqs_rps": found.seqs_rps,
        "compute_rps": found.compute_rps,
        "sustained_rps": found.sustained_rps,
        "binding": found.binding,
        "holds": found.holds,
        "prefill_utilization": found.prefill_utilization,
        "kv_usage": found.kv_usage,
        "running": found.running,
        "relative_error": found.relative_error,
    }


def load_sentences(found: Bounds | float) -> list[str]:
    """The rates with their limits, and which one binds."""
    if not isinstance(found, Bounds):
        return [f"of requests of this length the blocks hold {found:.1f} at once, on average"]
    load = found.load
    error = "" if found.relative_error is None else f" (+-{100 * found.relative_error:.0f} %)"
    asked = (
        f"{load.rps:g} requests/s of {load.prompt_tokens:,} + {load.output_tokens:,} tokens:"
        f" {found.binding} binds, at {found.sustained_rps:.2f} requests/s{error}"
    )
    limits = (
        f"each limit alone: KV memory {found.kv_rps:.2f}, max_num_seqs {found.seqs_rps:.2f},"
        f" computation {found.compute_rps:.2f} requests/s; the prompts alone take"
        f" {100 * found.prefill_utilization:.0f} % of the time"
    )
    if found.running is None or found.kv_usage is None:
        return [asked, limits, "the queue grows for ever at this load"]
    held = (
        f"at this load about {found.running:.1f} requests run and hold"
        f" {100 * found.kv_usage:.0f} % of the blocks"
    )
    return [asked, limits, held]
