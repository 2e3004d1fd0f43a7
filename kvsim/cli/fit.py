"""`kvsim fit`: where the memory goes, what fits, what to change."""

from __future__ import annotations

import sys
from dataclasses import fields, replace
from typing import TYPE_CHECKING, Any, NamedTuple

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
    LoraRank,
    Loras,
    Measured,
    ModelName,
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
    from kvsim.planning.fit import Fit, FitSettings
    from kvsim.planning.load import Bounds
    from kvsim.planning.ways import Way

MAX_WHAT_IFS = 8
_ALIASES = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
}
_WORDS = {"kv_cache_dtype": ("auto", "fp8"), "speculative": ("ngram", "eagle", "mtp")}
_SWITCHES = ("enable_expert_parallel", "fully_sharded_loras", "enable_prefix_caching")


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
    given = _settings(
        measured,
        {
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
        },
    )
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


class _Answer(NamedTuple):
    """What was asked, ways out of it, and what to paste: the set-up or its cheapest way out."""

    columns: dict[str, Fit]
    """The set-up and its variations by title."""
    ways: list[Way]
    line: str
    yaml: str

    @property
    def first(self) -> Fit:
        """The set-up."""
        return next(iter(self.columns.values()))


def _answer(
    model: str, gpu: str, given: FitSettings, version: str | None, what_if: list[str]
) -> _Answer:
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
    columns = {f"{shapes.name}, {given.gpus} x {device.name}": found}
    for text in what_if:
        columns[text[:60]] = fit_whole(shapes, device, _what_if(given, text), release=release)
    chosen = ways[0].fit if ways else found
    return _Answer(columns, ways, serve_command(chosen, served), serve_yaml(chosen, served))


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
    answer: _Answer,
    load: tuple[float | None, int | None, int | None],
    form: str,
    *,
    explain: bool,
) -> None:
    met = _load(answer.first, *load)
    if form == "yaml":
        sys.stdout.write(answer.yaml)
    elif form == "json":
        _print_json(answer, met)
    else:
        _print_table(answer, met, explain=explain)


def _load(
    found: Fit, rps: float | None, prompt_tokens: int | None, output_tokens: int | None
) -> Bounds | float | None:
    """What the load meets; without a rate, how many such requests fit; None without lengths."""
    from kvsim.planning.load import Load, bounds, concurrency_of_all

    if rps is None and prompt_tokens is None and output_tokens is None:
        return None
    if prompt_tokens is None or output_tokens is None:
        raise InputError(
            "a load needs both lengths of its requests",
            where="--rps",
            fix="Add --prompt-tokens and --output-tokens",
        )
    if rps is None:
        return concurrency_of_all(found, prompt_tokens, output_tokens)
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
        changes[name] = value if name in _WORDS else _number(value, name)
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


def _settings(measured: str | None, flags: dict[str, Any]) -> FitSettings:
    from kvsim.planning.fit import FitSettings

    return _changed(FitSettings(measured_bytes=_measured(measured)), flags)


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
        if name in _WORDS:
            if value not in _WORDS[name]:
                known_words = " or ".join(_WORDS[name])
                raise InputError(f"must be {known_words}, got {value[:40]!r}", where=name)
            checked[name] = value
        elif name in _SWITCHES:
            if value not in (0, 1):
                raise InputError(f"must be 0 or 1, got {value}", where=name)
            checked[name] = bool(value)
        elif name == "gpu_memory_utilization":
            checked[name] = float(value)
        else:
            if value != int(value):
                raise InputError(f"must be a whole number, got {value}", where=name)
            checked[name] = int(value)
    return replace(given, **checked)


def _print_json(answer: _Answer, load: Bounds | float | None) -> None:
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


def _print_table(answer: _Answer, load: Bounds | float | None, *, explain: bool) -> None:
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
