"""Models and GPUs as data with a source for every number, and the memory budget."""

from kvsim.catalog.budget import (
    Budget,
    NoKvMemoryError,
    Term,
    compute_budget,
    estimate_budget,
)
from kvsim.catalog.explain import Fact, explain_budget, explain_gpu, explain_model
from kvsim.catalog.gpu import GIB, Engine, Gpu
from kvsim.catalog.hf import CheckpointSize, checkpoint_size, model_from_config, with_checkpoint
from kvsim.catalog.kv import kv_bytes_per_token, naive_kv_bytes_per_token
from kvsim.catalog.kv_groups import (
    GroupingRule,
    KvGroups,
    LayerType,
    PageRules,
    blocks_per_request,
    kv_groups,
    uniform_groups,
)
from kvsim.catalog.model import (
    GatedDeltaNet,
    GqaAttention,
    LayerGroup,
    LayerKind,
    MlaAttention,
    Model,
    Moe,
)
from kvsim.catalog.pages import tokens_per_page
from kvsim.catalog.registry import (
    get_engine,
    get_gpu,
    get_model,
    hf_id_of,
    list_gpus,
    list_models,
)
from kvsim.catalog.weights import ExpertSplit, active_parameters, parameters, weight_bytes

__all__ = [
    "GIB",
    "Budget",
    "CheckpointSize",
    "Engine",
    "ExpertSplit",
    "Fact",
    "GatedDeltaNet",
    "Gpu",
    "GqaAttention",
    "GroupingRule",
    "KvGroups",
    "LayerGroup",
    "LayerKind",
    "LayerType",
    "MlaAttention",
    "Model",
    "Moe",
    "NoKvMemoryError",
    "PageRules",
    "Term",
    "active_parameters",
    "blocks_per_request",
    "checkpoint_size",
    "compute_budget",
    "estimate_budget",
    "explain_budget",
    "explain_gpu",
    "explain_model",
    "get_engine",
    "get_gpu",
    "get_model",
    "hf_id_of",
    "kv_bytes_per_token",
    "kv_groups",
    "list_gpus",
    "list_models",
    "model_from_config",
    "naive_kv_bytes_per_token",
    "parameters",
    "tokens_per_page",
    "uniform_groups",
    "weight_bytes",
    "with_checkpoint",
]
