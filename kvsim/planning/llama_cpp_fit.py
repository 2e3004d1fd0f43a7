"""What llama.cpp would take of a GPU that holds a whole model: the context says how much."""

from __future__ import annotations

from collections.abc import Mapping

from kvsim.catalog import GIB, Gpu, GqaAttention, Model, Term, estimate_budget
from kvsim.catalog.start_terms import remainder
from kvsim.errors import InputError
from kvsim.planning.llama_cpp import PADDING_CELLS, full_cells, pool, window_cells
from kvsim.planning.others import OtherFit

N_UBATCH = 512
"""Tokens of a physical batch, by default."""
CONTEXT_GIB = (0.1, 0.3, 0.6)
"""CUDA context of one process."""


def cache_bytes(model: Model, n_ctx: int, *, sequences: int = 1) -> int:
    """Bytes of the f16 cache: `sequences` have a part of `n_ctx` each, windows a cache of theirs.

    Exact for what a log prints (C138, C139, C141). Raises `InputError` for layers whose cells are
    not known here.
    """
    cells = full_cells(n_ctx, streams=sequences)
    total = 0
    for group in model.groups:
        attention = group.attention
        if group.kind == "none":
            continue
        if group.kind not in ("full", "sliding") or not isinstance(attention, GqaAttention):
            raise InputError(
                f"{model.name} has {group.kind} layers of {attention.kind} attention: their cells"
                " in llama.cpp are not covered",
                where="--server",
                fix="Ask for vLLM, or choose a model with grouped-query attention",
            )
        own = cells
        if group.window is not None:
            own = window_cells(cells, window=group.window, n_ubatch=N_UBATCH)
        total += pool(
            own,
            layers=group.layers,
            k_elements=attention.kv_heads * attention.head_dim,
            v_elements=attention.kv_heads * attention.v_head_dim,
            streams=sequences,
        ).kv_bytes
    return total


def llama_cpp_fit(
    model: Model,
    gpu: Gpu,
    *,
    max_model_len: int | None = None,
    sequences: int = 1,
    measured: Mapping[str, int] | None = None,
) -> OtherFit:
    """Whether weights, a step's buffer and the cache of `sequences` contexts fit one GPU.

    The weights are those of the model's own precision unless `measured` has them (a GGUF file's
    size). Raises `InputError` for values out of range and as `cache_bytes` does.
    """
    length = model.max_position if max_model_len is None else max_model_len
    if not 1 <= length <= model.max_position or not 1 <= sequences <= MOST_SEQUENCES:
        raise InputError(
            f"a context must have 1 to {model.max_position:,} tokens and there be 1 to"
            f" {MOST_SEQUENCES} of them, got {length:,} and {sequences:,}",
            where="max_model_len",
            fix="Give a length within the model's own",
        )
    known = dict(measured or {})
    if not known.keys() <= {"total", "weights"}:
        raise InputError(
            "llama.cpp's buffers have other parts", where="--measured", fix="Known: total, weights"
        )
    budget = estimate_budget(
        model, gpu, max_num_batched_tokens=N_UBATCH, max_num_seqs=1, measured=known
    )
    spent = [budget.weights, _buffer(model), _context()]
    left = remainder("left_for_cache", budget.total, spent, "llama.cpp")
    tokens, low, high = (
        _longest(model, size, sequences) for size in (left.bytes, left.low, left.high)
    )
    return OtherFit(
        server="llama.cpp",
        model=model,
        gpu=gpu,
        tensor_parallel_size=1,
        fraction=None,
        max_model_len=length,
        terms=(budget.total, *spent, left),
        tokens=tokens,
        tokens_low=low,
        tokens_high=high,
        request_bytes=cache_bytes(model, length * sequences, sequences=sequences) // sequences,
        sequences=sequences,
    )


MOST_SEQUENCES = 256
"""llama.cpp's own limit."""


def _buffer(model: Model) -> Term:
    """Logits and hidden states of a physical batch in f32, as logs of two models print them.

    258.50 MiB of Llama-3-8B and 300.75 MiB of Qwen2.5-3B are exact; newer builds keep fewer logits.
    """
    hidden = N_UBATCH * model.hidden * 4
    size = hidden + N_UBATCH * model.vocab * 4
    return Term(
        "compute_buffer",
        size,
        hidden,
        2 * size,
        formula=f"{N_UBATCH} n_ubatch * (vocab + hidden) * 4",
        source="two start-up logs; with flash attention",
    )


def _context() -> Term:
    low, middle, high = (round(one * GIB) for one in CONTEXT_GIB)
    return Term("cuda_context", middle, low, high, formula="seen", source="assumed")


def _longest(model: Model, available: int, sequences: int) -> int:
    """Tokens of the longest context, in whole steps of cells, of which each sequence has one."""
    low, high = 0, model.max_position // PADDING_CELLS + 1
    while high - low > 1:
        middle = (low + high) // 2
        n_ctx = middle * PADDING_CELLS * sequences
        fits = cache_bytes(model, n_ctx, sequences=sequences) <= available
        low, high = (middle, high) if fits else (low, middle)
    whole = model.max_position
    if low == whole // PADDING_CELLS and whole % PADDING_CELLS:
        fits = cache_bytes(model, whole * sequences, sequences=sequences) <= available
        return whole if fits else low * PADDING_CELLS
    return low * PADDING_CELLS
