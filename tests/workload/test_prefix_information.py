"""What the readers make of chunk ids: segments, whose equal streams hold equal tokens."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pyarrow import parquet

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import ReadRules, TraceWorkload, check_blocks_fit_chunks
from kvsim.workload.columns import TraceReader

DATA = Path(__file__).parent / "data"


def write(folder: Path, rows: list[dict[str, Any]], name: str = "trace.jsonl") -> Path:
    path = folder / name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def moon(prompt: int, ids: list[Any] | None, **more: Any) -> dict[str, Any]:
    hashes = {} if ids is None else {"hash_ids": ids}
    return {"timestamp": 0, "input_length": prompt, "output_length": 3, **hashes, **more}


def segments(workload: TraceWorkload) -> list[Any]:
    return [request.segments for request in workload]


def test_a_mooncake_chunk_has_512_tokens_and_the_last_one_is_cut() -> None:
    workload = TraceWorkload(DATA / "mooncake.jsonl")
    assert segments(workload) == [
        ((0, 512), (1, 488)),
        ((0, 512), (2, 88)),
        ((0, 512), (3, 1)),
        None,
    ]
    assert (workload.chunk_tokens, workload.shares_prefixes) == (512, True)
    assert [request.output_stream for request in workload] == [None] * 4


def test_a_trace_without_chunk_ids_shares_nothing(tmp_path: Path) -> None:
    workload = TraceWorkload(write(tmp_path, [moon(5, None)]))
    assert segments(workload) == [None]
    assert (workload.chunk_tokens, workload.shares_prefixes) == (None, False)
    table = TraceWorkload(DATA / "azure_2023.csv")
    assert (table.chunk_tokens, table.shares_prefixes) == (None, False)


def test_the_column_block_size_says_the_chunk_of_a_mooncake_dialect(tmp_path: Path) -> None:
    workload = TraceWorkload(write(tmp_path, [moon(20, [7, 8], block_size=16)]))
    assert segments(workload) == [((7, 16), (8, 4))]
    assert workload.chunk_tokens == 16


def test_the_caller_may_say_the_chunk_and_the_digest_knows(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(20, [7, 8]), moon(16, [7])])
    workload = TraceWorkload(path, chunk_tokens=16)
    assert segments(workload) == [((7, 16), (8, 4)), ((7, 16),)]
    other = write(tmp_path, [moon(20, [7])], "other.jsonl")
    assert TraceWorkload(other, chunk_tokens=32).digest != TraceWorkload(other).digest
    with pytest.raises(InputError, match="16 differs from 32, which was asked for"):
        TraceWorkload(write(tmp_path, [moon(20, [7], block_size=16)]), chunk_tokens=32)


def test_ids_may_be_unsigned_64_bit_integers_and_text(tmp_path: Path) -> None:
    big = 2**64 - 1
    rows = [
        moon(1024, [2**53 + 1, big]),
        moon(1024, [2**53 + 1, "x"]),
        moon(1024, [2**53, big - 1]),
        moon(1024, ["7", "x"]),
        moon(512, [7]),
    ]
    streams = [[s for s, _ in row] for row in segments(TraceWorkload(write(tmp_path, rows)))]
    assert streams == [[2**53 + 1, -1], [2**53 + 1, -2], [2**53, -3], [-4, -2], [7]]


def test_lists_of_ids_are_capped(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(1024, [1, 2])])
    with pytest.raises(InputError, match="2 ids are more than 1"):
        TraceWorkload(path, rules=ReadRules(max_chunks=1))


def test_rows_with_a_wrong_number_of_ids_can_be_dropped_by_reason(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(513, [1]), moon(513, [1, 2]), moon(0, [1]), moon(5, [])])
    workload = TraceWorkload(path, rules=ReadRules(on_bad_row="drop"))
    assert workload.counts.dropped == {"wrong_chunks": 2, "zero_prompt": 1}
    assert segments(workload) == [((1, 512), (2, 1))]


def test_bailian_is_in_seconds_with_chunks_of_16(tmp_path: Path) -> None:
    rows = [
        {"chat_id": 159, "parent_chat_id": -1, "timestamp": 61.114, "input_length": 40}
        | {"output_length": 132, "type": "text", "turn": 1, "hash_ids": [1089, 1090, 1091]},
        {"chat_id": 160, "parent_chat_id": 159, "timestamp": 62.5, "input_length": 70}
        | {"output_length": 80, "type": "search", "turn": 2, "hash_ids": [1089, 1090, 6, 7, 8]},
    ]
    workload = TraceWorkload(write(tmp_path, rows))
    assert list(workload) == [
        Request("r0", 0, 40, 132, segments=((1089, 16), (1090, 16), (1091, 8))),
        Request(
            "r1", 1_386_000_000, 70, 80, segments=((1089, 16), (1090, 16), (6, 16), (7, 16), (8, 6))
        ),
    ]
    assert workload.chunk_tokens == 16


def test_timed_traces_are_in_seconds_and_may_run_out_of_ids(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(40, [1, 2]), moon(20, [1, 3], timestamp=1.5), moon(9, [])])
    workload = TraceWorkload(path, format="timed_trace")
    assert [(request.request_id, request.arrival_ns) for request in workload] == [
        ("r0", 0),
        ("r2", 0),
        ("r1", 1_500_000_000),
    ]
    assert segments(workload) == [
        ((1, 16), (2, 16), ("r0", 8)),
        (("r2", 9),),
        ((1, 16), (3, 4)),
    ]
    with pytest.raises(InputError, match="2 ids, but a prompt of 16 tokens has 1 chunks"):
        TraceWorkload(write(tmp_path, [moon(16, [1, 2])]), format="timed_trace")


def rag(prompt: int, **parts: list[int]) -> dict[str, Any]:
    return {"timestamp": "82", "input_length": prompt, "output_length": 5, "hash_ids": parts}


@pytest.fixture
def lengths(tmp_path: Path) -> Path:
    path = tmp_path / "lengths.csv.gz"
    path.write_bytes(gzip.compress(b"chunk_id,token_length\n1,10\n2,512\n3,7\n"))
    return path


def test_ragpulse_chunks_are_pieces_of_text_with_lengths_from_a_second_file(
    tmp_path: Path, lengths: Path
) -> None:
    path = write(tmp_path, [rag(530, sys_prompt=[1], passages_ids=[2], x=[]), rag(17, a=[3, 1])])
    workload = TraceWorkload(path, chunk_lengths=lengths)
    assert segments(workload) == [((1, 10), (2, 512), ("r0", 8)), ((3, 7), (1, 10))]
    assert (workload.chunk_tokens, workload.shares_prefixes) == (None, True)
    without = TraceWorkload(path)
    assert segments(without) == [None, None]
    assert not without.shares_prefixes
    assert without.digest != workload.digest


@pytest.mark.parametrize(
    ("row", "problem"),
    [
        (rag(16, a=[3, 1]), "the chunks have 17 tokens, the prompt 16"),
        (rag(100, a=[3, 9]), "no length for chunk 9"),
    ],
)
def test_ragpulse_rows_that_do_not_fit_their_lengths_are_bad(
    tmp_path: Path, lengths: Path, row: dict[str, Any], problem: str
) -> None:
    with pytest.raises(InputError, match=problem):
        TraceWorkload(write(tmp_path, [row]), chunk_lengths=lengths)


@pytest.mark.parametrize(
    ("text", "place", "problem"),
    [
        ("a,b\n1,2\n", "lengths.csv: ", "has no columns chunk_id and token_length"),
        ("chunk_id,token_length\n1,0\n", "lengths.csv:2: ", "chunk 1 must have one length >= 1"),
        ("chunk_id,token_length\n1,2\n1,3\n", "lengths.csv:3: ", "chunk 1 must have one length"),
        ("chunk_id,token_length\nx,2\n", "lengths.csv:2: ", "column chunk_id: 'x' is not an int"),
        ("chunk_id,token_length\n,2\n", "lengths.csv:2: ", "column chunk_id: the value is missing"),
    ],
)
def test_a_bad_file_of_lengths_is_refused_with_its_line(
    tmp_path: Path, text: str, place: str, problem: str
) -> None:
    path = tmp_path / "lengths.csv"
    path.write_text(text)
    with pytest.raises(InputError) as caught:
        TraceWorkload(write(tmp_path, [rag(17, a=[3, 1])]), chunk_lengths=path)
    assert place in str(caught.value)
    assert problem in str(caught.value)


def weka(session: str, t: float, prompt: int, ids: list[int]) -> dict[str, Any]:
    return {"id": session, "t": t, "in": prompt, "out": 4, "hash_ids": ids, "type": "n"}


def test_weka_ids_cover_full_chunks_and_mean_something_only_in_their_session(
    tmp_path: Path,
) -> None:
    rows = [weka("a", 0, 130, [1, 2]), weka("b", 0.5, 64, [1]), weka("a", 1, 192, [1, 2, 3])]
    workload = TraceWorkload(write(tmp_path, rows))
    second = 2**32
    assert segments(workload) == [
        ((1, 64), (2, 64), ("r0", 2)),
        ((second + 1, 64),),
        ((1, 64), (2, 64), (3, 64)),
    ]
    assert [request.arrival_ns for request in workload] == [0, 500_000_000, 1_000_000_000]
    assert workload.chunk_tokens == 64


def test_segments_follow_their_rows_when_these_are_sorted_smeared_scaled_and_limited(
    tmp_path: Path,
) -> None:
    rows = [
        moon(100 + i, [i] if i % 3 else None, timestamp=1000 * ((7 * i) % 10)) for i in range(30)
    ]
    path = write(tmp_path, rows)
    for options in ({}, {"smear_s": 2.0}, {"rate_scale": 3.0}, {"limit": 17}):
        workload = TraceWorkload(path, **options)  # type: ignore[arg-type]
        for request in workload:
            i = int(request.request_id[1:])
            assert request.segments == (((i, 100 + i),) if i % 3 else None)
        assert len(list(workload)) == options.get("limit", 30)


def test_a_trace_read_again_at_every_pass_gives_the_same_segments(tmp_path: Path) -> None:
    """More rows than one chunk of 65,536; the odd ids are numbered anew in every pass."""
    path = tmp_path / "long.jsonl"
    ids = ["null", '["a", 5]', "[7, 18446744073709551615]"]
    row = '{{"timestamp": {}, "input_length": 600, "output_length": 1, "hash_ids": {}}}\n'
    path.write_text("".join(row.format(i, ids[i % 3 if i > 66_000 else 0]) for i in range(70_000)))
    held, streamed = TraceWorkload(path), TraceWorkload(path, keep_rows=100)
    assert list(held) == list(streamed) == list(streamed)
    assert {request.segments for request in held} == {
        None,
        ((-1, 512), (5, 88)),
        ((7, 512), (-2, 88)),
    }
    assert streamed.chunk_tokens == 512


def test_rows_with_many_segments_count_as_several_towards_what_is_held(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(16 * 100, [*range(100)], block_size=16)] * 10)
    held, streamed = TraceWorkload(path, keep_rows=63), TraceWorkload(path, keep_rows=61)
    assert list(held) == list(streamed)
    assert held._columns is not None
    assert streamed._columns is None


def test_a_row_costs_16_bytes_a_segment(tmp_path: Path) -> None:
    path = write(tmp_path, [moon(1000, [1, 2]), moon(5, None)])
    (chunk,) = TraceReader(path, "auto", ReadRules()).chunks()
    assert chunk.segments is not None
    assert chunk.segments.streams.nbytes + chunk.segments.tokens.nbytes == 32
    assert chunk.segments.starts.tolist() == [0, 2, 2]


def test_parquet_may_hold_lists_of_ids(tmp_path: Path) -> None:
    path = tmp_path / "trace.parquet"
    columns = {
        "timestamp": [0, 1],
        "input_length": [600, 5],
        "output_length": [1, 1],
        "hash_ids": [[1, 2], None],
    }
    parquet.write_table(pa.table(columns), path)
    assert segments(TraceWorkload(path)) == [((1, 512), (2, 88)), None]


values = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2**65) | st.floats(0, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=2), inner),
    max_leaves=6,
)
lists_of_ids = st.lists(st.integers(0, 2**64) | st.text(max_size=2), max_size=4)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("arbitrary")


@given(
    st.sampled_from(["mooncake", "timed_trace", "bailian", "weka", "ragpulse"]),
    st.lists(st.tuples(st.integers(0, 70), lists_of_ids | values, values), max_size=5),
)
def test_arbitrary_ids_are_read_or_refused_and_never_change_a_prompt_s_length(
    folder: Path, kind: str, rows: list[tuple[int, Any, Any]]
) -> None:
    path = folder / "trace.jsonl"
    first = {"timestamp": 0, "input_length": 1, "output_length": 1, "hash_ids": [1]}
    first |= {"id": "s", "t": 0, "in": 1, "out": 1}
    others = [
        first
        | {"input_length": prompt, "in": prompt, "hash_ids": ids}
        | ({"block_size": size} if size is not None else {})
        for prompt, ids, size in rows
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in [first, *others]))
    try:
        workload = TraceWorkload(path, format=kind, rules=ReadRules(on_bad_row="drop"))
    except InputError:
        return
    for request in workload:
        if request.segments is not None:
            assert sum(tokens for _, tokens in request.segments) == request.prompt_tokens
            assert min(tokens for _, tokens in request.segments) > 0
    assert workload.counts.read == len(rows) + 1


def test_blocks_must_divide_chunks_or_be_multiples_of_them() -> None:
    for block_size in (1, 16, 512, 1024):
        check_blocks_fit_chunks(block_size, 512)
    check_blocks_fit_chunks(48, None)
    message = "memory.block_size: must divide the trace's chunks of 512 tokens or be a multiple"
    with pytest.raises(InputError, match=message):
        check_blocks_fit_chunks(48, 512, "memory.block_size")
