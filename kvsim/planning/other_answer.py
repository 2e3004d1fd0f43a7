"""`kvsim fit --server`: one call for SGLang, TensorRT-LLM and llama.cpp."""

from __future__ import annotations

from dataclasses import fields
from typing import Any, cast

from kvsim.catalog import Gpu, Model
from kvsim.errors import InputError
from kvsim.planning.fit import FitSettings
from kvsim.planning.llama_cpp_fit import llama_cpp_fit
from kvsim.planning.others import FRACTIONS, OtherFit, SharingServer, other_fit

LLAMA_CPP = "llama.cpp"
OTHER_SERVERS = (*FRACTIONS, LLAMA_CPP)
KNOWN_SETTINGS = ("tensor_parallel_size", "max_model_len", "kv_cache_dtype")
"""What SGLang's and TensorRT-LLM's rules here take."""
KNOWN_TO_LLAMA_CPP = ("max_model_len", "max_num_seqs", "measured_bytes")
_FEW_LOGS = (
    "The ends for llama.cpp are assumed, not measured: two logs with their buffer are known."
)
_NO_ENCODER = "The encoder of images or sound is left out: its weights and batches come on top."
_ONLY_MEMORY = "Memory by the server's own rules; kvsim simulates time with vLLM's scheduler."


def other_answer(
    server: str, model: Model, gpu: Gpu, given: FitSettings, fraction: float | None = None
) -> OtherFit:
    """What one of these servers would store.

    Raises `InputError` for another server and for a setting that its rules here do not know.
    """
    check_server(server)
    _check_known(server, given, fraction)
    if server == LLAMA_CPP:
        return llama_cpp_fit(
            model,
            gpu,
            max_model_len=given.max_model_len,
            sequences=1 if given.max_num_seqs is None else given.max_num_seqs,
            measured=given.measured_bytes,
        )
    return other_fit(
        cast("SharingServer", server),
        model,
        gpu,
        tp=given.tensor_parallel_size,
        fraction=fraction,
        max_model_len=given.max_model_len,
        kv_dtype_bytes=1 if given.kv_cache_dtype == "fp8" else None,
    )


def check_server(server: str) -> None:
    """`InputError` for a server without rules here."""
    if server not in OTHER_SERVERS:
        known = ", ".join(("vllm", *OTHER_SERVERS))
        raise InputError(f"{server[:40]!r} is not known", where="--server", fix=f"Known: {known}")


def other_document(found: OtherFit) -> dict[str, Any]:
    """The answer as plain data; bytes are whole numbers, intervals 80 %."""
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
        "note": other_note(found),
    }


def other_note(found: OtherFit) -> str:
    """What must be said beside the figures."""
    said = [_FEW_LOGS] if found.server == LLAMA_CPP else []
    said += [_NO_ENCODER] if found.model.encoder is not None else []
    return " ".join([*said, _ONLY_MEMORY])


def _check_known(server: str, given: FitSettings, fraction: float | None) -> None:
    """`InputError` for a setting that these servers' rules here do not know."""
    default = FitSettings()
    known = KNOWN_TO_LLAMA_CPP if server == LLAMA_CPP else KNOWN_SETTINGS
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
