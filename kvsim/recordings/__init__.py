"""Recordings of vLLM's real scheduler: reading them and replaying them row for row."""

from kvsim.recordings.reader import Recording
from kvsim.recordings.verify import Report, Result, verify

__all__ = ["Recording", "Report", "Result", "verify"]
