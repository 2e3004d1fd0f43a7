"""Memory budget of a server: how many KV blocks one GPU really has."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvsim.catalog.gpu import GIB, Gpu
from kvsim.catalog.heads import split_heads
from kvsim.catalog.kv import kv_bytes_per_group_token
from kvsim.catalog.kv_groups import GroupingRule, KvGroups, kv_groups
from kvsim.catalog.model import Model
from kvsim.catalog.start_rules import StartRules
from kvsim.catalog.start_terms import Size, remainder, terms_of_release
from kvsim.catalog.start_terms import Term as Term
from kvsim.catalog.weights import ExpertSplit, weight_bytes
from kvsim.errors import InputError

SAMPLER_FACTOR = 9.66
"""float32 copies of the logits alive at the sampling peak, vLLM up to 0.14; 7.3 from 0.16 on."""
SAMPLER_FACTOR_LOW = 7.3
ACTIVATION_ERROR = 0.16
"""20 of 23 real starts lie within."""
WEIGHTS_ERROR = 0.01
NON_TORCH_GIB = {1: (0.02, 0.1, 0.3), 2: (0.25, 0.8, 1.4), 4: (0.2, 0.8, 1.4), 8: (0.4, 1.2, 2.1)}
"""Low, middle, high by tensor parallel size, from start-up logs."""
CUDA_GRAPHS_GIB = {"dense": (0.1, 0.6, 1.2), "large MoE": (2.4, 3.0, 3.5)}
LARGE_MOE_EXPERTS = 64
USUAL_UTILIZATION = 0.9
"""vLLM's default."""


class NoKvMemoryError(InputError):
    """Weights and activations leave no KV cache. `tp` and `utilization` would, if not None."""

    def __init__(self, problem: str, *, tp: int | None, utilization: float | None) -> None:
        ways = [f"gpu_memory_utilization {utilization}"] if utilization else []
        ways += [f"tp {tp}"] if tp else []
        ways += ["a GPU with more memory", "a smaller model"]
        super().__init__(
            problem,
            where="hardware",
            fix=f"Use {', '.join(ways)}, or smaller max_num_seqs and max_num_batched_tokens",
        )
        self.tp = tp
        self.utilization = utilization


@dataclass(frozen=True, slots=True)
class Budget:
    """Per GPU; every GPU of a tensor parallel group has the same.

    `kv_pool = budget - weights - activation_peak - non_torch`, less `cuda_graphs` when they are
    counted inside the budget, less what else is loaded (`further`). The interval of the pool
    adds the terms' intervals in quadrature.
    """

    total: Term
    budget: Term
    weights: Term
    activation_peak: Term
    non_torch: Term
    cuda_graphs: Term
    kv_pool: Term
    block_bytes: int
    num_blocks: int
    """Blocks the engine allocates; vLLM v1 keeps one of them as its null block."""
    num_blocks_low: int
    num_blocks_high: int
    further: tuple[Term, ...] = ()
    """What is loaded beside the model: adapters, a draft."""

    def terms(self) -> tuple[Term, ...]:
        """The lines in the order of the subtraction."""
        return (
            self.total,
            self.budget,
            self.weights,
            *self.further,
            self.activation_peak,
            self.non_torch,
            self.cuda_graphs,
            self.kv_pool,
        )


def compute_budget(
    model: Model,
    gpu: Gpu,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tp: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    kv_dtype_bytes: int | None = None,
    cuda_graphs_in_budget: bool = False,
    layer_groups: GroupingRule = "max_if_close",
) -> Budget:
    """Blocks a vLLM server gets on each of `tp` GPUs, and how that number comes about.

    Arguments as in `estimate_budget`. Raises `InputError` too when less than a block is left.
    """
    found = estimate_budget(
        model,
        gpu,
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        tp=tp,
        gpu_memory_utilization=gpu_memory_utilization,
        block_size=block_size,
        kv_dtype_bytes=kv_dtype_bytes,
        cuda_graphs_in_budget=cuda_graphs_in_budget,
        layer_groups=layer_groups,
    )
    if not found.num_blocks:
        spent = [found.weights, found.activation_peak, found.non_torch]
        spent += [found.cuda_graphs] if cuda_graphs_in_budget else []
        raise _no_pool(model, gpu, tp, gpu_memory_utilization, (found.budget, spent))
    return found


def estimate_budget(
    model: Model,
    gpu: Gpu,
    *,
    max_num_batched_tokens: int,
    max_num_seqs: int,
    tp: int = 1,
    gpu_memory_utilization: float = 0.9,
    block_size: int = 16,
    kv_dtype_bytes: int | None = None,
    cuda_graphs_in_budget: bool = False,
    layer_groups: GroupingRule = "max_if_close",
    measured: Mapping[str, int] | None = None,
    rules: StartRules | None = None,
    experts: ExpertSplit | None = None,
    further: Sequence[Term] = (),
    encoder_step: Term | None = None,
    cached: Model | None = None,
    groups: KvGroups | None = None,
) -> Budget:
    """The same where nothing may be left: the pool can be negative, and there are 0 blocks then.

    A block holds `block_size` tokens of all layers, or of one group of layers where they keep
    different tokens (`layer_groups` says how large: see `kv_groups`); more tokens where a layer's
    state needs them. `cuda_graphs_in_budget` is False for vLLM up to 0.20, whose graphs come on top
    of the budget, True for 0.21 and later. `measured` replaces terms by known bytes: `total`,
    `weights`, `activation_peak`, `non_torch`, `cuda_graphs`. `rules` are the constants of the
    server's release; without them, those of the shipped scenarios. `experts` divides routed
    experts otherwise than over tp, `further` are terms loaded beside the model, `encoder_step` is
    what encoders need while they are profiled, less what of it is among those. `cached` is the
    model with the layers of a draft, where the pool holds those too; `groups` are its layers'
    where they are known.
    """
    _check_limits(gpu_memory_utilization, block_size, max_num_batched_tokens, max_num_seqs)
    known = _Measured(measured or {})
    total = known.or_estimated(_total(gpu))
    budget = _budget(total, gpu_memory_utilization)
    size = Size(tp, max_num_batched_tokens, max_num_seqs, experts)
    terms = _estimated(model, gpu, (rules, encoder_step), size, graphs_in=cuda_graphs_in_budget)
    weights, activations, non_torch, graphs = (known.or_estimated(term) for term in terms)
    inside = [graphs] if cuda_graphs_in_budget else []
    spent = [weights, *further, activations, non_torch, *inside]
    pool = remainder("kv_pool", budget, spent, "vLLM")
    held = cached or model
    groups = groups or kv_groups(held, tp=tp, kv_dtype_bytes=kv_dtype_bytes, rule=layer_groups)
    block_bytes = _block_bytes(held, groups, tp, block_size, kv_dtype_bytes)
    return Budget(
        total=total,
        budget=budget,
        weights=weights,
        activation_peak=activations,
        non_torch=non_torch,
        cuda_graphs=graphs,
        kv_pool=pool,
        block_bytes=block_bytes,
        num_blocks=max(0, pool.bytes // block_bytes),
        num_blocks_low=max(0, pool.low // block_bytes),
        num_blocks_high=max(0, pool.high // block_bytes),
        further=tuple(further),
    )


def _block_bytes(
    model: Model, groups: KvGroups, tp: int, block_size: int, kv_dtype_bytes: int | None
) -> int:
    if groups.pages is not None:
        return groups.pages.block_bytes
    if groups.token_bytes:
        return groups.block_tokens(block_size) * groups.token_bytes
    return groups.block_tokens(block_size) * kv_bytes_per_group_token(
        model, groups.layers, tp=tp, kv_dtype_bytes=kv_dtype_bytes
    )


def _estimated(
    model: Model,
    gpu: Gpu,
    asked: tuple[StartRules | None, Term | None],
    size: Size,
    *,
    graphs_in: bool,
) -> tuple[Term, ...]:
    """Weights, activation peak with an encoder's step, non-torch memory and CUDA graphs."""
    rules, encoder_step = asked
    if rules is None:
        terms = _terms(model, size, graphs_in)
    else:
        terms = terms_of_release(model, gpu, rules, size, graphs_in_budget=graphs_in)
    weights, activations, *rest = terms
    if encoder_step is not None:
        activations = _larger(activations, encoder_step)
    return (weights, activations, *rest)


def _larger(decoder: Term, encoder: Term) -> Term:
    """The peak of a profile of two steps, one after the other."""
    return Term(
        decoder.name,
        max(decoder.bytes, encoder.bytes),
        max(decoder.low, encoder.low),
        max(decoder.high, encoder.high),
        formula=f"the larger of {decoder.formula} and {encoder.formula}",
        source=decoder.source,
    )


class _Measured:
    """Known bytes of terms, by name."""

    def __init__(self, known: Mapping[str, int]) -> None:
        self._known = known

    def or_estimated(self, term: Term) -> Term:
        """The term with its known value, which has no interval."""
        value = self._known.get(term.name)
        if value is None:
            return term
        return Term(term.name, value, value, value, formula="given", source="measured")


def _check_limits(utilization: float, block_size: int, batched_tokens: int, seqs: int) -> None:
    if not 0.0 < utilization <= 1.0:
        raise InputError(
            f"gpu_memory_utilization must be in (0, 1], got {utilization!r}",
            where="gpu_memory_utilization",
            fix="vLLM's default is 0.9",
        )
    limits = {
        "block_size": block_size,
        "max_num_batched_tokens": batched_tokens,
        "max_num_seqs": seqs,
    }
    for name, value in limits.items():
        if value < 1:
            raise InputError(f"{name} must be >= 1, got {value!r}", where=name)


def _terms(model: Model, size: Size, graphs_in_budget: bool) -> tuple[Term, ...]:
    """Weights, activation peak, non-torch memory and CUDA graphs."""
    return (
        _weights(model, size.tp, size.experts),
        _activations(model, size.tp, size.batched_tokens, size.seqs),
        _non_torch(size.tp),
        _cuda_graphs(model, graphs_in_budget),
    )


def _total(gpu: Gpu) -> Term:
    return Term(
        "total",
        gpu.reported_bytes,
        round(gpu.reported_gib_low * GIB),
        round(gpu.reported_gib_high * GIB),
        formula=(
            "total memory as CUDA reports it, middle of "
            f"{gpu.reported_gib_low:g}..{gpu.reported_gib_high:g} GiB"
        ),
        source=gpu.reported_source,
    )


def _budget(total: Term, utilization: float) -> Term:
    return Term(
        "budget",
        int(total.bytes * utilization),
        int(total.low * utilization),
        int(total.high * utilization),
        formula=f"total * {utilization:g} (gpu_memory_utilization)",
        source="vLLM",
    )


def _weights(model: Model, tp: int, experts: ExpertSplit | None) -> Term:
    size = weight_bytes(model, tp=tp, experts=experts)
    return Term(
        "weights",
        size,
        round(size * (1 - WEIGHTS_ERROR)),
        round(size * (1 + WEIGHTS_ERROR)),
        formula=f"parameters by shape on one of {tp} GPUs, matrices in {model.weight_dtype}",
        source=model.source,
    )


def _activations(model: Model, tp: int, batched_tokens: int, seqs: int) -> Term:
    mlp = batched_tokens * (3 * -(-model.intermediate // tp) + 3 * model.hidden) * 2
    logits = seqs * model.vocab * 4
    sampler = round(SAMPLER_FACTOR * logits)
    low = max(mlp * (1 - ACTIVATION_ERROR), SAMPLER_FACTOR_LOW * logits * (1 - ACTIVATION_ERROR))
    size = max(mlp, sampler)
    return Term(
        "activation_peak",
        size,
        round(low),
        round(size * (1 + ACTIVATION_ERROR)),
        formula=(
            "max(max_num_batched_tokens * (3 * intermediate / tp + 3 * hidden) * 2, "
            f"{SAMPLER_FACTOR} * max_num_seqs * vocab * 4)"
        ),
        source="rule fitted to 23 real starts of vLLM, 20 of them within 16 %",
    )


def _non_torch(tp: int) -> Term:
    low, middle, high = NON_TORCH_GIB[max(size for size in NON_TORCH_GIB if size <= tp)]
    return Term(
        "non_torch",
        round(middle * GIB),
        round(low * GIB),
        round(high * GIB),
        formula=f"{low:g}..{high:g} GiB seen at tensor parallel size {tp}",
        source="start-up logs of vLLM (CUDA context, NCCL)",
    )


def _cuda_graphs(model: Model, in_budget: bool) -> Term:
    moe = model.moe
    kind = "large MoE" if moe is not None and moe.experts >= LARGE_MOE_EXPERTS else "dense"
    low, middle, high = CUDA_GRAPHS_GIB[kind]
    place = "inside" if in_budget else "on top of"
    return Term(
        "cuda_graphs",
        round(middle * GIB),
        round(low * GIB),
        round(high * GIB),
        formula=f"{low:g}..{high:g} GiB seen for {kind} models, {place} the budget",
        source="start-up logs of vLLM",
    )


def _no_pool(
    model: Model, gpu: Gpu, tp: int, utilization: float, terms: tuple[Term, list[Term]]
) -> NoKvMemoryError:
    budget, spent = terms
    parts = [f"{budget.bytes / GIB:.2f} GiB budget"]
    parts += [f"{term.bytes / GIB:.2f} {term.name}" for term in spent]
    others = sum(term.bytes for term in spent)
    left = (budget.bytes - others) / GIB
    total = budget.bytes / utilization
    enough = utilization < USUAL_UTILIZATION and others < 0.9 * USUAL_UTILIZATION * total
    return NoKvMemoryError(
        f"{model.name} on {tp} x {gpu.name} leaves no KV cache: {' - '.join(parts)} ="
        f" {left:.2f} GiB",
        tp=_larger_tp(model, gpu, budget, tp),
        utilization=USUAL_UTILIZATION if enough else None,
    )


def _larger_tp(model: Model, gpu: Gpu, budget: Term, tp: int) -> int | None:
    """Smallest size above tp, of those this GPU has data for, that leaves a tenth of the budget."""
    for size in sorted(gpu.fit.allreduce):
        try:
            split_heads(model.attention.heads, size, "query heads")
            if size > tp and weight_bytes(model, tp=size) < 0.9 * budget.bytes:
                return size
        except InputError:
            continue
    return None
