"""A scenario file for some traffic, to begin with: paged memory, a calibrated clock, defaults."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationError

from kvsim.scenario.document import yaml_text
from kvsim.scenario.problems import to_input_error
from kvsim.scenario.settings import Scenario
from kvsim.scenario.sizing import size_server

_SLO = {"ttft_s": 2.0, "tpot_s": 0.1}


def starter_scenario(
    workload: Mapping[str, Any], *, model: str, gpu: str, count: int = 1, about: str = ""
) -> str:
    """YAML that runs the section `workload` on `count` GPUs, with the defaults of `vllm serve`.

    Raises `InputError` where this is no scenario.
    """
    settings: dict[str, Any] = {
        "version": 1,
        "description": about,
        "profile": "vllm-0.33",
        "model": model,
        "hardware": {"gpu": gpu, "count": count},
        "memory": {"kind": "paged", "block_size": 16},
        "clock": {"kind": "calibrated"},
        "workload": dict(workload),
        "slo": _SLO,
    }
    try:
        size_server(Scenario.model_validate(settings))
    except ValidationError as error:
        raise to_input_error(error, settings, lambda path: ".".join(path)) from None
    return yaml_text(settings)
