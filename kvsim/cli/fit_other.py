"""`kvsim fit --server`: SGLang, TensorRT-LLM and llama.cpp by their own rules."""

from __future__ import annotations

from dataclasses import fields
from typing import TYPE_CHECKING, Any, cast

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kvsim.cli.console import print_json, stdout_console
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.planning.fit import FitSettings
    from kvsim.planning.others import OtherFit

LLAMA_CPP = "llama.cpp"
_KNOWN = ("tensor_parallel_size", "max_model_len", "kv_cache_dtype")
_KNOWN_TO_LLAMA_CPP = ("max_model_len", "max_num_seqs", "measured_bytes")
_FEW_LOGS = (
    "The ends for llama.cpp are assumed, not measured: two logs with their buffer are known."
)
_ONLY_MEMORY = "Memory by the server's own rules; kvsim simulates time with vLLM's scheduler."


def show_other(
    server: str,
    model: str,
    gpu: str,
    given: FitSettings,
    fraction: float | None,
    *,
    as_json: bool,
) -> None:
    """Print what one of these servers would store. Raises `InputError` for another server."""
    from kvsim.catalog import get_gpu
    from kvsim.cli.fit_model import fit_model
    from kvsim.planning.llama_cpp_fit import llama_cpp_fit
    from kvsim.planning.others import FRACTIONS, SharingServer, other_fit

    if server not in (*FRACTIONS, LLAMA_CPP):
        known = ", ".join(("vllm", *FRACTIONS, LLAMA_CPP))
        raise InputError(f"{server[:40]!r} is not known", where="--server", fix=f"Known: {known}")
    _check_known(server, given, fraction)
    if server == LLAMA_CPP:
        found = llama_cpp_fit(
            fit_model(model)[0],
            get_gpu(gpu),
            max_model_len=given.max_model_len,
            sequences=1 if given.max_num_seqs is None else given.max_num_seqs,
            measured=given.measured_bytes,
        )
    else:
        found = other_fit(
            cast("SharingServer", server),
            fit_model(model)[0],
            get_gpu(gpu),
            tp=given.tensor_parallel_size,
            fraction=fraction,
            max_model_len=given.max_model_len,
            kv_dtype_bytes=1 if given.kv_cache_dtype == "fp8" else None,
        )
    if as_json:
        print_json(_document(found))
    else:
        _print(found)


def _check_known(server: str, given: FitSettings, fraction: float | None) -> None:
    """`InputError` for a setting that these servers' rules here do not know."""
    from kvsim.planning.fit import FitSettings

    default, known = FitSettings(), _KNOWN_TO_LLAMA_CPP if server == LLAMA_CPP else _KNOWN
    asked = [
        field.name
        for field in fields(given)
        if field.name not in known and getattr(given, field.name) != getattr(default, field.name)
    ]
    if server == LLAMA_CPP and fraction is not None:
        asked.append("--fraction")
    for name in asked:
        raise InputError(
            f"has no answer for {server}", where=name, fix="Leave it out, or leave --server out"
        )


def _document(found: OtherFit) -> dict[str, Any]:
    return {
        "server": found.server,
        "model": found.model.name,
        "gpu": found.gpu.name,
        "tensor_parallel_size": found.tensor_parallel_size,
        "fraction": found.fraction,
        "max_model_len": found.max_model_len,
        "verdict": found.verdict,
        "terms": [
            {"name": t.name, "bytes": t.bytes, "bytes_80_percent": [t.low, t.high]}
            for t in found.terms
        ],
        "kv_tokens": found.tokens,
        "kv_tokens_80_percent": [found.tokens_low, found.tokens_high],
        "max_concurrency": found.max_concurrency,
        "request_bytes": found.request_bytes,
        "note": _note(found),
    }


def _note(found: OtherFit) -> str:
    return f"{_FEW_LOGS} {_ONLY_MEMORY}" if found.server == LLAMA_CPP else _ONLY_MEMORY


def _print(found: OtherFit) -> None:
    from kvsim.planning.fractions import FRACTIONS
    from kvsim.planning.start import printed_gib

    title = f"{found.server}, {found.model.name}, {found.tensor_parallel_size} x {found.gpu.name}"
    table = Table(box=SIMPLE_HEAD, title=title, title_justify="left")
    table.add_column("")
    table.add_column("per GPU", justify="right")
    for term in found.terms:
        ends = f" ({printed_gib(term.low)} to {printed_gib(term.high)})"
        table.add_row(f"{term.name.replace('_', ' ')} (GiB)", printed_gib(term.bytes) + ends)
    table.add_row("one request of max_model_len (GiB)", printed_gib(found.request_bytes))
    ends = f" ({found.tokens_low:,} to {found.tokens_high:,})"
    label = "KV cache (tokens)" if found.sequences is None else "longest context (tokens)"
    table.add_row(label, f"{found.tokens:,}{ends}")
    table.add_row("requests of max_model_len at once", f"{found.max_concurrency:.2f}")
    table.add_row("verdict", found.verdict)
    console = stdout_console()
    console.print(table)
    console.print(Text(f"In parentheses: 80 % intervals. {_note(found)}"), soft_wrap=True)
    console.print(Text(f"{FRACTIONS[found.server]}."), soft_wrap=True)
