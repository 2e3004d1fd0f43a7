"""Reads the settings and memory figures that a server printed while starting."""

from kvsim.startup_logs.found import Found, Reading, Refusal, StartupLog
from kvsim.startup_logs.reader import read_startup_log

__all__ = ["Found", "Reading", "Refusal", "StartupLog", "read_startup_log"]
