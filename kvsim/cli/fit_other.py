"""`kvsim fit --server`: SGLang, TensorRT-LLM and llama.cpp by their own rules."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rich.box import SIMPLE_HEAD
from rich.table import Table
from rich.text import Text

from kvsim.cli.console import print_json, stdout_console

if TYPE_CHECKING:
    from kvsim.planning.fit import FitSettings
    from kvsim.planning.others import OtherFit


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
    from kvsim.planning.other_answer import check_server, other_answer, other_document

    check_server(server)
    found = other_answer(server, fit_model(model)[0], get_gpu(gpu), given, fraction)
    if as_json:
        print_json(other_document(found))
    else:
        _print(found)


def _print(found: OtherFit) -> None:
    from kvsim.planning.fractions import FRACTIONS
    from kvsim.planning.other_answer import other_note
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
    console.print(Text(f"In parentheses: 80 % intervals. {other_note(found)}"), soft_wrap=True)
    console.print(Text(f"{FRACTIONS[found.server]}."), soft_wrap=True)
