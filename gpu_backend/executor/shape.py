"""The sizes of a decoder that the executor can run."""

from __future__ import annotations

from typing import Any, NamedTuple

from kvsim.catalog.model import GqaAttention, Model
from kvsim.errors import InputError

EPSILON = 1e-5
"""Of the norms."""
MAX_TABLE_ROWS = 4096
"""Rows of the table that stands for the projections where only attention is run."""


class ModelShape(NamedTuple):
    """Real shapes of one decoder layer and of the vocabulary, in elements."""

    hidden: int
    heads: int
    kv_heads: int
    head_dim: int
    intermediate: int
    vocab: int

    @property
    def qkv_elements(self) -> int:
        """Elements of a token's queries, keys and values together."""
        return (self.heads + 2 * self.kv_heads) * self.head_dim

    def split_qkv(self, qkv: Any) -> tuple[Any, Any, Any]:
        """Views [tokens, heads or kv_heads, head_dim] of [tokens, qkv elements], of any library."""
        heads = qkv.reshape(len(qkv), -1, self.head_dim)
        keys = self.heads + self.kv_heads
        return heads[:, : self.heads], heads[:, self.heads : keys], heads[:, keys:]

    @classmethod
    def of(cls, model: Model) -> ModelShape:
        """The shape of a catalogue model.

        Raises `InputError` for what the executor does not run: several kinds of layers, sliding
        windows, latent attention, experts and feed-forwards without a gate.
        """
        attention = model.attention
        if (
            len(model.groups) > 1
            or model.groups[0].window is not None
            or not isinstance(attention, GqaAttention)
            or attention.v_head_dim != attention.head_dim
            or model.moe is not None
            or not model.gated_mlp
        ):
            raise InputError(
                f"the executor runs dense decoders with one kind of full attention and a gated "
                f"feed-forward; {model.name} is not one",
                where="model",
            )
        return cls(
            model.hidden,
            attention.heads,
            attention.kv_heads,
            attention.head_dim,
            model.intermediate,
            model.vocab,
        )

    def check(self) -> None:
        """Raises ValueError unless the kernels can run this shape."""
        if min(self) < 1:
            raise ValueError(f"all sizes of the shape must be >= 1, got {self}")
        if self.heads % self.kv_heads or self.head_dim % 4:
            raise ValueError(
                f"heads must be a multiple of kv_heads and head_dim one of 4, got {self}"
            )
