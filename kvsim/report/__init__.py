"""Reports made from summaries. Everything here is a pure function of what a run recorded."""

from kvsim.report.definitions import DEFINITIONS
from kvsim.report.text import (
    fragmentation_table,
    plain,
    print_report,
    result_block,
    summary_sentences,
)

__all__ = [
    "DEFINITIONS",
    "fragmentation_table",
    "plain",
    "print_report",
    "result_block",
    "summary_sentences",
]
