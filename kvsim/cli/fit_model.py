"""The model of `kvsim fit`: from the catalogue, a config.json or standard input."""

from __future__ import annotations

import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvsim.catalog.config_file import MAX_CONFIG_BYTES, parse_config
from kvsim.errors import InputError

if TYPE_CHECKING:
    from kvsim.catalog import Model

MAX_INDEX_BYTES = 64 * 1024 * 1024
"""An index lists every tensor."""
BESIDE = {
    "quantization": ("hf_quant_config.json", MAX_CONFIG_BYTES),
    "processor": ("preprocessor_config.json", MAX_CONFIG_BYTES),
    "index": ("model.safetensors.index.json", MAX_INDEX_BYTES),
}
"""Files that are read where they lie beside a config.json."""


def fit_model(name: str) -> tuple[Model, str]:
    """The shapes, and what a server would be told to serve.

    `name` is one of the catalogue, a config.json (with what lies beside it), or - for standard
    input. Raises `InputError` for anything else.
    """
    from kvsim.catalog import get_model, hf_id_of, model_from_config

    if name == "-":
        config = parse_config(
            sys.stdin.buffer.read(MAX_CONFIG_BYTES + 1), "stdin", MAX_CONFIG_BYTES
        )
        return model_from_config(config, name="stdin", source="stdin"), "MODEL"
    path = Path(name)
    if path.suffix != ".json" and not path.is_dir():
        return get_model(name), hf_id_of(name)
    if path.is_dir():
        path = path / "config.json"
    config = _read(path, MAX_CONFIG_BYTES)
    beside = {
        key: _read(path.parent / file, limit)
        for key, (file, limit) in BESIDE.items()
        if (path.parent / file).is_file()
    }
    folder = path.absolute().parent
    return model_from_config(config, name=folder.name, source=str(path), **beside), str(folder)


def _read(path: Path, limit: int) -> dict[str, Any]:
    fix = "Give the model's config.json, or the folder that holds it"
    try:
        if not stat.S_ISREG(path.stat().st_mode):
            raise InputError("must be a regular file", where=str(path), fix=fix)
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=str(path), fix=fix) from None
    return parse_config(content, str(path), limit)
