"""Compiling for GPUs that are not here, in processes without the interpreter."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace

import pytest

from gpu_backend import aot_check
from gpu_backend.aot_check import Compiled

GOOD = Compiled("decode", 128, stack=0, spills=0, shared=1, load_bytes=(16,), attends=True)

# One kernel at a setting that is too large for the registers of a thread.
OVERSIZED = """
import sys
from gpu_backend import aot_check, configs
configs.DECODE["sm_90"][2, 128] = configs.DecodeConfig(tile=256, chunk=512, warps=4, stages=3)
every = list(aot_check.cases("sm_90"))
aot_check.cases = lambda name: [case for case in every if "paged decode, bfloat16 d=128" in case[0]]
sys.exit(aot_check.main(["90"]))
"""


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    environment = {name: text for name, text in os.environ.items() if name != "TRITON_INTERPRET"}
    return subprocess.run(
        [sys.executable, *arguments], capture_output=True, text=True, timeout=600, env=environment
    )


@pytest.mark.slow
def test_every_default_configuration_compiles_without_a_fault() -> None:
    done = run("-m", "gpu_backend.aot_check")
    assert done.returncode == 0, done.stdout + done.stderr
    for architecture in ("sm_80", "sm_90"):
        assert architecture in done.stdout
    assert done.stdout.count("paged decode, bfloat16 d=128") == 2
    headings, variants = 4, 4
    assert done.stdout.count(" compiles\n") == variants
    assert done.stdout.count(" ok\n") == len(done.stdout.splitlines()) - headings - variants


@pytest.mark.slow
def test_a_configuration_that_spills_fails() -> None:
    done = run("-c", OVERSIZED)
    assert done.returncode == 1, done.stdout + done.stderr
    assert "spills, more than 128 registers" in done.stdout


def test_the_interpreter_compiles_nothing() -> None:
    assert aot_check.main(["90"]) == 2


@pytest.mark.parametrize(
    ("row", "faults"),
    [
        (GOOD, []),
        (replace(GOOD, registers=129), ["more than 128 registers"]),
        (replace(GOOD, stack=8), ["spills"]),
        (replace(GOOD, spills=1), ["spills"]),
        (replace(GOOD, load_bytes=(8, 16)), ["narrow K/V loads"]),
        (replace(GOOD, load_bytes=()), ["no K/V loads found"]),
        (replace(GOOD, load_bytes=(), attends=False), []),
        (replace(GOOD, name="variant: decode", registers=200, stack=8), []),
        (replace(GOOD, name="variant: decode", load_bytes=(4,)), ["narrow K/V loads"]),
    ],
)
def test_what_counts_as_a_fault(row: Compiled, faults: list[str]) -> None:
    assert row.faults() == faults


@pytest.mark.parametrize(
    ("line", "width"),
    [
        ("cp.async.cg.shared.global [ %r371 + 0 ], [ %rd35 + 0 ], 0x10, %r88;", 16),
        ("@%p4 cp.async.ca.shared.global [ %r16 + 0 ], [ %rd31 + 0 ], 0x4, %r80;", 4),
        ("@%p2 ld.global.v4.b32 { %r71, %r72, %r73, %r74 }, [ %rd29 + 0 ];", 16),
        ("ld.global.b32 { %r69 }, [ %rd27 + 0 ];", 4),
        ("ld.global.L1::evict_first.v2.b64 { %r69, %r70 }, [ %rd27 + 0 ];", 16),
        ("ld.global.u16 { %rs1 }, [ %rd27 + 0 ];", 2),
        ("st.global.v4.b32 [ %rd29 + 0 ], { %r71, %r72, %r73, %r74 };", 0),
        ("ld.shared.v4.b32 { %r71, %r72, %r73, %r74 }, [ %r29 + 0 ];", 0),
    ],
)
def test_the_width_of_a_load(line: str, width: int) -> None:
    assert aot_check._load_width(line) == width
