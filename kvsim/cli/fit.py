"""`kvsim fit`: where the memory goes, what fits, what to change."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from kvsim.cli.console import print_json, stdout_console
from kvsim.cli.fit_log import show_log
from kvsim.cli.fit_model import fit_model
from kvsim.cli.fit_options import (
    AsJson,
    AsYaml,
    Batched,
    BlockTokens,
    CacheType,
    Dealt,
    Draft,
    ExpertParallel,
    Explain,
    Fraction,
    FromLog,
    GpuName,
    Gpus,
    Length,
    Limits,
    LoraRank,
    Loras,
    Measured,
    ModelName,
    OnlyText,
    Output,
    Prompt,
    Replicas,
    Rps,
    Seqs,
    ServerName,
    Share,
    Stages,
    Version,
    WhatIf,
)
from kvsim.cli.fit_other import show_other
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.planning.answer import Answer
    from kvsim.planning.fit import FitSettings
    from kvsim.planning.load import Bounds


def fit_command(
    model: ModelName = None,
    gpu: GpuName = None,
    from_log: FromLog = None,
    tp: Gpus = 1,
    pp: Stages = 1,
    max_model_len: Length = None,
    gpu_memory_utilization: Share = None,
    max_num_seqs: Seqs = None,
    max_num_batched_tokens: Batched = None,
    kv_cache_dtype: CacheType = "auto",
    block_size: BlockTokens = 16,
    dp: Replicas = 1,
    enable_expert_parallel: ExpertParallel = False,
    dcp: Dealt = 1,
    max_loras: Loras = 0,
    max_lora_rank: LoraRank = 16,
    speculative: Draft = None,
    limit_mm_per_prompt: Limits = None,
    language_model_only: OnlyText = False,
    version: Version = None,
    measured: Measured = None,
    what_if: WhatIf = None,
    server: ServerName = "vllm",
    fraction: Fraction = None,
    rps: Rps = None,
    prompt_tokens: Prompt = None,
    output_tokens: Output = None,
    explain: Explain = False,
    as_yaml: AsYaml = False,
    as_json: AsJson = False,
) -> None:
    """Say what a vLLM server would do at start-up: memory, blocks, concurrency, verdict."""
    if from_log is not None:
        show_log(str(from_log), fit_model(model)[0] if model else None, as_json=as_json)
        return
    model, gpu = _named(model, gpu, fraction if server == "vllm" else None)
    flags = {
        "tensor_parallel_size": tp,
        "pipeline_parallel_size": pp,
        "max_model_len": max_model_len,
        "gpu_memory_utilization": gpu_memory_utilization,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": max_num_batched_tokens,
        "kv_cache_dtype": kv_cache_dtype,
        "block_size": block_size,
        "data_parallel_size": dp,
        "enable_expert_parallel": enable_expert_parallel,
        "decode_context_parallel_size": dcp,
        "max_loras": max_loras,
        "max_lora_rank": max_lora_rank,
        "speculative": speculative,
    }
    given = _settings((measured, limit_mm_per_prompt), flags, only_text=language_model_only)
    load, form = (rps, prompt_tokens, output_tokens), _form(as_yaml=as_yaml, as_json=as_json)
    if server == "vllm":
        _show(_answer(model, gpu, given, version, what_if or []), load, form, explain=explain)
    else:
        _only_vllm((what_if, rps, prompt_tokens, output_tokens, version, as_yaml, explain))
        show_other(server, model, gpu, given, fraction, as_json=as_json)


def _named(model: str | None, gpu: str | None, fraction: float | None) -> tuple[str, str]:
    """Both; `InputError` where one is missing, or a fraction is given that vLLM has not."""
    if fraction is not None:
        raise InputError(
            "is for other servers",
            where="--fraction",
            fix="Use --gpu-memory-utilization, or --server sglang",
        )
    if model is None or gpu is None:
        missing = "MODEL" if model is None else "--gpu"
        raise InputError(
            "is missing", where=missing, fix="Give a model and --gpu, or --from-log FILE"
        )
    return model, gpu


def _settings(
    texts: tuple[str | None, str | None], flags: dict[str, Any], *, only_text: bool
) -> FitSettings:
    """`texts`: measured terms, and most items of a prompt."""
    from kvsim.planning.fit import FitSettings
    from kvsim.planning.what_if import changed, items_per_prompt, measured_bytes

    measured, limits = texts
    known, items = measured_bytes(measured), items_per_prompt(limits)
    first = FitSettings(
        measured_bytes=known, limit_mm_per_prompt=items, language_model_only=only_text
    )
    return changed(first, flags)


def _answer(
    model: str, gpu: str, given: FitSettings, version: str | None, what_if: list[str]
) -> Answer:
    from kvsim.catalog import get_gpu
    from kvsim.planning.answer import answer
    from kvsim.planning.pool_groups import release_for

    shapes, served = fit_model(model)
    release = release_for(shapes, version)
    return answer(shapes, served, get_gpu(gpu), given, release=release, what_if=what_if)


_ONLY_VLLM = (
    "--what-if",
    "--rps",
    "--prompt-tokens",
    "--output-tokens",
    "--vllm",
    "--yaml",
    "--explain",
)


def _only_vllm(values: tuple[object, ...]) -> None:
    """`InputError` for an option that is given: other servers have no answer to it."""
    for name, value in zip(_ONLY_VLLM, values, strict=True):
        if value:
            raise InputError(
                "is for vLLM only", where=name, fix="Leave it out, or leave --server out"
            )


def _form(*, as_yaml: bool, as_json: bool) -> str:
    return "yaml" if as_yaml else "json" if as_json else "table"


def _show(
    answer: Answer,
    load: tuple[float | None, int | None, int | None],
    form: str,
    *,
    explain: bool,
) -> None:
    from kvsim.planning.load import met_load

    met = None if load == (None, None, None) else met_load(answer.first, *load)
    if form == "yaml":
        sys.stdout.write(answer.yaml)
    elif form == "json":
        _print_json(answer, met)
    else:
        _print_table(answer, met, explain=explain)


def _print_json(answer: Answer, load: Bounds | float | None) -> None:
    from kvsim.planning.advice import advice
    from kvsim.planning.document import document
    from kvsim.planning.load_text import load_document

    base, *others = answer.columns.items()
    print_json(
        {
            **document(base[1], answer.ways, command=answer.line),
            "what_if": {name: document(one) for name, one in others},
            "load": load_document(load),
            "notes": advice(base[1]),
        }
    )


def _print_table(answer: Answer, load: Bounds | float | None, *, explain: bool) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from kvsim.planning.advice import advice
    from kvsim.planning.document import lines
    from kvsim.planning.explain import explained, refusal_sentence, room_sentence
    from kvsim.planning.load_text import load_sentences

    console = stdout_console()
    found, ways = answer.first, answer.ways
    table = Table(box=SIMPLE_HEAD, title=f"{found.release.name}, per GPU", title_justify="left")
    table.add_column("")
    for name in answer.columns:
        table.add_column(Text(name), justify="right")
    for line in lines(answer.columns):
        table.add_row(line.label, *line.cells)
    console.print(table)
    console.print("In parentheses: 80 % intervals of what is estimated before a start.")
    for said in (refusal_sentence(found), room_sentence(found)):
        if said is not None:
            console.print(Text(said), soft_wrap=True)
    for number, way in enumerate(ways, 1):
        console.print(f"way out {number}: {way.what}", highlight=False)
    if found.verdict != "fits" and not ways:
        console.print("way out: a GPU with more memory, or a smaller model")
    for sentence in [] if load is None else load_sentences(load):
        console.print(Text(sentence), soft_wrap=True)
    for sentence in advice(found):
        console.print(Text(sentence), style="dim", soft_wrap=True)
    console.print(Text(answer.line), soft_wrap=True)
    if explain:
        for text in explained(found):
            console.print(Text(text), soft_wrap=True)
