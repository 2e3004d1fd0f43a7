"""Settings of the section `engine`, spelled as vLLM's flags."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from kvsim.scenario.fields import MAX_TOKENS, Fraction, Section, Tokens

KV_CACHE_BYTES = {"auto": None, "fp8": 1}
"""Bytes per KV element by `kv_cache_dtype`; None leaves it to the model."""


class EngineSettings(Section):
    """Scheduler and its limits."""

    scheduler: Literal["vllm", "orca", "static"] = Field(
        default="vllm",
        description="vllm (continuous batching, recompute preemption), orca (iteration-level,"
        " reserve before run), static (a batch runs until its longest member ends)",
    )
    scheduling_policy: Literal["fcfs", "priority"] = Field(
        default="fcfs",
        description="order of the waiting queue; priority is not supported yet",
        json_schema_extra={"enum": ["fcfs"]},
    )
    max_num_seqs: Annotated[
        int, Field(ge=1, le=1_000_000, json_schema_extra={"unit": "sequence"})
    ] = Field(default=256, description="sequences that run at once, at most")
    max_num_batched_tokens: Tokens = Field(
        default=8192, description="token budget of one step; at least max_num_seqs"
    )
    max_model_len: (
        Annotated[int, Field(ge=2, le=MAX_TOKENS, json_schema_extra={"unit": "token"})] | None
    ) = Field(
        default=None, description="prompt and output together, at most; left out, the model's own"
    )
    gpu_memory_utilization: Annotated[float, Field(gt=0, le=1)] = Field(
        default=0.9, description="share of the GPU's memory that the server takes"
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
    watermark: Fraction = Field(default=0.0, description="share of blocks kept free at admission")
    scheduler_reserve_full_isl: bool = Field(
        default=True, description="whether a request is admitted only if its whole prompt fits"
    )
    enable_prefix_caching: bool = Field(
        default=False, description="not supported yet", json_schema_extra={"const": False}
    )
    async_scheduling: bool = Field(
        default=False, description="not supported yet", json_schema_extra={"const": False}
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
