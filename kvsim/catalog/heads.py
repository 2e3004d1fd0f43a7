"""Attention heads over the GPUs of a tensor parallel group."""

from __future__ import annotations

from kvsim.errors import InputError


def split_heads(heads: int, tp: int, what: str) -> int:
    """Heads per GPU under tensor parallelism; heads are replicated when there are fewer than tp.

    Raises `InputError` when neither number divides the other (servers refuse this too).
    """
    if tp < 1:
        raise InputError(f"tensor parallel size must be >= 1, got {tp}", where="tp")
    if heads % tp == 0:
        return heads // tp
    if tp % heads == 0:
        return 1
    raise InputError(
        f"{heads} {what} cannot be divided over tensor parallel size {tp}",
        where="tp",
        fix=f"Use a divisor or a multiple of {heads}",
    )
