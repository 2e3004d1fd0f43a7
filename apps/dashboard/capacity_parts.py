"""The answer of the page Capacity: verdict, figures, memory bar, ways out, command, load."""

from __future__ import annotations

import json
from dataclasses import fields
from typing import Any

import streamlit as st

from apps.dashboard.capacity_inputs import FIXED, Question
from apps.dashboard.ui import chart, guarded, md, number
from kvsim.errors import InputError
from kvsim.planning.advice import advice
from kvsim.planning.answer import Answer
from kvsim.planning.document import DEFINITIONS, document, lines
from kvsim.planning.explain import explained, refusal_sentence, room_sentence
from kvsim.planning.fit import Fit, FitSettings
from kvsim.planning.fractions import FRACTIONS
from kvsim.planning.load import Bounds, Load, bounds, concurrency_of_all, concurrency_of_law
from kvsim.planning.load_text import load_document, load_sentences
from kvsim.planning.memory_bar import memory_bar_figure
from kvsim.planning.other_answer import other_document, other_note
from kvsim.planning.others import OtherFit
from kvsim.planning.simulation import scenario_text
from kvsim.planning.start import printed_gib
from kvsim.planning.ways import Way
from kvsim.report.export_csv import csv_lines
from kvsim.report.figures_page import figures_html
from kvsim.workload.sample import sample_lengths

LAW_SAMPLE = 400
"""Requests that stand for a law of lengths."""
_KEYS = {
    "tensor_parallel_size": "tp",
    "gpu_memory_utilization": "util",
    "max_model_len": "len",
    "max_num_seqs": "seqs",
    "max_num_batched_tokens": "batched",
    "kv_cache_dtype": "kv",
}
"""Setting that a way out changes -> its control."""


def show_answer(asked: Question, found: Answer) -> None:
    """Everything about a vLLM server but its load."""
    formulas = formulas_of(found.first)
    _show_verdict(found.first)
    _show_numbers(asked, found.first, formulas)
    chart(
        memory_bar_figure(found.columns),
        "memory_bar",
        "Bars: what the memory of one GPU is used for, in GiB, for each set-up",
    )
    st.caption(
        "Figures are per GPU; the dotted line is the memory that CUDA reports. In parentheses and"
        " as whiskers: 80 % intervals of what is estimated before a start."
    )
    _show_table(found, formulas)
    _show_ways(found, asked.given)
    _show_command(found)
    with st.expander("What to know about these figures"):
        for sentence in advice(found.first):
            st.markdown(f"- {md(sentence)}")


def formulas_of(found: Fit) -> dict[str, str]:
    """Figure -> its formula with the numbers in it."""
    return {text.partition(" = ")[0]: text for text in explained(found)}


def _show_verdict(found: Fit) -> None:
    margin = printed_gib(abs(found.margin_bytes))
    length = f"{found.settings.max_model_len:,}"
    if found.verdict == "fits":
        st.success(
            f"**Fits**: one request of {length} tokens leaves {margin} GiB of the KV pool of a GPU."
        )
    elif found.verdict == "does not fit":
        st.error(f"**Does not fit**: {margin} GiB are missing for a request of {length} tokens.")
    else:
        st.warning("**Too close to call**: the ends of the interval disagree.")
    for said in (refusal_sentence(found), room_sentence(found)):
        if said is not None:
            st.markdown(md(said))


def _show_numbers(asked: Question, found: Fit, formulas: dict[str, str]) -> None:
    start, low, high = found.start, found.start_low, found.start_high
    pool = found.budget.kv_pool
    top = st.columns(4)
    ends = f"{printed_gib(pool.low)} to {printed_gib(pool.high)}"
    number(top[0], "KV pool of a GPU", f"{printed_gib(pool.bytes)} GiB", ends, formulas["kv_pool"])
    number(
        top[1],
        "KV blocks",
        f"{start.num_blocks:,}",
        f"{low.num_blocks:,} to {high.num_blocks:,}",
        formulas["num_blocks"],
    )
    number(
        top[2],
        "KV cache (tokens)",
        f"{start.kv_tokens:,}",
        f"{low.kv_tokens:,} to {high.kv_tokens:,}",
        formulas["kv_tokens"],
    )
    number(
        top[3],
        "Longest request (tokens)",
        f"{start.longest_request_tokens:,}",
        f"{low.longest_request_tokens:,} to {high.longest_request_tokens:,}",
        formulas["longest_request"],
    )
    below = st.columns(4)
    number(
        below[0],
        "Requests of full length",
        f"{start.max_concurrency:,.2f}",
        f"{low.max_concurrency:,.2f} to {high.max_concurrency:,.2f}",
        formulas["max_concurrency"],
    )
    with below[1], guarded():
        value, how = concurrency_at_my_lengths(asked, found)
        number(below[1], "Requests of my lengths", f"{value:,.1f}", _my_lengths(asked), how)
    number(
        below[2],
        "KV of one full request",
        f"{formulas['kv_request'].rsplit(' = ', 1)[1]}",
        f"{found.settings.max_model_len:,} tokens, a GPU",
        formulas["kv_request"],
    )
    number(
        below[3],
        "By the naive formula",
        f"{printed_gib(found.naive_request_bytes)} GiB",
        "on all GPUs together",
        formulas["naive_request"],
    )


def _my_lengths(asked: Question) -> str:
    if asked.law != FIXED:
        return f"like {asked.law}"
    return f"{asked.prompt_tokens:,} + {asked.output_tokens:,} tokens"


def concurrency_at_my_lengths(asked: Question, found: Fit) -> tuple[float, str]:
    """Requests at once, and the formula in words."""
    if not found.start.num_blocks:
        raise InputError("there is no KV memory", where="lengths", fix="See the ways out")
    if asked.law == FIXED:
        value = concurrency_of_all(found, asked.prompt_tokens, asked.output_tokens)
        return value, (
            f"{found.start.num_blocks:,} blocks / the blocks that a request of"
            f" {asked.prompt_tokens:,} + {asked.output_tokens:,} tokens holds on average from its"
            f" prompt to its last token = {value:,.2f}"
        )
    law = concurrency_of_law(found, lengths_of(asked.law))
    refused = f"; {law.refused} of them are longer than max_model_len" if law.refused else ""
    return law.requests, (
        f"{found.start.num_blocks:,} blocks / the blocks that a running request holds on average,"
        f" over {law.of} requests like {asked.law}, each as often as it has output tokens"
        f" = {law.requests:,.2f}{refused}"
    )


@st.cache_data(max_entries=8, show_spinner=False)
def lengths_of(law: str) -> list[tuple[int, int]]:
    """Requests that stand for a law."""
    return sample_lengths(law, LAW_SAMPLE)


def _show_table(found: Answer, formulas: dict[str, str]) -> None:
    rows = lines(found.columns)
    names = list(found.columns)
    shown: dict[str, list[str]] = {"figure": [row.label for row in rows]}
    for place, name in enumerate(names):
        shown[name] = [row.cells[place] for row in rows]
    picked = st.dataframe(
        shown,
        key="table",
        hide_index=True,
        on_select="rerun",
        selection_mode="single-row",
        width="stretch",
        height=35 * (len(rows) + 1) + 3,
    )
    chosen = picked["selection"]["rows"]
    if not chosen:
        st.caption("Select a row to see its definition and its formula with these numbers.")
        return
    key = rows[chosen[0]].key
    st.info(
        "\n\n".join(md(text) for text in (DEFINITIONS.get(key), formulas.get(key)) if text)
        or md(rows[chosen[0]].label)
    )


def _show_ways(found: Answer, given: FitSettings) -> None:
    if found.first.verdict == "fits":
        return
    st.subheader("Ways to make it fit, the cheapest first")
    if not found.ways:
        st.markdown("A GPU with more memory, or a smaller model.")
    for place, way in enumerate(found.ways):
        text, button = st.columns([5, 1], vertical_alignment="center")
        after = way.fit
        text.markdown(
            f"**{md(way.what)}**: then {after.start.kv_tokens:,} tokens of KV cache,"
            f" {after.start.max_concurrency:,.2f} requests of {after.settings.max_model_len:,}"
            " tokens"
        )
        button.button("Apply", key=f"way_{place}", on_click=_apply, args=(way, given))


def _apply(way: Way, given: FitSettings) -> None:
    for field in fields(given):
        value = getattr(way.settings, field.name)
        if value != getattr(given, field.name) and field.name in _KEYS:
            st.session_state[_KEYS[field.name]] = value


def _show_command(found: Answer) -> None:
    fits = found.first.verdict == "fits"
    st.subheader("Command" if fits or not found.ways else "Command, with the first way out")
    line, file = st.tabs(["vllm serve", "file for --config"])
    line.code(found.line, language="bash", wrap_lines=True)
    file.code(found.yaml, language="yaml")


def show_load(asked: Question, found: Fit) -> Bounds | None:
    """What the asked load meets; None where no rate is asked."""
    if asked.rps is None:
        return None
    st.subheader(f"{asked.rps:g} requests per second")
    prompt_tokens, output_tokens = mean_lengths(asked)
    met = bounds(found, Load(asked.rps, prompt_tokens, output_tokens))
    if asked.law != FIXED:
        st.caption(
            f"Computed for equal requests of the law's mean lengths, {prompt_tokens:,} +"
            f" {output_tokens:,} tokens."
        )
    for sentence in load_sentences(met):
        st.markdown(md(sentence))
    with guarded():
        preset = None if asked.law == FIXED else asked.law
        text = scenario_text(
            found,
            rps=asked.rps,
            prompt_tokens=prompt_tokens,
            output_tokens=output_tokens,
            preset=preset,
        )
        st.download_button(
            "Scenario that simulates it (YAML)", text, "capacity.yaml", key="scenario_yaml"
        )
    return met


def mean_lengths(asked: Question) -> tuple[int, int]:
    """Prompt and output tokens of my requests, on average."""
    if asked.law == FIXED:
        return asked.prompt_tokens, asked.output_tokens
    pairs = lengths_of(asked.law)
    prompt, output = (round(sum(column) / len(pairs)) for column in zip(*pairs, strict=True))
    return prompt, output


def show_exports(found: Answer, met: Bounds | None) -> None:
    """The table and the whole answer as files."""
    rows = lines(found.columns)
    cells = [[row.label, *row.cells, DEFINITIONS.get(row.key, "")] for row in rows]
    table = b"".join(csv_lines(["figure", *found.columns, "definition"], cells))
    base, *others = found.columns.items()
    plain: dict[str, Any] = {
        **document(base[1], found.ways, command=found.line),
        "what_if": {name: document(one) for name, one in others},
        "load": load_document(met),
        "notes": advice(base[1]),
    }
    left, middle, right, _ = st.columns([1, 1, 1, 3])
    left.download_button("Table (CSV)", table, "capacity.csv", "text/csv", key="csv")
    middle.download_button(
        "Answer (JSON)", json.dumps(plain, indent=2), "capacity.json", key="json"
    )
    right.download_button("Page (HTML)", lambda: _page(found), "capacity.html", key="html")


def _page(found: Answer) -> bytes:
    """The bars, every formula with its numbers, and the command, as one page without a server."""
    first = found.first
    said = [refusal_sentence(first), room_sentence(first), *explained(first), *advice(first)]
    notes = [f"Verdict: {first.verdict}.", *filter(None, said), f"Command: {found.line}"]
    title = f"Capacity: {next(iter(found.columns))}"
    return figures_html(title, {"Memory of one GPU": memory_bar_figure(found.columns)}, notes)


def show_other(found: OtherFit) -> None:
    """The answer for SGLang, TensorRT-LLM or llama.cpp: memory only."""
    title = f"{found.server}, {found.model.name}"
    {"fits": st.success, "does not fit": st.error}.get(found.verdict, st.warning)(
        f"**{found.verdict.capitalize()}** by the rules of {found.server}"
    )
    columns = st.columns(4)
    pool = found.terms[-1]
    ends = f"{printed_gib(pool.low)} to {printed_gib(pool.high)}"
    number(columns[0], "KV pool of a GPU", f"{printed_gib(pool.bytes)} GiB", ends, pool.formula)
    label = "KV cache (tokens)" if found.sequences is None else "Longest context (tokens)"
    ends = f"{found.tokens_low:,} to {found.tokens_high:,}"
    how = f"what the pool stores, in the pages of {found.server}"
    number(columns[1], label, f"{found.tokens:,}", ends, how)
    how = f"{found.tokens:,} tokens / {found.max_model_len:,} of a request"
    number(columns[2], "Requests at once", f"{found.max_concurrency:,.2f}", "", how)
    how = f"{found.max_model_len:,} tokens of the model's KV"
    size = f"{printed_gib(found.request_bytes)} GiB"
    number(columns[3], "KV of one full request", size, "", how)
    chart(memory_bar_figure({title: found}), "memory_bar", "Bar: memory of one GPU in GiB")
    st.caption(md(f"{other_note(found)} {FRACTIONS[found.server]}."))
    st.download_button(
        "Answer (JSON)", json.dumps(other_document(found), indent=2), "capacity.json", key="json"
    )
