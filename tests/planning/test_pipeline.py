"""Pipeline stages: each is a start of its own, and the smallest decides."""

from __future__ import annotations

import json

import pytest

from kvsim.catalog import get_gpu, get_model, weight_bytes
from kvsim.errors import InputError
from kvsim.planning.fit import FitSettings, fit
from kvsim.planning.load import Load, bounds
from kvsim.planning.pipeline import fit_pipeline, fit_whole
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]

MODEL, GPU = get_model("llama-3-70b"), get_gpu("a100-80gb")


def staged(stages: int, **settings: int) -> FitSettings:
    return FitSettings(pipeline_parallel_size=stages, **settings)  # type: ignore[arg-type]


def test_the_weights_of_all_stages_are_those_of_the_model() -> None:
    """Llama's embeddings and head are not tied: one is on the first stage, one on the last."""
    whole = weight_bytes(MODEL)
    for stages in (2, 3, 4):
        found = fit_pipeline(MODEL, GPU, staged(stages))
        assert sum(found.layers) == 80
        total = sum(stage.budget.weights.bytes for stage in found.stages)
        assert total == pytest.approx(whole, abs=80)
        first, last = found.stages[0].budget.weights, found.stages[-1].budget.weights
        if stages == 4:
            middle = found.stages[1].budget.weights.bytes
            assert first.bytes - middle == last.bytes - middle == 128_256 * 8192 * 2


def test_the_stage_with_fewest_blocks_decides() -> None:
    """27, 27 and 26 layers: the first has the embeddings too."""
    found = fit_pipeline(MODEL, GPU, staged(3))
    assert found.layers == (27, 27, 26)
    blocks = [stage.start.num_blocks for stage in found.stages]
    assert found.smallest == blocks.index(min(blocks)) == 0
    assert found.fit.layout.block_bytes == 16 * 27 * 4096
    assert fit_whole(MODEL, GPU, staged(3)) == found.fit
    assert "Stage 1 of 3" in found.sentence()


def test_a_split_of_the_users_own_is_taken() -> None:
    """All stages get the blocks of the one with most layers."""
    found = fit_pipeline(MODEL, GPU, staged(2), partition=(30, 50))
    assert found.layers == (30, 50)
    assert found.smallest == 1


def test_one_stage_is_the_model() -> None:
    """Nothing is divided."""
    assert fit_whole(MODEL, GPU, staged(1)) == fit(MODEL, GPU, staged(1))


@pytest.mark.parametrize(
    ("model", "stages", "message"),
    [
        ("gemma-3-27b", 2, "layers of several kinds"),
        ("deepseek-v3", 2, "layers of several kinds"),
        ("llama-3-70b", 81, "cannot be split into 81 stages"),
    ],
)
def test_what_is_not_covered_is_refused(model: str, stages: int, message: str) -> None:
    """By name, with the way out."""
    with pytest.raises(InputError, match=message):
        fit_pipeline(get_model(model), GPU, staged(stages))


def test_the_time_of_stages_is_not_guessed() -> None:
    """The clock knows no bubbles."""
    found = fit_whole(MODEL, GPU, staged(4))
    with pytest.raises(InputError, match="time of pipeline stages is not covered"):
        bounds(found, Load(1, 100, 100))


def test_the_command_shows_the_deciding_stage_and_its_flag(kvsim: Command) -> None:
    """Two A100-80GB hold a 70B model in two stages; one does not."""
    arguments = ("fit", "llama-3-70b", "--gpu", "a100-80gb", "--json")
    answer = json.loads(kvsim(*arguments, "--pp", "4").out)
    assert answer["verdict"] == "fits"
    assert "--pipeline-parallel-size 4" in answer["command"]
    assert any("20 of 80 layers" in note for note in answer["notes"])
    tried = json.loads(kvsim(*arguments, "--what-if", "pp=4").out)
    assert tried["verdict"] == "does not fit"
    assert tried["what_if"]["pp=4"]["num_blocks"] == answer["num_blocks"]
