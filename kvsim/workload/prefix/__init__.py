"""How much of a workload's prompts a prefix cache would find again, at every size of the cache."""

from kvsim.workload.prefix.analysis import MAX_BLOCK_SIZE, PrefixAnalysis, PromptTokens
from kvsim.workload.prefix.belady import best_hit_blocks
from kvsim.workload.prefix.chunk_shares import ChunkShares, chunk_shares
from kvsim.workload.prefix.definitions import PREFIX_DEFINITIONS
from kvsim.workload.prefix.document import prefix_curve, prefix_document
from kvsim.workload.prefix.in_flight import hit_tokens_in_flight
from kvsim.workload.prefix.lru import lru_hit_blocks
from kvsim.workload.prefix.references import References
from kvsim.workload.prefix.rounding import Rounding, block_rounding, fitting_sizes
from kvsim.workload.prefix.stack import StackCurve, stack_curve
from kvsim.workload.prefix.trace import PrefixTrace

__all__ = [
    "MAX_BLOCK_SIZE",
    "PREFIX_DEFINITIONS",
    "ChunkShares",
    "PrefixAnalysis",
    "PrefixTrace",
    "PromptTokens",
    "References",
    "Rounding",
    "StackCurve",
    "best_hit_blocks",
    "block_rounding",
    "chunk_shares",
    "fitting_sizes",
    "hit_tokens_in_flight",
    "lru_hit_blocks",
    "prefix_curve",
    "prefix_document",
    "stack_curve",
]
