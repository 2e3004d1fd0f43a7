"""model.safetensors.index.json: the size of a checkpoint."""

from __future__ import annotations

from typing import Any

import pytest

from kvsim.catalog import (
    CheckpointSize,
    checkpoint_size,
    get_model,
    model_from_config,
    weight_bytes,
    with_checkpoint,
)
from kvsim.errors import InputError
from tests.catalog.hf_rows import row

LLAMA_3_8B = 16_060_522_496
"""total_size of meta-llama/Meta-Llama-3-8B: 2 bytes for each of 8,030,261,248 parameters."""


def test_the_index_gives_bytes_exactly_and_parameters_if_it_has_them() -> None:
    index = {"metadata": {"total_size": LLAMA_3_8B}, "weight_map": {"a": "b"}}
    assert checkpoint_size(index, source="x") == CheckpointSize(LLAMA_3_8B, None)
    index["metadata"]["total_parameters"] = 8_030_261_248
    assert checkpoint_size(index, source="x") == CheckpointSize(LLAMA_3_8B, 8_030_261_248)
    floats = {"metadata": {"total_size": float(LLAMA_3_8B)}}
    assert checkpoint_size(floats, source="x").total_bytes == LLAMA_3_8B


def test_the_size_by_shape_equals_the_published_checkpoint() -> None:
    assert weight_bytes(get_model("llama-3-8b")) == LLAMA_3_8B


def test_a_checkpoints_size_replaces_the_bytes_by_shape() -> None:
    """On one GPU exactly; on several in proportion to the bytes by shape."""
    model = get_model("llama-3-8b")
    twice = with_checkpoint(model, {"metadata": {"total_size": 2 * LLAMA_3_8B}}, source="x")
    assert weight_bytes(twice) == 2 * LLAMA_3_8B
    assert weight_bytes(twice, tp=4) == 2 * weight_bytes(model, tp=4)
    read = model_from_config(
        row("yi-34b")["config"],
        name="x",
        source="x.json",
        index={"metadata": {"total_size": 68_777_834_496}},
    )
    assert weight_bytes(read) == 68_777_834_496


@pytest.mark.parametrize(
    ("index", "problem"),
    [
        ({}, "metadata must be an object, got None"),
        ([], "metadata must be an object"),
        ({"metadata": {}}, "metadata has no total_size"),
        ({"metadata": {"total_size": "16 GB"}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": True}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": -1}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": 10**18}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": 0.5}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": float("inf")}}, "total_size must be a whole number"),
        ({"metadata": {"total_size": 1, "total_parameters": []}}, "total_parameters must be"),
    ],
)
def test_an_index_without_a_size_is_refused(index: Any, problem: str) -> None:
    with pytest.raises(InputError, match=problem) as error:
        checkpoint_size(index, source="x.json")
    assert error.value.where == "x.json"
    assert error.value.fix
