"""kvsim: memory simulation and capacity planning for LLM serving."""

__version__ = "0.1.0"
