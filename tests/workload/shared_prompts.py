"""Small random workloads whose prompts repeat, continue and cut each other, for hypothesis."""

from __future__ import annotations

from collections.abc import Hashable, Iterator

from hypothesis import strategies as st

from kvsim.core.request import Request
from kvsim.workload import RowCounts

Segment = tuple[Hashable, int]


class Listed:
    """A workload of requests written out."""

    source = "listed"
    digest = "0" * 64
    max_concurrency = None
    shares_prefixes = True

    def __init__(self, requests: list[Request], chunk_tokens: int | None = None) -> None:
        self.requests = requests
        self.chunk_tokens = chunk_tokens

    @property
    def counts(self) -> RowCounts:
        return RowCounts(len(self.requests), len(self.requests))

    def __iter__(self) -> Iterator[Request]:
        return iter(self.requests)


def asks(
    rank: int, segments: list[Segment] | None, output: int, stream: Hashable = None, prompt: int = 0
) -> Request:
    """Request number `rank`; `prompt` is its length where it has no segments."""
    if segments is None:
        return Request(f"r{rank}", rank, prompt, output)
    length = sum(tokens for _, tokens in segments)
    return Request(f"r{rank}", rank, length, output, segments=tuple(segments), output_stream=stream)


_fresh = st.lists(st.tuples(st.sampled_from("abc"), st.integers(1, 7)), min_size=1, max_size=4)


@st.composite
def shared_prompts(draw: st.DrawFn, most: int = 12) -> list[Request]:
    """Fresh prompts, repeated ones, continued ones (by answers and by words), and lonely ones."""
    requests: list[Request] = []
    said: list[list[Segment]] = []
    for rank in range(draw(st.integers(1, most))):
        output = draw(st.integers(1, 8))
        kind = draw(st.sampled_from(["fresh", "again", "again", "more", "cut", "lonely"]))
        if kind == "lonely":
            requests.append(asks(rank, None, output, prompt=draw(st.integers(1, 12))))
            continue
        segments = list(draw(st.sampled_from(said))) if said and kind != "fresh" else draw(_fresh)
        if kind == "more":
            segments += draw(_fresh)[:1]
        elif kind == "cut":
            segments = segments[: draw(st.integers(1, len(segments)))]
        stream = draw(st.sampled_from([None, ("answer", rank), "x"]))
        requests.append(asks(rank, segments, output, stream))
        said += [segments] if stream is None else [segments, [*segments, (stream, output)]]
    return requests
