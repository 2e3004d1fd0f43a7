"""How vLLM shares one pool of blocks between layers that keep different tokens."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.catalog.model import Model
from kvsim.errors import InputError

SAME_SIZE_RATIO = 1.5
"""Types whose numbers of layers differ by less are put into groups of the larger number."""


class KvGroups(NamedTuple):
    """Groups of `layers` layers each: a block of the pool holds one block of tokens of a group."""

    layers: int
    """Layers of a group, padding included."""
    windows: tuple[int | None, ...]
    """Per group, tokens that its layers attend to; None: all. Types in the order of the model."""

    @property
    def is_uniform(self) -> bool:
        """Whether all layers share one block table that keeps every token."""
        return self.windows == (None,)


def kv_groups(model: Model, *, tp: int = 1) -> KvGroups:
    """The groups of a model. Raises `InputError` where layers differ in bytes per token."""
    layers: dict[int | None, int] = {}
    for group in model.groups:
        layers[group.window] = layers.get(group.window, 0) + group.layers
    if len({group.attention.kv_elements(tp) for group in model.groups}) > 1:
        raise InputError(
            f"{model.name} has layers with different KV bytes per token, whose blocks are not"
            " covered",
            where="model",
            fix="Choose a model whose layers have equally many KV heads of one size",
        )
    least, most = min(layers.values()), max(layers.values())
    size = most if most < SAME_SIZE_RATIO * least else least
    windows = [window for window, count in layers.items() for _ in range(-(-count // size))]
    return KvGroups(size, tuple(windows))


def blocks_per_request(
    groups: KvGroups, tokens: int, *, block_size: int, max_in_flight: int
) -> int:
    """Blocks that vLLM's start-up check counts for a request of so many tokens.

    `max_in_flight` are the tokens that may be computed before a window moves on:
    max_num_batched_tokens, twice that with asynchronous scheduling. A window may begin anywhere in
    a block, hence one block more.
    """
    total = 0
    for window in groups.windows:
        held = tokens if window is None else min(window - 1 + max_in_flight, tokens)
        total += -(-held // block_size) + (window is not None)
    return total
