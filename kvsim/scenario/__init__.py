"""YAML -> checked settings -> constructor arguments; and running what they describe."""

from kvsim.scenario.build import Server, build_server
from kvsim.scenario.build_workload import Traffic, build_workload
from kvsim.scenario.finder import shipped_scenarios
from kvsim.scenario.loader import load_scenario, resolved
from kvsim.scenario.run import RunResult, run_scenario
from kvsim.scenario.schema import scenario_schema
from kvsim.scenario.settings import Scenario
from kvsim.scenario.variants import variants
from kvsim.scenario.watcher import SilentWatcher, Watcher

__all__ = [
    "RunResult",
    "Scenario",
    "Server",
    "SilentWatcher",
    "Traffic",
    "Watcher",
    "build_server",
    "build_workload",
    "load_scenario",
    "resolved",
    "run_scenario",
    "scenario_schema",
    "shipped_scenarios",
    "variants",
]
