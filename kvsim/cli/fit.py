"""`kvsim fit`: where the memory goes, what fits, what to change."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import typer

from kvsim.cli.console import print_json, stdout_console
from kvsim.cli.fit_log import show_log
from kvsim.cli.fit_model import fit_model
from kvsim.cli.fit_other import show_other
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.planning.fit import Fit, FitSettings
    from kvsim.planning.load import Bounds
    from kvsim.planning.ways import Way

MAX_WHAT_IFS = 8
_ALIASES = {"tp": "tensor_parallel_size", "pp": "pipeline_parallel_size"}


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
    str, typer.Option("--server", help="vllm, sglang or tensorrt-llm: whose rules hold.")
]
Fraction = Annotated[
    float | None,
    typer.Option(help="sglang's mem_fraction_static, tensorrt-llm's free_gpu_memory_fraction."),
]
Rps = Annotated[float | None, typer.Option(help="Requests per second that arrive.")]
Prompt = Annotated[int | None, typer.Option(help="Prompt tokens of each, with --rps.")]
Output = Annotated[int | None, typer.Option(help="Output tokens of each, with --rps.")]


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
    from kvsim.planning.fit import FitSettings

    if from_log is not None:
        show_log(str(from_log), fit_model(model)[0] if model else None, as_json=as_json)
        return
    model, gpu = _named(model, gpu)
    given = _changed(
        FitSettings(measured_bytes=_measured(measured)),
        {
            "tensor_parallel_size": tp,
            "pipeline_parallel_size": pp,
            "max_model_len": max_model_len,
            "gpu_memory_utilization": gpu_memory_utilization,
            "max_num_seqs": max_num_seqs,
            "max_num_batched_tokens": max_num_batched_tokens,
            "kv_cache_dtype": kv_cache_dtype,
            "block_size": block_size,
        },
    )
    if server != "vllm":
        show_other(server, model, gpu, given, fraction, as_json=as_json)
        return
    columns, ways, pasted = _answer(model, gpu, given, version, what_if or [])
    command = pasted.line
    first = next(iter(columns.values()))
    load = _load(first, rps, prompt_tokens, output_tokens)
    if as_yaml:
        sys.stdout.write(pasted.yaml)
    elif as_json:
        _print_json(columns, ways, command, load)
    else:
        _print_table(columns, ways, command, load, explain=explain)


def _named(model: str | None, gpu: str | None) -> tuple[str, str]:
    """Both; `InputError` where one is missing."""
    if model is None or gpu is None:
        missing = "MODEL" if model is None else "--gpu"
        raise InputError(
            "is missing", where=missing, fix="Give a model and --gpu, or --from-log FILE"
        )
    return model, gpu


class _Pasted(NamedTuple):
    """The set-up, or its cheapest way out, for a server."""

    line: str
    yaml: str


def _answer(
    model: str, gpu: str, given: FitSettings, version: str | None, what_if: list[str]
) -> tuple[dict[str, Fit], list[Way], _Pasted]:
    """The set-up and its variations by title, ways out of the first, and what to paste."""
    from kvsim.catalog import get_gpu
    from kvsim.planning.commands import serve_command, serve_yaml
    from kvsim.planning.pipeline import fit_whole
    from kvsim.planning.releases import LATEST, release_of
    from kvsim.planning.ways import ways_out

    if len(what_if) > MAX_WHAT_IFS:
        raise InputError(
            f"at most {MAX_WHAT_IFS} columns beside the first, got {len(what_if)}",
            where="--what-if",
            fix="Ask in several runs",
        )
    shapes, served = fit_model(model)
    device = get_gpu(gpu)
    release = LATEST if version is None else release_of(version)
    found = fit_whole(shapes, device, given, release=release)
    ways = ways_out(found, given)
    gpus = given.tensor_parallel_size * given.pipeline_parallel_size
    columns = {f"{shapes.name}, {gpus} x {device.name}": found}
    for text in what_if:
        columns[text[:60]] = fit_whole(shapes, device, _what_if(given, text), release=release)
    chosen = ways[0].fit if ways else found
    pasted = _Pasted(serve_command(chosen, served), serve_yaml(chosen, served))
    return columns, ways, pasted


def _load(
    found: Fit, rps: float | None, prompt_tokens: int | None, output_tokens: int | None
) -> Bounds | float | None:
    """What the load meets; without a rate, how many such requests fit; None without lengths."""
    from kvsim.planning.load import Load, bounds, concurrency_at

    if rps is None and prompt_tokens is None and output_tokens is None:
        return None
    if prompt_tokens is None or output_tokens is None:
        raise InputError(
            "a load needs both lengths of its requests",
            where="--rps",
            fix="Add --prompt-tokens and --output-tokens",
        )
    if rps is None:
        return concurrency_at(found, prompt_tokens, output_tokens)
    return bounds(found, Load(rps, prompt_tokens, output_tokens))


def _measured(text: str | None) -> dict[str, int]:
    from kvsim.catalog import GIB

    known: dict[str, int] = {}
    for name, value in _pairs(text or "", "--measured"):
        known[name] = round(_number(value, name) * GIB)
    return known


def _what_if(given: FitSettings, text: str) -> FitSettings:
    changes: dict[str, Any] = {}
    for name, value in _pairs(text, "--what-if"):
        name = _ALIASES.get(name, name)
        changes[name] = value if name == "kv_cache_dtype" else _number(value, name)
    return _changed(given, changes)


def _pairs(text: str, option: str) -> list[tuple[str, str]]:
    """`a=1,b=2` as pairs."""
    pairs = []
    for part in filter(None, text.split(",")):
        name, sign, value = part.partition("=")
        if not sign:
            raise InputError(
                f"{part[:40]!r} is not NAME=VALUE", where=option, fix="For example tp=8"
            )
        pairs.append((name.strip(), value.strip()))
    return pairs


def _number(text: str, name: str) -> float:
    try:
        value = float(text[:40])
    except ValueError:
        value = float("nan")
    if not abs(value) < 1e15:
        raise InputError(f"must be a number, got {text[:40]!r}", where=name[:40])
    return value


def _changed(given: FitSettings, changes: dict[str, Any]) -> FitSettings:
    """Settings with some values replaced; None leaves one as it is."""
    known = {field.name for field in fields(given)} - {"measured_bytes"}
    checked: dict[str, Any] = {}
    for name, value in changes.items():
        if name not in known:
            raise InputError(
                f"{name[:40]!r} is no setting",
                where="--what-if",
                fix=f"Known: tp, {', '.join(sorted(known))}",
            )
        if value is None:
            continue
        if name == "kv_cache_dtype":
            if value not in ("auto", "fp8"):
                raise InputError(f"must be auto or fp8, got {value[:40]!r}", where=name)
            checked[name] = value
        elif name == "gpu_memory_utilization":
            checked[name] = float(value)
        else:
            if value != int(value):
                raise InputError(f"must be a whole number, got {value}", where=name)
            checked[name] = int(value)
    return replace(given, **checked)


def _print_json(
    columns: dict[str, Fit], ways: list[Way], command: str, load: Bounds | float | None
) -> None:
    from kvsim.planning.advice import advice
    from kvsim.planning.document import document
    from kvsim.planning.load_text import load_document

    base, *others = columns.items()
    print_json(
        {
            **document(base[1], ways, command=command),
            "what_if": {name: document(one) for name, one in others},
            "load": load_document(load),
            "notes": advice(base[1]),
        }
    )


def _print_table(
    columns: dict[str, Fit],
    ways: list[Way],
    command: str,
    load: Bounds | float | None,
    *,
    explain: bool,
) -> None:
    from rich.box import SIMPLE_HEAD
    from rich.table import Table
    from rich.text import Text

    from kvsim.planning.advice import advice
    from kvsim.planning.document import lines
    from kvsim.planning.explain import explained, refusal_sentence, room_sentence
    from kvsim.planning.load_text import load_sentences

    console = stdout_console()
    found = next(iter(columns.values()))
    table = Table(box=SIMPLE_HEAD, title=f"{found.release.name}, per GPU", title_justify="left")
    table.add_column("")
    for name in columns:
        table.add_column(Text(name), justify="right")
    for line in lines(columns):
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
    console.print(Text(command), soft_wrap=True)
    if explain:
        for text in explained(found):
            console.print(Text(text), soft_wrap=True)
