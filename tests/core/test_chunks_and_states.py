"""Layer groups that keep a chunk of the tokens, or one state: what they hold and account for."""

from __future__ import annotations

import pytest

from kvsim.core.eviction import LruOrder
from kvsim.core.group import LayerGroup, group_kinds
from tests.core.test_grouped import admit, memory, sequence, terms_of

FULL = LayerGroup("full", 4)


@pytest.mark.parametrize("block_size", [1, 3, 16])
@pytest.mark.parametrize("size", [1, 2, 16, 17, 48])
@pytest.mark.parametrize("new", [1, 5, 16, 64])
def test_a_chunked_group_holds_the_chunk_and_the_tokens_of_a_step(
    block_size: int, size: int, new: int
) -> None:
    """FIELD.md section 2: ceil(min(chunk + T, len) / B); one more where a chunk cuts a block."""
    allocator = memory([LayerGroup("chunked", block_size, chunk=size)], blocks=400)
    one = sequence(200, output=60)
    assert allocator.admit(one, allocator.lookup(one), new, 0, 0)
    (kind,) = group_kinds(
        [LayerGroup("chunked", block_size, chunk=size)],
        retention=0,
        max_tokens=10_000,
        max_in_flight=new,
    )
    computed = new
    while computed < one.final_kv_tokens:
        tokens = min(new, 200 - computed) if computed < 200 else 1
        assert allocator.append(one, computed, tokens, max(200, computed + 1))
        start = computed // size * size  # of the chunk of the step's first token
        computed += tokens
        held = len(one.tables[0]) - one.null_blocks[0]
        assert held == -(-computed // block_size) - start // block_size
        assert held <= -(-min(size + new, computed) // block_size) + (size % block_size > 0)
        assert held <= kind.gate_blocks(260)
        allocator.check_integrity([one])


@pytest.mark.parametrize(
    ("tokens", "in_flight", "blocks"),
    [(1_048_576, 8192, 1024), (1_048_576, 16_384, 1536), (8192, 8192, 512), (10_000, 8192, 625)],
)
def test_the_gate_wants_a_chunk_of_llama_4_and_what_is_in_flight(
    tokens: int, in_flight: int, blocks: int
) -> None:
    """FIELD.md section 2 with chunks of 8,192 tokens in blocks of 16."""
    (kind,) = group_kinds(
        [LayerGroup("chunked", 16, chunk=8192)],
        retention=0,
        max_tokens=tokens,
        max_in_flight=in_flight,
    )
    assert kind.gate_blocks(tokens) == blocks


def test_a_chunk_is_given_back_whole_when_the_next_one_begins() -> None:
    """Chunks of 8: token 8 attends to nothing before it, token 7 to all of its chunk."""
    allocator = memory([LayerGroup("chunked", 2, chunk=8)], blocks=20)
    one = sequence(5, output=20)
    admit(allocator, one)
    for computed, held in ((5, 3), (6, 4), (7, 4), (8, 1), (9, 1), (10, 2), (15, 4), (16, 1)):
        assert allocator.append(one, computed, 1, known=computed + 1)
        assert len(one.tables[0]) - one.null_blocks[0] == held
    assert terms_of(allocator, 17).live == 1


def test_asynchronous_chunks_wait_for_the_tokens_in_flight() -> None:
    allocator = memory([LayerGroup("chunked", 2, chunk=8)], async_scheduling=True)
    one = sequence(8, output=9)
    admit(allocator, one)
    assert allocator.append(one, 8, 1, known=8, in_flight=8)
    assert one.null_blocks == [0]
    assert allocator.append(one, 9, 1, known=9, in_flight=1)
    assert one.null_blocks == [4]


def test_the_horizon_of_a_chunked_group_ends_at_the_next_block_or_chunk() -> None:
    """Blocks of 16 in chunks of 20: the start at 20 frees block 0, that at 40 block 1."""
    allocator = memory([LayerGroup("chunked", 16, chunk=20)])
    one = sequence(17, output=60)
    admit(allocator, one)
    assert allocator.horizon(one, 17) == 3
    for computed in range(17, 33):
        assert allocator.append(one, computed, 1, known=computed + 1)
    assert one.null_blocks == [1]
    assert allocator.horizon(one, 33) == 7


def test_a_state_takes_one_block_per_request_and_group_whatever_the_length() -> None:
    """FIELD.md section 2: a Mamba group takes one block, beside the blocks of full attention."""
    states = [LayerGroup("state", 4, state_tokens=3)] * 3
    allocator = memory([*states, FULL], blocks=100)
    assert allocator.never_fits(sequence(1).request, 96 * 4) is None
    assert "needs up to 100 blocks" in str(allocator.never_fits(sequence(1).request, 97 * 4))
    one = sequence(1, output=40)
    admit(allocator, one)
    assert allocator.group_blocks == [1, 1, 1, 1]
    for computed in range(1, 40):
        assert allocator.append(one, computed, 1, known=computed + 1)
    assert allocator.group_blocks == [1, 1, 1, 10]
    allocator.check_integrity([one])
    allocator.release(one)
    assert allocator.group_blocks == [0] * 4
    assert allocator.usage.allocated == allocator.usage.state == allocator.usage.roundup == 0


def test_a_state_is_live_and_the_rest_of_its_block_internal_fragmentation() -> None:
    """States of 3 tokens' bytes in blocks of 4, beside 6 of 8 tokens in two blocks."""
    states = [LayerGroup("state", 4, state_tokens=3)] * 2
    allocator = memory([*states, FULL], blocks=11)
    one = sequence(6, output=3)
    admit(allocator, one)
    terms = terms_of(allocator, 6)
    assert (terms.live, terms.roundup, terms.internal) == (6 + 2 * 3, 2, 2)
    assert (terms.reservation, terms.usable_free) == (2, 10 * 4 - 16)
    assert terms.total == allocator.capacity_slots


def test_a_decode_with_a_state_stops_for_full_blocks_only() -> None:
    states_only = memory([LayerGroup("state", 4, state_tokens=4)])
    one = sequence(5, output=60)
    admit(states_only, one)
    assert states_only.horizon(one, 5) > 1_000_000
    both = memory([LayerGroup("state", 4, state_tokens=4), FULL])
    two = sequence(5, output=60)
    admit(both, two)
    assert both.horizon(two, 5) == 3


@pytest.mark.parametrize(
    "group", [LayerGroup("chunked", 4, chunk=8), LayerGroup("state", 4, state_tokens=2)]
)
def test_neither_is_covered_by_the_prefix_cache(group: LayerGroup) -> None:
    with pytest.raises(ValueError, match=r"groups\[1\]\.kind .* must not be with a prefix cache"):
        memory([FULL, group], eviction=LruOrder())
    assert memory([FULL, group]).lookup(sequence(16, stream="a")).tokens == 0


def test_a_group_whose_blocks_are_miscounted_is_noticed() -> None:
    allocator = memory([FULL, LayerGroup("chunked", 4, chunk=8)])
    one = sequence(8)
    admit(allocator, one)
    allocator.group_blocks[1] += 1
    with pytest.raises(AssertionError, match="group 1 holds 2 blocks, counted 3"):
        allocator.check_integrity([one])
