"""A scenario of conversations on a server that needs no catalogue."""

from __future__ import annotations

from pathlib import Path

CHATS = """\
version: 1
engine: {max_num_seqs: 16, max_num_batched_tokens: 256, max_model_len: 600}
memory: {kind: paged, block_size: 8, num_blocks: 301}
clock: {kind: linear, base_s: 0.01, decode_s: 0.001, prefill_token_s: 0.0001}
workload:
  chat:
    conversations: 40
    turns: {kind: uniform, low: 1, high: 6}
    user_tokens: {kind: uniform, low: 3, high: 40}
    output_tokens: {kind: uniform, low: 2, high: 60}
    system_tokens: {kind: constant, tokens: 50}
    system_prompts: 3
    turn_gap_s: 2.0
    max_total_tokens: 600
  arrivals: {kind: poisson, rate_rps: 4}
"""


def write_chats(folder: Path, text: str = CHATS) -> str:
    """Write the scenario; its path."""
    path = folder / "chats.yaml"
    path.write_text(text)
    return str(path)
