"""Clocks that predict how long a step takes."""

from kvsim.cost.calibrated import CalibratedClock
from kvsim.cost.drafts import DraftingClock
from kvsim.cost.given import FixedClock, LinearClock
from kvsim.cost.predictive import PredictiveClock
from kvsim.cost.roofline import RooflineClock

__all__ = [
    "CalibratedClock",
    "DraftingClock",
    "FixedClock",
    "LinearClock",
    "PredictiveClock",
    "RooflineClock",
]
