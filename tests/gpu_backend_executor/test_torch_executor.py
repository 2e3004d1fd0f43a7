"""The torch runtime in Triton's interpreter: what the CPU's tests say, on a device with a copy."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import pytest

pytest.importorskip("torch")
pytest.importorskip("triton")

import torch

from gpu_backend import configs, launches
from gpu_backend.executor import Executor, torch_model
from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from gpu_backend.executor.oracle import Oracle
from gpu_backend.executor.torch_memory import TorchContiguousMemory, TorchPagedMemory
from gpu_backend.executor.torch_runtime import TorchRuntime
from gpu_backend.executor.torch_staging import Staging
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.core.request import Request
from kvsim.core.vllm_scheduler import VllmScheduler
from tests.gpu_backend_executor.runs import CASES, Case, Memory, extents, scheduler, shared, tight
from tests.gpu_backend_executor.torch_runs import TINY, torch_executor, torch_run


@pytest.fixture(autouse=True)
def wide_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    """Fewer and larger tiles: the interpreter's time is per tile and program."""
    decode = configs.DecodeConfig(tile=64, chunk=64, warps=1, stages=1)
    prefill = configs.PrefillConfig(rows=32, tile=64, warps=1, stages=1)
    monkeypatch.setattr(configs, "INTERPRETED_DECODE", decode)
    monkeypatch.setattr(configs, "INTERPRETED_PREFILL", prefill)


def runtime_of(executor: Executor) -> TorchRuntime:
    assert isinstance(executor.runtime, TorchRuntime)
    return executor.runtime


@pytest.mark.parametrize(
    ("name", "settings"),
    [
        ("tight", {}),
        ("tight", {"attention_only": True, "layout": "hnd", "dtype": "bf16"}),
        ("shared", {"layout": "hnd", "layers": 2}),
        ("shared", {"attention_only": True}),
        ("shared", {"dtype": "bf16"}),
        ("shared", {"dtype": "fp16", "layout": "hnd"}),
        ("extents", {}),
    ],
    ids=str,
)
def test_every_step_agrees_with_the_reference(name: str, settings: dict[str, Any]) -> None:
    executor, steps = torch_run(CASES[name], **settings)
    assert executor.checked_rows >= len(steps.steps)
    assert {
        "tight": steps.preempted and steps.chunks_with_prior,
        "shared": steps.hit_tokens and steps.preempted,
        "extents": steps.copies,
    }[name]


def first(count: int, case: Case) -> Case:
    """The case with its first requests only."""

    def shortened() -> tuple[Memory, VllmScheduler, list[Request]]:
        memory, engine, requests = case()
        return memory, engine, requests[:count]

    return shortened


def test_an_arena_in_half_precision_agrees() -> None:
    executor, steps = torch_run(first(11, extents), dtype="bf16", attention_only=True)
    assert executor.checked_rows >= len(steps.steps)
    assert steps.copies


def test_contexts_of_several_chunks_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    chunks = configs.DecodeConfig(tile=16, chunk=16, warps=1, stages=1)
    monkeypatch.setattr(configs, "INTERPRETED_DECODE", chunks)
    executor, steps = torch_run(first(5, shared))
    assert executor.checked_rows >= len(steps.steps) > 5


def test_times_are_measured_and_add_up(monkeypatch: pytest.MonkeyPatch) -> None:
    compared: list[object] = []

    def compare(*arguments: object) -> None:
        time.sleep(0.02)
        compared.append(arguments)

    monkeypatch.setattr(Oracle, "compare", compare)
    begin = time.perf_counter()
    executor, steps = torch_run(first(5, shared))
    elapsed_s = time.perf_counter() - begin
    assert sum(timing.wall_s for timing in executor.timings) < elapsed_s - 0.02 * len(compared)
    assert len(compared) > 20
    assert len(executor.timings) == len(steps.steps)
    for timing, duration_ns in zip(executor.timings, steps.durations_ns, strict=True):
        assert duration_ns == round(timing.wall_s * 1e9) > 0
        assert min(timing.device_s, timing.host_s) > 0
        assert timing.device_s + timing.host_s <= timing.wall_s * 1.01
    assert (executor.mode, executor.device_name) == ("eager", "cpu")


def test_results_depend_on_the_seed_only() -> None:
    def outputs(seed: int) -> list[int]:
        memory, engine, requests = tight()
        executor = torch_executor(memory, engine, seed=seed, check_every=0)
        for request in requests:
            engine.add(request)
        found: list[int] = []
        for _ in range(3):
            plan = engine.schedule()
            executor.step_seconds(plan)
            found += executor.sampled.tolist()
            engine.complete(plan)
        return found

    assert outputs(0) == outputs(0) != outputs(1)


# Copies.


def expected_after_copy(old: Any, copy: Copy) -> Any:
    """`old` [slots, ...] as it must be afterwards."""
    new = old.clone()
    for step in range(copy.tokens):
        new[copy.target_slot + step] = old[copy.source_slot + step]
    return new


@pytest.mark.parametrize("copy", [Copy(8, 6, 7), Copy(6, 8, 7), Copy(11, 25, 4)])
@pytest.mark.parametrize("layout", ["nhd", "hnd", "contiguous"])
def test_copies_move_keys_and_values_of_every_layer(layout: str, copy: Copy) -> None:
    """Also where source and target overlap."""
    memory: Memory = PagedAllocator(20, 5)
    settings: dict[str, Any] = {"layout": layout}
    if layout == "contiguous":
        memory, settings = ContiguousAllocator(20, 5, max_model_len=64), {}
    executor = torch_executor(memory, scheduler(memory), layers=2, **settings)
    device = runtime_of(executor).memory
    tensors = [*device.cache.keys, *device.cache.values]

    def by_slot(tensor: Any) -> Any:
        if layout == "contiguous":
            return tensor
        return (tensor.transpose(1, 2) if layout == "hnd" else tensor).flatten(0, 1)

    for tensor in tensors:
        tensor.copy_(torch.rand(tensor.shape))
    before = [by_slot(tensor).clone() for tensor in tensors]
    device.move(copy)
    for old, tensor in zip(before, tensors, strict=True):
        assert torch.equal(by_slot(tensor), expected_after_copy(old, copy))


# Nothing waits for the device, and nothing is compiled in a step.


class Launched:
    """What the kernels were called with, on torch's device without values."""

    def __init__(self) -> None:
        self.forms: set[tuple[Any, ...]] = set()

    def note(self, launch: launches.Launch) -> None:
        """Triton compiles for each value of the constants and for these traits of the rest."""
        traits: list[tuple[object, bool]] = []
        for argument in launch.arguments:
            if isinstance(argument, torch.Tensor):
                offset_bytes = argument.storage_offset() * argument.element_size()
                traits.append((argument.dtype, offset_bytes % 16 == 0))
            elif isinstance(argument, int):
                traits.append((argument == 1, argument % 16 == 0))
        constants = tuple(sorted(launch.constants.items(), key=str))
        self.forms.add((launch.kernel.__name__, *traits, constants))


@pytest.fixture
def valueless(monkeypatch: pytest.MonkeyPatch) -> Launched:
    """Kernels do nothing, and torch has no values: whatever asks for one raises."""
    launched = Launched()
    monkeypatch.setattr(torch_model, "seeded", lambda seed, device: None)
    monkeypatch.setattr(launches.Launch, "run", lambda launch: launched.note(launch))
    monkeypatch.setattr(launches, "settings_name", lambda device: "sm_90")
    monkeypatch.setattr(launches, "interpreted", lambda: False)
    return launched


def crowded() -> tuple[Memory, VllmScheduler, list[Request]]:
    """More than 16 sequences, and contexts of up to 16 chunks of 512 tokens."""
    memory = PagedAllocator(2000, 16)
    engine = scheduler(memory, max_num_seqs=20, max_num_batched_tokens=2048, max_model_len=9000)
    requests = [Request(f"r{i}", 0, 100 + 97 * i, 5 + i) for i in range(24)]
    requests += [Request("short", 0, 1, 1), Request("long", 0, 8185, 20)]
    return memory, engine, requests


@pytest.mark.parametrize("case", [crowded, *CASES.values()])
def test_no_step_waits_for_the_device_nor_compiles_a_kernel(
    case: Case, valueless: Launched
) -> None:
    warm: set[tuple[Any, ...]] = set()
    torch_run(
        case,
        prepare=lambda executor: warm.update(valueless.forms),
        shape=TINY._replace(head_dim=16, heads=4, kv_heads=2),
        layers=2,
        dtype="bf16",
        check_every=0,
        torch_device="meta",
    )
    assert valueless.forms <= warm
    if case is crowded:
        assert {form[0] for form in warm} >= {"decode_kernel", "reduce_kernel", "prefill_kernel"}


# Mistakes that the check must notice.


def test_changes_that_never_reach_the_device_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchPagedMemory, "update", lambda *_: None)
    with pytest.raises(AssertionError, match="reference says"):
        torch_run(tight)


def test_a_block_appended_on_the_host_only_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    note = PagedAddresses._note

    def new_rows_only(self: PagedAddresses, row: int, begin: int, end: int) -> None:
        if begin == 0:
            note(self, row, begin, end)

    monkeypatch.setattr(PagedAddresses, "_note", new_rows_only)
    with pytest.raises(AssertionError, match="reference says"):
        torch_run(tight)


@pytest.mark.parametrize(
    ("case", "kind"), [(tight, PagedAddresses), (extents, ContiguousAddresses)]
)
def test_a_row_moved_on_the_host_only_is_noticed(
    case: Case, kind: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    move_row = kind.move_row

    def quietly(self: Any, source: int, target: int) -> None:
        before = self._changed.copy()
        move_row(self, source, target)
        self._changed = before

    monkeypatch.setattr(kind, "move_row", quietly)
    with pytest.raises(AssertionError, match="reference says"):
        torch_run(case)


def test_a_skipped_copy_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(TorchContiguousMemory, "move", lambda *_: None)
    with pytest.raises(AssertionError, match="reference says"):
        torch_run(extents)


@pytest.mark.parametrize("field", ["slots", "contexts", "tokens"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_a_stale_input_is_noticed(field: str, dtype: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """By the reference, or before by the kernels' own checks."""
    load: Callable[..., Any] = Staging.load
    latest: list[Any] = []

    def stale(self: Staging, inputs: Any, changes: Any) -> Any:
        loaded = load(self, inputs, changes)
        latest.append(getattr(loaded, field).clone())
        if len(latest) > 1 and len(latest[-2]) == len(latest[-1]):
            return loaded._replace(**{field: latest[-2]})
        return loaded

    def make_stale(executor: Executor) -> None:
        monkeypatch.setattr(Staging, "load", stale)

    with pytest.raises((AssertionError, ValueError), match=r"reference says|queries than context"):
        torch_run(tight, dtype=dtype, prepare=make_stale)
