"""Recorders, metrics and the run folder: everything shown anywhere is computed from these."""

from kvsim.results.histogram import LogHistogram
from kvsim.results.recorder import SummaryRecorder
from kvsim.results.requests import Slo
from kvsim.results.rows import RequestsRecorder, StepsRecorder
from kvsim.results.run_folder import RunFolder
from kvsim.results.series import SeriesRecorder
from kvsim.results.snapshots import SnapshotRecorder
from kvsim.results.summary_file import read_summary
from kvsim.results.tee import Tee

__all__ = [
    "LogHistogram",
    "RequestsRecorder",
    "RunFolder",
    "SeriesRecorder",
    "Slo",
    "SnapshotRecorder",
    "StepsRecorder",
    "SummaryRecorder",
    "Tee",
    "read_summary",
]
