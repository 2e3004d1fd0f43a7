from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvsim.catalog import GIB, explain_gpu, get_engine, get_gpu, list_gpus
from kvsim.errors import InputError


@pytest.mark.parametrize(
    ("name", "low_gib", "high_gib"),
    [
        ("a100-40gb", 39.4, 39.6),
        ("a100-80gb", 79.1, 79.3),
        ("h100", 79.1, 79.3),
        ("h200", 139.8, 139.8),
        ("l40s", 44.3, 44.4),
        ("v100-32gb", 31.7, 31.7),
        ("rtx4090", 23.5, 23.7),
        ("rtx5090", 31.4, 31.4),
        ("t4", 14.56, 14.74),
        ("a10", 22.06, 22.06),
        ("b200", 178, 178),
    ],
)
def test_memory_is_what_cuda_reports_not_the_nominal_size(
    name: str, low_gib: float, high_gib: float
) -> None:
    gpu = get_gpu(name)
    assert (gpu.reported_gib_low, gpu.reported_gib_high) == (low_gib, high_gib)
    assert gpu.reported_bytes == pytest.approx((low_gib + high_gib) / 2 * GIB, abs=1)


@pytest.mark.parametrize(
    ("name", "bandwidth", "flops"),
    [("a100-40gb", 1555e9, 312e12), ("h100", 3350e9, 989e12), ("l4", 300e9, 121e12)],
)
def test_datasheet_figures(name: str, bandwidth: float, flops: float) -> None:
    gpu = get_gpu(name)
    assert (gpu.memory_bw, gpu.flops["bf16"]) == (bandwidth, flops)


def test_every_gpu_loads_and_explains_every_number() -> None:
    assert len(list_gpus()) >= 8
    for name in list_gpus():
        gpu = get_gpu(name)
        assert gpu.reported_bytes < gpu.memory_bytes
        facts = explain_gpu(gpu)
        assert all(fact.source for fact in facts)
        assert len({fact.name for fact in facts}) == len(facts)


def test_explained_constants_carry_their_error() -> None:
    facts = {fact.name: fact for fact in explain_gpu(get_gpu("h100"))}
    assert facts["gemm.bf16.eta_bw"].value == 0.919
    assert facts["gemm.bf16.eta_bw"].source == "fitted here; error median 5.5 %, p90 14.8 %"
    facts = {fact.name: fact for fact in explain_gpu(get_gpu("a100-40gb"))}
    assert facts["gemm.bf16.eta_bw"].source == "class default, 15 % assumed"


@pytest.mark.parametrize(
    ("alias", "name"), [("a100_40_sxm", "a100-40gb"), ("H100", "h100"), ("3090", "rtx3090")]
)
def test_aliases_find_the_gpu(alias: str, name: str) -> None:
    assert get_gpu(alias).name == name


def test_an_unknown_gpu_lists_its_neighbours() -> None:
    with pytest.raises(InputError, match=r"'a100-40gbb'.*Did you mean a100-40gb"):
        get_gpu("a100-40gbb")


def test_names_and_aliases_are_unique() -> None:
    names = [n for name in list_gpus() for n in (name, *get_gpu(name).aliases)]
    assert len(names) == len(set(names))


def test_engines_have_host_times_and_none_has_no_host() -> None:
    assert get_engine("SGLang").host_row_s == 1.637e-05
    assert get_engine("trtllm").host_s == 0.0008666
    assert (get_engine("none").host_s, get_engine("none").host_row_s) == (0.0, 0.0)
    assert (get_engine("vllm").host_s, get_engine("vllm").host_row_s) == (0.002312, 3.09e-05)
    with pytest.raises(InputError, match=r"engine 'vlm'.*All: sglang, trtllm, vllm, none"):
        get_engine("vlm")


def test_constants_equal_those_of_the_reference_material(shared: Path) -> None:
    reference = json.loads((shared / "cost" / "gpus.json").read_text(encoding="utf-8"))["gpus"]
    for key, entry in reference.items():
        gpu, fit = get_gpu(key), entry["fit"]
        assert gpu.memory_bw == entry["datasheet"]["mem_bw"]
        assert gpu.flops == entry["datasheet"]["flops"]
        assert gpu.measured == entry["measured"]
        for dtype, constants in fit["gemm"].items():
            ours = gpu.fit.gemm[dtype]
            assert (ours.launch_s, ours.k_loop_s) == (constants["t0"], constants["tk"])
            assert (ours.eta_bw, ours.eta_f) == (constants["eta_bw"], constants["eta_f"])
        for dtype, constants in fit["attn_decode"].items():
            assert gpu.fit.attn_decode[dtype].row_s == constants["t_cta"]
        assert gpu.fit.attn_prefill.fill_rows == fit["attn_prefill"]["fill_rows"]
        assert {tp: f.bus_bw for tp, f in gpu.fit.allreduce.items()} == {
            int(tp): f["bw"] for tp, f in fit["allreduce"].items()
        }
        assert gpu.fit.mixed_kappa == fit["mixed_kappa"]
