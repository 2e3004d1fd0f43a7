"""Clocks that predict how long a step takes."""

from kvsim.cost.calibrated import CalibratedClock
from kvsim.cost.given import FixedClock, LinearClock
from kvsim.cost.roofline import RooflineClock

CLOCKS: dict[
    str, type[FixedClock] | type[LinearClock] | type[RooflineClock] | type[CalibratedClock]
] = {
    "fixed": FixedClock,
    "linear": LinearClock,
    "roofline": RooflineClock,
    "calibrated": CalibratedClock,
}
"""Kind in a scenario -> class."""

__all__ = ["CLOCKS", "CalibratedClock", "FixedClock", "LinearClock", "RooflineClock"]
