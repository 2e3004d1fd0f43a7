"""Flags of vLLM that are no settings here: what each asks for, and the way out."""

from __future__ import annotations

ELSEWHERE = {
    "tensor_parallel_size": "hardware.count",
    "block_size": "memory.block_size",
    "num_gpu_blocks_override": "memory.num_blocks",
    "model": "model",
    "policy": "engine.scheduling_policy",
    "speculative_model": "engine.speculative_config",
    "num_speculative_tokens": "engine.speculative_config.num_speculative_tokens",
    "reserve_full_isl": "engine.scheduler_reserve_full_isl",
    "swap_space": "memory.swap.capacity_gib",
    "retention_interval": "engine.prefix_cache_retention_interval",
    "disable_hybrid_kv_cache_manager": "memory.layer_groups (unified)",
    "kv_offloading_size": "memory.offload.host.capacity_gib",
}
"""Flags that have another place."""

_LAYERS = "how states of linear attention are stored"
NOT_COVERED = {
    "pipeline_parallel_size": "pipeline parallelism",
    "data_parallel_size": "data parallelism",
    "decode_context_parallel_size": "context parallelism",
    "prefill_context_parallel_size": "context parallelism",
    "enable_expert_parallel": "expert parallelism",
    "enable_lora": "LoRA adapters",
    "max_loras": "LoRA adapters",
    "max_lora_rank": "LoRA adapters",
    "lora_modules": "LoRA adapters",
    "kv_transfer_config": "KV connectors",
    "cpu_offload_gb": "weights outside the GPU",
    "limit_mm_per_prompt": "multimodal inputs",
    "mm_processor_kwargs": "multimodal inputs",
    "mamba_block_size": _LAYERS,
    "mamba_cache_mode": _LAYERS,
    "mamba_cache_dtype": _LAYERS,
    "max_num_active_seqs": "a limit on active sequences",
    "max_num_scheduled_tokens": "a second token budget",
    "prefill_schedule_interval": "prefills in some steps only",
    "max_num_partial_prefills": "a limit on partial prefills",
    "max_long_partial_prefills": "a limit on partial prefills",
    "long_prefill_token_threshold_adaptive": "an adaptive limit on long prefills",
    "disable_padded_drafter_batch": "drafts of batches without padding",
    "structured_outputs_config": "structured output",
    "stream_interval": "delivery of tokens in groups",
}
"""Flags whose effect no rule here describes (vllm/SPEC.md section 10)."""


def explain_flag(flag: str) -> tuple[str, str] | None:
    """Problem and way out of a flag of vLLM that is no setting of `engine`; None for others."""
    name = flag.replace("-", "_").strip("_")
    if name in ELSEWHERE:
        return f"is called {ELSEWHERE[name]} here", f"Set {ELSEWHERE[name]} instead"
    if name in NOT_COVERED:
        return (
            f"is not covered: {NOT_COVERED[name]}",
            "Remove it; results would not be those of a server with it",
        )
    return None
