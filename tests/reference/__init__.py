"""vLLM's scheduler and KV-cache manager written from vllm/SPEC.md, the slow and explicit way.

It loops over every running request at every step. It shares no code with kvsim: it is the
oracle that the fast engine is compared with, row for row.
"""

from tests.reference.loop import ReferenceLoop
from tests.reference.replay import ReferenceReplay
from tests.reference.request import RefRequest

__all__ = ["RefRequest", "ReferenceLoop", "ReferenceReplay"]
