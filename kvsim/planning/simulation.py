"""A set-up of `kvsim fit` as a scenario, so that its load can be simulated."""

from __future__ import annotations

from kvsim.catalog import list_models
from kvsim.errors import InputError
from kvsim.planning.fit import Fit
from kvsim.workload.preset import list_presets, preset_facts

_REQUESTS = 1000


def scenario_text(
    found: Fit,
    *,
    rps: float,
    prompt_tokens: int | None = None,
    output_tokens: int | None = None,
    preset: str | None = None,
) -> str:
    """YAML for `kvsim run`: this server, and requests of these lengths or like a preset's.

    The pool has the blocks of the answer. Raises `InputError` for what a scenario cannot say: a
    model that is not in the catalogue, stages, replicas, dealt caches, drafts, adapters.
    """
    _check(found)
    flags = found.settings
    lines = [
        "version: 1",
        f"description: {found.model.name} on {flags.tensor_parallel_size} x {found.gpu.name}",
        f"model: {found.model.name}",
        f"hardware: {{gpu: {found.gpu.name}, count: {flags.tensor_parallel_size}}}",
        "engine:",
        f"  max_model_len: {flags.max_model_len}",
        f"  max_num_seqs: {flags.max_num_seqs}",
        f"  max_num_batched_tokens: {flags.max_num_batched_tokens}",
        f"  gpu_memory_utilization: {flags.gpu_memory_utilization:g}",
        f"  kv_cache_dtype: {flags.kv_cache_dtype}",
        f"memory: {{kind: paged, block_size: {flags.block_size},"
        f" num_blocks: {found.start.num_blocks}}}",
        "clock: {kind: calibrated}",
        *_workload(rps, prompt_tokens, output_tokens, preset),
    ]
    return "\n".join(lines) + "\n"


def _workload(
    rps: float, prompt_tokens: int | None, output_tokens: int | None, preset: str | None
) -> list[str]:
    if preset in list_presets():
        scale = rps / preset_facts(preset)["statistics"]["rate_rps"]
        source = f"preset: {preset}, num_requests: {_REQUESTS}, rate_scale: {scale:.6g}"
        return [f"workload: {{{source}}}"]
    lengths = f"{{preset: {preset}}}"
    if preset is None:
        lengths = (
            f"{{prompt: {{kind: constant, tokens: {prompt_tokens}}},"
            f" output: {{kind: constant, tokens: {output_tokens}}}}}"
        )
    return [
        "workload:",
        f"  num_requests: {_REQUESTS}",
        f"  lengths: {lengths}",
        f"  arrivals: {{kind: poisson, rate_rps: {rps:g}}}",
    ]


def _check(found: Fit) -> None:
    given = found.settings.given
    untold = {
        "pipeline stages": found.settings.pipeline_parallel_size > 1,
        "replicas": given.data_parallel_size > 1,
        "a cache dealt to several GPUs": given.decode_context_parallel_size > 1,
        "a draft model": given.speculative is not None,
        "adapters": given.max_loras > 0,
    }
    for what, asked in untold.items():
        if asked:
            problem = f"a scenario does not know {what}"
            raise InputError(problem, where="scenario", fix="Leave it out")
    if found.whole.name not in list_models():
        raise InputError(
            f"{found.whole.name[:80]} is not in the catalogue, which a scenario names",
            where="model",
            fix="Choose a model that `kvsim models` lists",
        )
