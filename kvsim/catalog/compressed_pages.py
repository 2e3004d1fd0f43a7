"""How vLLM shares one pool between the caches of layers that compress their past.

Every cache has pages of its own size. A block of the pool holds one page of each layer of a group:
one group of all compressed entries and index keys, groups of windows, and one of states for each
ratio. Rules of vLLM 0.21 and later for `fp8_ds_mla`; the tests have the figures of real starts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from kvsim.catalog.compressed import CompressedAttention, Part
from kvsim.catalog.kv_groups import KvGroups, LayerType, PageRules, Pages
from kvsim.catalog.model import Model
from kvsim.errors import InputError

ENTRY_BLOCK_TOKENS = 256
"""Tokens of a page of compressed entries: the sparse kernels take no other number."""
WINDOW_BLOCK_TOKENS = 64
STATE_BLOCK_TOKENS = {4: 4, 128: 8}
"""Tokens of a page of compressor states by ratio: as many as fit a page of entries."""
ALIGNMENT_BYTES = 576
"""Pages end at a multiple of it."""


class _Group(NamedTuple):
    """Layers with pages of one block table, before they are split into groups of equal width."""

    kind: Part
    block_tokens: int
    pages: Counter[int]
    """Layers by the bytes of their page."""

    @property
    def width(self) -> int:
        """Layers with the most frequent size of page."""
        return max(self.pages.values())


def compressed_groups(model: Model, rules: PageRules) -> KvGroups:
    """The groups of a pool, and the bytes of its blocks by a release's rules, on each GPU.

    Raises `InputError` for a model without compressed layers, or with others beside them.
    """
    entries, *others = _groups(model, padded=rules.block != "dense")
    widths = [one.width for one in (entries, *others)]
    size = tuple_width(widths)
    types = [
        LayerType(
            "full",
            None,
            sum(entries.pages.values()),
            block_tokens=entries.block_tokens,
            page_bytes=_bytes(entries.pages),
        )
    ]
    for one in others:
        split = -(-one.width // size)
        types.append(
            LayerType(
                "sliding",
                one.kind.limit_tokens,
                sum(one.pages.values()),
                split,
                block_tokens=one.block_tokens,
                page_bytes=_bytes(one.pages),
            )
        )
    slices = [entries.pages] + [_slice(one.pages, size) for one in others]
    widest = max(max(one.values()) for one in slices)
    tuples = widest * sum(entries.pages)
    block = {
        "tuples": tuples,
        "sizes": sum(page * max(one[page] for one in slices) for page in set().union(*slices)),
        "dense": max(map(_bytes, slices)),
    }[rules.block]
    pages = Pages(ENTRY_BLOCK_TOKENS, block, tuples, rules.counts_by_group)
    return KvGroups(widest, tuple(types), pages=pages)


def tuple_width(widths: Sequence[int]) -> int:
    """Layers of a group: the number from the first width on that pads all of them least.

    Of several the largest. Raises `InputError` without a width.
    """
    if not widths or min(widths) < 1:
        raise InputError(f"every group needs a layer, got {list(widths)}", where="layers")
    sizes = range(widths[0], max(widths) + 1) or range(widths[0], widths[0] + 1)
    return min(sizes, key=lambda size: (sum(-width % size for width in widths), -size))


def _bytes(pages: Counter[int]) -> int:
    return sum(page * layers for page, layers in pages.items())


def _slice(pages: Counter[int], size: int) -> Counter[int]:
    """The widest of the groups that layers are dealt to."""
    split = -(-max(pages.values()) // size)
    return Counter({page: -(-layers // split) for page, layers in pages.items()})


def _groups(model: Model, *, padded: bool) -> list[_Group]:
    """Entries first, then windows and states; `padded`: states fill pages of entries."""
    found: dict[tuple[int, int | None], _Group] = {}
    entry_pages: Counter[int] = Counter()
    for group in model.groups:
        attention = group.attention
        if not isinstance(attention, CompressedAttention):
            raise InputError(
                f"{model.name} has layers without a compressed past beside others: their blocks"
                " are not covered",
                where="model",
                fix="Choose a model whose layers all have a window and compress_ratios",
            )
        for part in attention.parts(1):
            tokens = _block_tokens(part, attention.ratio)
            page = _aligned(tokens // part.tokens_per_entry * part.entry_bytes)
            if part.limit_tokens is None:
                entry_pages[page] += group.layers
                continue
            key = (tokens, part.limit_tokens)
            one = found.setdefault(key, _Group(part, tokens, Counter()))
            one.pages[page] += group.layers
    if not entry_pages:
        raise InputError(
            f"{model.name} has no layer with compressed entries (compress_ratios)",
            where="model",
            fix="Choose a model whose compress_ratios are not all 0",
        )
    entries = _Group(Part("compressed", 0), ENTRY_BLOCK_TOKENS, entry_pages)
    others = list(found.values())
    if padded:
        others = [one._replace(pages=_filling(one.pages, entry_pages)) for one in others]
    return [entries, *others]


def _filling(pages: Counter[int], sizes: Counter[int]) -> Counter[int]:
    """Pages grown to the next size that pages of entries have."""
    grown: Counter[int] = Counter()
    for page, layers in pages.items():
        grown[min((size for size in sizes if size >= page), default=page)] += layers
    return grown


def _block_tokens(part: Part, ratio: int) -> int:
    if part.name == "window":
        return WINDOW_BLOCK_TOKENS
    if part.limit_tokens is None:
        return ENTRY_BLOCK_TOKENS
    return STATE_BLOCK_TOKENS[ratio]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT_BYTES) * ALIGNMENT_BYTES
