"""How vLLM shares one pool of blocks between layers that keep different tokens."""

from __future__ import annotations

from typing import Literal, NamedTuple

from kvsim.catalog.kv import layer_bytes_per_token, widest_layer_bytes
from kvsim.catalog.kv_layers import group_layers, layer_kvs
from kvsim.catalog.model import LayerGroup, LayerKind, Model
from kvsim.errors import InputError

GroupingRule = Literal["max_if_close", "min", "gcd", "unified"]
BLOCK_ALIGNMENT = 16
"""Blocks that grow to the size of a state hold a multiple of so many tokens."""


class LayerType(NamedTuple):
    """All layers that keep the same of a request, in `groups` groups of equal size."""

    kind: LayerKind
    limit_tokens: int | None
    """Tokens of a sliding window or of a chunk; None: all."""
    layers: int
    """Layers of this type; the rest of the groups is padding."""
    groups: int = 1
    tokens_factor: int = 1
    """A block holds so many times the usual tokens: blocks of all types are of one size in bytes,
    and a token takes fewer bytes of these layers."""
    block_tokens: int = 0
    """Tokens of a block of this type alone; 0: the usual ones."""
    page_bytes: int = 0
    """Bytes of one page of each of the layers, where pages differ in size; 0: they do not."""


class PageRules(NamedTuple):
    """How a release shares the pool between caches with pages of several sizes."""

    block: Literal["tuples", "sizes", "dense"]
    """What a block of the pool has room for: a page of every size for each layer of the widest
    group, of each size as many as the group with most of them has, or the largest group."""
    counts_by_group: bool
    """Whether the printed concurrency counts each group's blocks, else their bytes in blocks of
    the first group."""


class Pages(NamedTuple):
    """A pool of pages of several sizes."""

    block_tokens: int
    """Tokens of a block, as set by block_size."""
    block_bytes: int
    checked_bytes: int
    """Bytes that the start-up check counts for a block."""
    counts_by_group: bool


class KvGroups(NamedTuple):
    """Groups of `layers` layers each: a block of the pool holds one block of tokens of a group."""

    layers: int
    """Layers of a group, padding included."""
    types: tuple[LayerType, ...]
    """In the order of the model."""
    state_tokens: int = 0
    """Tokens whose KV takes as many bytes of a layer as a state does; 0 without states."""
    pages: Pages | None = None
    """Where caches have pages of several sizes."""
    token_bytes: int = 0
    """Bytes of a token in all layers of one group that differ in bytes; 0: they are alike."""

    @property
    def is_uniform(self) -> bool:
        """Whether all layers share one block table that keeps every token."""
        return len(self.types) == 1 and self.types[0].kind == "full" and self.types[0].groups == 1

    @property
    def num_groups(self) -> int:
        """Groups of all types."""
        return sum(one.groups for one in self.types)

    @property
    def padding_layers(self) -> int:
        """Layers of all groups that hold nothing."""
        if self.pages is not None:
            return 0
        return self.num_groups * self.layers - sum(one.layers for one in self.types)

    def has(self, *kinds: LayerKind) -> bool:
        """Whether some layers are of one of these kinds."""
        return any(one.kind in kinds for one in self.types)

    def block_tokens(self, block_size: int) -> int:
        """Tokens per block: more than asked for where a state would not fit.

        `ceil(state_bytes / bytes per token of a layer)`, rounded up to 16: blocks of all groups
        are of one size in bytes. Pages of several sizes have tokens of their own.
        """
        if self.pages is not None:
            return self.pages.block_tokens
        if not self.state_tokens:
            return block_size
        return max(block_size, -(-self.state_tokens // BLOCK_ALIGNMENT) * BLOCK_ALIGNMENT)


def uniform_groups(layers: int = 1) -> KvGroups:
    """One group of layers that all keep every token."""
    return KvGroups(layers, (LayerType("full", None, layers),))


_STATE: tuple[LayerKind, None, int] = ("state", None, 1)


def kv_groups(
    model: Model,
    *,
    tp: int = 1,
    kv_dtype_bytes: int | None = None,
    rule: GroupingRule = "max_if_close",
) -> KvGroups:
    """The groups of a model by one of vLLM's rules (`group_layers`), or `unified`: one group.

    A state beside a layer's attention counts as a layer of its own (Falcon-H1). Where layers differ
    in bytes per token, they share one block table if all keep every token, but by `min` (vLLM 0.11
    and later: a start of GLM-5.3 has 53,763 blocks of 64 * 47,700 bytes); else a block of the
    narrower ones holds more tokens. Raises `InputError` where that is no whole number of times, and
    for `unified` where layers keep a state, which has no tokens, or differ in bytes.
    """
    _check_covered(model)
    kept = [group for group in model.groups if group.kind != "none"]
    if rule in ("max_if_close", "gcd"):
        mixed = _one_table(model, kept, tp, kv_dtype_bytes)
        if mixed is not None:
            return mixed
    layers: dict[tuple[LayerKind, int | None, int], int] = {}
    for group in kept:
        factor = _tokens_factor(model, group, tp, kv_dtype_bytes)
        key = (group.kind, group.limit_tokens, factor)
        layers[key] = layers.get(key, 0) + group.layers
        if group.beside is not None:
            layers[_STATE] = layers.get(_STATE, 0) + group.layers
    if rule == "unified":
        if any(factor > 1 for _, _, factor in layers):
            raise InputError(
                f"{model.name} has layers with different KV bytes per token: they cannot share one"
                " block table",
                where="layer_groups",
                fix="Use max_if_close, min or gcd",
            )
        if any(key[0] == "state" for key in layers):
            raise InputError(
                f"{model.name} has layers that keep a state instead of tokens: they cannot share"
                " one block table with the others",
                where="layer_groups",
                fix="Use max_if_close, min or gcd",
            )
        return uniform_groups(sum(group.layers for group in kept))
    size = group_layers({str(key): count for key, count in layers.items()}, rule)
    types = (
        LayerType(kind, limit, count, -(-count // size), factor)
        for (kind, limit, factor), count in layers.items()
    )
    return KvGroups(size, tuple(types), _state_tokens(model, tp, kv_dtype_bytes))


def _one_table(
    model: Model, kept: list[LayerGroup], tp: int, kv_dtype_bytes: int | None
) -> KvGroups | None:
    """One group of layers that all keep every token and differ in bytes; None for any other."""
    if any(group.kind != "full" or group.beside is not None for group in kept):
        return None
    size = kv_dtype_bytes or model.kv_dtype_bytes
    by_group = [(group.layers, layer_bytes_per_token(group, tp, size)) for group in kept]
    if len({width for _, width in by_group}) == 1:
        return None
    total = sum(layers * width for layers, width in by_group)
    return uniform_groups(sum(layers for layers, _ in by_group))._replace(token_bytes=total)


def _tokens_factor(model: Model, group: LayerGroup, tp: int, kv_dtype_bytes: int | None) -> int:
    """How many times the tokens of the widest layers a block of this group holds."""
    if not group.keeps_text:
        return 1
    size = kv_dtype_bytes or model.kv_dtype_bytes
    widest = widest_layer_bytes(model, tp=tp, element_bytes=size)
    factor, rest = divmod(widest, layer_bytes_per_token(group, tp, size))
    if rest:
        raise InputError(
            f"{model.name} has layers whose KV bytes per token do not divide those of its widest"
            " layers: their blocks are not covered",
            where="model",
            fix="Choose a model whose layers have equally many KV heads of one size",
        )
    return factor


def _check_covered(model: Model) -> None:
    if not any(group.keeps_text for group in model.groups):
        raise InputError(
            f"{model.name} has no layer that keeps the text's tokens: there are no blocks of them",
            where="model",
            fix="Choose a model with attention",
        )
    for group in model.groups:
        if group.kind == "compressed":
            raise InputError(
                f"{model.name} has layers with a compressed past (compress_ratios), whose pages"
                " are of several sizes: they share no blocks of one size with others",
                where="model",
                fix="Ask kvsim fit for vLLM 0.21 or later, whose pages are known",
            )
        if group.kind == "cross":
            raise InputError(
                f"{model.name} has layers with cross-attention to an encoder's tokens, whose blocks"
                " are not covered",
                where="model",
                fix="Choose a model whose layers keep the text's tokens or a state",
            )


def _state_tokens(model: Model, tp: int, kv_dtype_bytes: int | None) -> int:
    kvs = layer_kvs(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
    state = max(one.state_bytes for one in kvs)
    return -(-state // max(one.bytes_per_token for one in kvs)) if state else 0


def blocks_per_request(
    groups: KvGroups, tokens: int, *, block_size: int, max_in_flight: int
) -> int:
    """Blocks that vLLM's start-up check counts for a request of so many tokens.

    `max_in_flight` are the tokens that may be computed before a window moves on:
    max_num_batched_tokens, twice that with asynchronous scheduling. A window may begin anywhere in
    a block, hence one block more, and so may a chunk that is not made of whole blocks. A state
    takes one block.
    """
    return sum(
        one.groups
        * _blocks(one, tokens, one.block_tokens or block_size * one.tokens_factor, max_in_flight)
        for one in groups.types
    )


def _blocks(one: LayerType, tokens: int, block_size: int, max_in_flight: int) -> int:
    limit = one.limit_tokens
    if one.kind == "state":
        return 1
    if limit is None:
        return -(-tokens // block_size)
    if one.kind == "chunked":
        return -(-min(limit + max_in_flight, tokens) // block_size) + (limit % block_size > 0)
    return -(-min(limit - 1 + max_in_flight, tokens) // block_size) + 1
