from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch

from gpu_backend.bench.timing import CudaStopwatch, WallStopwatch, interleave


class Listed:
    """A sample with given times, which notes its turns."""

    def __init__(self, name: str, us: list[float], turns: list[str]) -> None:
        self.how = name
        self._us, self._turns = iter(us), turns

    def seconds(self) -> float:
        self._turns.append(self.how)
        return next(self._us) / 1e6


def test_samples_take_turns_and_medians_are_taken() -> None:
    turns: list[str] = []
    first = Listed("a", [5, 1, 9, 2, 100], turns)
    second = Listed("b", [7, 7, 7, 7, 8], turns)
    one, two = interleave([first, second], budget_s=0, replays=(5, 50))
    assert turns == ["a", "b"] * 5
    assert one.us == pytest.approx(5)
    assert (one.low_us, one.high_us) == (pytest.approx(2), pytest.approx(9))
    assert (two.us, two.how, two.replays) == (pytest.approx(7), "b", 5)
    assert one.row("x_")["x_us"] == one.us


def test_there_are_never_more_rounds_than_asked_for() -> None:
    (found,) = interleave([Listed("a", [1.0] * 9, [])], budget_s=1e9, replays=(2, 7))
    assert found.replays == 7


def test_a_wall_stopwatch_divides_by_the_calls() -> None:
    called: list[int] = []
    sample = WallStopwatch().prepare([lambda: called.append(1), lambda: called.append(2)])
    assert sample.seconds() >= 0
    assert called == [1, 2]


class FakeCuda:
    """What the stopwatch uses of torch.cuda: a graph notes its calls, time goes `ms` per call."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, *, ms: float, refuses: bool) -> None:
        self.now, self.ms = 0.0, ms
        self.refuses = refuses
        self.recording: list[Callable[[], object]] | None = None
        for name, value in {
            "Event": self.event, "CUDAGraph": self.new_graph, "graph": self.graph,
            "synchronize": lambda: None,
        }.items():  # fmt: skip
            monkeypatch.setattr(torch.cuda, name, value)

    def call(self) -> None:
        if self.recording is not None:
            if self.refuses:
                raise RuntimeError("operation not permitted when stream is capturing")
            self.recording.append(self.call)
        else:
            self.now += self.ms

    def event(self, enable_timing: bool) -> Any:
        cuda = self

        class Event:
            at = -1.0

            def record(self) -> None:
                self.at = cuda.now

            def synchronize(self) -> None:
                pass

            def elapsed_time(self, end: Any) -> float:
                return float(end.at - self.at)

        return Event()

    def new_graph(self) -> Any:
        class Graph:
            calls: list[Callable[[], object]]

            def replay(self) -> None:
                for call in self.calls:
                    call()

        return Graph()

    @contextlib.contextmanager
    def graph(self, graph: Any) -> Iterator[None]:
        graph.calls = self.recording = []
        try:
            yield
        finally:
            self.recording = None


@pytest.mark.parametrize(("refuses", "how"), [(False, "graph"), (True, "events")])
@pytest.mark.parametrize(("ms", "passes"), [(1.0, 1), (0.125, 3), (1e-6, 64)])
def test_calls_are_replayed_as_a_graph_or_one_by_one(
    ms: float, passes: int, refuses: bool, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    cuda = FakeCuda(monkeypatch, ms=ms, refuses=refuses)
    sample = CudaStopwatch().prepare([cuda.call] * 6)
    assert cuda.now >= 12 * ms  # compiled and warm before anything is captured
    before = cuda.now
    (found,) = interleave([sample], budget_s=0)
    assert (found.how, found.us) == (how, pytest.approx(1000 * ms))
    assert cuda.now - before == pytest.approx(found.replays * 6 * passes * ms)


def test_launching_one_by_one_can_be_asked_for(monkeypatch: pytest.MonkeyPatch) -> None:
    cuda = FakeCuda(monkeypatch, ms=1.0, refuses=False)
    assert CudaStopwatch().prepare([cuda.call], graph=False).how == "events"
