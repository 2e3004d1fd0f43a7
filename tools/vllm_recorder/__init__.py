"""Records what the installed vLLM's own scheduler decides, for `kvsim verify` to compare with."""
