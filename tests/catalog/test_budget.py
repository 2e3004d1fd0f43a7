from __future__ import annotations

import json
from pathlib import Path
from statistics import median
from typing import Any

import pytest

from kvsim.catalog import (
    GIB,
    Budget,
    compute_budget,
    explain_budget,
    get_gpu,
    get_model,
    kv_bytes_per_token,
)
from kvsim.errors import InputError

STARTUPS = Path(__file__).parent / "data" / "vllm_startups.jsonl"


def budget_of(row: dict[str, Any]) -> Budget:
    return compute_budget(
        get_model(row["model"]),
        get_gpu(row["gpu"]),
        tp=row["tp"],
        gpu_memory_utilization=row["gpu_memory_utilization"],
        max_num_batched_tokens=row["max_num_batched_tokens"],
        max_num_seqs=row["max_num_seqs"] or 256,
    )


def llama_on_a100(**changes: Any) -> Budget:
    settings = {"max_num_batched_tokens": 8192, "max_num_seqs": 256} | changes
    return compute_budget(get_model("llama-3-8b"), get_gpu("a100-40gb"), **settings)


@pytest.mark.parametrize("line", STARTUPS.read_text(encoding="utf-8").splitlines())
def test_the_printed_pool_of_a_real_start_lies_in_the_interval(line: str) -> None:
    row = json.loads(line)
    budget = budget_of(row)
    assert budget.weights.bytes == pytest.approx(row["weights_gib"] * GIB, rel=0.01)
    if row["activation_peak_gib"] is not None:
        peak = row["activation_peak_gib"] * GIB
        assert budget.activation_peak.bytes == pytest.approx(peak, rel=0.16)
    pool = row["available_kv_gib"] * GIB
    assert budget.kv_pool.low <= pool <= budget.kv_pool.high
    assert budget.kv_pool.bytes == pytest.approx(pool, rel=0.11)
    if row["num_gpu_blocks"] is not None:
        assert budget.num_blocks_low <= row["num_gpu_blocks"] <= budget.num_blocks_high


MODELS = {
    "Llama-3.1-8B-Instruct": "llama-3.1-8b",
    "Qwen2.5-7B-Instruct": "qwen2.5-7b",
    "DeepSeek-R1-Distill-Qwen-7B": "qwen2.5-7b",
    "Qwen3-8B": "qwen3-8b",
}
GPUS = {"RTX 3090": "rtx3090", "V100 32GB": "v100-32gb", "A100 40GB": "a100-40gb"}


def test_consistent_start_ups_of_the_reference_material_miss_by_3_percent_in_the_median(
    shared: Path,
) -> None:
    errors = []
    lines = (shared / "facts" / "memory_logs.jsonl").read_text(encoding="utf-8").splitlines()
    for row in map(json.loads, lines):
        known = row["model"] in MODELS and row["gpu"] in GPUS and row["max_num_batched_tokens"]
        if known and row["status"] == "consistent" and row["server"] == "vllm":
            row["model"], row["gpu"] = MODELS[row["model"]], GPUS[row["gpu"]]
            pool = row["available_kv_gib"] * GIB
            errors.append(abs(budget_of(row).kv_pool.bytes / pool - 1))
    assert len(errors) >= 5
    assert median(errors) < 0.03
    assert max(errors) < 0.11


def test_the_terms_add_up_and_blocks_are_floored() -> None:
    budget = llama_on_a100()
    spent = budget.weights.bytes + budget.activation_peak.bytes + budget.non_torch.bytes
    assert budget.total.bytes == round(39.5 * GIB)
    assert budget.budget.bytes == int(39.5 * GIB * 0.9)
    assert budget.kv_pool.bytes == budget.budget.bytes - spent
    assert budget.block_bytes == 16 * 131_072
    assert budget.num_blocks == budget.kv_pool.bytes // (16 * 131_072) == 9887


def test_the_activation_peak_is_the_larger_of_feed_forward_and_sampler() -> None:
    sampler = llama_on_a100(max_num_batched_tokens=2048).activation_peak.bytes
    assert sampler == round(9.66 * 256 * 128_256 * 4)
    feed_forward = llama_on_a100(max_num_batched_tokens=16_384).activation_peak.bytes
    assert feed_forward == 16_384 * (3 * 14_336 + 3 * 4096) * 2


def test_cuda_graphs_cost_pool_only_inside_the_budget() -> None:
    outside, inside = llama_on_a100(), llama_on_a100(cuda_graphs_in_budget=True)
    assert outside.kv_pool.bytes - inside.kv_pool.bytes == inside.cuda_graphs.bytes > 0


def test_the_interval_of_the_pool_adds_those_of_its_terms_in_quadrature() -> None:
    budget = llama_on_a100(max_num_batched_tokens=16_384)
    spent = (budget.weights, budget.activation_peak, budget.non_torch)
    below = (budget.budget.bytes - budget.budget.low) ** 2
    below += sum((term.high - term.bytes) ** 2 for term in spent)
    above = (budget.budget.high - budget.budget.bytes) ** 2
    above += sum((term.bytes - term.low) ** 2 for term in spent)
    assert budget.kv_pool.bytes - budget.kv_pool.low == pytest.approx(below**0.5, abs=2)
    assert budget.kv_pool.high - budget.kv_pool.bytes == pytest.approx(above**0.5, abs=2)
    assert budget.num_blocks_low == budget.kv_pool.low // budget.block_bytes


def test_each_gpu_of_a_tensor_parallel_group_holds_its_share() -> None:
    model, gpu = get_model("llama-3-70b"), get_gpu("a100-80gb")
    budget = compute_budget(model, gpu, tp=4, max_num_batched_tokens=8192, max_num_seqs=256)
    assert budget.weights.bytes == pytest.approx(131.417 / 4 * GIB, rel=1e-3)
    assert budget.block_bytes == 16 * kv_bytes_per_token(model, tp=4)


def test_a_model_that_does_not_fit_is_refused_with_the_arithmetic_and_a_way_out() -> None:
    with pytest.raises(InputError) as error:
        compute_budget(
            get_model("llama-3-70b"),
            get_gpu("a100-40gb"),
            max_num_batched_tokens=8192,
            max_num_seqs=256,
        )
    assert "35.55 GiB budget - 131.42 weights - 1.69 activation_peak" in error.value.problem
    assert error.value.fix is not None
    assert error.value.fix.startswith("Use tp 8, ")


def test_only_sizes_with_data_and_a_utilization_that_helps_are_advised() -> None:
    def fix(model: str, gpu: str, **settings: float) -> str:
        with pytest.raises(InputError) as error:
            compute_budget(
                get_model(model),
                get_gpu(gpu),
                max_num_batched_tokens=8192,
                max_num_seqs=256,
                **settings,  # type: ignore[arg-type]
            )
        return str(error.value.fix)

    assert fix("llama-3-70b", "t4").startswith("Use a GPU with more memory")  # 32 would hold it
    assert fix("llama-3-8b", "h100", gpu_memory_utilization=0.1).startswith(
        "Use gpu_memory_utilization 0.9, tp 4, "
    )
    assert "utilization" not in fix("llama-3-70b", "h100", gpu_memory_utilization=0.5)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("gpu_memory_utilization", 0.0),
        ("gpu_memory_utilization", 1.5),
        ("gpu_memory_utilization", float("nan")),
        ("block_size", 0),
        ("max_num_batched_tokens", 0),
        ("max_num_seqs", -1),
    ],
)
def test_limits_out_of_range_are_refused_by_name(name: str, value: float) -> None:
    with pytest.raises(InputError) as error:
        llama_on_a100(**{name: value})
    assert error.value.where == name


def test_an_explained_budget_shows_formula_and_interval_of_every_term() -> None:
    facts = {fact.name: fact for fact in explain_budget(llama_on_a100())}
    assert list(facts)[:2] == ["total", "budget"]
    assert "budget - weights - activation_peak - non_torch" in facts["kv_pool"].source
    assert "80 %" in facts["kv_pool"].source
    assert facts["num_blocks"].value == 9887
