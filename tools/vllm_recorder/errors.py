"""What stops a recording."""

from __future__ import annotations


class RecordError(Exception):
    """Message for the user; `status` is the exit status."""

    status = 2


class EngineFailedError(RecordError):
    """vLLM itself raised an error on this input."""

    status = 1
