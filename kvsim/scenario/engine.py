"""Settings of the section `engine`, spelled as vLLM's flags."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import MAX_TOKENS, Fraction, Section, Tokens
from kvsim.scenario.speculation import SpeculativeSettings

KV_CACHE_BYTES = {"auto": None, "fp8": 1}
"""Bytes per KV element by `kv_cache_dtype`; None leaves it to the model."""


class EngineSettings(Section):
    """Scheduler and its limits.

    Defaults are those of the profile vllm-0.33 on a GPU below 70 GiB; what is left out takes the
    value of the scenario's profile (`kvsim.scenario.profile`).
    """

    scheduler: Literal["vllm", "orca", "static"] = Field(
        default="vllm",
        description="vllm (continuous batching, recompute preemption), orca (iteration-level,"
        " reserve before run), static (a batch runs until its longest member ends)",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs",
        description="who is admitted first and preempted last: fcfs (by arrival) or priority (by"
        " the requests' priority, smaller first, then by arrival)",
    )
    max_num_seqs: Annotated[
        int, Field(ge=1, le=1_000_000, json_schema_extra={"unit": "sequence"})
    ] = Field(
        default=256,
        description="sequences that run at once, at most; left out, the profile's for the GPU",
    )
    max_num_batched_tokens: Tokens = Field(
        default=2048,
        description="token budget of one step; at least max_num_seqs; left out, the profile's for"
        " the GPU",
    )
    max_model_len: (
        Annotated[int, Field(ge=2, le=MAX_TOKENS, json_schema_extra={"unit": "token"})] | None
    ) = Field(
        default=None, description="prompt and output together, at most; left out, the model's own"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.92,
        description="share of the GPU's memory that the server takes; left out, the profile's",
    )
    cuda_graphs_in_budget: bool = Field(
        default=True,
        description="whether CUDA graphs are taken from that share (vLLM 0.21 and later) or come on"
        " top of it; left out, the profile's",
    )
    kv_cache_dtype: Literal["auto", "fp8"] = Field(
        default="auto", description="element type of the KV cache: auto is the model's own"
    )
    enable_chunked_prefill: bool = Field(
        default=True, description="whether a prompt may be computed over several steps"
    )
    long_prefill_token_threshold: Annotated[
        int, Field(ge=0, le=100_000_000, json_schema_extra={"unit": "token"})
    ] = Field(default=0, description="prompt tokens of one request per step, at most; 0: no limit")
    watermark: Fraction = Field(
        default=0.0,
        description="share of blocks kept free at admission; left out, the profile's",
    )
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="whether a request is admitted only if its whole prompt fits"
    )
    enable_prefix_caching: bool = Field(
        default=True,
        description="whether full blocks are found again by their content (scheduler: vllm, memory:"
        " paged); left out, the profile's, false for other schedulers and memories",
    )
    prefix_cache_retention_interval: (
        Annotated[int, Field(ge=0, le=MAX_TOKENS, json_schema_extra={"unit": "token"})] | None
    ) = Field(
        default=0,
        description="which blocks of sliding-window layers the prefix cache keeps: the windows"
        " before every multiple of so many tokens, beside those at the end of a prompt; 0: only the"
        " latter; null: before every block that all layers can hit",
    )
    async_scheduling: bool = Field(
        default=True,
        description="whether a step is scheduled before the one before it has ended (scheduler:"
        " vllm, memory: paged); left out, the profile's, false for other schedulers and memories"
        " and, as in vLLM, with drafts by ngram or draft_model",
    )
    speculative_config: SpeculativeSettings | None = Field(
        default=None, description="speculative decoding; left out, none"
    )
    preemption_mode: Literal["recompute", "swap", "auto"] = Field(
        default="recompute",
        description="what happens to the KV of a request that loses its memory to another one:"
        " recompute (forgotten and computed again), swap (kept in host memory while that has room;"
        " nobody is admitted until all are back), auto (whichever takes less time); swap and auto"
        " serve every request as a sequence group (vLLM v0)",
    )
    on_never_fits: Literal["reject", "block"] = Field(
        default="reject",
        description="what happens to a request that can never fit: reject it at arrival, or let"
        " it block the queue as the real server does",
    )
    pad_prompts: bool | None = Field(
        default=None,
        description="whether every row of a static batch is computed at the width of the longest"
        " (scheduler: static); left out, true with memory.kind grow, whose batch is one tensor",
    )
