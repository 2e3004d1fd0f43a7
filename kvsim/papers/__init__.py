"""Published results as targets: what papers print, what we get, whether it is close enough."""

from kvsim.papers.registry import FIGURES, available_lengths, get_figure, reproduce
from kvsim.papers.target import Figure, FigureResult, Interval, Job, Result, Target

__all__ = [
    "FIGURES",
    "Figure",
    "FigureResult",
    "Interval",
    "Job",
    "Result",
    "Target",
    "available_lengths",
    "get_figure",
    "reproduce",
]
