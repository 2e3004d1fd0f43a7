"""Workloads: iterables of `Request` in arrival order, from traces and from generators."""

from kvsim.workload.arrivals import AllAtOnce, Arrivals, ClosedLoop, Constant, Gamma, Poisson
from kvsim.workload.base import RowCounts, Workload
from kvsim.workload.describe import describe
from kvsim.workload.empirical import EmpiricalArrivals
from kvsim.workload.formats import FORMATS
from kvsim.workload.generated import GeneratedWorkload
from kvsim.workload.lengths import (
    ConstantTokens,
    IndependentLengths,
    JointQuantiles,
    Lengths,
    LognormalTokens,
    QuantileTokens,
    TokenLaw,
    UniformTokens,
)
from kvsim.workload.pairs import PairLengths
from kvsim.workload.preset import list_presets, preset, preset_facts
from kvsim.workload.source import ReadRules
from kvsim.workload.store import KNOWN_TRACES, KnownTrace, find_trace
from kvsim.workload.trace import TraceWorkload

__all__ = [
    "FORMATS",
    "KNOWN_TRACES",
    "AllAtOnce",
    "Arrivals",
    "ClosedLoop",
    "Constant",
    "ConstantTokens",
    "EmpiricalArrivals",
    "Gamma",
    "GeneratedWorkload",
    "IndependentLengths",
    "JointQuantiles",
    "KnownTrace",
    "Lengths",
    "LognormalTokens",
    "PairLengths",
    "Poisson",
    "QuantileTokens",
    "ReadRules",
    "RowCounts",
    "TokenLaw",
    "TraceWorkload",
    "UniformTokens",
    "Workload",
    "describe",
    "find_trace",
    "list_presets",
    "preset",
    "preset_facts",
]
