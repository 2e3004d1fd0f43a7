"""Settings that the papers' scenarios brought: the recipe, presets of lengths, read efficiency."""

from __future__ import annotations

from pathlib import Path

import pytest

from kvsim.errors import InputError
from kvsim.scenario import (
    build_server,
    build_workload,
    load_scenario,
    resolved,
    run_scenario,
    shipped_scenarios,
    variants,
)
from tests.scenario.small import SCENARIO, write_small

RECIPE = "workload: {sosp23: {trace: sharegpt-opt-lengths, rate_rps: 4.0, duration_s: 5.0}"
LINEAR = "clock: {kind: linear, base_s: 0.1, context_token_s: 0.001"


def write(folder: Path, *changes: tuple[str, str]) -> str:
    text = SCENARIO
    for old, new in changes:
        assert old in text
        text = text.replace(old, new)
    return str(write_small(folder, text))


def with_recipe(folder: Path, workload: str) -> str:
    small = ("workload: {path: trace.csv}", workload)
    return write(folder, small, ("max_model_len: 16", "max_model_len: 2048"))


def test_a_missing_list_is_replaced_by_the_preset_and_that_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    scenario = load_scenario(with_recipe(tmp_path, RECIPE + ", fallback: {preset: sharegpt}}"))
    traffic = build_workload(scenario.workload, seed=0)
    assert traffic.workload.source == "sosp23 preset sharegpt"
    assert traffic.notes == [
        "trace sharegpt-opt-lengths is not in the folder $KVSIM_TRACES (sharegpt_opt_lengths.csv);"
        " preset sharegpt was used instead"
    ]
    with pytest.raises(InputError, match="leave out --strict-traces"):
        build_workload(scenario.workload, seed=0, strict_traces=True)


def test_a_missing_list_without_fallback_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("KVSIM_TRACES", raising=False)
    scenario = load_scenario(with_recipe(tmp_path, RECIPE + "}"))
    with pytest.raises(InputError, match=r"workload.sosp23.trace.*name a workload.fallback"):
        build_workload(scenario.workload, seed=0)


def test_the_preset_can_be_named_at_once_and_needs_no_note(tmp_path: Path) -> None:
    text = "workload: {sosp23: {preset: sharegpt, rate_rps: 4.0, duration_s: 5.0}}"
    traffic = build_workload(load_scenario(with_recipe(tmp_path, text)).workload, seed=0)
    assert (traffic.workload.source, traffic.notes) == ("sosp23 preset sharegpt", [])
    other = build_workload(load_scenario(with_recipe(tmp_path, text)).workload, seed=1)
    assert other.workload.digest != traffic.workload.digest


@pytest.mark.parametrize("sources", ["", "trace: sharegpt-opt-lengths, preset: sharegpt, "])
def test_the_recipe_needs_exactly_one_source(tmp_path: Path, sources: str) -> None:
    path = with_recipe(tmp_path, f"workload: {{sosp23: {{{sources}rate_rps: 4.0}}}}")
    with pytest.raises(InputError, match=r"workload.sosp23 needs either trace or preset") as error:
        load_scenario(path)
    assert str(error.value).startswith(f"{path}:8:")


def test_the_list_is_read_where_it_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, shared: Path
) -> None:
    monkeypatch.setenv("KVSIM_TRACES", str(shared / "traces"))
    scenario = load_scenario("papers/sosp23-fig2")
    traffic = build_workload(scenario.workload, seed=0, strict_traces=True)
    rows = list(traffic.workload)
    assert (len(rows), traffic.notes) == (3604, [])
    assert (rows[4].prompt_tokens, rows[4].output_tokens) == (675, 848)


def test_laws_of_arrivals_take_a_preset_of_lengths(tmp_path: Path) -> None:
    text = (
        "workload: {num_requests: 50, arrivals: {kind: poisson, rate_rps: 4.0},"
        " lengths: {preset: sharegpt}}"
    )
    traffic = build_workload(load_scenario(with_recipe(tmp_path, text)).workload, seed=0)
    assert len({row.output_tokens for row in traffic.workload}) > 30


def test_a_scenario_with_the_recipe_resolves_to_itself(tmp_path: Path) -> None:
    scenario = load_scenario("papers/sosp23-fig18b")
    copy = tmp_path / "copy.yaml"
    copy.write_text(resolved(scenario))
    assert resolved(load_scenario(str(copy))) == copy.read_text()


def test_reading_context_takes_longer_by_the_efficiency_of_the_block_size(tmp_path: Path) -> None:
    """Two decode steps over contexts of 5 and 6 tokens: 0.1 + 5 * 0.001 / 0.5 s, and so on."""
    path = write(
        tmp_path,
        ("clock: {kind: fixed, step_s: 1.0}", LINEAR + ", read_efficiency: {4: 0.5, 8: 1.0}}"),
    )
    slow = run_scenario(load_scenario(path)).summary["variants"]["paged"]
    wide = ["memory.block_size=8"]
    fast = run_scenario(load_scenario(path, wide)).summary["variants"]["paged"]
    assert slow["duration_s"] == pytest.approx(0.1 * 3 + (5 + 6) * 0.001 / 0.5)
    assert fast["duration_s"] == pytest.approx(0.1 * 3 + (5 + 6) * 0.001)


def test_a_block_size_without_an_efficiency_is_refused_in_any_variant(tmp_path: Path) -> None:
    clock = LINEAR + ", read_efficiency: {4: 0.5}}"
    path = write(tmp_path, ("clock: {kind: fixed, step_s: 1.0}", clock))
    with pytest.raises(InputError, match=r"no entry for memory.block_size = 8. Add 8 with"):
        load_scenario(path, ["memory.block_size=8"])
    with pytest.raises(InputError, match=r"compare.contiguous-max: clock.read_efficiency has no"):
        load_scenario(path, ["compare.contiguous-max.memory.block_size=2"])


@pytest.mark.parametrize("table", ["{4: 0}", "{4: 1.5}", "{zero: 1}", "{0: 1}", "[1]"])
def test_a_wrong_table_of_efficiencies_is_refused(tmp_path: Path, table: str) -> None:
    clock = f"{LINEAR}, read_efficiency: {table}}}"
    path = write(tmp_path, ("clock: {kind: fixed, step_s: 1.0}", clock))
    with pytest.raises(InputError, match=r"clock\.read_efficiency"):
        load_scenario(path)


def test_variants_of_fig_18b_share_the_slots_and_differ_in_reading() -> None:
    named = variants(load_scenario("papers/sosp23-fig18b"))
    servers = {name: build_server(settings) for name, settings in named.items()}
    slots = {server.allocator.capacity_slots for server in servers.values()}
    assert min(slots) > 15_728 - 256
    assert max(slots) == 15_728
    facts = {
        name: {fact.name: fact.value for fact in server.sizing.clock.explain()}
        for name, server in servers.items()
    }
    assert facts["block-16"]["context_token_s"] == 9.15e-7
    assert facts["block-1"]["context_token_s"] == pytest.approx(9.15e-7 / 0.3)


def test_scenarios_in_folders_have_a_full_and_a_short_name() -> None:
    assert {"papers/sosp23-fig2", "claims/large-blocks"} <= set(shipped_scenarios())
    assert load_scenario("sosp23-fig2") == load_scenario("papers/sosp23-fig2")
    with pytest.raises(InputError, match="Did you mean papers/sosp23-fig2"):
        load_scenario("paper-sosp23-fig2")
