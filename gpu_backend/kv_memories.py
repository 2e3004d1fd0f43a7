"""What a request's KV tensors are taken from, and an arena of ours to take them from."""

from __future__ import annotations

from typing import Any, NamedTuple, Protocol

from kvsim.core.placement import PLACEMENTS, Placement


class KvShape(NamedTuple):
    """KV of one token: `layers` times K and V of [kv_heads, head_dim] elements."""

    layers: int
    kv_heads: int
    head_dim: int
    element_bytes: int = 2

    @property
    def tensors(self) -> int:
        """Tensors that a request consists of: K and V of each layer."""
        return 2 * self.layers

    @property
    def tensor_token_bytes(self) -> int:
        """Bytes of one token in one of them."""
        return self.kv_heads * self.head_dim * self.element_bytes


class Levels(NamedTuple):
    """An allocator's state, in bytes."""

    allocated_bytes: int
    """In tensors."""
    reserved_bytes: int
    """Taken from the device and not given back."""
    split_bytes: int
    """Free parts of pieces of which another part is in use."""


class Memory(Protocol):
    """What tensors are taken from. "Does not fit" is None, and then nothing has changed."""

    def take(self, tokens: int) -> Any | None:
        """A tensor of [kv_heads, tokens, head_dim], or what stands for one."""

    def grow(self, tensor: Any, tokens: int) -> Any | None:
        """A longer tensor with the content of `tensor`, which is freed once it is copied."""

    def free(self, tensor: Any) -> None:
        """Take a tensor back."""

    def levels(self) -> Levels:
        """The state now."""

    def totals(self) -> dict[str, Any]:
        """What is only known at the end: peaks, retries."""


class Arena:
    """An address range of `capacity_tokens` tokens of all tensors; a tensor is one extent.

    `placement`: a key of `PLACEMENTS`. What is reserved is everything below the highest address
    ever used, as of a heap that only grows; its free extents are the split bytes while any of it is
    in use.
    """

    def __init__(self, shape: KvShape, capacity_tokens: int, placement: str = "best_fit") -> None:
        if capacity_tokens < 1:
            raise ValueError(f"capacity_tokens (={capacity_tokens}) must be >= 1")
        if placement not in PLACEMENTS:
            raise ValueError(f"placement (={placement!r}) must be one of {', '.join(PLACEMENTS)}")
        self._unit = shape.tensor_token_bytes
        self._units = capacity_tokens * shape.tensors
        self._arena: Placement = PLACEMENTS[placement](self._units)
        self._top = 0
        self._peak = 0

    def take(self, tokens: int) -> tuple[int, int] | None:
        """An extent (address, size) in tokens of one tensor."""
        size = self._arena.round_up(tokens)
        start = self._arena.place(size)
        if start is None:
            return None
        self._top = max(self._top, start + size)
        self._peak = max(self._peak, self._units - self._arena.free_blocks)
        return start, size

    def grow(self, tensor: tuple[int, int], tokens: int) -> tuple[int, int] | None:
        """A longer extent, placed while the old one is still held."""
        longer = self.take(tokens)
        if longer is not None:
            self.free(tensor)
        return longer

    def free(self, tensor: tuple[int, int]) -> None:
        """Give an extent back."""
        self._arena.release(*tensor)

    def levels(self) -> Levels:
        """In bytes; buddy sizes are allocated whole."""
        allocated = (self._units - self._arena.free_blocks) * self._unit
        reserved = self._top * self._unit
        return Levels(allocated, reserved, reserved - allocated if allocated else 0)

    def totals(self) -> dict[str, Any]:
        """Peaks, with the moments at which old and new tensor are both held."""
        return {
            "peak_allocated_bytes": self._peak * self._unit,
            "peak_reserved_bytes": self._top * self._unit,
            "retries": 0,
        }
