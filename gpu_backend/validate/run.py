"""`kvsim validate`: run a scenario on a device and judge the clock that predicted it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from gpu_backend.device import MeasuringClock
from gpu_backend.plan_file import PlanFile, StepCounts
from gpu_backend.scenario_device import Runnable, grid_of, runnable_variants
from gpu_backend.validate.framework import framework_fragmentation
from gpu_backend.validate.free import CLOSED, Load, Pair, cpu_share, run_side
from gpu_backend.validate.lockstep import Lockstep, Simulated, simulate
from gpu_backend.validate.profile_check import check_profile
from gpu_backend.validate.record import RunRecorder
from gpu_backend.validate.replayed import LOCKSTEP_FILE, read_rows
from gpu_backend.validate.speed import ProbedClock, SpeedProbe
from gpu_backend.validate.traffic import all_at_once, at_rate, first_requests
from kvsim.core.request import Request
from kvsim.cost.profile import Profile
from kvsim.cost.profile_clock import ProfileClock
from kvsim.errors import InputError
from kvsim.scenario.settings import Scenario

LIMITS = ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "slots")
MIN_SEEDS = 5
QUIET_SHARE = 0.98
"""A run that had the CPU for less of its time is measured again."""
MAX_ATTEMPTS = 4
Progress = Callable[[float], None]


class Evidence(NamedTuple):
    """Everything that was run for one variant."""

    runnable: Runnable
    knee_rps: float
    """Saturation rate that the simulation predicts, mean over the seeds."""
    simulated: Simulated
    """Of the lockstep steps."""
    lockstep: Lockstep
    counts_equal: bool
    checked_rows: int
    pairs: dict[str, list[Pair]]
    """By load."""


class _Run(NamedTuple):
    """A measured run."""

    recorder: RunRecorder
    slowness: float
    cpu_share: float | None

    @property
    def is_quiet(self) -> bool:
        """Whether nothing is known to have disturbed it."""
        return self.cpu_share is None or self.cpu_share >= QUIET_SHARE


class Validation:
    """One validation: construct, `run`, read `document`."""

    def __init__(
        self,
        scenario: Scenario,
        profile: Profile,
        *,
        device: str,
        strict_traces: bool = False,
        follow_speed: bool = True,
        progress: Progress = lambda share: None,
    ) -> None:
        """`follow_speed` scales the clock by the device's slowness around each run.

        Raises `InputError` for a profile of another model or device, fewer than five seeds, and
        what no device runs.
        """
        self.scenario, self.profile, self.device = scenario, profile, device
        self.runnables = runnable_variants(scenario, device)
        check_profile(profile, self.runnables, device)
        if len(scenario.seeds) < MIN_SEEDS:
            raise InputError(
                f"a validation needs {MIN_SEEDS} seeds and more, got {len(scenario.seeds)}",
                where="seeds",
                fix=f"--set 'seeds=[{', '.join(map(str, range(MIN_SEEDS)))}]'",
            )
        self._requests = {
            seed: first_requests(scenario, seed, strict_traces) for seed in scenario.seeds
        }
        self._progress = progress
        self._done = 0
        limits = profile.document["limits"]
        spec = grid_of(scenario, device)._replace(**{name: limits[name] for name in LIMITS})
        self._probe = SpeedProbe(spec, profile) if follow_speed else None
        self.evidence: dict[str, Evidence] = {}

    def run(self) -> None:
        """Measure everything."""
        settings = self.scenario.validation
        self._total = len(self.runnables) * (
            settings.step_repeats + (1 + len(settings.loads)) * len(self._requests)
        )
        simulated = {one.name: self._simulate_steps(one) for one in self.runnables}
        measured = {one.name: self._replays(simulated[one.name]) for one in self.runnables}
        knees = {one.name: self._knee(one) for one in self.runnables}
        pairs = {
            one.name: {
                load.name: [self._pair(one, load, seed) for seed in self._requests]
                for load in self.loads(one, knees[one.name])
            }
            for one in self.runnables
        }
        for one in self.runnables:
            seconds, equal, checked = measured[one.name]
            lockstep = Lockstep(
                simulated[one.name].plan_file.steps, simulated[one.name].predicted_s, seconds
            )
            self.evidence[one.name] = Evidence(
                one,
                knees[one.name],
                simulated[one.name],
                lockstep,
                equal,
                checked,
                pairs[one.name],
            )

    def read(self, folder: Path) -> None:
        """Instead of `run`: the lockstep rows that a prepared run left in a folder.

        There are no free runs then. Raises `InputError` for rows of another plan.
        """
        rows = read_rows(folder)
        if rows.device_name != self.profile.device:
            raise InputError(
                f"holds rows of {rows.device_name[:80]!r}, the profile is of "
                f"{self.profile.device!r}",
                where=str(folder / LOCKSTEP_FILE),
                fix="Use the profile of the device that ran the steps",
            )
        for one in self.runnables:
            simulated = self._simulate_steps(one)
            if simulated.plan_file.as_dict()["sha256"] != rows.plan:
                continue
            lockstep = Lockstep(
                simulated.plan_file.steps, simulated.predicted_s, np.array(rows.seconds)
            )
            equal = all(counts == simulated.plan_file.steps for counts in rows.counts)
            self.evidence[one.name] = Evidence(one, 0.0, simulated, lockstep, equal, 0, {})
            return
        raise InputError(
            "holds rows of another plan than any variant of this scenario",
            where=str(folder / LOCKSTEP_FILE),
            fix="Name the scenario and the settings that `kvsim plan` was given",
        )

    def clock(self, runnable: Runnable, **changes: Any) -> ProfileClock:
        """The profile's clock of one variant."""
        return ProfileClock(self.profile, runnable.layout.name, **changes)

    def loads(self, runnable: Runnable, knee_rps: float) -> list[Load]:
        """The closed loop, then the open-loop rates."""
        settings = self.scenario.validation
        clients = settings.max_concurrency or runnable.settings.engine.max_num_seqs
        return [
            Load(CLOSED, None, clients),
            *(Load(f"{share:g}", share * knee_rps, None) for share in settings.loads),
        ]

    def traffic(self, load: Load, seed: int) -> list[Request]:
        """The requests of one run."""
        requests = self._requests[seed]
        if load.rate_rps is None:
            return all_at_once(requests)
        return at_rate(requests, load.rate_rps)

    def fragmentation(self) -> dict[str, Any]:
        """What the first variant's traffic does to a framework's allocator, at the last load."""
        evidence = next(iter(self.evidence.values()))
        *_, load = self.loads(evidence.runnable, evidence.knee_rps)
        step_s = float(np.mean(evidence.simulated.predicted_s))
        requests = self.traffic(load, self.scenario.seeds[0])
        return framework_fragmentation(evidence.runnable, requests, step_s)

    def simulate_side(
        self, runnable: Runnable, load: Load, requests: list[Request], **changes: Any
    ) -> RunRecorder:
        """One run on the predicting clock."""
        return run_side(runnable, requests, load, lambda *_: self.clock(runnable, **changes))

    def simulate_steps(self, runnable: Runnable, **changes: Any) -> Simulated:
        """The closed loop of the first seed, with its steps."""
        load = self.loads(runnable, 1.0)[0]
        return simulate(
            runnable,
            self.clock(runnable, **changes),
            self.traffic(load, self.scenario.seeds[0]),
            RunRecorder,
            max_concurrency=load.max_concurrency,
        )

    def _simulate_steps(self, runnable: Runnable) -> Simulated:
        simulated = self.simulate_steps(runnable)
        if not simulated.predicted_s:
            raise InputError(
                f"{runnable.name}: no request can be served", where="validation.requests"
            )
        return simulated

    def _knee(self, runnable: Runnable) -> float:
        load = self.loads(runnable, 1.0)[0]
        rates = [
            self.simulate_side(runnable, load, self.traffic(load, seed)).figures()["requests_per_s"]
            for seed in self._requests
        ]
        return float(np.mean(rates))

    def _replays(self, simulated: Simulated) -> tuple[Any, bool, int]:
        """Step seconds [repeats, steps] at the profile's speed; whether all counts agree."""
        repeats, equal, checked = [], True, 0
        for _ in range(self.scenario.validation.step_repeats):
            clock, counts = self._replay(simulated.plan_file)
            seconds = np.array([timing.wall_s for timing in clock.timings])
            repeats.append(seconds / self._slowness())
            equal = equal and counts == simulated.plan_file.steps
            checked += clock.checked_rows
            self._advance()
        return np.array(repeats), equal, checked

    def _replay(self, plan_file: PlanFile) -> tuple[MeasuringClock, list[StepCounts]]:
        runnable = next(one for one in self.runnables if one.name == plan_file.variant)
        return plan_file.run_once(runnable.device, self._probed)

    def _pair(self, runnable: Runnable, load: Load, seed: int) -> Pair:
        """Both sides of one run; a run that other processes disturbed is measured again."""
        requests = self.traffic(load, seed)
        runs: list[_Run] = []
        while len(runs) < MAX_ATTEMPTS and not any(run.is_quiet for run in runs):
            runs.append(self._measured(runnable, load, requests))
        quietest = max(runs, key=lambda run: run.cpu_share or 0.0)
        slowness = quietest.slowness
        simulated = self.simulate_side(runnable, load, requests, scale=slowness)
        self._advance()
        return Pair(
            seed,
            slowness,
            requests,
            quietest.recorder,
            simulated,
            attempts=len(runs),
            cpu_share=quietest.cpu_share,
        )

    def _measured(self, runnable: Runnable, load: Load, requests: list[Request]) -> _Run:
        clocks: list[MeasuringClock] = []

        def make_clock(allocator: Any, scheduler: Any) -> MeasuringClock:
            clock = runnable.device.clock(allocator, scheduler, runnable.shape)
            clocks.append(self._probed(clock))
            return clocks[-1]

        recorder = run_side(runnable, requests, load, make_clock)
        slowness = self._slowness()
        return _Run(recorder, slowness, cpu_share(clocks[0].timings, runnable.device))

    def _probed(self, clock: MeasuringClock) -> MeasuringClock:
        return clock if self._probe is None else ProbedClock(clock, self._probe)

    def _slowness(self) -> float:
        return 1.0 if self._probe is None else self._probe.slowness()

    @property
    def slowness(self) -> list[float]:
        """Of every measured run; empty where the device's speed is not followed."""
        return [] if self._probe is None else self._probe.history

    def _advance(self) -> None:
        self._done += 1
        self._progress(self._done / self._total)
