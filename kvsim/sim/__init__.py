"""The engine in simulated time. The only box that imports SimPy."""

from kvsim.sim.replica import Replica, RunEnd, Stuck, run_replica

__all__ = ["Replica", "RunEnd", "Stuck", "run_replica"]
