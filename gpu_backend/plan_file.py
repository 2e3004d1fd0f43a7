"""The steps of one simulation as a file: what a device needs to run exactly those steps.

Not the plans themselves but what they follow from: the server, and which requests arrived before
which step. The schedulers of kvsim are exact, so the plans come out again, block ids included; the
counts of every step are in the file to show it. Needs nothing but the core, so a bare machine can
replay it.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from gpu_backend.device import DeviceSpec, MeasuringClock
from gpu_backend.executor import ModelShape
from gpu_backend.executor.build import DEVICES
from gpu_backend.server_spec import ServerSpec
from kvsim.core.plan import StepPlan
from kvsim.core.protocols import Allocator
from kvsim.core.request import Request
from kvsim.errors import InputError

FORMAT = "kvsim-plan-1"
MAX_BYTES = 200_000_000
MAX_STEPS = 100_000_000


class StepCounts(NamedTuple):
    """What a step does, in tokens and sequences: equal on both sides or the replay is wrong."""

    decodes: int
    context_tokens: int
    prefill_tokens: int
    chunks: int
    preempted: int
    allocated_slots: int

    @classmethod
    def of(cls, plan: StepPlan, allocator: Allocator) -> StepCounts:
        """Of a plan that `schedule()` has just made."""
        return cls(
            plan.num_decodes,
            plan.decode_context_tokens,
            plan.prefill_tokens,
            len(plan.chunks),
            len(plan.preempted),
            allocator.usage.allocated,
        )


class PlanFile(NamedTuple):
    """One variant's steps under one seed."""

    variant: str
    model: str
    shape: ModelShape
    layers: int
    measured_layers: tuple[int, ...]
    dtype: str
    attention_only: bool
    server: ServerSpec
    events: list[Request | int]
    """In order: a request that is added, or so many calls of `schedule()`."""
    steps: list[StepCounts]
    """Of every step with tokens."""

    def replay(self, start: Callable[[Any, Any], Callable[[StepPlan], None]]) -> None:
        """Drive a fresh server through the events.

        `start(allocator, scheduler)` returns what is called for every plan with tokens, between
        `schedule()` and `complete()`.
        """
        allocator, scheduler = self.server.build()
        run = start(allocator, scheduler)
        for event in self.events:
            if isinstance(event, Request):
                scheduler.add(event)
                continue
            for _ in range(event):
                plan = scheduler.schedule()
                if plan.scheduled_tokens:
                    run(plan)
                    scheduler.complete(plan)

    def run_once(
        self,
        where: DeviceSpec,
        wrap: Callable[[MeasuringClock], MeasuringClock] = lambda clock: clock,
    ) -> tuple[MeasuringClock, list[StepCounts]]:
        """Run the steps on a device: the clock, with a timing of each, and the counts of each.

        `wrap` may put another clock around the device's.
        """
        counts: list[StepCounts] = []
        clocks: list[MeasuringClock] = []

        def start(allocator: Any, scheduler: Any) -> Callable[[StepPlan], None]:
            clock = wrap(where.clock(allocator, scheduler, self.shape))
            clocks.append(clock)

            def run(plan: StepPlan) -> None:
                counts.append(StepCounts.of(plan, allocator))
                clock.step_seconds(plan)

            return run

        self.replay(start)
        return clocks[0], counts

    def measure(
        self, *, device: str, repeats: int = 3, **settings: Any
    ) -> Iterator[dict[str, Any]]:
        """Run the steps `repeats` times; a row per repeat and step, with its counts and times.

        `settings` are further fields of `DeviceSpec`. Every row names the plan by its digest, and
        the device. Raises `InputError` for a device that does not run the plan's type.
        """
        if self.dtype not in DEVICES[device]:
            raise InputError(f"the plan is one in {self.dtype}, which {device} does not run")
        where = DeviceSpec(
            device,
            self.layers,
            self.measured_layers,
            dtype=self.dtype,
            attention_only=self.attention_only,
            **settings,
        )
        plan = self.as_dict()["sha256"]
        for repeat in range(repeats):
            clock, counts = self.run_once(where)
            whose = {"plan": plan, "device_name": clock.device_name, "repeat": repeat}
            for step, (timing, count) in enumerate(zip(clock.timings, counts, strict=True)):
                times = {name: getattr(timing, name) for name in ("wall_s", "device_s", "host_s")}
                yield {**whose, "step": step, **count._asdict(), **times}

    def as_dict(self) -> dict[str, Any]:
        """Plain data for JSON, with its digest."""
        document: dict[str, Any] = {
            "format": FORMAT,
            "variant": self.variant,
            "model": self.model,
            "shape": self.shape._asdict(),
            "layers": self.layers,
            "measured_layers": list(self.measured_layers),
            "dtype": self.dtype,
            "attention_only": self.attention_only,
            "server": self.server._asdict(),
            "events": [event if isinstance(event, int) else list(event) for event in self.events],
            "steps": [list(step) for step in self.steps],
        }
        return {**document, "sha256": _digest(document)}


def _digest(document: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(document, sort_keys=True).encode()).hexdigest()


def plan_file_from(document: Any, where: str) -> PlanFile:
    """The file's content. Raises `InputError` for anything else, and for a changed file."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(f"is not a plan file: its `format` is not {FORMAT!r}", where=where)
    stated = document.pop("sha256", None)
    if stated != _digest(document):
        raise InputError("was changed after it was written: its sha256 differs", where=where)
    try:
        return PlanFile(
            str(document["variant"]),
            str(document["model"]),
            ModelShape(**document["shape"]),
            int(document["layers"]),
            tuple(int(layers) for layers in document["measured_layers"]),
            str(document["dtype"]),
            bool(document["attention_only"]),
            ServerSpec(**document["server"]),
            [_event(event) for event in document["events"]],
            [StepCounts(*step) for step in document["steps"]],
        )
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise InputError(f"cannot be understood: {str(error)[:200]}", where=where) from None


def read_plan_file(path: Path | str) -> PlanFile:
    """Read a plan file. Raises `InputError` naming the file."""
    where = str(path)
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_BYTES + 1)
        if len(content) > MAX_BYTES:
            raise InputError(f"is larger than {MAX_BYTES} bytes", where=where)
        document = json.loads(content)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from None
    except (ValueError, RecursionError):
        raise InputError("is not JSON", where=where) from None
    return plan_file_from(document, where)


def _event(event: Any) -> Request | int:
    if isinstance(event, list):
        return _request(event)
    if type(event) is not int or not 1 <= event <= MAX_STEPS:
        raise ValueError(f"an event is a request or 1 to {MAX_STEPS} steps, got {str(event)[:40]}")
    return event


def _request(fields: list[Any]) -> Request:
    """A request from JSON, where tuples have become lists."""
    request = Request(*fields)
    if request.branches is not None:
        raise ValueError("no device runs requests with branches")
    if request.segments is None:
        return request
    return request._replace(segments=tuple((_key(key), int(n)) for key, n in request.segments))


def _key(value: Any) -> Any:
    return tuple(_key(item) for item in value) if isinstance(value, list) else value
