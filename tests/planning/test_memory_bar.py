from __future__ import annotations

import pytest

from kvsim.catalog import GIB, get_gpu, get_model
from kvsim.planning.fit import Fit, FitSettings, fit
from kvsim.planning.memory_bar import memory_bar_figure
from kvsim.planning.other_answer import other_answer
from kvsim.planning.releases import release_of


def _fit(model: str = "llama-3.1-8b", version: str = "0.21", **settings: object) -> Fit:
    given = FitSettings(**settings)  # type: ignore[arg-type]
    return fit(get_model(model), get_gpu("h100"), given, release=release_of(version))


def test_the_parts_of_a_bar_are_the_whole_memory_of_the_gpu() -> None:
    found = _fit()
    figure = memory_bar_figure({"a": found})
    bars = {trace["name"]: trace["x"][0] for trace in figure["data"] if trace["type"] == "bar"}
    assert sum(bars.values()) == pytest.approx(found.budget.total.bytes / GIB, abs=0.005)
    assert bars["KV pool"] == round(found.budget.kv_pool.bytes / GIB, 3)
    outside = found.budget.total.bytes - found.budget.budget.bytes
    assert bars["outside the budget"] == pytest.approx(outside / GIB, abs=0.002)


def test_graphs_outside_the_budget_are_drawn_after_the_pool_and_take_of_what_is_outside() -> None:
    found = _fit(version="0.11")
    names = [trace["name"] for trace in memory_bar_figure({"a": found})["data"]]
    assert names.index("cuda graphs") > names.index("KV pool")
    bars = {
        trace["name"]: trace["x"][0]
        for trace in memory_bar_figure({"a": found})["data"]
        if trace["type"] == "bar"
    }
    spare = found.budget.total.bytes - found.budget.budget.bytes - found.budget.cuda_graphs.bytes
    assert bars["outside the budget"] == pytest.approx(spare / GIB, abs=0.002)


def test_a_pool_below_zero_is_not_drawn_and_its_whisker_stays_on_the_scale() -> None:
    found = _fit("llama-3.1-70b")
    assert found.budget.kv_pool.bytes < 0
    traces = memory_bar_figure({"a": found})["data"]
    bars = {trace["name"]: trace["x"][0] for trace in traces if trace["type"] == "bar"}
    assert bars["KV pool"] == 0
    assert bars["weights"] > found.budget.total.bytes / GIB
    whisker = traces[-1]
    assert whisker["x"][0] - whisker["error_x"]["arrayminus"][0] >= 0


def test_the_whiskers_end_where_the_interval_of_the_pool_does() -> None:
    found = _fit()
    whisker = memory_bar_figure({"a": found})["data"][-1]
    pool = found.budget.kv_pool
    assert whisker["error_x"]["arrayminus"][0] == round((pool.bytes - pool.low) / GIB, 3)
    assert whisker["error_x"]["array"][0] == round((pool.high - pool.bytes) / GIB, 3)


def test_set_ups_of_several_servers_stand_one_below_the_other_and_names_are_escaped() -> None:
    llama = other_answer("llama.cpp", get_model("llama-3.1-8b"), get_gpu("h100"), FitSettings())
    figure = memory_bar_figure({"<b>": _fit(), "b": llama})
    assert figure["data"][0]["y"] == ["&lt;b&gt;", "b"]
    by_name = {trace["name"]: trace for trace in figure["data"]}
    assert by_name["compute buffer"]["x"][0] is None
    assert by_name["KV pool"]["x"][1] == round(llama.terms[-1].bytes / GIB, 3)
