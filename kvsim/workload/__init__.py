"""Workloads: iterables of `Request` in arrival order, from traces and from generators."""

from kvsim.workload.arrivals import AllAtOnce, Arrivals, ClosedLoop, Constant, Gamma, Poisson
from kvsim.workload.base import RowCounts, Workload
from kvsim.workload.chat import ChatWorkload
from kvsim.workload.checks import check_blocks_fit_chunks
from kvsim.workload.demand import Demand, Intervals, Sessions, demand_of, intervals
from kvsim.workload.describe import describe
from kvsim.workload.empirical import EmpiricalArrivals
from kvsim.workload.formats import FORMATS
from kvsim.workload.generated import GeneratedWorkload
from kvsim.workload.joint import JointHistogram
from kvsim.workload.length_preset import (
    length_preset,
    length_preset_facts,
    list_length_presets,
)
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
from kvsim.workload.sosp23 import Sosp23Workload
from kvsim.workload.source import ReadRules
from kvsim.workload.store import KNOWN_TRACES, KnownTrace, find_trace
from kvsim.workload.trace import TraceWorkload

__all__ = [
    "FORMATS",
    "KNOWN_TRACES",
    "AllAtOnce",
    "Arrivals",
    "ChatWorkload",
    "ClosedLoop",
    "Constant",
    "ConstantTokens",
    "Demand",
    "EmpiricalArrivals",
    "Gamma",
    "GeneratedWorkload",
    "IndependentLengths",
    "Intervals",
    "JointHistogram",
    "JointQuantiles",
    "KnownTrace",
    "Lengths",
    "LognormalTokens",
    "PairLengths",
    "Poisson",
    "QuantileTokens",
    "ReadRules",
    "RowCounts",
    "Sessions",
    "Sosp23Workload",
    "TokenLaw",
    "TraceWorkload",
    "UniformTokens",
    "Workload",
    "check_blocks_fit_chunks",
    "demand_of",
    "describe",
    "find_trace",
    "intervals",
    "length_preset",
    "length_preset_facts",
    "list_length_presets",
    "list_presets",
    "preset",
    "preset_facts",
]
