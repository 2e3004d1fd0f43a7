"""The options of `kvsim fit`, with their help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

ModelName = Annotated[
    str | None,
    typer.Argument(
        help="A name `kvsim models` lists, a config.json or its folder, or - for stdin."
    ),
]
GpuName = Annotated[str | None, typer.Option("--gpu", help="A name that `kvsim gpus` lists.")]
FromLog = Annotated[
    Path | None,
    typer.Option(help="Check a start-up log instead; MODEL says which model, if the log does not."),
]
Gpus = Annotated[int, typer.Option("--tp", help="GPUs that share the model.")]
Stages = Annotated[int, typer.Option("--pp", help="Pipeline stages, each of --tp GPUs.")]
Length = Annotated[
    int | None, typer.Option(help="Tokens of the longest request; left out, the model's.")
]
Share = Annotated[
    float | None, typer.Option(help="Share of the memory; left out, the release's default.")
]
Seqs = Annotated[int | None, typer.Option(help="Sequences that run at once.")]
Batched = Annotated[int | None, typer.Option(help="Tokens of one step, and of the profiling step.")]
Version = Annotated[
    str | None, typer.Option("--vllm", help="vLLM's version, e.g. 0.11; left out, the latest.")
]
Measured = Annotated[
    str | None, typer.Option(help="Known terms in GiB, e.g. weights=14.99,non_torch=0.35.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option(help="Another column: tp=8,kv_cache_dtype=fp8. May be given again."),
]


CacheType = Annotated[str, typer.Option(help="auto or fp8.")]
BlockTokens = Annotated[int, typer.Option(help="Tokens of a block.")]
Explain = Annotated[bool, typer.Option("--explain", help="Show every formula.")]
AsYaml = Annotated[
    bool, typer.Option("--yaml", help="Print a file for `vllm serve --config` instead.")
]
AsJson = Annotated[bool, typer.Option("--json", help="Print JSON on stdout.")]
ServerName = Annotated[
    str, typer.Option("--server", help="vllm, sglang, tensorrt-llm or llama.cpp.")
]
Fraction = Annotated[
    float | None,
    typer.Option(help="sglang's mem_fraction_static, tensorrt-llm's free_gpu_memory_fraction."),
]
Rps = Annotated[float | None, typer.Option(help="Requests per second that arrive.")]
Prompt = Annotated[int | None, typer.Option(help="Prompt tokens of each, with --rps.")]
Output = Annotated[int | None, typer.Option(help="Output tokens of each, with --rps.")]
Replicas = Annotated[
    int, typer.Option("--dp", help="Replicas, each of --tp GPUs; they share routed experts.")
]
ExpertParallel = Annotated[
    bool, typer.Option("--enable-expert-parallel", help="Experts are whole on a GPU.")
]
Dealt = Annotated[
    int, typer.Option("--dcp", help="GPUs that a replicated cache's tokens are dealt to.")
]
Loras = Annotated[int, typer.Option(help="Adapters that room is taken for; 0: none.")]
LoraRank = Annotated[int, typer.Option(help="Their largest rank.")]
Draft = Annotated[str | None, typer.Option(help="ngram, eagle or mtp: how tokens are guessed.")]
Limits = Annotated[
    str | None,
    typer.Option(
        "--limit-mm-per-prompt",
        help="Most items of a prompt, e.g. image=2,video=0, or as JSON; 0 for all: no encoder.",
    ),
]
OnlyText = Annotated[
    bool, typer.Option("--language-model-only", help="Leave encoders of images and sound out.")
]
