"""Executors by device: what is imported, what is refused, and plans made by hand."""

from __future__ import annotations

import os
import subprocess
import sys
from importlib.util import find_spec
from typing import Any

import numpy as np
import pytest

from gpu_backend.executor import Executor, ModelShape, build_executor
from kvsim.catalog.registry import get_model
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import StepPlan
from kvsim.core.request import Request, Sequence, State
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.errors import InputError
from tests.gpu_backend_executor.runs import SHAPE, scheduler

needs_numba = pytest.mark.skipif(find_spec("numba") is None, reason="needs numba")
needs_torch = pytest.mark.skipif(
    find_spec("torch") is None or find_spec("triton") is None, reason="needs torch and Triton"
)


class ByHand:
    """All that an executor knows of an engine."""

    max_num_seqs = 3
    max_num_batched_tokens = 16
    max_model_len = 64

    def computed_tokens(self, sequence: Sequence) -> int:
        return sequence.computed


def plan_by_hand(step: int, contexts: list[int]) -> StepPlan:
    """Decodes at the end of contexts that nobody computed, in blocks of 5."""
    members = {}
    for index, context in enumerate(contexts):
        sequence = Sequence(Request(f"{step}.{index}", 0, context, 1), 64)
        sequence.state, sequence.computed, sequence.order = (
            State.DECODING,
            context,
            step * 9 + index,
        )
        sequence.table = list(range(1 + 5 * index, 6 + 5 * index))
        members[sequence.order] = sequence
    return StepPlan(step, members)


def check_plans_by_hand(make: Any) -> None:
    executor: Executor = make(fill=0.5)
    for step, contexts in enumerate([[20, 7], [1, 25, 13], [9]]):
        assert executor.step_seconds(plan_by_hand(step, contexts)) > 0
        rows = executor.runtime.attention_rows(np.arange(len(contexts)))
        assert rows.shape == (len(contexts), SHAPE.heads, SHAPE.head_dim)
        assert np.isfinite(rows).all()
    assert [timing.step for timing in executor.timings] == [0, 1, 2]
    executor.forget_timings()
    assert executor.timings == []
    poisoned: Executor = make()
    poisoned.step_seconds(plan_by_hand(0, [20, 1]))
    rows = poisoned.runtime.attention_rows(np.arange(2))
    assert np.isnan(rows[0]).all()
    assert np.isfinite(rows[1]).all()


@needs_numba
def test_plans_by_hand_run_on_memory_that_is_filled() -> None:
    check_plans_by_hand(
        lambda **changes: build_executor(
            PagedAllocator(20, 5), ByHand(), SHAPE, layers=1, attention_only=True, **changes
        )
    )


@needs_torch
@pytest.mark.filterwarnings("ignore::RuntimeWarning")  # NaN in the interpreter
def test_plans_by_hand_run_on_memory_that_is_filled_in_torch() -> None:
    from tests.gpu_backend_executor.torch_runs import torch_executor

    check_plans_by_hand(
        lambda **changes: torch_executor(
            PagedAllocator(20, 5),
            ByHand(),
            shape=SHAPE,
            attention_only=True,
            check_every=0,
            **changes,
        )
    )


BLOCKED = ("numba", "llvmlite", "simpy", "pydantic", "plotly", "ruamel", "rich", "jinja2", "typer")
IMPORTS = """
import sys

class Blocked:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in {blocked}:
            raise ModuleNotFoundError("blocked: " + name, name=name)

sys.meta_path.insert(0, Blocked())
"""


def run_python(code: str, blocked: tuple[str, ...]) -> str:
    environment = {name: value for name, value in os.environ.items() if name != "TRITON_INTERPRET"}
    done = subprocess.run(
        [sys.executable, "-c", IMPORTS.format(blocked=set(blocked)) + code],
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


@needs_torch
def test_a_bare_cuda_machine_has_all_that_cuda_needs() -> None:
    code = """
import gpu_backend.executor
assert "torch" not in sys.modules
import gpu_backend.executor.torch_runtime
print("imported")
"""
    assert run_python(code, BLOCKED) == "imported\n"


@pytest.mark.parametrize(
    ("device", "package"), [("cuda", "torch"), ("cuda", "triton"), ("cpu", "numba")]
)
def test_a_missing_package_is_named_with_what_installs_it(device: str, package: str) -> None:
    code = f"""
from gpu_backend.executor import ModelShape, build_executor
from kvsim.catalog.registry import get_model
from kvsim.core.contiguous import ContiguousAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.core.static_scheduler import StaticScheduler
from kvsim.errors import InputError

memory = PagedAllocator(20, 4)
engine = VllmScheduler(memory, max_num_seqs=2, max_num_batched_tokens=64, max_model_len=64)
try:
    build_executor(memory, engine, ModelShape(8, 2, 1, 4, 8, 9), layers=1, device={device!r})
except InputError as error:
    print(error)
"""
    said = run_python(code, (package,))
    if package != "numba" and find_spec("torch") is None:
        package = "torch"
    assert f"needs {package}, which is not installed" in said
    assert "pip install 'kvsim[gpu]'" in said


@needs_torch
def test_a_machine_without_cuda_is_told_to_use_the_cpu(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    memory = PagedAllocator(20, 4)
    with pytest.raises(InputError, match=r"finds no CUDA device.*--device cpu"):
        build_executor(memory, scheduler(memory), SHAPE, layers=1, device="cuda")


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"device": "tpu"}, "'tpu' is no device.*Use cpu, cuda"),
        ({"dtype": "bf16"}, "'bf16' does not run on cpu.*Use fp32"),
        ({"device": "cuda", "dtype": "fp8"}, "'fp8' does not run on cuda.*Use bf16, fp16, fp32"),
        ({"device": "cuda", "layout": "dnh"}, "'dnh' is no layout.*Use nhd, hnd"),
        ({"device": "cuda", "num_threads": 2}, "num_threads is for the CPU"),
    ],
)
def test_settings_that_no_device_runs_are_refused(settings: dict[str, Any], words: str) -> None:
    memory = PagedAllocator(20, 4)
    with pytest.raises(InputError, match=words):
        build_executor(memory, scheduler(memory), SHAPE, layers=1, **settings)


def test_what_it_cannot_run_is_refused() -> None:
    memory = PagedAllocator(20, 4)
    with pytest.raises(ValueError, match="asynchronous"):
        build_executor(memory, scheduler(memory, async_scheduling=True), SHAPE, layers=1)
    engine = scheduler(memory)
    with pytest.raises(ValueError, match="another allocator"):
        build_executor(PagedAllocator(20, 4), engine, SHAPE, layers=1)
    with pytest.raises(ValueError, match="layers"):
        build_executor(memory, engine, SHAPE, layers=0)
    with pytest.raises(ValueError, match="head_dim"):
        build_executor(memory, engine, SHAPE._replace(head_dim=6), layers=1)
    with pytest.raises(TypeError, match="not object"):
        build_executor(object(), engine, SHAPE, layers=1)  # type: ignore[arg-type]
    engine.delivers_unevenly = True
    with pytest.raises(ValueError, match="speculation"):
        build_executor(memory, engine, SHAPE, layers=1)
    arena = ContiguousAllocator(20, 4, max_model_len=64)
    batches = StaticScheduler(arena, max_num_seqs=2, max_model_len=64)
    with pytest.raises(ValueError, match="static"):
        build_executor(arena, batches, SHAPE, layers=1)


def test_shapes_come_from_the_catalogue() -> None:
    assert ModelShape.of(get_model("llama-3-8b")) == (4096, 32, 8, 128, 14336, 128256)
    for name in ("deepseek-v3", "mixtral-8x7b", "gemma-3-1b", "opt-13b"):
        with pytest.raises(InputError, match=name):
            ModelShape.of(get_model(name))


@needs_numba
def test_an_executor_says_where_it_runs() -> None:
    memory = PagedAllocator(20, 4)
    executor = build_executor(memory, scheduler(memory), SHAPE, layers=1)
    assert (executor.device, executor.mode) == ("cpu", "eager")
    assert executor.device_name
