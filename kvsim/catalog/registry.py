"""Names -> models, GPUs and engines. The data files are read at every call; nothing is kept."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import replace
from difflib import get_close_matches
from importlib.resources import files
from typing import Any

from kvsim.catalog.gpu import Engine, Gpu, gpu_from_dict
from kvsim.catalog.hf import model_from_config
from kvsim.catalog.model import Model
from kvsim.errors import InputError


def list_models() -> list[str]:
    """Names of the models, in the order of the data file."""
    return [entry["name"] for entry in _read("models.json")["models"]]


def list_gpus() -> list[str]:
    """Names of the GPUs, without aliases."""
    return [entry["name"] for entry in _read("gpus.json")["gpus"]]


def get_model(name: str) -> Model:
    """The model of this name or Hugging Face id, case ignored. `InputError` if unknown."""
    entries = _read("models.json")["models"]
    for entry in entries:
        if _key(name) in (_key(entry["name"]), _key(entry["hf_id"])):
            model = model_from_config(entry["config"], name=entry["name"], source=entry["source"])
            return replace(
                model,
                published_size=entry["published_size"],
                published_size_source=entry["published_size_source"],
            )
    raise _unknown("model", name, [entry["name"] for entry in entries])


def hf_id_of(name: str) -> str:
    """The Hugging Face id of a model of the catalogue. `InputError` if unknown."""
    entries = _read("models.json")["models"]
    for entry in entries:
        if _key(name) in (_key(entry["name"]), _key(entry["hf_id"])):
            return str(entry["hf_id"])
    raise _unknown("model", name, [entry["name"] for entry in entries])


def get_gpu(name: str) -> Gpu:
    """The GPU of this name or alias, case ignored, `_` read as `-`. `InputError` if unknown."""
    entries = _read("gpus.json")["gpus"]
    for entry in entries:
        if _key(name) in (entry["name"], *entry["aliases"]):
            return gpu_from_dict(entry)
    raise _unknown("gpu", name, [entry["name"] for entry in entries])


def get_engine(name: str) -> Engine:
    """Host time of this engine; `none` is device time alone. `InputError` if unknown."""
    entries = _read("engines.json")["engines"]
    for entry in entries:
        if _key(name) == entry["name"]:
            return Engine(**entry)
    raise _unknown("engine", name, [entry["name"] for entry in entries])


def _read(file_name: str) -> dict[str, Any]:
    text = files("kvsim.catalog").joinpath("data", file_name).read_text(encoding="utf-8")
    data: dict[str, Any] = json.loads(text)
    return data


def _key(name: str) -> str:
    return name.strip().lower().replace("_", "-")


def _unknown(what: str, name: str, known: Iterable[str]) -> InputError:
    names = list(known)
    # An arbitrarily long name would make the search for neighbours slow.
    close = get_close_matches(_key(name)[:80], names, n=3, cutoff=0.5)
    if close:
        fix = f"Did you mean {' or '.join(close)}? All: {', '.join(names)}"
    else:
        fix = f"Known: {', '.join(names)}"
    return InputError(f"{what} {name[:80]!r} is not in the catalogue", where=what, fix=fix)
