"""Clocks that predict how long a step takes."""

from kvsim.cost.calibrated import CalibratedClock
from kvsim.cost.drafts import DraftingClock
from kvsim.cost.given import FixedClock, LinearClock
from kvsim.cost.mapping import MappingClock
from kvsim.cost.predictive import PredictiveClock
from kvsim.cost.profile import Profile, read_profile
from kvsim.cost.profile_clock import ProfileClock
from kvsim.cost.roofline import RooflineClock
from kvsim.cost.transfers import Link, TransferClock, crossover_block_size

__all__ = [
    "CalibratedClock",
    "DraftingClock",
    "FixedClock",
    "LinearClock",
    "Link",
    "MappingClock",
    "PredictiveClock",
    "Profile",
    "ProfileClock",
    "RooflineClock",
    "TransferClock",
    "crossover_block_size",
    "read_profile",
]
