"""A scenario that needs neither catalogue nor trace, and its one-request trace."""

from __future__ import annotations

from pathlib import Path

SCENARIO = """\
version: 1
engine:
  max_num_seqs: 4
  max_num_batched_tokens: 64
  max_model_len: 16
memory: {kind: paged, block_size: 4, num_blocks: 9}
clock: {kind: fixed, step_s: 1.0}
workload: {path: trace.csv}
compare:
  contiguous-max:
    memory: {kind: contiguous, reserve: max, placement: first_fit}
profile: plain
"""
TRACE = "arrival_s,prompt_tokens,output_tokens\n0,4,3\n"


def write_small(folder: Path, text: str = SCENARIO, trace: str = TRACE) -> Path:
    """Write the scenario and its trace; the scenario's path."""
    (folder / "trace.csv").write_text(trace)
    path = folder / "small.yaml"
    path.write_text(text)
    return path
