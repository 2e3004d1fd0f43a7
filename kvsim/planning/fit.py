"""Whether a model fits a GPU, how much of its KV does, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Literal

from kvsim.catalog import (
    GIB,
    Budget,
    ExpertSplit,
    Gpu,
    KvGroups,
    Model,
    Term,
    estimate_budget,
    naive_kv_bytes_per_token,
)
from kvsim.catalog.compressed_bytes import compresses
from kvsim.catalog.start_rules import StartRules
from kvsim.errors import InputError
from kvsim.planning.beside import draft_term, lora_term, with_draft
from kvsim.planning.encoder import EncoderPart, Profile, decoder_alone, encoder_of_fit
from kvsim.planning.parallel import DRAFT_LAYERS, DraftMethod, check_context_parallel
from kvsim.planning.pool_groups import USUAL_BLOCK_TOKENS, block_size_of, fit_groups
from kvsim.planning.releases import LATEST, Release
from kvsim.planning.start import KvLayout, Start, start

Verdict = Literal["fits", "does not fit", "too close to call"]
LARGE_GPU_BYTES = 70 * GIB
COUNTS = (
    "block_size",
    "tensor_parallel_size",
    "pipeline_parallel_size",
    "data_parallel_size",
    "decode_context_parallel_size",
)
"""Settings that are at least 1 and have no default of a release."""
MEASURABLE = (
    "total",
    "weights",
    "encoder_weights",
    "encoder_cache",
    "activation_peak",
    "non_torch",
    "cuda_graphs",
)
"""Terms that a measured value can replace."""


@dataclass(frozen=True, slots=True)
class FitSettings:
    """A server's flags, spelled as vLLM's; None takes the release's default."""

    tensor_parallel_size: int = 1
    pipeline_parallel_size: int = 1
    """Stages; `fit` looks at one of them, `fit_pipeline` at all."""
    gpu_memory_utilization: float | None = None
    max_model_len: int | None = None
    """Tokens; None: what the model's config says."""
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    kv_cache_dtype: Literal["auto", "fp8"] = "auto"
    block_size: int = USUAL_BLOCK_TOKENS
    enable_prefix_caching: bool = True
    async_scheduling: bool = True
    data_parallel_size: int = 1
    """Replicas, each of `tensor_parallel_size` GPUs; they share routed experts."""
    enable_expert_parallel: bool = False
    """Whether a GPU holds some experts whole, instead of a part of each."""
    decode_context_parallel_size: int = 1
    """GPUs among which the tokens of a replicated cache are dealt."""
    max_loras: int = 0
    """Adapters that room is taken for; 0: none."""
    max_lora_rank: int = 16
    fully_sharded_loras: bool = False
    speculative: DraftMethod | None = None
    """How tokens are guessed ahead."""
    limit_mm_per_prompt: Mapping[str, int] = field(default_factory=dict)
    """Most images, videos and recordings of a prompt; 0 for all: none is profiled."""
    language_model_only: bool = False
    """Whether towers of images and sound are left out."""
    measured_bytes: Mapping[str, int] = field(default_factory=dict)
    """Known values of terms of the budget (`MEASURABLE`), in bytes per GPU."""

    @property
    def gpus(self) -> int:
        """GPUs of all replicas."""
        replica = self.tensor_parallel_size * self.pipeline_parallel_size
        return replica * self.data_parallel_size

    @property
    def experts(self) -> ExpertSplit | None:
        """How routed experts are divided, where not over one tensor parallel group."""
        gpus = self.tensor_parallel_size * self.data_parallel_size
        if gpus == self.tensor_parallel_size and not self.enable_expert_parallel:
            return None
        return ExpertSplit(gpus, whole=self.enable_expert_parallel)


@dataclass(frozen=True, slots=True)
class Resolved:
    """The flags with every default filled in."""

    tensor_parallel_size: int
    pipeline_parallel_size: int
    gpu_memory_utilization: float
    max_model_len: int
    max_num_seqs: int
    max_num_batched_tokens: int
    kv_cache_dtype: Literal["auto", "fp8"]
    block_size: int
    max_in_flight: int
    """Tokens computed before a window moves on."""
    given: FitSettings
    """The flags as they were, among them those without a default of a release."""


@dataclass(frozen=True, slots=True)
class Fit:
    """The answer for one set-up; bytes are per GPU, and every GPU has the same."""

    model: Model
    gpu: Gpu
    release: Release
    rules: StartRules
    """Constants of the estimated terms."""
    settings: Resolved
    budget: Budget
    layout: KvLayout
    start: Start
    """With the middle of the estimate."""
    start_low: Start
    start_high: Start
    """With the ends of the pool's 80 % interval."""
    whole: Model
    """The model without its division into pipeline stages."""
    encoder: Profile | None
    """The profiled run of its encoder; None for text, and for what is not known."""
    naive_request_bytes: int
    """What the often quoted formula gives for one request of max_model_len, on all GPUs."""

    @property
    def verdict(self) -> Verdict:
        """Too close to call where the two ends of the interval disagree.

        Or where what comes after the pool is sized may find no memory left.
        """
        if self.start_high.refusal is not None:
            return "does not fit"
        sure = self.start_low.refusal is None and self.on_top_bytes <= self.spare_bytes
        return "fits" if sure else "too close to call"

    @property
    def spare_bytes(self) -> int:
        """Memory outside the budget."""
        return self.budget.total.bytes - self.budget.budget.bytes

    @property
    def on_top_bytes(self) -> int:
        """What a server may take outside its budget after it has sized the pool.

        CUDA graphs, where they are not within the budget, or the most that communication and
        context were seen to take: these grow after the profile.
        """
        graphs = 0 if self.release.graphs_in_budget else self.budget.cuda_graphs.bytes
        return max(graphs, self.budget.non_torch.high)

    @property
    def margin_bytes(self) -> int:
        """Pool less what one request of max_model_len needs; negative: how much is missing."""
        per_request = self.layout.blocks_per_request(
            self.settings.max_model_len, max_in_flight=self.settings.max_in_flight
        )
        return self.budget.kv_pool.bytes - per_request * self.layout.checked_bytes


def fit(
    model: Model, gpu: Gpu, settings: FitSettings | None = None, *, release: Release = LATEST
) -> Fit:
    """What a server of this release would do at start-up.

    Raises `InputError` for settings out of range and for layers whose blocks are not covered.
    """
    given = settings or FitSettings()
    check_counts(given, COUNTS)
    flags = _resolved(model, gpu, given, release)
    kv_dtype_bytes = 1 if flags.kv_cache_dtype == "fp8" else None
    tp = flags.tensor_parallel_size
    rules = replace(release.rules, samples=_samples(release, flags))
    cached = model if given.speculative is None else with_draft(model, given.speculative)
    groups = fit_groups(cached, release, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    part = encoder_of_fit(model, flags, release)
    budget = _budget(decoder_alone(model), gpu, flags, release, rules, cached, groups, part)
    layout = KvLayout(
        groups,
        groups.block_tokens(flags.block_size) * _dealt_over(cached, given),
        budget.block_bytes,
        state_blocks=2 if given.enable_prefix_caching else 1,
    )
    pool = budget.kv_pool

    def start_with(available_bytes: int) -> Start:
        return start(
            layout,
            release,
            max_model_len=flags.max_model_len,
            max_in_flight=flags.max_in_flight,
            available_bytes=available_bytes,
        )

    naive = naive_kv_bytes_per_token(model, kv_dtype_bytes=kv_dtype_bytes) * flags.max_model_len
    return Fit(
        model=model,
        gpu=gpu,
        release=release,
        rules=rules,
        settings=flags,
        budget=budget,
        layout=layout,
        start=start_with(pool.bytes),
        start_low=start_with(pool.low),
        start_high=start_with(pool.high),
        whole=model,
        encoder=part.profile,
        naive_request_bytes=naive,
    )


def _budget(
    model: Model,
    gpu: Gpu,
    flags: Resolved,
    release: Release,
    rules: StartRules,
    cached: Model,
    groups: KvGroups,
    part: EncoderPart,
) -> Budget:
    given = flags.given
    return estimate_budget(
        model,
        gpu,
        max_num_batched_tokens=flags.max_num_batched_tokens,
        max_num_seqs=flags.max_num_seqs,
        tp=flags.tensor_parallel_size,
        gpu_memory_utilization=flags.gpu_memory_utilization,
        block_size=flags.block_size,
        kv_dtype_bytes=1 if flags.kv_cache_dtype == "fp8" else None,
        cuda_graphs_in_budget=release.graphs_in_budget,
        layer_groups=release.layer_groups,
        measured=_checked(given.measured_bytes),
        rules=rules,
        experts=given.experts,
        further=(*part.weights, *_beside(model, given), *part.kept),
        encoder_step=part.step,
        cached=cached,
        groups=groups,
    )


def _beside(model: Model, flags: FitSettings) -> tuple[Term, ...]:
    """What is loaded beside the model."""
    tp, terms = flags.tensor_parallel_size, []
    if flags.max_loras:
        terms.append(
            lora_term(
                model,
                max_loras=flags.max_loras,
                max_lora_rank=flags.max_lora_rank,
                tp=tp,
                fully_sharded=flags.fully_sharded_loras,
            )
        )
    if flags.speculative is not None and DRAFT_LAYERS[flags.speculative]:
        terms.append(draft_term(model, flags.speculative, tp=tp, experts=flags.experts))
    return tuple(terms)


def _dealt_over(model: Model, flags: FitSettings) -> int:
    """GPUs that each hold some of a block's tokens."""
    dcp = flags.decode_context_parallel_size
    if dcp == 1:
        return 1
    if any(group.kind != "full" for group in model.groups):
        raise InputError(
            f"{model.name} has layers that do not keep every token: dealing them out is not"
            " covered",
            where="decode_context_parallel_size",
            fix="Leave it at 1",
        )
    kv_heads = model.attention.kv_heads
    check_context_parallel(dcp, tp=flags.tensor_parallel_size, kv_heads=kv_heads)
    return dcp


def _resolved(model: Model, gpu: Gpu, given: FitSettings, release: Release) -> Resolved:
    large = gpu.reported_bytes >= LARGE_GPU_BYTES and "a100" not in gpu.full_name.lower()
    length = model.max_position if given.max_model_len is None else given.max_model_len
    if not 2 <= length <= model.max_position:
        raise InputError(
            f"max_model_len must be from 2 to {model.max_position:,} tokens, the limit of"
            f" {model.name}, got {length:,}",
            where="max_model_len",
            fix="Give a length within the model's own",
        )
    usual = release.seqs_on_every_gpu or (1024 if large and release.engine == "v1" else 256)
    seqs = given.max_num_seqs or usual
    tokens = given.max_num_batched_tokens or _batched_tokens(release, large=large, length=length)
    flags = Resolved(
        tensor_parallel_size=given.tensor_parallel_size,
        pipeline_parallel_size=given.pipeline_parallel_size,
        gpu_memory_utilization=given.gpu_memory_utilization or release.gpu_memory_utilization,
        max_model_len=length,
        max_num_seqs=seqs,
        max_num_batched_tokens=tokens,
        kv_cache_dtype="fp8" if compresses(model) else given.kv_cache_dtype,
        block_size=block_size_of(model, given.block_size),
        max_in_flight=tokens
        * (2 if given.async_scheduling and release.counts_steps_in_flight else 1),
        given=given,
    )
    check_counts(flags, ("max_num_seqs", "max_num_batched_tokens"))
    return flags


def check_counts(flags: FitSettings | Resolved, names: tuple[str, ...]) -> None:
    """`InputError` for one of these settings that is no number of things."""
    for name in names:
        value = getattr(flags, name)
        if not 1 <= value <= MOST:
            raise InputError(f"{name} must be from 1 to {MOST:,}, got {value:,}", where=name)


def _batched_tokens(release: Release, *, large: bool, length: int) -> int:
    """Tokens of the profiling step: v0 without chunked prefill profiles a whole context."""
    if release.engine == "v1":
        return 8192 if large else 2048
    if release.chunk_tokens is not None and length > V0_CHUNKS_ABOVE:
        return release.chunk_tokens
    return max(length, 2048)


def _samples(release: Release, flags: Resolved) -> bool:
    """Whether the profiling step samples: in v0 a step shorter than a context is a chunk."""
    return release.engine == "v1" or flags.max_num_batched_tokens >= flags.max_model_len


V0_CHUNKS_ABOVE = 32_768
"""Longer contexts made v0 switch chunked prefill on by itself."""
MOST = 100_000_000


def _checked(measured: Mapping[str, int]) -> Mapping[str, int]:
    for name, value in measured.items():
        if name not in MEASURABLE:
            raise InputError(
                f"{name[:40]!r} is no measured term",
                where="measured",
                fix=f"Known: {', '.join(MEASURABLE)}",
            )
        if not 0 <= value < 1 << 50:
            raise InputError(f"{name} must be from 0 to 2^50 bytes, got {value}", where=name)
    return measured
