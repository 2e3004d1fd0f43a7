"""llama.cpp's cache: cells and bytes follow from the context alone, not from what is free."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.errors import InputError

MIB = 1 << 20
PADDING_CELLS = 256
STATE_ELEMENT_BYTES = 4
"""States of recurrent layers, and their convolutions' inputs, are kept in f32."""
CACHE_TYPES = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
"""Elements of a block of each cache type, and its bytes with scales."""


@dataclass(frozen=True, slots=True)
class CellPool:
    """One kind of layers' cache, as the line `llama_kv_cache: size = ...` prints it."""

    cells: int
    """Per stream."""
    streams: int
    k_bytes: int
    v_bytes: int

    @property
    def kv_bytes(self) -> int:
        """Keys and values together."""
        return self.k_bytes + self.v_bytes

    @property
    def tokens(self) -> int:
        """Cells of all streams."""
        return self.cells * self.streams


def padded(tokens: int, padding: int = PADDING_CELLS) -> int:
    """Tokens rounded up to whole multiples of `padding` cells."""
    return -(-tokens // padding) * padding


def full_cells(n_ctx: int, *, streams: int = 1, padding: int = PADDING_CELLS) -> int:
    """Cells per stream of layers that keep every token.

    Without a unified cache each of `streams` sequences has its part of `n_ctx` for itself.
    """
    if n_ctx < 1 or streams < 1:
        raise InputError(f"must be at least 1, got {n_ctx} and {streams} streams", where="n_ctx")
    return padded(-(-n_ctx // streams), padding)


def window_cells(
    cells: int, *, window: int, n_ubatch: int, sequences: int = 1, padding: int = PADDING_CELLS
) -> int:
    """Cells per stream of layers with a sliding window: `pad256(window + n_ubatch)`.

    Never more than the `cells` of the other layers. `sequences` share one stream where the cache
    is unified, and each needs its own window.
    """
    return min(cells, padded(window * sequences + n_ubatch, padding))


def type_bytes(elements: int, cache_type: str) -> int:
    """Bytes of so many elements of one cell: 34 per 32 elements in q8_0, 18 in q4_0.

    Raises `InputError` for an unknown type, and for elements that are not whole blocks of it.
    """
    if cache_type not in CACHE_TYPES:
        raise InputError(
            f"{cache_type[:20]!r} is no cache type",
            where="cache_type",
            fix=f"Known: {', '.join(CACHE_TYPES)}",
        )
    block, size = CACHE_TYPES[cache_type]
    if elements % block:
        raise InputError(
            f"{elements} elements per token and layer are not whole blocks of {block}, as"
            f" {cache_type} needs",
            where="cache_type",
            fix="Use f16",
        )
    return elements // block * size


def pool(
    cells: int,
    *,
    layers: int,
    k_elements: int,
    v_elements: int,
    k_type: str = "f16",
    v_type: str = "f16",
    streams: int = 1,
) -> CellPool:
    """Bytes of `layers` equal layers; elements are of one layer and token, all KV heads.

    Raises `InputError` as `type_bytes` does.
    """
    rows = cells * streams * layers
    return CellPool(
        cells, streams, rows * type_bytes(k_elements, k_type), rows * type_bytes(v_elements, v_type)
    )


def recurrent_bytes(*, layers: int, r_elements: int, s_elements: int, sequences: int = 1) -> int:
    """Bytes of recurrent layers: per sequence the convolution's inputs (R) and the state (S)."""
    return sequences * layers * (r_elements + s_elements) * STATE_ELEMENT_BYTES


def printed_mib(bytes_: int) -> str:
    """As the log prints sizes: MiB with two decimals."""
    return f"{bytes_ / MIB:.2f}"
