"""Constants of the terms that a server measures at start-up, by release of vLLM.

Each has a physical meaning and is fitted to start-up logs (`kvsim.planning.accuracy`; the page
docs/accuracy.md shows every row). Intervals are 80 %.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from kvsim.catalog.gpu import Gpu
from kvsim.catalog.model import Model

PADDED_EXPERT_ELEMENTS = 256
"""The kernels for mxfp4 experts want the intermediate elements of each GPU in such steps."""
LARGE_MOE_EXPERTS = 64
SORTING_SAMPLER_FACTOR = 9.57
"""float32 copies of the logits while top-k and top-p sort them, up to 0.15."""
UNSORTED_SAMPLER_FACTOR = 4.6
"""The same from 0.16 on, of what start-ups leave of their budget."""


class Interval(NamedTuple):
    """Ends of the 80 % interval and the estimate."""

    low: float
    middle: float
    high: float


NON_TORCH_GIB: Mapping[int, Interval] = {
    1: Interval(0.015, 0.09, 0.35),
    2: Interval(0.25, 0.55, 1.4),
    4: Interval(0.2, 0.8, 1.4),
    8: Interval(0.4, 1.2, 2.1),
}
DENSE_GRAPHS_GIB = Interval(0.12, 0.9, 1.5)
LARGE_MOE_GRAPHS_GIB = Interval(2.3, 3.0, 3.5)


@dataclass(frozen=True, slots=True)
class StartRules:
    """What one range of releases takes beside the KV cache."""

    sampler: Interval
    """float32 copies of `max_num_seqs * vocab` logits at the sampling peak."""
    peak_error: tuple[float, float] = (0.1, 0.07)
    """Fractions of the activation peak below and above it, beside those of the sampler."""
    samples: bool = True
    """Whether the profiling step ends with sampling: not where v0 prefills in chunks."""
    weights_error: tuple[float, float] = (0.0, 0.03)
    """Fractions below and above the weights by shape: buffers and padding come on top."""
    non_torch_gib: Mapping[int, Interval] = field(default_factory=lambda: NON_TORCH_GIB)
    """By tensor parallel size: CUDA context, communication."""
    amd_non_torch_gib: float = 0.45
    """More where the context is HIP's."""
    dense_graphs_gib: Interval = DENSE_GRAPHS_GIB
    large_moe_graphs_gib: Interval = LARGE_MOE_GRAPHS_GIB


SORTED = StartRules(Interval(7.3, SORTING_SAMPLER_FACTOR, 10.2))
"""vLLM 0.6.4 to 0.15."""
UNSORTED = StartRules(Interval(1.5, UNSORTED_SAMPLER_FACTOR, 8.3))
"""vLLM 0.16 and later."""
BY_FREE_MEMORY = replace(SORTED, peak_error=(0.6, 4.0))
"""vLLM 0.6.3 and earlier take what disappeared from the free memory, unused cache included."""


def activation_peak(
    model: Model, rules: StartRules, *, tp: int, batched_tokens: int, seqs: int
) -> Interval:
    """Bytes of the larger of feed-forward and sampler in the profiling step.

    The feed-forward holds three intermediates and three hidden states of every token, experts
    what they get and give of the tokens routed to them; the sampler holds the logits of every
    sequence beside the hidden states that they were made from.
    """
    hidden = 2 * batched_tokens * model.hidden
    work = max(
        2 * batched_tokens * 3 * -(-model.intermediate // tp) + 3 * hidden,
        _routed(model, tp, batched_tokens) + 2 * hidden,
    )
    logits = seqs * model.vocab * 4 if rules.samples else 0
    below, above = rules.peak_error

    def peak(factor: float) -> float:
        return max(work, factor * logits + hidden)

    low, middle, high = (peak(factor) for factor in rules.sampler)
    return Interval(min(low, middle * (1 - below)), middle, max(high, middle * (1 + above)))


def _routed(model: Model, tp: int, batched_tokens: int) -> int:
    """Bytes of what goes into, through and out of the experts."""
    if model.moe is None:
        return 0
    width = -(-model.moe.intermediate // tp)
    per_row = max(2 * width, model.moe.latent or model.hidden) + width
    return 2 * batched_tokens * model.moe.experts_per_token * per_row


def stored_model(model: Model, tp: int) -> Model:
    """The model as its kernels store it: mxfp4 experts are padded on each GPU."""
    moe = model.moe
    if moe is None or moe.weight_dtype != "mxfp4":
        return model
    width = -(-moe.intermediate // tp)
    padded = -(-width // PADDED_EXPERT_ELEMENTS) * PADDED_EXPERT_ELEMENTS
    return replace(model, moe=replace(moe, intermediate=padded * tp))


def non_torch_gib(rules: StartRules, gpu: Gpu, tp: int) -> Interval:
    """GiB outside the framework on one GPU."""
    by_size = rules.non_torch_gib
    seen = by_size[max(size for size in by_size if size <= tp)]
    more = rules.amd_non_torch_gib if gpu.full_name.startswith("AMD") else 0.0
    return Interval(*(one + more for one in seen))


def cuda_graphs_gib(rules: StartRules, model: Model) -> Interval:
    """GiB of captured graphs on one GPU."""
    large = model.moe is not None and model.moe.experts >= LARGE_MOE_EXPERTS
    return rules.large_moe_graphs_gib if large else rules.dense_graphs_gib
