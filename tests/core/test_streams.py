"""Numbers for contents against the tokens themselves."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.streams import StreamTree, block_keys
from tests.core.shadow_cache import Token, sequence, tokens_of

NAMED_SEGMENTS = st.lists(
    st.tuples(st.sampled_from("ab"), st.integers(0, 9)), min_size=1, max_size=4
).filter(lambda segments: any(length for _, length in segments))
PIECES = st.tuples(NAMED_SEGMENTS, st.sampled_from(["a", "out", None]))


@settings(max_examples=300)
@given(
    pieces=st.lists(PIECES, min_size=2, max_size=5),
    block_size=st.integers(1, 5),
    lookahead=st.integers(0, 1),
    data=st.data(),
)
def test_content_numbers_are_equal_if_and_only_if_all_tokens_are(
    pieces: list[tuple[list[tuple[str, int]], str | None]],
    block_size: int,
    lookahead: int,
    data: st.DataObject,
) -> None:
    tree = StreamTree()
    number_of: dict[tuple[Token, ...], int] = {}
    contents: dict[int, tuple[Token, ...]] = {}
    for index, (segments, output_stream) in enumerate(pieces):
        one = sequence(tuple(segments), output=30, name=str(index), output_stream=output_stream)
        tree.open(one)
        tokens = tokens_of(one.request, 40)
        stop = (40 - lookahead) // block_size
        first = data.draw(st.integers(0, stop - 1))
        keys = block_keys(one, first, stop, block_size, lookahead=lookahead)
        assert len(keys) == stop - first
        for block, key in enumerate(keys, start=first):
            content = tuple(tokens[: (block + 1) * block_size + lookahead])
            assert number_of.setdefault(content, key) == key
            assert contents.setdefault(key, content) == content


def test_groups_of_layers_have_numbers_of_their_own() -> None:
    tree = StreamTree()
    one = sequence((("a", 9), ("b", 9)), output=30)
    tree.open(one)
    keys = [key for kind in range(32) for key in block_keys(one, 0, 9, 2, kind=kind)]
    assert len(set(keys)) == len(keys) == 32 * 9
