"""A GPU: datasheet, memory as CUDA reports it, fitted constants of the calibrated clock."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

GIB = 2**30


@dataclass(frozen=True, slots=True)
class GemmFit:
    """Constants of a matrix product of one element type."""

    launch_s: float
    k_loop_s: float
    """Seconds per 4096 of the inner dimension."""
    eta_bw: float
    eta_f: float


@dataclass(frozen=True, slots=True)
class DecodeFit:
    """Constants of decode attention over a KV cache of one element type."""

    launch_s: float
    row_s: float
    """Seconds per sequence and KV head."""
    eta_bw: float


@dataclass(frozen=True, slots=True)
class PrefillFit:
    """Constants of prefill attention."""

    launch_s: float
    eta_f: float
    eta_io: float
    """Fraction of the memory bandwidth for reading q, k, v and writing the output."""
    fill_rows: int
    """Query rows x heads that fill the GPU."""


@dataclass(frozen=True, slots=True)
class MoeFit:
    """Constants of a mixture of experts of one element type."""

    launch_s: float
    eta_bw: float
    eta_f: float
    eta_act: float
    """Fraction of the memory bandwidth for routed activations."""
    pad_rows: float
    """Padding rows per active expert."""
    skew: float
    """Concentration of the router; 1 is uniform."""


@dataclass(frozen=True, slots=True)
class AllReduceFit:
    """Constants of an all-reduce over one tensor parallel size."""

    launch_s: float
    bus_bw: float
    """Bytes per second."""


@dataclass(frozen=True, slots=True)
class SmallFit:
    """Constants of elementwise kernels."""

    launch_s: float
    eta_bw: float


@dataclass(frozen=True, slots=True)
class Fit:
    """All constants of one GPU; dicts are keyed by element type (`bf16`, `fp8`) or by tp."""

    gemm: Mapping[str, GemmFit]
    attn_decode: Mapping[str, DecodeFit]
    attn_prefill: PrefillFit
    moe: Mapping[str, MoeFit]
    allreduce: Mapping[int, AllReduceFit]
    small: SmallFit
    mixed_kappa: float
    """Extra KV reads per extra query head of a group when decodes share a step with a chunk."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU of the catalogue. Bandwidths in bytes per second, FLOP/s dense."""

    name: str
    full_name: str
    aliases: tuple[str, ...]
    memory_bytes: int
    memory_bw: float
    flops: Mapping[str, float]
    link_bw: float
    """Between GPUs (NVLink or the like), per direction; 0 without such a link."""
    pcie_bw: float
    compute_capability: str
    datasheet_source: str
    reported_gib_low: float
    reported_gib_high: float
    """Range of the total that CUDA reports; servers size their budget with it."""
    reported_source: str
    fit: Fit
    fit_source: str
    measured: bool
    """False: constants of a similar GPU, scaled (class default)."""
    measured_operators: frozenset[str]
    """Operators whose constants come from this very GPU, as `gemm.bf16`."""
    operator_error_percent: Mapping[str, Any]
    """Median and 90th percentile on shapes that were not fitted, by operator."""
    assumed_error_percent: int | None
    """What the source of the constants assumes for operators that were not measured here."""

    @property
    def reported_bytes(self) -> int:
        """Total memory as CUDA reports it: middle of the range."""
        return round((self.reported_gib_low + self.reported_gib_high) / 2 * GIB)

    @property
    def flops_16bit(self) -> float:
        """FLOP/s with 16-bit operands."""
        return self.flops["bf16"] if "bf16" in self.flops else self.flops["fp16"]

    def has_unit(self, weight_dtype: str) -> bool:
        """Whether matrices of this type are multiplied in it, with constants for that."""
        return weight_dtype in self.fit.gemm and weight_dtype in self.flops


@dataclass(frozen=True, slots=True)
class Engine:
    """Host time of a serving engine per step."""

    name: str
    host_s: float
    """Seconds per step."""
    host_row_s: float
    """Seconds per step and sequence in it."""
    source: str
    error_percent: Mapping[str, float] | None = None
    note: str = ""


def gpu_from_dict(data: Mapping[str, Any]) -> Gpu:
    """One entry of data/gpus.json."""
    fit = data["fit"]
    reported = data["reported_gib"]
    return Gpu(
        name=data["name"],
        full_name=data["full_name"],
        aliases=tuple(data["aliases"]),
        memory_bytes=data["memory_bytes"],
        memory_bw=data["memory_bw"],
        flops=data["flops"],
        link_bw=data["link_bw"],
        pcie_bw=data["pcie_bw"],
        compute_capability=data["compute_capability"],
        datasheet_source=data["datasheet_source"],
        reported_gib_low=reported["low"],
        reported_gib_high=reported["high"],
        reported_source=reported["source"],
        fit=Fit(
            gemm={k: GemmFit(**v) for k, v in fit["gemm"].items()},
            attn_decode={k: DecodeFit(**v) for k, v in fit["attn_decode"].items()},
            attn_prefill=PrefillFit(**fit["attn_prefill"]),
            moe={k: MoeFit(**v) for k, v in fit["moe"].items()},
            allreduce={int(k): AllReduceFit(**v) for k, v in fit["allreduce"].items()},
            small=SmallFit(**fit["small"]),
            mixed_kappa=fit["mixed_kappa"],
        ),
        fit_source=data["fit_source"],
        measured=data["measured"],
        measured_operators=frozenset(data["measured_operators"]),
        operator_error_percent=data["operator_error_percent"],
        assumed_error_percent=data["assumed_error_percent"],
    )
