"""Files of the Hugging Face Hub: config.json, hf_quant_config.json, the index of a checkpoint."""

from kvsim.catalog.hf.checkpoint import CheckpointSize, checkpoint_size, with_checkpoint
from kvsim.catalog.hf.read import KNOWN_TYPES, model_from_config

__all__ = [
    "KNOWN_TYPES",
    "CheckpointSize",
    "checkpoint_size",
    "model_from_config",
    "with_checkpoint",
]
