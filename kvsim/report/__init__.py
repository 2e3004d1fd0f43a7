"""Reports made from summaries. Everything here is a pure function of what a run recorded."""

from kvsim.report.definitions import DEFINITIONS
from kvsim.report.text import (
    definitions_table,
    fragmentation_table,
    half_width,
    plain,
    print_report,
    result_block,
    shown,
    summary_sentences,
)

__all__ = [
    "DEFINITIONS",
    "definitions_table",
    "fragmentation_table",
    "half_width",
    "plain",
    "print_report",
    "result_block",
    "shown",
    "summary_sentences",
]
