"""Clocks that predict how long a step takes."""

from kvsim.cost.calibrated import CalibratedClock
from kvsim.cost.given import FixedClock, LinearClock
from kvsim.cost.roofline import RooflineClock

__all__ = ["CalibratedClock", "FixedClock", "LinearClock", "RooflineClock"]
