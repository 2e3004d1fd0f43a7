"""From the KV memory of one rank to what a vLLM server prints or refuses at start-up, exactly."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.catalog import GIB, KvGroups, blocks_per_request
from kvsim.planning.releases import Release


@dataclass(frozen=True, slots=True)
class KvLayout:
    """How one rank's pool is divided."""

    groups: KvGroups
    block_tokens: int
    """Tokens of a block, as printed."""
    block_bytes: int
    """Bytes of a block: of all layers of a group."""
    state_blocks: int = 1
    """Blocks of a request in each group of states: 2 with prefix caching."""

    def blocks_per_request(self, tokens: int, *, max_in_flight: int) -> int:
        """Blocks of all groups for one request (FIELD.md section 2)."""
        total = 0
        for one in self.groups.types:
            alone = self.groups._replace(types=(one,))
            blocks = blocks_per_request(
                alone, tokens, block_size=self.block_tokens, max_in_flight=max_in_flight
            )
            total += blocks * (self.state_blocks if one.kind == "state" else 1)
        return total

    @property
    def checked_bytes(self) -> int:
        """Bytes that the start-up check counts for a block: more where pages differ in size."""
        return self.block_bytes if self.groups.pages is None else self.groups.pages.checked_bytes

    def counted_blocks(self, tokens: int, *, max_in_flight: int) -> int:
        """Blocks that the printed concurrency counts for one request.

        Where pages differ in size, some releases divide the bytes of all groups' pages by those of
        the first group (vllm pull 48317).
        """
        pages = self.groups.pages
        if pages is None or pages.counts_by_group:
            return self.blocks_per_request(tokens, max_in_flight=max_in_flight)
        total = 0
        for one in self.groups.types:
            alone = KvGroups(self.groups.layers, (one._replace(groups=1),))
            total += one.page_bytes * blocks_per_request(
                alone, tokens, block_size=self.block_tokens, max_in_flight=max_in_flight
            )
        return -(-total // self.groups.types[0].page_bytes)


@dataclass(frozen=True, slots=True)
class Refusal:
    """Why the server does not start, in its own figures."""

    rule: str
    """`max_len_gt_kv_tokens` (v0) or `need_gt_available` (v1)."""
    needed_bytes: int
    available_bytes: int
    longest_request_tokens: int
    """What would fit."""


@dataclass(frozen=True, slots=True)
class Start:
    """A server that starts, or the figures with which it refuses."""

    num_blocks: int
    kv_tokens: int
    """As printed (GPU KV cache size)."""
    max_concurrency: float
    """Requests of max_model_len tokens at once; printed with two decimals."""
    longest_request_tokens: int
    """Tokens of the longest request that the pool holds."""
    refusal: Refusal | None


def start(
    layout: KvLayout,
    release: Release,
    *,
    max_model_len: int,
    max_in_flight: int,
    available_bytes: int | None = None,
    num_blocks: int | None = None,
) -> Start:
    """What follows from the available bytes, or from the number of blocks where that is known.

    `max_in_flight` are the tokens computed before a window moves on: max_num_batched_tokens, twice
    that with asynchronous scheduling.
    """
    if num_blocks is None:
        if available_bytes is None:
            raise ValueError("give available_bytes or num_blocks")
        num_blocks = max(available_bytes, 0) // layout.block_bytes
    if available_bytes is None:
        available_bytes = num_blocks * layout.block_bytes
    per_request = layout.blocks_per_request(max_model_len, max_in_flight=max_in_flight)
    slots = num_blocks // layout.groups.num_groups * layout.block_tokens
    concurrency = num_blocks / layout.counted_blocks(max_model_len, max_in_flight=max_in_flight)
    if release.engine == "v0":
        concurrency = num_blocks * layout.block_tokens / max_model_len
    tokens = int(concurrency * max_model_len) if release.prints_tokens_of_one_request else slots
    checked = num_blocks
    if layout.checked_bytes != layout.block_bytes:
        checked = max(available_bytes, 0) // layout.checked_bytes
    longest = longest_request(layout, checked, max_in_flight=max_in_flight)
    return Start(
        num_blocks,
        tokens,
        concurrency,
        longest,
        _refusal(layout, release, available_bytes, num_blocks, per_request, max_model_len, longest),
    )


def _refusal(
    layout: KvLayout,
    release: Release,
    available_bytes: int,
    num_blocks: int,
    per_request: int,
    max_model_len: int,
    longest: int,
) -> Refusal | None:
    needed = per_request * layout.checked_bytes
    if release.engine == "v0":
        if max_model_len <= num_blocks * layout.block_tokens:
            return None
        return Refusal("max_len_gt_kv_tokens", needed, available_bytes, longest)
    if needed <= available_bytes:
        return None
    return Refusal("need_gt_available", needed, available_bytes, longest)


def longest_request(layout: KvLayout, num_blocks: int, *, max_in_flight: int) -> int:
    """Tokens of the longest request that so many blocks hold; 0 for none.

    Where every token is kept, the largest multiple of the block's tokens that fits.
    """

    def fits(tokens: int) -> bool:
        return layout.blocks_per_request(tokens, max_in_flight=max_in_flight) <= num_blocks

    low, high = 0, 1
    while fits(high) and high < MOST_TOKENS:
        low, high = high, 2 * high
    while high - low > 1:
        middle = (low + high) // 2
        if fits(middle):
            low = middle
        else:
            high = middle
    return low


MOST_TOKENS = 1 << 40
"""No context is longer; layers that keep none of the tokens would fit any."""


def printed_gib(bytes_: int) -> str:
    """As Python's formatting prints it, two decimals: ties go to the even digit."""
    return f"{bytes_ / GIB:.2f}"
