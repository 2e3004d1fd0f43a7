from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.group import LayerGroup
from kvsim.core.grouped import GroupedAllocator
from kvsim.core.grow import GrowAllocator
from kvsim.core.orca_scheduler import OrcaScheduler
from kvsim.core.paged import PagedAllocator
from kvsim.core.protocols import NO_HIT, Allocator, Scheduler
from kvsim.core.request import Request, Sequence
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.vmm import VmmAllocator
from kvsim.cost import FixedClock
from kvsim.errors import InputError
from kvsim.report.memory_map import segments, totals
from kvsim.results import SnapshotRecorder, StepsRecorder, Tee
from kvsim.results.read_snapshots import read_snapshots
from kvsim.results.snapshots import MAX_EVENTS, MAX_MOMENTS, MAX_REGULAR, snapshots_text
from kvsim.sim import run_replica
from tests.results.fakes import S, plan

LIMIT = 64
LIMITS = {"max_num_seqs": 8, "max_model_len": LIMIT}
BUDGET = {"max_num_batched_tokens": 64}


def contiguous(reserve: str, placement: str) -> tuple[Allocator, Scheduler]:
    memory = ContiguousAllocator(40, 4, max_model_len=LIMIT, reserve=reserve, placement=placement)
    return memory, OrcaScheduler(memory, **LIMITS, **BUDGET)


def paged(null_block: bool) -> tuple[Allocator, Scheduler]:
    memory = PagedAllocator(40, 4, null_block=null_block)
    return memory, VllmScheduler(memory, **LIMITS, **BUDGET)


def vmm() -> tuple[Allocator, Scheduler]:
    memory = VmmAllocator(40, 4)
    return memory, VllmScheduler(memory, **LIMITS, **BUDGET)


def grow() -> tuple[Allocator, Scheduler]:
    memory = GrowAllocator(300, 2)
    return memory, StaticScheduler(memory, **LIMITS)


def grouped() -> tuple[Allocator, Scheduler]:
    """One full and one sliding group of blocks of twice the size."""
    groups = [LayerGroup("full", 2), LayerGroup("sliding", 4, 6)]
    limits: dict[str, Any] = {"max_model_len": LIMIT, "max_num_batched_tokens": 32}
    memory = GroupedAllocator(41, groups, async_scheduling=False, **limits)
    return memory, VllmScheduler(memory, max_num_seqs=8, **limits)


MEMORIES = {
    "paged": lambda: paged(True),
    "paged without null block": lambda: paged(False),
    "max, buddy": lambda: contiguous("max", "buddy"),
    "pow2, buddy": lambda: contiguous("pow2", "buddy"),
    "oracle, first fit": lambda: contiguous("oracle", "first_fit"),
    "virtual addresses": vmm,
    "grow": grow,
    "layer groups": grouped,
}


def requests(count: int = 60) -> list[Request]:
    """Lengths and gaps that vary without a generator."""
    return [Request(f"r{i}", i * S // 3, 1 + i * 7 % 29, 1 + i * i * 5 % 31) for i in range(count)]


def run(memory: Allocator, scheduler: Scheduler) -> tuple[dict[str, Any], dict[str, Any]]:
    """Snapshots and the columns of the steps of the same run."""
    steps, maps = StepsRecorder(memory), SnapshotRecorder(memory, scheduler.running)
    run_replica(requests(), scheduler, FixedClock(0.11), Tee(steps, maps))
    return maps.snapshots(), dict(steps.columns())


@pytest.mark.parametrize("name", MEMORIES)
def test_a_map_uses_as_many_slots_for_everything_as_the_memory_equation_says(name: str) -> None:
    snapshots, steps = run(*MEMORIES[name]())
    capacity = snapshots["capacity_slots"]
    assert len(snapshots["snapshots"]) > 10
    for snapshot in snapshots["snapshots"]:
        parts = segments(snapshot, kind=snapshots["kind"], capacity=capacity)
        ends = [one.start + one.slots for one in parts]
        assert [one.start for one in parts] == [0, *ends[:-1]]
        assert ends[-1] == capacity
        row = list(steps["time_s"]).index(snapshot["time_s"])
        slots = totals(parts)
        assert slots["not_listed"] == 0
        assert {
            "live_slots": slots["live"] + slots["shared"],
            "reservation_slots": slots["reservation"],
            "internal_tail_slots": slots["internal_tail"],
            "over_reservation_slots": slots["over_reservation"],
            "roundup_slots": slots["roundup"],
            "external_slots": slots["external"],
            "usable_free_slots": slots["free"],
        } == {column: steps[column][row] for column in COLUMNS}


COLUMNS = (
    "live_slots",
    "reservation_slots",
    "internal_tail_slots",
    "over_reservation_slots",
    "roundup_slots",
    "external_slots",
    "usable_free_slots",
)


@pytest.mark.parametrize("name", MEMORIES)
def test_the_extremes_are_those_of_the_run_within_one_percent(name: str) -> None:
    snapshots, steps = run(*MEMORIES[name]())
    by_why = {one["why"]: one for one in snapshots["snapshots"]}
    for why, column in (
        ("most external", "external_slots"),
        ("most allocated", "allocated_slots"),
        ("most waiting", "waiting"),
    ):
        most = max(steps[column])
        assert (why in by_why) == (most > 0)
        if most:
            row = list(steps["time_s"]).index(by_why[why]["time_s"])
            assert steps[column][row] >= most / 1.01


def test_external_fragmentation_is_among_the_memories_tested() -> None:
    snapshots, _ = run(*MEMORIES["pow2, buddy"]())
    assert "most external" in {one["why"] for one in snapshots["snapshots"]}


def recorder(calls: list[int], running: list[Sequence] | None = None) -> SnapshotRecorder:
    def look() -> list[Sequence]:
        calls.append(1)
        return running or []

    return SnapshotRecorder(PagedAllocator(100, 16), look)


def test_regular_moments_are_the_first_steps_of_equal_intervals_and_at_most_24() -> None:
    maps = recorder([])
    for second in range(1000):
        maps.step(plan(), second * S, S)
    times = [one["time_s"] for one in maps.snapshots()["snapshots"]]
    # The interval starts at 1 ms and doubles to 65.536 s, of which 1,000 s hold 16.
    assert times == [-(-65_536 * i // 1000) for i in range(16)]
    assert len(times) <= MAX_REGULAR


def test_the_running_requests_are_looked_at_only_when_a_map_is_taken() -> None:
    calls: list[int] = []
    maps = recorder(calls)
    for step in range(100_000):
        maps.step(plan(num_waiting=step), step * S // 50, S // 50)
    # 16 doublings of the interval, each with at most 12 new moments, and log(1e5) / log(1.01)
    # moments of most waiting requests.
    assert len(calls) < 25 * 12 + 1160


def test_a_block_of_two_tables_is_listed_as_shared_and_drawn_once() -> None:
    memory = PagedAllocator(11, 4)
    first, second = (Sequence(Request(name, 0, 8, 4), 64) for name in "ab")
    assert memory.admit(first, NO_HIT, 8, 0, 0)
    memory.pool.hold(first.table)
    second.table = first.table + memory.pool.take(1)
    first.computed, second.computed = 8, 10
    maps = SnapshotRecorder(memory, lambda: [first, second])
    maps.step(plan(), 0, S)
    snapshots = maps.snapshots()
    snapshot = snapshots["snapshots"][0]
    assert snapshot["shared"] == [[0, 8, 2]]
    assert snapshot["free"] == [[12, 28]]
    assert [one["extents"] for one in snapshot["requests"]] == [[[0, 8]], [[0, 12]]]
    slots = totals(segments(snapshot, kind="paged", capacity=40))
    assert (slots["shared"], slots["live"], slots["free"]) == (8, 2, 28)


def test_what_is_beyond_a_limit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvsim.results.snapshots.MAX_REQUESTS", 1)
    memory = PagedAllocator(11, 4)
    rows = [Sequence(Request(name * 300, 0, 8, 4), 64) for name in "ab"]
    for row in rows:
        assert memory.admit(row, NO_HIT, 8, 0, 0)
    maps = SnapshotRecorder(memory, lambda: rows)
    maps.step(plan(), 0, S)
    snapshot = maps.snapshots()["snapshots"][0]
    assert [one["id"] for one in snapshot["requests"]] == ["a" * 199 + "…"]
    assert snapshot["left_out"] == {"requests": 1, "slots": 8}
    slots = totals(segments(snapshot, kind="paged", capacity=40))
    assert (slots["not_listed"], slots["free"]) == (8, 24)


def test_a_run_gives_the_same_bytes_and_is_read_back_as_written(tmp_path: Path) -> None:
    texts = [snapshots_text(run(*MEMORIES["paged"]())[0]) for _ in range(2)]
    assert texts[0] == texts[1]
    (tmp_path / "snapshots.json").write_text(texts[0])
    assert read_snapshots(tmp_path) == json.loads(texts[0])
    assert read_snapshots(tmp_path / "elsewhere") is None


def changed(**changes: Any) -> dict[str, Any]:
    """Snapshots of one request that holds 8 of 40 slots, with `changes` to the snapshot."""
    request = {"id": "a", "live_tokens": 8, "final_tokens": 9, "extents": [[0, 8]]}
    snapshot = {
        "time_s": 0.0,
        "why": "regular",
        "waiting": 0,
        "external_slots": 0,
        "requests": [request],
        "free": [[8, 32]],
        "shared": [],
        **changes,
    }
    return {"kind": "paged", "capacity_slots": 40, "block_size": 4, "snapshots": [snapshot]}


BAD = {
    "a range beyond the memory": changed(free=[[8, 33]]),
    "a negative start": changed(free=[[-1, 2]]),
    "an empty range": changed(free=[[8, 0]]),
    "true as a number": changed(free=[[True, 2]]),
    "time that is no number": changed(time_s="0"),
    "infinite time": changed(time_s=1e300),
    "another why": changed(why="</script>"),
    "no object of what is left out": changed(left_out=3),
    "less than nothing left out": changed(left_out={"requests": -1}),
    "a request without id": changed(requests=[{"extents": []}]),
    "extents outside": changed(
        requests=[{"id": "a", "live_tokens": 1, "final_tokens": 1, "extents": [[39, 2]]}]
    ),
    "a tensor outside": changed(tensor={"start_slot": 39, "slots": 2, "rows": 1, "width": 1}),
    "more rows than cells": changed(
        tensor={"start_slot": 0, "slots": 2, "rows": 2**40, "width": 1}
    ),
    "too many moments": {**changed(), "snapshots": changed()["snapshots"] * (MAX_MOMENTS + 1)},
    "another kind": {**changed(), "kind": "x"},
    "a list": [],
}


@pytest.mark.parametrize("case", BAD)
def test_a_snapshot_that_no_run_writes_is_refused(case: str, tmp_path: Path) -> None:
    (tmp_path / "snapshots.json").write_text(json.dumps(BAD[case]))
    with pytest.raises(InputError) as caught:
        read_snapshots(tmp_path)
    assert caught.value.where == str(tmp_path / "snapshots.json")


def test_the_unchanged_example_is_accepted(tmp_path: Path) -> None:
    (tmp_path / "snapshots.json").write_text(json.dumps(changed()))
    assert read_snapshots(tmp_path) == changed()


@pytest.mark.parametrize("content", [b"{", b"\xff\xfe", b"[" * 100_000])
def test_what_is_not_json_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "snapshots.json").write_bytes(content)
    with pytest.raises(InputError):
        read_snapshots(tmp_path)


def test_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "real.json").write_text(json.dumps(changed()))
    (tmp_path / "snapshots.json").symlink_to(tmp_path / "real.json")
    with pytest.raises(InputError, match="regular file"):
        read_snapshots(tmp_path)


def moments(snapshots: dict[str, Any], why: str) -> list[float]:
    return [one["time_s"] for one in snapshots["snapshots"] if one["why"] == why]


def test_a_preemption_has_the_map_of_its_own_step() -> None:
    snapshots, steps = run(*paged(True))
    preempting = [
        time for time, count in zip(steps["time_s"], steps["preemptions"], strict=True) if count
    ]
    assert 0 < len(preempting) <= MAX_EVENTS
    assert moments(snapshots, "preemption") == preempting


def test_a_hold_up_has_the_map_of_the_step_with_which_it_begins() -> None:
    snapshots, steps = run(*contiguous("pow2", "buddy"))
    external = list(steps["external_slots"])
    begins = [
        time
        for time, before, now in zip(steps["time_s"], [0, *external], external, strict=False)
        if now and not before
    ]
    assert 0 < len(begins) <= MAX_EVENTS
    assert moments(snapshots, "held up") == begins


def test_events_of_a_long_run_are_thinned_to_the_first_of_equal_intervals() -> None:
    calls: list[int] = []
    maps = recorder(calls)
    victim = Sequence(Request("a", 0, 8, 4), 64)
    for second in range(1000):
        held = plan(head_held_up=second % 2 == 1)
        held.preempted.append(victim)
        maps.step(held, second * S, S)
    snapshots = maps.snapshots()
    # The interval starts at 1 ms and doubles to 131.072 s, of which 1,000 s hold 8.
    assert moments(snapshots, "preemption") == [-(-131_072 * i // 1000) for i in range(8)]
    assert all(time % 2 == 1 for time in moments(snapshots, "held up"))
    assert len(moments(snapshots, "held up")) == 8
    # 17 doublings of the interval, each with at most 12 new moments of each kind.
    assert len(calls) < 17 * (24 + 12 + 12)


def test_a_large_pool_keeps_the_maps_of_two_events_of_a_kind() -> None:
    maps = SnapshotRecorder(PagedAllocator(1 << 19, 16), list)
    victim = Sequence(Request("a", 0, 8, 4), 64)
    for second in range(100):
        preempting = plan()
        preempting.preempted.append(victim)
        maps.step(preempting, second * S, S)
    assert len(moments(maps.snapshots(), "preemption")) == 2
