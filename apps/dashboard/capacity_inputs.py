"""The controls of the page Capacity, and what they ask for."""

from __future__ import annotations

import json
from typing import Any, NamedTuple

import streamlit as st

from apps.dashboard import uploads
from apps.dashboard.cached import here
from apps.dashboard.ui import BIND, guarded, md, warn_unknown
from apps.dashboard.upload_control import remember
from kvsim.catalog import Model, get_model, hf_id_of, list_gpus, list_models, model_from_config
from kvsim.catalog.config_file import MAX_CONFIG_BYTES, parse_config
from kvsim.errors import InputError
from kvsim.planning.fit import FitSettings
from kvsim.planning.other_answer import KNOWN_SETTINGS, KNOWN_TO_LLAMA_CPP, OTHER_SERVERS
from kvsim.planning.releases import LATEST, RELEASES, Release
from kvsim.planning.what_if import changed_by_text, measured_bytes

VLLM = "vllm"
FIXED = "fixed"
LAWS = ("azure-conv-2023", "azure-code-2023", "sharegpt")
_INDEX, _QUANTIZATION = "model.safetensors.index.json", "hf_quant_config.json"
_GPUS_OF_A_STAGE = (1, 2, 4, 8, 16, 32, 64)


class Question(NamedTuple):
    """What the page asks."""

    model: Model
    served: str
    """What the server would be told to serve."""
    gpu: str
    server: str
    release: Release
    given: FitSettings
    fraction: float | None
    what_if: tuple[str, ...]
    law: str
    """`FIXED`, or the preset that the lengths of my requests are like."""
    prompt_tokens: int
    output_tokens: int
    rps: float | None


def ask() -> Question:
    """Draw the controls in the sidebar. Raises `InputError` for what they cannot mean together."""
    with st.sidebar:
        model_id = _model_control()
        warn_unknown("server", (VLLM, *OTHER_SERVERS), "server")
        server = st.selectbox("Server", (VLLM, *OTHER_SERVERS), key="server", bind=BIND)
        release = _release_control() if server == VLLM else LATEST
        warn_unknown("gpu", list_gpus(), "GPU")
        gpu = st.selectbox(
            "GPU", list_gpus(), index=list_gpus().index("h100"), key="gpu", bind=BIND
        )
        changes = _server_controls(server, release)
        law, prompt_tokens, output_tokens, rps = _load_controls(server)
        what_if = _what_if_control(server)
    model, served = model_of(model_id)
    fraction = changes.pop("fraction", None)
    measured = changes.pop("measured", "")
    given = FitSettings(measured_bytes=measured_bytes(measured), **changes)
    return Question(
        model,
        served,
        gpu,
        server,
        release,
        given,
        fraction,
        what_if,
        law,
        prompt_tokens,
        output_tokens,
        rps,
    )


def model_of(model_id: str) -> tuple[Model, str]:
    """Shapes, and what a server would be told to serve, of a catalogue name or an upload's id."""
    if not model_id.startswith("config-"):
        return get_model(model_id), hf_id_of(model_id)
    upload = uploads.kept(here().uploads, model_id)
    files = json.loads(upload.path.read_text("utf-8"))
    return _parsed(files, upload.name), "MODEL"


@st.cache_data(max_entries=64, show_spinner=False)
def _parsed(files: dict[str, Any], name: str) -> Model:
    return model_from_config(files["config"], name=name, source=name, **files["beside"])


def _model_control() -> str:
    kept = uploads.kept_of_kind(here().uploads, "config")
    options = [*list_models(), *(one.upload_id for one in kept)]
    warn_unknown("model", options, "model")
    chosen: str = st.selectbox(
        "Model",
        options,
        index=options.index("llama-3.1-8b"),
        key="model",
        bind=BIND,
        help="A model of the catalogue, or an uploaded config.json.",
    )
    names = {one.upload_id: one.name for one in kept}
    if chosen in names:
        st.caption(f"uploaded: {md(names[chosen])}")
    with st.expander("Upload a config.json"):
        files = st.file_uploader(
            "config.json, and what lies beside it",
            type="json",
            accept_multiple_files=True,
            key="config_files",
            max_upload_size=4,
            help=f"{_INDEX} gives the checkpoint's bytes exactly, {_QUANTIZATION} its precision.",
        )
        if files and st.button("Use this model", key="use_config"):
            with guarded():
                _keep_config([(one.name, one.getvalue()) for one in files])
    return chosen


def _keep_config(files: list[tuple[str, bytes]]) -> None:
    """Check and keep an uploaded model, choose it, and draw the page again."""
    bundle: dict[str, Any] = {"config": None, "beside": {}}
    name = "config.json"
    for file_name, content in files:
        parsed = parse_config(content, file_name, MAX_CONFIG_BYTES)
        if file_name == _INDEX:
            bundle["beside"]["index"] = {"metadata": parsed.get("metadata")}
        elif file_name == _QUANTIZATION:
            bundle["beside"]["quantization"] = parsed
        else:
            bundle["config"], name = parsed, file_name
    if bundle["config"] is None:
        raise InputError("config.json is missing", where="upload", fix="Add the model's config")
    model_from_config(bundle["config"], name=name, source=name, **bundle["beside"])
    text = json.dumps(bundle, sort_keys=True).encode()
    st.session_state["chosen_model"] = uploads.keep(here().uploads, "config", name, text).upload_id
    st.rerun()


def choose_uploaded_model() -> None:
    """Give the model's control the upload of the run before; call it before `ask`."""
    chosen = st.session_state.pop("chosen_model", None)
    if chosen is not None:
        st.session_state["model"] = chosen


def _release_control() -> Release:
    """The address names it in any case: what is the latest today may not be tomorrow."""
    known = {one.version: one for one in RELEASES[::-1]}
    warn_unknown("release", known, "release of vLLM")
    asked = (st.session_state.get("release"), st.query_params.get("release"))
    st.session_state["release"] = next((one for one in asked if one in known), LATEST.version)
    chosen: str = st.selectbox(
        "vLLM release", list(known), key="release", on_change=_forget_utilization
    )
    remember("release", chosen)
    st.caption(md(known[chosen].name))
    return known[chosen]


def _forget_utilization() -> None:
    """Each release has its own default."""
    st.session_state.pop("util", None)


def _server_controls(server: str, release: Release) -> dict[str, Any]:
    """Settings of the server, by their names in `FitSettings`."""
    known = {VLLM: None, "llama.cpp": KNOWN_TO_LLAMA_CPP}.get(server, KNOWN_SETTINGS)
    changes: dict[str, Any] = {}
    if known is None or "tensor_parallel_size" in known:
        changes["tensor_parallel_size"] = st.select_slider(
            "GPUs that share the model (tensor parallel)", _GPUS_OF_A_STAGE, key="tp", bind=BIND
        )
    if known is None:
        changes["pipeline_parallel_size"] = st.number_input(
            "Pipeline stages", 1, 64, 1, key="pp", bind=BIND
        )
        changes["gpu_memory_utilization"] = st.slider(
            "gpu_memory_utilization",
            0.1,
            0.99,
            release.gpu_memory_utilization,
            0.01,
            key="util",
            bind=BIND,
            help="Share of the GPU's memory that the server may use.",
        )
    elif server != "llama.cpp":
        changes["fraction"] = st.number_input(
            "Memory fraction",
            0.05,
            1.0,
            None,
            0.01,
            key="fraction",
            bind=BIND,
            placeholder="the server's default",
        )
    changes["max_model_len"] = _optional("max_model_len (tokens)", "len", "the model's own")
    if known is None or "max_num_seqs" in known:
        changes["max_num_seqs"] = _optional("max_num_seqs", "seqs", "the default")
    if known is None:
        changes["max_num_batched_tokens"] = _optional(
            "max_num_batched_tokens", "batched", "the default"
        )
    if known is None or "kv_cache_dtype" in known:
        changes["kv_cache_dtype"] = st.segmented_control(
            "kv_cache_dtype", ("auto", "fp8"), default="auto", required=True, key="kv", bind=BIND
        )
    if known is None:
        changes |= _further_controls()
    return changes


def _further_controls() -> dict[str, Any]:
    """Replicas, adapters, drafts and measured terms."""
    with st.expander("More of the server"):
        speculative = st.selectbox(
            "Guessing ahead", ("none", "ngram", "eagle", "mtp"), key="draft", bind=BIND
        )
        return {
            "data_parallel_size": st.number_input(
                "Replicas (data parallel)", 1, 1024, 1, key="dp", bind=BIND
            ),
            "enable_expert_parallel": st.checkbox(
                "Experts whole on a GPU (expert parallel)", key="ep", bind=BIND
            ),
            "decode_context_parallel_size": st.number_input(
                "GPUs that a replicated cache is dealt to", 1, 64, 1, key="dcp", bind=BIND
            ),
            "block_size": st.select_slider(
                "Tokens of a block", (8, 16, 32, 64, 128), 16, key="block", bind=BIND
            ),
            "max_loras": st.number_input("Adapters (max_loras)", 0, 128, 0, key="lora", bind=BIND),
            "max_lora_rank": st.select_slider(
                "Their largest rank", (8, 16, 32, 64, 128, 256, 512), 16, key="rank", bind=BIND
            ),
            "language_model_only": st.checkbox(
                "Without encoders (language_model_only)",
                key="textonly",
                bind=BIND,
                help="Of a model that takes images or sound: its encoders are left out.",
            ),
            "speculative": None if speculative == "none" else speculative,
            "measured": st.text_input(
                "Measured terms (GiB per GPU)",
                key="measured",
                bind=BIND,
                max_chars=200,
                placeholder="weights=14.99,non_torch=0.35",
                help="Replace an estimate by what a start-up log printed.",
            )
            or "",
        }


def _optional(label: str, key: str, default: str) -> int | None:
    value: int | None = st.number_input(
        label, 1, 100_000_000, None, key=key, bind=BIND, placeholder=default
    )
    return value


def _load_controls(server: str) -> tuple[str, int, int, float | None]:
    """My requests: a law of lengths or one length, and how many arrive."""
    if server != VLLM:
        st.caption(f"Lengths, rates, ways out and a command: for vLLM only. Of {server}: memory.")
        return FIXED, 1000, 250, None
    law = st.selectbox(
        "Lengths of my requests",
        (FIXED, *LAWS),
        key="law",
        bind=BIND,
        help="One length for all, or lengths like those of a published trace.",
    )
    prompt_tokens, output_tokens = 1000, 250
    if law == FIXED:
        left, right = st.columns(2)
        prompt_tokens = left.number_input(
            "Prompt tokens", 1, 10_000_000, 1000, 100, key="prompt", bind=BIND
        )
        output_tokens = right.number_input(
            "Output tokens", 1, 10_000_000, 250, 50, key="output", bind=BIND
        )
    rps = st.number_input(
        "Requests per second",
        0.001,
        1e6,
        None,
        1.0,
        key="rps",
        bind=BIND,
        placeholder="not asked",
    )
    return law, prompt_tokens, output_tokens, rps


def _what_if_control(server: str) -> tuple[str, ...]:
    if server != VLLM:
        return ()
    usual = ("kv_cache_dtype=fp8", "tp=2", "tp=4", "tp=8", "max_num_seqs=64")
    chosen = st.multiselect(
        "What if",
        usual,
        key="whatif",
        bind=BIND,
        accept_new_options=True,
        max_selections=4,
        help="Further columns; type your own, for example tp=4,max_model_len=32768.",
    )
    good = []
    for text in chosen:
        with guarded():
            changed_by_text(FitSettings(), text)
            good.append(text)
    return tuple(good)
