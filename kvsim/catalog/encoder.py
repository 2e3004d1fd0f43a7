"""What a model has before its decoder: towers for images and sound, and the largest item of each.

A tower is a transformer over patches of an item; a projector brings what it gives to the
decoder's width. An item is one image, video or recording of a prompt.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

Modality = Literal["image", "video", "audio"]
ELEMENT_BYTES = 2
"""Towers stay in 16 bits beside quantized decoders."""


class Tower(NamedTuple):
    """Parameters of one tower with its projector."""

    name: str
    modality: Modality
    """What it reads; towers of images read videos too."""
    divided: int
    """Elements of products that tensor parallelism divides."""
    whole: int
    """Elements that every GPU has: patches, positions, norms."""
    low: int
    high: int
    """80 % interval of all elements; both are their sum where the shapes say it."""

    @property
    def elements(self) -> int:
        """All parameters."""
        return self.divided + self.whole


class Item(NamedTuple):
    """The largest item of a modality."""

    modality: Modality
    tokens: int
    """Places in the prompt, with the text between them."""
    embeds: int
    """Vectors that the tower gives."""
    patches: int
    """Places in the tower."""
    most_pieces: int = 1
    """Pieces of this size, as many as a context has room for: pairs of a video's frames."""


@dataclass(frozen=True, slots=True)
class Encoder:
    """All towers of a model."""

    towers: tuple[Tower, ...]
    items: tuple[Item, ...] = ()
    """By modality; empty where not known."""
    inner: int = 0
    """Elements per patch inside a feed-forward, divided by tensor parallelism."""
    kept: int = 0
    """Elements per patch beside it: hidden states and pixels."""
    width: int = 0
    """Elements of one vector that is kept for the decoder, of all levels."""
    buffer_width: int = 0
    """Elements per token of a step in buffers that are loaded with the tower (deepstack)."""
    unknown: tuple[str, ...] = ()
    """What the configuration does not say, in words."""

    @property
    def elements(self) -> int:
        """All parameters."""
        return sum(tower.elements for tower in self.towers)

    @property
    def low(self) -> int:
        """Fewest parameters, 80 % interval."""
        return sum(tower.low for tower in self.towers)

    @property
    def high(self) -> int:
        """Most parameters, 80 % interval."""
        return sum(tower.high for tower in self.towers)

    @property
    def exact(self) -> bool:
        """Whether the shapes say how many parameters there are."""
        return self.low == self.high

    def weight_bytes(self, tp: int) -> int:
        """Bytes on one of `tp` GPUs that divide the products."""
        return ELEMENT_BYTES * sum(-(-one.divided // tp) + one.whole for one in self.towers)

    def step_bytes(self, patches: int, tp: int) -> int:
        """Bytes while the towers work on so many patches; outputs and weights not included.

        Of one layer: what the feed-forward makes, some hidden states, and the pixels, which stay.
        """
        return ELEMENT_BYTES * patches * (-(-self.inner // tp) + self.kept)
