"""Which limit binds a load, against closed forms, a report of the field and the simulator."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kvsim.catalog import get_gpu, get_model
from kvsim.errors import InputError
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.load import Load, bounds, concurrency_at
from kvsim.scenario import Scenario, run_scenario
from tests.cli.conftest import Command, kvsim

__all__ = ["kvsim"]


def fitted(model: str, gpu: str, **settings: Any) -> Fit:
    return fit(get_model(model), get_gpu(gpu), FitSettings(**settings))


@pytest.mark.parametrize("output", [2, 200])
def test_long_prompts_bind_by_computation_while_the_memory_is_not_full(output: int) -> None:
    """Case 21 (llm-d-autoscaling issue 662): 8 requests/s of 6,000 tokens, one H100, 8B model."""
    found = fitted("llama-3.1-8b", "h100", max_model_len=8192, max_num_batched_tokens=65_000)
    answer = bounds(found, Load(8, 6000, output))
    assert answer.prefill_utilization > 1
    assert answer.binding == "prefill"
    assert not answer.holds
    assert answer.compute_rps < 1.1 * answer.kv_rps
    assert answer.running is None


def test_little_memory_binds_before_computation() -> None:
    """A 70B model on two H100s has room for few requests; four have the memory and more."""
    few = bounds(fitted("llama-3-70b", "h100", tensor_parallel_size=2), Load(0.5, 4000, 500))
    assert few.binding == "KV memory"
    assert few.sustained_rps == few.kv_rps < 0.2 * few.compute_rps
    four = bounds(fitted("llama-3-70b", "h100", tensor_parallel_size=4), Load(0.5, 4000, 500))
    assert four.holds
    assert four.kv_usage is not None
    assert 0 < four.kv_usage < 1


def test_a_small_max_num_seqs_binds() -> None:
    """At a quarter of the batch that the memory would hold."""
    found = fitted("llama-3.1-8b", "h100", max_num_seqs=16, max_model_len=8192)
    answer = bounds(found, Load(1, 1000, 300))
    assert answer.binding == "max_num_seqs"
    assert answer.sustained_rps == answer.seqs_rps


def test_twice_the_load_has_littles_law_of_requests_running() -> None:
    """Running = rate * time in the system, and the time grows with the batch."""
    found = fitted("llama-3.1-8b", "h100", max_model_len=8192)
    one, two = (bounds(found, Load(rps, 1000, 300)) for rps in (4, 8))
    assert one.running is not None
    assert two.running is not None
    assert two.running > 2 * one.running
    assert one.prefill_utilization * 2 == pytest.approx(two.prefill_utilization)


POOL = {
    "total": round(8169 * 2**21 / 0.92) + 2**21,
    **dict.fromkeys(("weights", "activation_peak", "non_torch", "cuda_graphs"), 0),
}
"""Terms that leave 8,169 blocks of Llama-3-8B, whatever is estimated elsewhere."""


def served(found: Fit, num_requests: int = 2500) -> tuple[float, int]:
    """Requests per second at saturation in the simulator, and preemptions, on the same clock."""
    flags = found.settings
    settings = Scenario.model_validate(
        {
            "version": 1,
            "profile": "plain",
            "model": found.model.name,
            "hardware": {"gpu": found.gpu.name},
            "engine": {
                "max_num_seqs": flags.max_num_seqs,
                "max_num_batched_tokens": flags.max_num_batched_tokens,
            },
            "memory": {"kind": "paged", "num_blocks": found.start.num_blocks},
            "measure": {"from_s": 60.0, "to_s": 240.0},
            "clock": {"kind": "calibrated"},
            "workload": {
                "lengths": {
                    "prompt": {"kind": "constant", "tokens": 1000},
                    "output": {"kind": "constant", "tokens": 300},
                },
                "arrivals": {"kind": "poisson", "rate_rps": 9.0},
                "num_requests": num_requests,
            },
        }
    )
    (entry,) = run_scenario(settings).summary["variants"].values()
    return entry["throughput"]["requests_per_s"], entry["preemptions"]


def test_the_bound_of_max_num_seqs_is_what_the_simulator_serves_at_saturation() -> None:
    """Equal requests on the same blocks and clock, nothing preempted: within 7 %, below it."""
    found = fitted("llama-3-8b", "a100-40gb", max_num_seqs=64, measured_bytes=POOL)
    answer = bounds(found, Load(9, 1000, 300))
    assert answer.binding == "max_num_seqs"
    simulated, preemptions = served(found)
    assert preemptions == 0
    assert 0.93 * answer.seqs_rps < simulated < answer.seqs_rps


def test_the_bound_of_the_memory_is_above_what_the_simulator_serves_at_saturation() -> None:
    """By what preempted requests cost, a fifth at most here: they are computed again."""
    found = fitted("llama-3-8b", "a100-40gb", max_num_seqs=1024, measured_bytes=POOL)
    answer = bounds(found, Load(9, 1000, 300))
    assert answer.binding == "KV memory"
    simulated, preemptions = served(found)
    assert preemptions > 0
    assert 0.8 * answer.kv_rps < simulated < answer.kv_rps


@pytest.mark.parametrize(
    ("load", "message"),
    [
        (Load(0, 10, 10), "must be above 0"),
        (Load(1, 0, 10), "must be from 1 to"),
        (Load(1, 8000, 1000), "have 9,000 tokens, max_model_len is 8,192"),
    ],
)
def test_a_load_out_of_range_is_refused(load: Load, message: str) -> None:
    """With the limit."""
    with pytest.raises(InputError, match=message):
        bounds(fitted("llama-3-8b", "h100"), load)


def test_concurrency_at_a_length_is_blocks_over_the_mean_of_a_life(kvsim: Command) -> None:
    """1,000 + 161 tokens in blocks of 16: 63 to 73 blocks, 67.85 at 33 places of a life."""
    found = fitted("llama-3-8b", "h100")
    lengths = [1000 + round(k / 32 * 160) for k in range(33)]
    mean = sum(-(-length // 16) for length in lengths) / 33
    expected = found.start.num_blocks / mean
    assert concurrency_at(found, 1000, 161) == pytest.approx(expected, rel=1e-12)
    answer = json.loads(
        kvsim(
            "fit", "llama-3-8b", "--gpu", "h100", "--json",
            "--prompt-tokens", "1000", "--output-tokens", "161",
        ).out
    )  # fmt: skip
    assert answer["load"] == {"concurrency": pytest.approx(expected, rel=1e-12)}


def test_the_command_names_the_binding_limit(kvsim: Command) -> None:
    """In words and as data; lengths are needed with a rate."""
    arguments = ["fit", "llama-3.1-8b", "--gpu", "h100", "--max-model-len", "8192", "--rps", "8"]
    lengths = ["--prompt-tokens", "6000", "--output-tokens", "200"]
    shown = kvsim(*arguments, *lengths)
    assert "prefill binds" in shown.out
    answer = json.loads(kvsim(*arguments, *lengths, "--json").out)
    assert answer["load"]["binding"] == "prefill"
    assert answer["load"]["holds"] is False
    refused = kvsim(*arguments)
    assert refused.status == 2
    assert "--prompt-tokens" in refused.err


def test_a_prompt_of_many_chunks_takes_the_sum_of_their_times(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Few of them are timed: what a chunk costs grows evenly with what is before it."""
    found = fitted("llama-3.1-8b", "h100", max_num_batched_tokens=32)
    load = Load(0.01, 60_000, 100)
    few = bounds(found, load)
    monkeypatch.setattr("kvsim.planning.load._CHUNKS", 10_000)
    every = bounds(found, load)
    assert few.prefill_utilization == pytest.approx(every.prefill_utilization, rel=1e-6)
    assert few.compute_rps == pytest.approx(every.compute_rps, rel=1e-6)
