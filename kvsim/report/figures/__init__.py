"""Figures: pure functions from a run's data to plotly figures as plain dicts."""

from kvsim.report.figures.block_size import block_size_figure
from kvsim.report.figures.latency import latency_figure
from kvsim.report.figures.load import extent_figure, load_figure, sharing_figure
from kvsim.report.figures.memory import memory_figure
from kvsim.report.figures.memory_map import memory_map_figure
from kvsim.report.figures.term_bars import Shares, term_bars_figure
from kvsim.report.figures.waterfall import waterfall_bars, waterfall_figure, whole_slots

__all__ = [
    "Shares",
    "block_size_figure",
    "extent_figure",
    "latency_figure",
    "load_figure",
    "memory_figure",
    "memory_map_figure",
    "sharing_figure",
    "term_bars_figure",
    "waterfall_bars",
    "waterfall_figure",
    "whole_slots",
]
