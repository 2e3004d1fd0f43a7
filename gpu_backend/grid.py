"""The steps that a calibration measures, and their measured times as rows.

Needs only numpy (and torch with Triton for a GPU), so that it runs on a bare machine; the rows are
fitted elsewhere, by `gpu_backend.fit`.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import pairwise
from typing import Any, NamedTuple

from gpu_backend.executor import ModelShape
from gpu_backend.executor.build import DEVICES
from gpu_backend.executor.padding import padded_rows
from gpu_backend.layouts import CacheLayout
from gpu_backend.room import SHARE, executor_bytes, free_bytes, require_cuda, require_room
from gpu_backend.steps import Point, StepBench
from kvsim.catalog.registry import get_model

REPEATS = 5
"""Measured runs of a batch in one round; their median is the row."""
MIN_ROUNDS = 3
HELD_OUT_POINTS = 24
"""Random batches per layout that are measured and never fitted."""
DEPTH_CHECK_POINTS = 9
MAX_NUMBER = 10_000_000
MAX_SECONDS = 1e6
USES = ("fit", "held_out", "depth_check")
SHORT_CONTEXT, MIDDLE_CONTEXT = 32, 256


class GridSpec(NamedTuple):
    """What is measured: a model's shape in some layouts, up to a server's limits."""

    model: str
    """The name that the profile gets."""
    shape: ModelShape
    layers: int
    """Layers of the model."""
    measured_layers: tuple[int, ...]
    """Depths that are run: the model's own, or two smaller ones, extrapolated affinely."""
    layouts: tuple[CacheLayout, ...]
    slots: int
    """Token slots of KV memory."""
    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int
    device: str = "cpu"
    num_threads: int | None = None
    dtype: str = "fp32"
    attention_only: bool = False

    def bench(self, layout: CacheLayout, layers: int, seed: int) -> StepBench:
        """The executor for one layout and depth. Allocates its memory and weights.

        Raises `InputError` where they do not fit.
        """
        require_room(self.bytes_at(layers), self.device)
        return StepBench(
            self.shape,
            layout,
            layers=layers,
            slots=self.slots,
            max_num_seqs=self.max_num_seqs,
            max_num_batched_tokens=self.max_num_batched_tokens,
            max_model_len=self.max_model_len,
            device=self.device,
            num_threads=self.num_threads,
            dtype=self.dtype,
            attention_only=self.attention_only,
            seed=seed,
        )

    def as_dict(self) -> dict[str, Any]:
        """The grid as JSON has it."""
        return {
            **self._asdict(),
            "shape": self.shape._asdict(),
            "layouts": [layout.name for layout in self.layouts],
            "measured_layers": list(self.measured_layers),
        }

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> GridSpec:
        """The grid of `as_dict`, from JSON. Raises KeyError, TypeError or ValueError."""
        spec = cls(
            **{
                **data,
                "shape": ModelShape(**data["shape"]),
                "layouts": tuple(CacheLayout.named(name) for name in data["layouts"]),
                "measured_layers": tuple(data["measured_layers"]),
            }
        )
        limits = (spec.slots, spec.max_num_seqs, spec.max_num_batched_tokens, spec.max_model_len)
        numbers = (*spec.shape, spec.layers, *spec.measured_layers, *limits)
        if any(type(number) is not int or not 1 <= number <= MAX_NUMBER for number in numbers):
            raise ValueError(f"sizes must be whole numbers in 1..{MAX_NUMBER}")
        if len(spec.measured_layers) not in (1, 2) or not spec.layouts:
            raise ValueError("a grid has one or two measured depths and at least one layout")
        if spec.device not in DEVICES or spec.dtype not in DEVICES[spec.device]:
            raise ValueError(f"no device {spec.device!r} with type {spec.dtype!r}")
        return spec

    def bytes_at(self, layers: int) -> int:
        """Weights and KV of one executor, in bytes."""
        return executor_bytes(
            self.shape,
            layers=layers,
            slots=self.slots,
            dtype=self.dtype,
            attention_only=self.attention_only,
        )

    @property
    def grain(self) -> int:
        """The largest block, in tokens: what any layout holds fits blocks of this size."""
        return max(layout.block_size or 1 for layout in self.layouts)


class Row(NamedTuple):
    """One measured batch; plain data for a file."""

    use: str
    """`fit`, `held_out` or `depth_check`."""
    layout: str
    layers: int
    point: Point
    round: int
    wall_s: float
    device_s: float
    host_s: float

    def as_dict(self) -> dict[str, Any]:
        """The row as JSON has it."""
        return {**self._asdict(), "point": self.point._asdict()}

    @classmethod
    def from_dict(cls, data: dict[str, Any]) -> Row:
        """The row of `as_dict`. Raises KeyError, OverflowError, TypeError or ValueError."""
        point = data["point"]
        row = cls(
            str(data["use"]),
            CacheLayout.named(data["layout"]).name,
            int(data["layers"]),
            Point(
                tuple(int(context) for context in point["decodes"]),
                tuple((int(new), int(prior)) for new, prior in point["chunks"]),
                int(point["copy_tokens"]),
            ),
            int(data["round"]),
            float(data["wall_s"]),
            float(data["device_s"]),
            float(data["host_s"]),
        )
        if row.use not in USES or not 0 < row.wall_s < MAX_SECONDS:
            raise ValueError(f"a row has a use of {', '.join(USES)} and a positive time")
        if not 1 <= row.point.tokens <= MAX_NUMBER or row.point.rows > MAX_NUMBER:
            raise ValueError("a batch computes at least one token")
        return row


def fit_points(spec: GridSpec) -> list[Point]:
    """The structured half of the grid: every term of the formula varies on its own."""
    points = [*_decode_points(spec), *_chunk_points(spec), *_mixed_points(spec)]
    half = spec.slots // 2
    points += [Point((64,), (), tokens) for tokens in (min(256, half), min(1024, half))]
    return _that_fit(spec, points)


def held_out_points(spec: GridSpec, seed: int) -> list[Point]:
    """Random batches that are not fitted; decodes alone, chunks alone and mixed in turn.

    A small server has fewer than `HELD_OUT_POINTS`.
    """
    draw = random.Random(seed)
    fitted = set(fit_points(spec))
    points: dict[Point, None] = {}
    for attempt in range(20 * HELD_OUT_POINTS):
        if len(points) == HELD_OUT_POINTS:
            break
        kind = attempt % 3
        seqs = 0 if kind == 1 else max(1, round(spec.max_num_seqs ** draw.random()))
        room = _longest(spec, max(seqs, 1))
        decodes = [max(2, round(room ** draw.uniform(0.4, 1.0))) for _ in range(seqs)]
        chunks = []
        if kind:
            new = max(2, round((spec.max_num_batched_tokens - seqs) ** draw.uniform(0.3, 1.0)))
            chunks = [(new, draw.choice([0, 0, round(room * draw.random() / 2)]))]
        drawn = _that_fit(spec, [Point(tuple(decodes), tuple(chunks))])
        points |= dict.fromkeys(point for point in drawn if point not in fitted)
    return list(points)


def probe_points(spec: GridSpec) -> list[Point]:
    """A few fitted batches that say how fast the device is now."""
    points = fit_points(spec)
    decodes = [point for point in points if not point.chunks and not point.copy_tokens]
    chunks = [point for point in points if not point.decodes]
    return [decodes[len(decodes) // 3], decodes[-1], chunks[len(chunks) // 4]]


def default_grid(
    model: str = "llama-3-8b", *, device: str = "cuda", layers: int | None = None
) -> GridSpec:
    """What to measure of a catalogue model where no scenario says it.

    The model is run at 2 and 6 layers, whose weights and caches fit a GPU with 40 GB; `layers`
    runs a model of that many layers as a whole.
    """
    found = get_model(model)
    return GridSpec(
        found.name,
        ModelShape.of(found),
        layers or found.layers,
        (layers,) if layers else (2, 6),
        (CacheLayout(16), CacheLayout(None)),
        slots=65_536,
        max_num_seqs=64,
        max_num_batched_tokens=2048,
        max_model_len=min(found.max_position, 16_384),
        device=device,
        dtype=DEVICES[device][0],
    )


def measure_grid(
    model: str | GridSpec, *, device: str = "cuda", budget_s: float, seed: int = 0
) -> Iterator[dict[str, Any]]:
    """What a bare machine saves: the grid as a first row, then the rows of `measure_rows`."""
    spec = model if isinstance(model, GridSpec) else default_grid(model, device=device)
    yield {"grid": spec.as_dict(), "device_name": device_name(spec), "seed": seed}
    for row in measure_rows(spec, budget_s=budget_s, seed=seed):
        yield row.as_dict()


def device_name(spec: GridSpec) -> str:
    """The name of the machine's processor or GPU."""
    if spec.device == "cuda":
        import torch

        require_cuda()
        return str(torch.cuda.get_device_name())
    from gpu_backend.executor.cpu import cpu_name

    return cpu_name()


def measure_rows(
    spec: GridSpec,
    *,
    budget_s: float,
    seed: int = 0,
    progress: Callable[[float], None] = lambda share: None,
) -> Iterator[Row]:
    """Rows of whole rounds until the time is up, at least `MIN_ROUNDS` of them.

    A round is every point in every layout and depth, in a random order, so that a machine that
    slows down does so for all of them. `progress` gets the share of the time that has passed.
    """
    begin = time.monotonic()
    needed = sum(map(spec.bytes_at, spec.measured_layers))
    require_room(len(spec.layouts) * needed, spec.device)
    benches = {
        (layout, layers): spec.bench(layout, layers, seed)
        for layout in spec.layouts
        for layers in spec.measured_layers
    }
    work = [
        (use, key, point)
        for key in benches
        for use, points in (("fit", fit_points(spec)), ("held_out", held_out_points(spec, seed)))
        for point in points
    ]
    draw = random.Random(seed)
    number = 0
    while number < MIN_ROUNDS or (time.monotonic() - begin) * (1 + 1 / number) < budget_s:
        draw.shuffle(work)
        for done, (use, key, point) in enumerate(work):
            yield measure_point(benches[key], use, point, number)
            rounds = number + done / len(work)
            passed = (time.monotonic() - begin) / max(budget_s, 1e-9)
            progress(min(max(passed, 0.0), rounds / MIN_ROUNDS, 1.0))
        number += 1
    if spec.measured_layers != (spec.layers,):
        benches.clear()
        gc.collect()  # a bench and its executor know each other
        yield from _depth_check(spec, seed)


def _depth_check(spec: GridSpec, seed: int) -> Iterator[Row]:
    """Some of the held-out batches at the model's own depth, where that fits the memory."""
    if spec.bytes_at(spec.layers) > SHARE * free_bytes(spec.device):
        return
    bench = spec.bench(spec.layouts[0], spec.layers, seed)
    for point in held_out_points(spec, seed)[:DEPTH_CHECK_POINTS]:
        yield measure_point(bench, "depth_check", point, 0)


def measure_point(bench: StepBench, use: str, point: Point, number: int) -> Row:
    """The median of `REPEATS` runs of one batch."""
    timings = sorted(bench.measure(point, REPEATS), key=lambda timing: timing.wall_s)
    middle = timings[len(timings) // 2]
    return Row(
        use,
        bench.layout.name,
        bench.layers,
        point,
        number,
        middle.wall_s,
        middle.device_s,
        middle.host_s,
    )


def _decode_points(spec: GridSpec) -> Iterator[Point]:
    for seqs in _batch_sizes(spec.max_num_seqs):
        longest = _longest(spec, seqs)
        for context in sorted({min(SHORT_CONTEXT, longest), min(MIDDLE_CONTEXT, longest), longest}):
            yield Point(tuple(_spread(context, seqs)))
        if seqs >= 8:  # a batch that is padded: its matrix products are larger, its attention not
            yield Point(tuple(_spread(min(MIDDLE_CONTEXT, longest), seqs - seqs // 3)))


def _batch_sizes(most: int) -> list[int]:
    """Every padded size up to 32, then a quarter more each."""
    sizes = sorted({padded_rows(n) for n in range(1, min(most, 32) + 1)} - {0})
    while sizes[-1] < most:
        sizes.append(padded_rows(max(sizes[-1] + 1, sizes[-1] * 5 // 4)))
    return [size for size in sizes if size <= most]


def _chunk_points(spec: GridSpec) -> Iterator[Point]:
    longest = min(spec.max_model_len, spec.slots - 2 * spec.grain)
    for new in _sizes(8, min(spec.max_num_batched_tokens, longest)):
        for prior in sorted({0, longest // 4, longest - new}):
            yield Point((), ((new, prior),))
        if new >= 16 and spec.max_num_seqs > 1:
            yield Point((), ((new // 2, 0), (new // 2, longest // 8)))


def _mixed_points(spec: GridSpec) -> Iterator[Point]:
    for seqs in _doublings(1, spec.max_num_seqs - 1):
        longest = _longest(spec, 2 * seqs)
        for new in _doublings(8, spec.max_num_batched_tokens - seqs, factor=4):
            for context in sorted({min(SHORT_CONTEXT, longest), longest}):
                yield Point(tuple(_spread(context, seqs)), ((new, 0),))


def _longest(spec: GridSpec, seqs: int) -> int:
    """A mean context with which so many sequences of very different lengths fit the memory."""
    share = spec.slots // seqs - spec.grain
    return max(2, min(spec.max_model_len * 2 // 3, share))


def _spread(mean: int, seqs: int) -> Iterable[int]:
    """Contexts from half to one and a half times the mean."""
    return (max(2, round(mean * (0.5 + (i + 0.5) / seqs))) for i in range(seqs))


def _sizes(first: int, last: int) -> list[int]:
    """Powers of two times `first` and the middles between them, up to `last`."""
    sizes = _doublings(first, last)
    middles = [(low + high) // 2 for low, high in pairwise(sizes)]
    return sorted({*sizes, *middles})


def _doublings(first: int, last: int, factor: int = 2) -> list[int]:
    """`first`, times `factor`, and so on; and `last`."""
    sizes = []
    size = first
    while size < last:
        sizes.append(size)
        size *= factor
    return [*sizes, last] if last >= 1 else sizes


def _that_fit(spec: GridSpec, points: Iterable[Point]) -> list[Point]:
    """The points within the limits, each once, in order."""
    inside = (
        point
        for point in points
        if point.slots(spec.grain) <= spec.slots
        and 1 <= point.tokens <= spec.max_num_batched_tokens
        and len(point.decodes) + len(point.chunks) <= spec.max_num_seqs
        and all(context <= spec.max_model_len for context in point.decodes)
        and all(new > 0 and new + prior <= spec.max_model_len for new, prior in point.chunks)
    )
    return list(dict.fromkeys(inside))
