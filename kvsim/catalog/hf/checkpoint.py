"""model.safetensors.index.json: how many bytes, and sometimes parameters, a checkpoint holds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, NamedTuple

from kvsim.catalog.hf.fields import shown
from kvsim.catalog.model import Model
from kvsim.errors import InputError

LARGEST_BYTES = 10**15


class CheckpointSize(NamedTuple):
    """What the index says."""

    total_bytes: int
    parameters: int | None
    """None where the index does not say."""


def checkpoint_size(index: Mapping[str, Any], *, source: str) -> CheckpointSize:
    """`metadata.total_size` in bytes, exactly, and `metadata.total_parameters`.

    Modules for multi-token prediction and encoders of images or sound are included, as in the
    files. Raises `InputError` for an index without a size.
    """
    metadata = index.get("metadata") if isinstance(index, Mapping) else None
    if not isinstance(metadata, Mapping):
        raise InputError(
            f"metadata must be an object, got {shown(metadata)}",
            where=source,
            fix="Use the model's own model.safetensors.index.json",
        )
    size = _whole(metadata, "total_size", source)
    if size is None:
        raise InputError(
            "metadata has no total_size",
            where=source,
            fix="Use the model's own model.safetensors.index.json",
        )
    return CheckpointSize(size, _whole(metadata, "total_parameters", source))


def with_checkpoint(model: Model, index: Mapping[str, Any], *, source: str) -> Model:
    """The model whose weights take the bytes of its checkpoint (`checkpoint_size`)."""
    return replace(model, checkpoint_bytes=checkpoint_size(index, source=source).total_bytes)


def _whole(metadata: Mapping[str, Any], key: str, source: str) -> int | None:
    value = metadata.get(key)
    if value is None:
        return None
    # Some writers store a float.
    if isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is not int or not 1 <= value <= LARGEST_BYTES:
        raise InputError(
            f"{key} must be a whole number in 1..{LARGEST_BYTES}, got {shown(value)}",
            where=source,
            fix="Use the model's own model.safetensors.index.json",
        )
    return value
