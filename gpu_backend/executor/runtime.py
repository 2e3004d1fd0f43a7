"""What the executor asks of an engine and of a device."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq
from typing import NamedTuple, Protocol

from gpu_backend.executor.arrays import NumpyArray
from gpu_backend.executor.batch import Inputs
from gpu_backend.executor.shape import ModelShape
from kvsim.core.plan import Copy
from kvsim.core.request import Sequence


class Engine(Protocol):
    """What is read of a scheduler."""

    max_num_seqs: int
    max_num_batched_tokens: int
    max_model_len: int

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens of a scheduled sequence that have KV when the step has run."""


class Settings(NamedTuple):
    """What is run on a device, whatever the device."""

    shape: ModelShape
    layers: int
    rows: int
    """Most sequences of a step."""
    max_tokens: int
    """Most tokens of a sequence."""
    attention_only: bool = False
    seed: int = 0
    fill: float = float("nan")
    """What KV memory holds before anything is written to it."""
    step_tokens: int = 1
    """Most tokens of a step: a step of as many is run once at the start, outside any measurement,
    so that no later one is the first to touch a buffer."""


class Weights(NamedTuple):
    """What the queries, keys and values of layer 0 are made of, as the device holds it."""

    shape: ModelShape
    rows: Callable[[NumpyArray], NumpyArray]
    """Token ids [n] -> float32 [n, hidden], or without projection [n, qkv elements]."""
    projection: Callable[[], tuple[NumpyArray, NumpyArray]] | None
    """-> the weights of the norm [hidden] and of the product [hidden, qkv elements], float32.

    None: the rows are queries, keys and values themselves.
    """


class Runtime(Protocol):
    """A device with KV memory and a model.

    Its constructor allocates all memory, fills it, and compiles what the steps will call.
    """

    device_name: str
    mode: str
    """How work is given to the device: "eager", one operation after the other."""
    dtype: str
    """Type of weights and KV: "fp32", "fp16" or "bf16"."""

    def execute(self, copies: Seq[Copy], inputs: Inputs) -> None:
        """Start a step: the copies in their order, then all layers, then the sampled tokens.

        Only the slots of `copies` and of `inputs` are written.
        """

    def synchronize(self) -> float:
        """Wait for the latest step; returns the seconds that the device took for it."""

    def attention_rows(self, tokens: NumpyArray) -> NumpyArray:
        """Layer 0's attention of the latest step, float32 [n, heads, head_dim], of tokens [n]."""

    def sampled(self) -> NumpyArray:
        """The latest step's most likely next tokens, int64 [samples]; empty without a model."""

    def weights(self) -> Weights:
        """What the reference computes layer 0's attention from."""
