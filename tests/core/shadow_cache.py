"""What a prefix cache must know, kept as explicit tokens: the slow and plain way."""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable
from typing import Any

from kvsim.core.eviction import LruOrder
from kvsim.core.hit_ledger import HitCounts
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Request, Sequence

Token = tuple[Hashable, int]
Segments = tuple[tuple[Hashable, int], ...]


def sequence(
    prompt: int | Segments, output: int = 1, name: str = "r", output_stream: Hashable = None
) -> Sequence:
    """`prompt` is a length that nobody shares, or segments."""
    segments = None if isinstance(prompt, int) else prompt
    tokens = prompt if isinstance(prompt, int) else sum(length for _, length in prompt)
    request = Request(name, 0, tokens, output, segments=segments, output_stream=output_stream)
    return Sequence(request, max_model_len=10_000)


def cached(blocks: int = 100, block_size: int = 4, **settings: Any) -> PagedAllocator:
    return PagedAllocator(blocks + 1, block_size, **{"eviction": LruOrder(), **settings})


def admit(allocator: PagedAllocator, one: Sequence) -> int:
    """Admit all known tokens in one chunk; return the hit tokens."""
    hit = allocator.lookup(one)
    assert allocator.admit(one, hit, one.tokens - hit.tokens, one.tokens, 0)
    one.computed = one.tokens
    one.admissions += 1
    return hit.tokens


def admit_and_release(allocator: PagedAllocator, one: Sequence) -> None:
    admit(allocator, one)
    allocator.release(one)


def known_blocks(allocator: PagedAllocator) -> list[int]:
    assert allocator.cache is not None
    return [block for block in range(allocator.num_blocks) if block in allocator.cache]


def counts_of(allocator: PagedAllocator) -> HitCounts:
    assert allocator.ledger is not None
    return allocator.ledger.counts()


def snapshot(allocator: PagedAllocator) -> tuple[object, ...]:
    usage, cache = allocator.usage, allocator.cache
    assert cache is not None
    return (
        allocator.dump(),
        [getattr(usage, name) for name in usage.__slots__],
        allocator.prefix_counts(),
        cache.num_keys(),
        known_blocks(allocator),
        len(cache.free),
    )


def tokens_of(request: Request, count: int) -> list[Token]:
    """The first `count` tokens, spelled out; what has no name is nobody else's."""
    tokens: list[Token] = []
    own = ("own", id(request), request.request_id)
    if request.segments is None:
        return [(own, index) for index in range(count)]
    for stream, length in request.segments:
        tokens += [(stream, index) for index in range(length)]
    behind = own if request.output_stream is None else request.output_stream
    tokens += [(behind, index) for index in range(count - len(tokens))]
    return tokens[:count]


class Shadow:
    """What each block holds, as tokens, and who holds it; knows nothing of numbers or runs."""

    def __init__(self, num_blocks: int, block_size: int, hash_lookahead: int) -> None:
        self.block_size = block_size
        self.hash_lookahead = hash_lookahead
        self.content: dict[int, tuple[Token, ...]] = {}
        """Blocks with a content, in the order in which they got it."""
        self.holders: Counter[int] = Counter()
        self.free = list(range(1, num_blocks))
        """The free queue of vllm/SPEC.md section 4 (least recently used content last)."""
        self.evicted = 0
        self.seen: list[list[Token]] = []
        """Whatever was computed and booked, as token sequences."""

    def content_at(self, one: Sequence, index: int) -> tuple[Token, ...]:
        end = (index + 1) * self.block_size + self.hash_lookahead
        return tuple(tokens_of(one.request, end))

    def hit(self, one: Sequence) -> list[int]:
        blocks: list[int] = []
        for index in range((one.tokens - 1) // self.block_size):
            wanted = self.content_at(one, index)
            found = [block for block, content in self.content.items() if content == wanted]
            if not found:
                break
            blocks.append(found[0])
        return blocks

    def extend(self, before: list[int], after: list[int], hit: list[int]) -> None:
        """Blocks were added to a table: those of the hit, then new ones."""
        assert after[: len(before) + len(hit)] == before + hit
        for block in hit:
            if not self.holders[block]:
                self.free.remove(block)
            self.holders[block] += 1
        new = after[len(before) + len(hit) :]
        empty = [block for block in self.free if block not in self.content]
        for block in new:
            assert block in self.free
            if self.content.pop(block, None) is not None:
                assert set(empty) <= set(new), "evicted although a block without content was free"
                self.evicted += 1
            self.free.remove(block)
            self.holders[block] = 1

    def seal(self, one: Sequence, upto: int) -> None:
        """`upto` tokens have KV and are known in value."""
        limit = min(upto, one.tokens - self.hash_lookahead)
        for index in range(limit // self.block_size):
            if one.table[index] not in self.content:
                self.content[one.table[index]] = self.content_at(one, index)

    def book(self, one: Sequence, upto: int) -> None:
        self.seen.append(tokens_of(one.request, upto))

    def release(self, table: list[int]) -> None:
        freed = []
        for block in reversed(table):
            self.holders[block] -= 1
            if not self.holders[block]:
                freed.append(block)
        empty = [block for block in freed if block not in self.content]
        full = [block for block in freed if block in self.content]
        self.free = empty + self.free + full

    def seen_tokens(self, one: Sequence) -> int:
        """The longest beginning of the prompt that was computed before."""
        prompt = tokens_of(one.request, one.request.prompt_tokens)
        longest = 0
        for tokens in self.seen:
            same = 0
            for mine, theirs in zip(prompt, tokens, strict=False):
                if mine != theirs:
                    break
                same += 1
            longest = max(longest, same)
        return longest
