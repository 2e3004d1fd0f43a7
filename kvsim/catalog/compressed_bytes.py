"""Bytes that a request needs where layers keep a window of tokens and a compressed past."""

from __future__ import annotations

from typing import NamedTuple

from kvsim.catalog.compressed import CompressedAttention, PartName
from kvsim.catalog.model import Model


class Kept(NamedTuple):
    """Equal caches of several layers, for one request."""

    part: PartName
    ratio: int
    """Tokens per compressed entry of these layers; 0: they have none."""
    layers: int
    entries: int
    entry_bytes: int

    @property
    def bytes(self) -> int:
        """Of all these layers."""
        return self.layers * self.entries * self.entry_bytes

    def formula(self) -> str:
        """The product with its numbers."""
        where = f" of ratio {self.ratio}" if self.part != "window" else ""
        what = {
            "window": "tokens in the window",
            "compressed": "entries",
            "index": "index keys",
            "state": "tokens of compressor state",
            "index_state": "tokens of the index's state",
        }[self.part]
        return f"{self.layers} layers{where} * {self.entries:,} {what} * {self.entry_bytes:,} B"


def compresses(model: Model) -> bool:
    """Whether the model's layers keep a window and a compressed past."""
    return any(isinstance(group.attention, CompressedAttention) for group in model.groups)


def kept(model: Model, tokens: int, element_bytes: int) -> list[Kept]:
    """What a request of so many tokens needs on each GPU, cache by cache; every GPU has all of it.

    A layer of ratio r keeps `min(tokens, window)` entries, `floor(tokens / r)` more, and a state
    for the tokens that have no compressed entry yet.
    """
    found: dict[tuple[PartName, int], Kept] = {}
    for group in model.groups:
        if not isinstance(group.attention, CompressedAttention):
            continue
        for part in group.attention.parts(element_bytes):
            ratio = 0 if part.name == "window" else group.attention.ratio
            one = Kept(part.name, ratio, group.layers, part.entries(tokens), part.entry_bytes)
            before = found.get((part.name, ratio))
            layers = group.layers + (before.layers if before is not None else 0)
            found[part.name, ratio] = one._replace(layers=layers)
    return list(found.values())


def kept_bytes(model: Model, tokens: int, element_bytes: int) -> int:
    """Bytes of `kept` together."""
    return sum(one.bytes for one in kept(model, tokens, element_bytes))
