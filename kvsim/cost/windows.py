"""What layers with a sliding window read of a context."""

from __future__ import annotations

from typing import TypeVar

Tokens = TypeVar("Tokens", int, float)


def decode_tokens(rows: int, context_tokens: Tokens, window: int | None) -> Tokens:
    """Context tokens that `rows` decodes read, of `context_tokens` over all of them.

    Exact where all contexts are shorter than the window, or all longer; else an upper bound.
    """
    if window is None:
        return context_tokens
    return context_tokens if context_tokens <= rows * window else rows * window


def prior_tokens(prior: int, window: int | None) -> int:
    """Tokens before a chunk that its first query reads."""
    return prior if window is None else min(prior, window)


def mean_reach(new: int, prior: int, window: int | None) -> float:
    """Context of a chunk's queries, on average: `prior` to `prior + new` tokens, cut at the window.

    The context grows up to the window and stays there.
    """
    if window is None or prior + new <= window:
        return prior + new / 2
    growing = max(window - prior, 0)
    pairs = growing * (min(prior, window) + growing / 2) + (new - growing) * window
    return pairs / new
