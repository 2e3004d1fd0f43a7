"""What SGLang and TensorRT-LLM would make of a model and a GPU, each by its own rules.

Only the memory: kvsim simulates time with vLLM's scheduler.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kvsim.catalog import GIB, Gpu, Model, Term, estimate_budget, kv_bytes_per_token
from kvsim.catalog.start_terms import remainder
from kvsim.errors import InputError
from kvsim.planning import sglang, tensorrt_llm
from kvsim.planning.fit import Verdict

SharingServer = Literal["sglang", "tensorrt-llm"]
Server = Literal["sglang", "tensorrt-llm", "llama.cpp"]
FRACTIONS: Mapping[SharingServer, float] = {
    "sglang": 0.88,
    "tensorrt-llm": tensorrt_llm.DEFAULT_FRACTION,
}
"""The share where none is given; SGLang chooses its own by GPU, about this much."""
PAGE_TOKENS: Mapping[SharingServer, int] = {"sglang": 1, "tensorrt-llm": 32}
_BATCHED_TOKENS, _SEQS = 8192, 256
"""Of the step whose buffers TensorRT-LLM measures."""
KEPT_WHOLE = ("full",)


@dataclass(frozen=True, slots=True)
class OtherFit:
    """The answer for one of these servers; bytes are per GPU."""

    server: Server
    model: Model
    gpu: Gpu
    tensor_parallel_size: int
    fraction: float | None
    """None: the server has none."""
    max_model_len: int
    terms: tuple[Term, ...]
    """What is subtracted, and the pool last; ends are 80 % intervals."""
    tokens: int
    tokens_low: int
    tokens_high: int
    request_bytes: int
    """KV of one request of max_model_len tokens."""
    sequences: int | None = None
    """Contexts that are reserved from the start; `tokens` are then those of the longest."""

    @property
    def verdict(self) -> Verdict:
        """Whether the pool stores one request of max_model_len tokens."""
        if self.tokens_low >= self.max_model_len:
            return "fits"
        return "does not fit" if self.tokens_high < self.max_model_len else "too close to call"

    @property
    def max_concurrency(self) -> float:
        """Requests of max_model_len tokens that the pool stores."""
        if self.sequences is not None:
            return float(self.sequences)
        return self.tokens / self.max_model_len


def other_fit(
    server: SharingServer,
    model: Model,
    gpu: Gpu,
    *,
    tp: int = 1,
    fraction: float | None = None,
    max_model_len: int | None = None,
    kv_dtype_bytes: int | None = None,
) -> OtherFit:
    """Tokens that the server would store, with the ends of what is estimated.

    Raises `InputError` for values out of range, and for models whose layers do not all keep every
    token: these servers give such layers pools of their own, whose rules are not known here.
    """
    if any(group.kind not in KEPT_WHOLE for group in model.groups):
        raise InputError(
            f"{model.name} has layers that do not keep every token: {server}'s pools for them are"
            " not covered",
            where="--server",
            fix="Ask for vLLM, or choose a model whose layers keep every token",
        )
    share = FRACTIONS[server] if fraction is None else fraction
    length = model.max_position if max_model_len is None else max_model_len
    if not 1 <= length <= model.max_position:
        raise InputError(
            f"must be from 1 to {model.max_position:,} tokens, got {length:,}",
            where="max_model_len",
            fix="Give a length within the model's own",
        )
    budget = estimate_budget(
        model, gpu, max_num_batched_tokens=_BATCHED_TOKENS, max_num_seqs=_SEQS, tp=tp
    )
    spent = [budget.weights, budget.non_torch]
    if server == "tensorrt-llm":
        spent.append(budget.activation_peak)
    pool = _pool(server, budget.total, spent, share)
    token_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    tokens, low, high = (
        _tokens(server, size, token_bytes) for size in (pool.bytes, pool.low, pool.high)
    )
    return OtherFit(
        server=server,
        model=model,
        gpu=gpu,
        tensor_parallel_size=tp,
        fraction=share,
        max_model_len=length,
        terms=(budget.total, *spent, pool),
        tokens=tokens,
        tokens_low=low,
        tokens_high=high,
        request_bytes=length * token_bytes,
    )


def _pool(server: SharingServer, total: Term, spent: list[Term], fraction: float) -> Term:
    """The server's formula at the middle, and its ends from those of the terms in quadrature."""
    rest = remainder("left", total, spent, server)
    left = rest.bytes
    if server == "sglang":
        size = sglang.kv_memory_bytes(
            free_before_weights_bytes=total.bytes,
            free_after_weights_bytes=left,
            mem_fraction_static=fraction,
        )
        scale, formula = 1.0, "free after weights - free before * (1 - mem_fraction_static)"
    else:
        size = tensorrt_llm.kv_memory_bytes(free_after_load_bytes=left, fraction=fraction)
        scale, formula = fraction, "free after load * free_gpu_memory_fraction"
    return Term(
        "kv_pool",
        size,
        size - round(scale * (left - rest.low)),
        size + round(scale * (rest.high - left)),
        formula=f"{formula} [{total.bytes / GIB:.2f}, {left / GIB:.2f} GiB; {fraction:g}]",
        source=server,
    )


def _tokens(server: SharingServer, available: int, token_bytes: int) -> int:
    page = PAGE_TOKENS[server]
    if server == "sglang":
        pool = sglang.pool(available, k_token_bytes=token_bytes, v_token_bytes=0, page_size=page)
        return pool.tokens
    return tensorrt_llm.pool(available, token_bytes=token_bytes, tokens_per_block=page).tokens
