"""The parts of the page Block size and sharing."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.downloads import download
from apps.dashboard.trace_source import MAX_SEGMENTS, Loaded, Source, choose_source, load
from apps.dashboard.ui import BIND, chart, definitions, guarded, md, table
from apps.dashboard.upload_control import upload_control
from apps.dashboard.uploads import Upload
from kvsim.report.block_sizes import (
    MAX_BLOCK_SIZE,
    BlockSizeCurve,
    block_size_curve,
    curve_csv,
    rounding_csv,
)
from kvsim.report.branch_forms import Kind, Sharing, bounds, closed_form
from kvsim.report.figures import block_size_figure
from kvsim.report.figures.branching import branch_steps_figure, branch_width_figure
from kvsim.report.figures.kernels import kernel_figure
from kvsim.report.figures.prefix import rounding_figure
from kvsim.report.figures_page import figures_html
from kvsim.report.kernel_sizes import (
    KERNEL_DEFINITIONS,
    MAX_CURVES,
    KernelSizes,
    fitted_sizes,
    kernel_sizes,
    kernels_csv,
)
from kvsim.report.sharing_lab import (
    SHARING_DEFINITIONS,
    WIDTHS,
    Simulated,
    WidthRow,
    by_width,
    sharing_csv,
    simulate,
)
from kvsim.workload.prefix import (
    PREFIX_DEFINITIONS,
    PrefixTrace,
    Rounding,
    block_rounding,
    fitting_sizes,
)

Drawn = dict[str, Any]
"""Heading -> figure, as the page shows them."""
MAX_STEPS = 20_480
"""Groups times output tokens times beams of a simulation: a few seconds."""
SIZES = (1, 2, 4, 8, 16, 32, 64, 128, 256)
KINDS = ("samples", "beams", "prefix")
_ANCESTRY = ("wright_fisher", "independent")
_UNITS = {"samples": "samples (n)", "beams": "beams (k)", "prefix": "requests (m)"}
TAIL_DEFINITIONS = {
    "empty slots": "Slots of a running request's last block that hold no token, averaged over all"
    " its steps: block size * ceil(l / block size) - l at length l. Closed form over the lengths"
    " that the requests go through, (block size - 1) / 2 where they are long against the block.",
    "share of the slots": "Empty slots over all slots that a running request holds.",
    "blocks": "Entries of a running request's block table, averaged likewise: what a kernel looks"
    " up and a scheduler books.",
}


def show_block_size() -> None:
    """Tail waste, rounding of hits and kernels over the block size."""
    with st.sidebar:
        source = choose_source()
        chosen = st.select_slider("Block size (tokens)", SIZES, 16, key="bsize", bind=BIND)
    drawn: Drawn = {}
    notes: list[str] = []
    if source is None:
        st.info("Choose a trace in the sidebar, or upload one: its lengths decide what is wasted.")
    else:
        with guarded():
            loaded = load(source)
            notes.append(loaded.label)
            _show_tails(loaded, chosen, drawn)
            _show_rounding(loaded, drawn)
    show_kernels(drawn)
    _offer_page("Block size", drawn, notes)


def _offer_page(title: str, drawn: Drawn, notes: Sequence[str]) -> None:
    if drawn:
        name = f"{title.lower().replace(' ', '-')}.html"
        download("Figures as HTML", name, lambda: figures_html(title, drawn, notes), key="html")


def _show_tails(loaded: Loaded, chosen: int, drawn: Drawn) -> None:
    st.subheader("What the last block wastes")
    curve = _tails(loaded.source)
    if curve is None:
        st.info("No request of this source computes anything.")
        return
    empty, blocks = float(curve.empty_slots[chosen - 1]), float(curve.blocks[chosen - 1])
    places = st.columns(4)
    places[0].metric("empty slots per request", f"{empty:.2f}")
    places[1].metric("share of its slots", f"{empty / (blocks * chosen):.2%}")
    places[2].metric("blocks per request", f"{blocks:,.1f}")
    places[3].metric("mean KV length (tokens)", f"{curve.mean_tokens:,.0f}")
    marked = {f"block size {chosen}": (chosen, empty)}
    figure = block_size_figure(curve, marked, lengths="these requests", marked="chosen block size")
    drawn["What the last block wastes"] = figure
    chart(figure, "tails", "Empty slots of the last block, and blocks, over the block size")
    st.caption(md(f"Lengths of {loaded.label}: {len(loaded.traffic.demand):,} requests."))
    definitions(TAIL_DEFINITIONS)
    st.download_button(
        "Tails as CSV",
        lambda: curve_csv(curve),
        "block-size-tails.csv",
        "text/csv",
        key="tails_csv",
        on_click="ignore",
    )


@st.cache_data(max_entries=16, show_spinner=False)
def _tails(source: Source) -> BlockSizeCurve | None:
    demand = load(source).traffic.demand
    return block_size_curve(demand.prompt_tokens, demand.output_tokens)


def _show_rounding(loaded: Loaded, drawn: Drawn) -> None:
    st.subheader("What whole blocks cost a prefix cache")
    if not loaded.workload.shares_prefixes:
        st.info(
            "This source does not say which prompts share a prefix. Choose the generated chat, or"
            " a trace with ids of its prompts' chunks."
        )
        return
    if loaded.traffic.demand.segments > MAX_SEGMENTS:
        st.info("The prompts of this source have too many pieces for this page.")
        return
    rows, prompt_tokens = _rounding(loaded.source)
    chunk = loaded.workload.chunk_tokens
    figure = drawn["What whole blocks cost a prefix cache"] = rounding_figure(rows, prompt_tokens)
    chart(
        figure,
        "rounding",
        "Prompt tokens that were seen before and are computed again, over the block size",
    )
    if chunk:
        st.caption(
            md(
                f"This trace says what is shared in chunks of {chunk} tokens, so only block sizes"
                " that divide them (or are multiples) can be judged, and what is lost inside a"
                " chunk is not in it: the true loss is larger."
            )
        )
    else:
        st.caption(
            "A shared prefix of p tokens gives floor(p / block size) whole blocks; p mod block size"
            " tokens are computed again, (block size - 1) / 2 on average where p is long and even."
        )
    names = ("hit", "rounding", "last_token", "never_seen")
    definitions({name: PREFIX_DEFINITIONS[name] for name in names}, "What rounding means")
    download(
        "Rounding as CSV",
        "block-size-rounding.csv",
        lambda: rounding_csv(rows, prompt_tokens),
        key="rounding_csv",
    )


@st.cache_data(max_entries=16, show_spinner="Looking for shared prefixes")
def _rounding(source: Source) -> tuple[list[Rounding], int]:
    workload = load(source).workload
    trace = PrefixTrace.of(workload)
    sizes = fitting_sizes(workload.chunk_tokens, MAX_BLOCK_SIZE)
    return block_rounding(trace, sizes), int(trace.prompts.sum())


def show_kernels(drawn: Drawn) -> None:
    """Speed of attention kernels by block size, from a file that was measured."""
    st.subheader("What kernels make of the block size")
    with st.expander("Upload what was measured", expanded="speeds" in st.query_params):
        chosen = upload_control(
            "bench",
            "profile.json of kvsim calibrate, or decode.jsonl or paging.jsonl of the bench",
            "speeds",
            types=("json", "jsonl"),
        )
    found: KernelSizes | None = None
    with guarded():
        found = None if chosen is None else _measured(uploads.kept(here().uploads, chosen))
    fitted = fitted_sizes()
    if found is None:
        st.info(
            "kvsim ships no measured profile of block sizes: what a kernel makes of them differs"
            " from device to device. Make one on your own, then upload it here. The grey line is"
            " no measurement; it was fitted to a published figure."
        )
        st.code(_HOW_TO, language="bash")
    figure = kernel_figure(found.curves if found else (), fitted)
    drawn["What kernels make of the block size"] = figure
    chart(figure, "kernels", "Relative speed of attention over the block size")
    if found is not None:
        st.caption(md(_measured_caption(found)))
        rows = [
            (curve.label, size, f"{share:.1%}")
            for curve in found.curves
            for size, share in zip(curve.sizes, curve.speed, strict=True)
        ]
        with st.expander("Measured, as a table"):
            table(("batch", "block size (tokens)", "relative speed"), rows, "kernel_rows")
    definitions(KERNEL_DEFINITIONS, "What the relative speed means")
    curves = (fitted, *(found.curves if found else ()))
    download("Kernels as CSV", "kernels.csv", lambda: kernels_csv(curves), key="kernels_csv")


_HOW_TO = """\
# on a CPU, or with --device cuda on a GPU: a layout for every block size of the scenario
kvsim calibrate SCENARIO.yaml --device cpu --out profile.json
# on a GPU: then upload DIR/decode.jsonl or DIR/paging.jsonl
python -m gpu_backend.bench --minutes 8 --out DIR"""


def _measured_caption(found: KernelSizes) -> str:
    about = f" Measured: {found.device}." if found.device else ""
    more = len(found.curves) - MAX_CURVES
    drawn = f" The {MAX_CURVES} curves with the most KV are drawn, {more} more are in the table."
    return KERNEL_DEFINITIONS[found.source] + about + (drawn if more > 0 else "")


@st.cache_data(max_entries=16, show_spinner=False)
def _measured(upload: Upload) -> KernelSizes:
    return kernel_sizes(upload.path.read_bytes(), upload.name)


def show_sharing() -> None:
    """Branches that share blocks: formula and simulation."""
    kind, one, groups, seed = _experiment()
    with guarded():
        formula, found = _run(one, groups, seed)
        _show_sharing_numbers(one, formula, found)
        st.subheader(
            "By number of " + {"samples": "samples", "beams": "beams", "prefix": "requests"}[kind]
        )
        rows = _widths(one, groups, seed)
        by_number = branch_width_figure(rows, _UNITS[kind])
        chart(
            by_number,
            "widths",
            "Logical and physical blocks, and copies, over the number of branches",
        )
        _width_table(rows, kind)
        st.subheader(f"Step by step, with {one.width}")
        limits = bounds(one) if kind == "beams" else None
        by_step = branch_steps_figure(formula, found.mean, limits)
        chart(by_step, "steps", "Logical and physical blocks, and copies, over the steps")
        caption = _sharing_caption(one, groups)
        st.caption(md(caption))
        drawn = {f"By number of {_UNITS[kind]}": by_number, f"With {one.width}": by_step}
        _offer_page("Sharing", drawn, [caption])
    definitions(SHARING_DEFINITIONS)


def _experiment() -> tuple[str, Sharing, int, int]:
    with st.sidebar:
        kind = st.segmented_control(
            "What is shared",
            KINDS,
            default="samples",
            required=True,
            key="share",
            bind=BIND,
            help="Samples of one prompt (n), beams of one prompt (k), or requests with a common"
            " prefix (m).",
        )
        kind = kind or "samples"
        width = st.slider("How many", 1, 8, 4, key="width", bind=BIND)
        prompt = st.slider("Common prompt (tokens)", 1, 2048, 200, key="ptokens", bind=BIND)
        output = st.slider("Output (tokens)", 2, 512, 64, key="otokens", bind=BIND)
        block = st.select_slider("Block size (tokens)", SIZES, 16, key="bsize", bind=BIND)
        exact: Kind = "parallel" if kind == "samples" else "prefix"
        own, groups, seed = 1, 1, 0
        if kind == "prefix":
            own = st.slider("Own prompt behind it (tokens)", 1, 512, 40, key="own", bind=BIND)
        if kind == "beams":
            ancestry = st.segmented_control(
                "Ancestry",
                _ANCESTRY,
                default="wright_fisher",
                required=True,
                key="ancestry",
                bind=BIND,
                help="independent: each beam continues itself. wright_fisher: each survivor"
                " continues a beam drawn uniformly.",
            )
            exact = cast(Kind, ancestry or "wright_fisher")
            if exact == "wright_fisher":
                asked = st.slider("Simulated groups", 1, 30, 5, key="groups", bind=BIND)
                groups = min(asked, max(1, MAX_STEPS // (output * WIDTHS[-1])))
                if groups < asked:
                    st.caption(
                        f"{groups} of the {asked} groups are simulated: groups × output tokens ×"
                        f" {WIDTHS[-1]} beams are at most {MAX_STEPS:,}."
                    )
                seed = int(st.number_input("Seed", 0, 2**31 - 1, 0, key="draws", bind=BIND))
    return kind, Sharing(exact, width, prompt, output, block, own), groups, seed


@st.cache_data(max_entries=128, show_spinner=False)
def _run(one: Sharing, groups: int, seed: int) -> tuple[Any, Simulated]:
    return closed_form(one), simulate(one, groups=groups, seed=seed)


@st.cache_data(max_entries=64, show_spinner="Simulating")
def _widths(one: Sharing, groups: int, seed: int) -> list[WidthRow]:
    return by_width(one, WIDTHS, groups=groups, seed=seed)


def _show_sharing_numbers(one: Sharing, formula: Any, found: Simulated) -> None:
    places = st.columns(5)
    last = len(formula.physical) - 1
    places[0].metric("blocks without sharing", f"{found.mean.logical[last]:,.0f}")
    places[1].metric("blocks with sharing", f"{found.mean.physical[last]:,.4g}")
    places[2].metric("formula", f"{formula.physical[last]:,.4g}")
    places[3].metric("copies on write", f"{found.mean.copies[last]:,.4g}")
    places[4].metric("saved, over all steps", f"{found.mean.saving:.1%}")


def _width_table(rows: list[WidthRow], kind: str) -> None:
    with st.expander("As a table"):
        header = (
            _UNITS[kind],
            "logical blocks",
            "physical: formula",
            "physical: simulated",
            "copies: formula",
            "copies: simulated",
            "saved: formula",
            "saved: simulated",
        )
        table(
            header,
            [
                (
                    row.width,
                    f"{row.formula[0]:g}",
                    f"{row.formula[1]:.4g}",
                    f"{row.simulated[1]:.4g}",
                    f"{row.formula[2]:.4g}",
                    f"{row.simulated[2]:.4g}",
                    f"{row.formula_saving:.2%}",
                    f"{row.simulated_saving:.2%}",
                )
                for row in rows
            ],
            "width_rows",
        )
    st.download_button(
        "Sharing as CSV",
        lambda: sharing_csv(rows),
        "sharing.csv",
        "text/csv",
        key="sharing_csv",
        on_click="ignore",
    )


def _sharing_caption(one: Sharing, groups: int) -> str:
    if one.kind == "wright_fisher":
        return (
            f"The formula is the exact expectation of the neutral model, the marks are the mean of"
            f" {groups} simulated group{'s' * (groups > 1)}; real beams descend in ways that only"
            " their bounds (dotted) hold for."
        )
    return "Formula and simulation agree exactly: nothing here is random."
