from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.catalog import get_gpu, get_model
from kvsim.errors import InputError
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.load import concurrency_at, concurrency_of_law
from kvsim.planning.simulation import scenario_text
from kvsim.scenario.loader import load_scenario
from kvsim.scenario.sizing import size_server
from kvsim.workload.sample import sample_lengths


def _fit(**settings: object) -> Fit:
    given = FitSettings(max_model_len=8192, **settings)  # type: ignore[arg-type]
    return fit(get_model("llama-3.1-8b"), get_gpu("h100"), given)


def test_the_scenario_of_an_answer_has_its_blocks_and_flags(tmp_path: Path) -> None:
    found = _fit(max_num_seqs=64, kv_cache_dtype="fp8")
    path = tmp_path / "a.yaml"
    path.write_text(scenario_text(found, rps=2.5, prompt_tokens=1000, output_tokens=250))
    scenario = load_scenario(str(path))
    assert size_server(scenario).num_blocks == found.start.num_blocks
    assert scenario.engine.max_num_seqs == 64
    assert scenario.engine.kv_cache_dtype == "fp8"
    assert scenario.engine.max_num_batched_tokens == found.settings.max_num_batched_tokens
    assert "rate_rps: 2.5" in path.read_text()


@pytest.mark.parametrize("preset", ["azure-conv-2023", "azure-code-2023", "sharegpt"])
def test_the_lengths_of_a_preset_make_a_scenario_that_loads(tmp_path: Path, preset: str) -> None:
    path = tmp_path / "a.yaml"
    path.write_text(scenario_text(_fit(), rps=3, preset=preset))
    workload = load_scenario(str(path)).workload
    assert preset in str(workload)


def test_azures_preset_is_scaled_from_its_own_rate(tmp_path: Path) -> None:
    text = scenario_text(_fit(), rps=2 * 5.5301364152832795, preset="azure-conv-2023")
    assert "rate_scale: 2}" in text


@pytest.mark.parametrize(
    "settings",
    [{"data_parallel_size": 2}, {"speculative": "ngram"}, {"max_loras": 2}],
)
def test_what_a_scenario_cannot_say_is_refused_by_name(settings: dict[str, object]) -> None:
    with pytest.raises(InputError, match="a scenario does not know"):
        scenario_text(_fit(**settings), rps=1, prompt_tokens=1, output_tokens=1)


def test_a_law_of_one_length_holds_as_many_as_that_length() -> None:
    found = _fit()
    law = concurrency_of_law(found, [(1000, 1)] * 3)
    assert law.requests == concurrency_at(found, 1000, 1) == found.start.num_blocks / 63
    assert law == (law.requests, 0, 3)


def test_requests_that_run_longer_count_as_often_as_they_have_output_tokens() -> None:
    found = _fit()
    # 16 + 1 tokens hold 1 block for 1 step; 1600 to 1615 tokens hold 100 to 101 for 16 steps.
    short, long = 1.0, 100 + 8 / 9  # 9 lengths from 1600 to 1615: the first needs 100, eight 101
    mean = (1 * short + 16 * long) / 17
    law = concurrency_of_law(found, [(16, 1), (1600, 16)])
    assert law.requests == pytest.approx(found.start.num_blocks / mean)


def test_requests_that_are_too_long_take_no_part_and_are_counted() -> None:
    found = _fit()
    law = concurrency_of_law(found, [(1000, 1), (8192, 1), (9000, 10)])
    assert (law.refused, law.of) == (2, 3)
    assert law.requests == concurrency_at(found, 1000, 1)
    with pytest.raises(InputError, match="no request of these lengths"):
        concurrency_of_law(found, [(8192, 1)])


def test_sampled_lengths_are_those_of_the_preset_and_the_same_again() -> None:
    for name, mean in (("azure-conv-2023", 1155), ("sharegpt", None)):
        pairs = sample_lengths(name, 2000)
        assert pairs == sample_lengths(name, 2000)
        assert len(pairs) == 2000
        if mean:
            assert sum(prompt for prompt, _ in pairs) / 2000 == pytest.approx(mean, rel=0.08)
    with pytest.raises(InputError, match="no preset"):
        sample_lengths("nothing", 1)
