"""Columns that say what branches: parallel samples, beams and trees of requests."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvsim.core.eviction import LruOrder
from kvsim.core.paged import PagedAllocator
from kvsim.core.request import Branching, Fork, Request
from kvsim.core.sequence_group import check_branching
from kvsim.core.streams import StreamTree
from kvsim.core.vllm_scheduler import VllmScheduler
from kvsim.errors import InputError
from kvsim.workload import TraceWorkload, columns
from kvsim.workload.trees import MAX_PIECES
from tests.workload.trace_rows import row, write

S = 10**9


def replayed(folder: Path, rows: list[dict[str, Any]], **options: Any) -> list[Request]:
    return list(TraceWorkload(write(folder, rows), **options))


# Samples and beams


def test_samples_and_beams_of_json_lines(tmp_path: Path) -> None:
    rows = [
        row(0, 5, 9, n=4),
        row(1, 5, 9, N=1, max_tokens=10),
        row(1, 5, 9, beam_width=3, request_id="beams"),
        row(2, 5, 5, beam_width=2, beam_parents=[[0, 0], [1, 0], [1, 1]]),
        row(2, 5, 1, beam_width=2, beam_parents=[]),
        row(3, 5, 3, beam_width=1, beam_parents=[[0]]),
        row(3, 5, 9, n=None, beam_width=None, beam_parents=None, parent_id=None),
    ]
    requests = replayed(tmp_path, rows)
    assert requests == [
        Request("r0", 0, 5, 9, branches=Branching("parallel", 4)),
        Request("r1", S, 5, 9, 10),
        Request("beams", S, 5, 9, branches=Branching("beam", 3)),
        Request(
            "r3", 2 * S, 5, 5, branches=Branching("beam", 2, "trace", ((0, 0), (1, 0), (1, 1)))
        ),
        Request("r4", 2 * S, 5, 1, branches=Branching("beam", 2, "trace", ())),
        Request("r5", 3 * S, 5, 3),
        Request("r6", 3 * S, 5, 9),
    ]
    for request in requests:
        check_branching(request, None)


def test_samples_beams_and_trees_of_csv(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text(
        "Request_ID,N,arrival_s,prompt_tokens,output_tokens,beam_width,beam_parents,"
        "parent_id,fork_at_token\n"
        "a,3,0,8,4,,,,\n"
        "b,,1,9,2,6,,a,8\n"
    )
    assert list(TraceWorkload(path)) == [
        Request("a", 0, 8, 4, None, 0, ((("prompt", "a"), 8),), None, Branching("parallel", 3)),
        Request(
            "b",
            S,
            9,
            2,
            None,
            0,
            ((("prompt", "a"), 8), (("prompt", "b"), 1)),
            None,
            Branching("beam", 6),
            Fork("a", 8),
        ),
    ]


# Trees


TREE = [
    row(0, 100, 20, request_id="root"),
    row(1, 130, 10, request_id="left", parent_id="root", fork_at_token=110),
    row(1, 60, 10, request_id="right", parent_id="root", fork_at_token=50),
    row(2, 141, 5, request_id="deep", parent_id="left", fork_at_token=140),
    row(2, 120, 5, parent_id="left", fork_at_token=105),
    row(3, 110, 5, parent_id="left", fork_at_token=110),
    row(4, 7, 7, request_id="alone"),
]


def test_a_small_tree(tmp_path: Path) -> None:
    """`left` goes through the whole prompt of `root` and 10 tokens of its output."""
    root, left = ("prompt", "root"), ("prompt", "left")
    root_out, left_out = ("output", "root"), ("output", "left")
    path_of_left = ((root, 100), (root_out, 10), (left, 20))
    assert replayed(tmp_path, TREE) == [
        Request("root", 0, 100, 20, segments=((root, 100),), output_stream=root_out),
        Request(
            "left",
            S,
            130,
            10,
            segments=path_of_left,
            output_stream=left_out,
            fork=Fork("root", 110),
        ),
        Request(
            "right",
            S,
            60,
            10,
            segments=((root, 50), (("prompt", "right"), 10)),
            fork=Fork("root", 50),
        ),
        Request(
            "deep",
            2 * S,
            141,
            5,
            segments=(*path_of_left, (left_out, 10), (("prompt", "deep"), 1)),
            fork=Fork("left", 140),
        ),
        Request(
            "r4",
            2 * S,
            120,
            5,
            segments=((root, 100), (root_out, 5), (("prompt", "r4"), 15)),
            fork=Fork("left", 105),
        ),
        Request(
            "r5", 3 * S, 110, 5, segments=((root, 100), (root_out, 10)), fork=Fork("left", 110)
        ),
        Request("alone", 4 * S, 7, 7),
    ]


def test_the_tree_of_the_guide_is_what_the_guide_says(tmp_path: Path) -> None:
    """Both questions have the 50 + 20 tokens before them; the last row has 39 of the first 50."""
    guide = (Path(__file__).parents[2] / "docs" / "guide.md").read_text(encoding="utf-8")
    (example,) = [
        block
        for block in guide.split("```json\n")[1:]
        if '"fork_at_token"' in block.split("```")[0]
    ]
    path = tmp_path / "trace.jsonl"
    path.write_text(example.split("```")[0])
    prompt, output = ("prompt", "q"), ("output", "q")
    assert [(r.segments, r.branches) for r in TraceWorkload(path)] == [
        (((prompt, 50),), None),
        (((prompt, 50), (output, 20), (("prompt", "q-a"), 15)), None),
        (((prompt, 50), (output, 20), (("prompt", "q-b"), 20)), Branching("parallel", 4)),
        (((prompt, 39), (("prompt", "again"), 21)), None),
    ]


def test_a_prompt_that_ends_where_it_leaves_its_parent_goes_on_in_its_own_output(
    tmp_path: Path,
) -> None:
    """The regenerated answer is not the first answer; a child of it shows which one it has."""
    rows = [
        row(0, 10, 5, request_id="a"),
        row(0, 10, 5, request_id="again", parent_id="a", fork_at_token=10),
        row(0, 14, 5, request_id="b", parent_id="again", fork_at_token=13),
        row(0, 14, 5, request_id="c", parent_id="b", fork_at_token=10),
    ]
    assert [r.segments for r in replayed(tmp_path, rows)[1:]] == [
        ((("prompt", "a"), 10),),
        ((("prompt", "a"), 10), (("output", "again"), 3), (("prompt", "b"), 1)),
        ((("prompt", "a"), 10), (("prompt", "c"), 4)),
    ]


def test_the_prefix_cache_finds_what_the_tree_says(tmp_path: Path) -> None:
    """One request after the other, blocks of one token.

    `deep` misses the last token that `left` sampled, which never got KV, and `r5` the last one of
    its prompt, which is always computed.
    """
    scheduler = VllmScheduler(
        PagedAllocator(1000, 1, eviction=LruOrder(), seals_ahead=True),
        max_num_seqs=1,
        max_num_batched_tokens=1000,
        max_model_len=1000,
    )
    found = []
    for request in replayed(tmp_path, TREE):
        sequence = scheduler.add(request)
        while scheduler.has_work():
            scheduler.complete(scheduler.schedule())
        found.append(sequence.cached_tokens)
    assert found == [0, 110, 50, 139, 105, 109, 0]


def rows_of_any_tree() -> st.SearchStrategy[list[tuple[int, int, int, int]]]:
    """(prompt, output, parent's rank in any range, where it forks in any range)."""
    one = st.tuples(
        st.integers(1, 12), st.integers(1, 6), st.integers(-1, 30), st.integers(0, 1000)
    )
    return st.lists(one, min_size=1, max_size=25)


@settings(max_examples=300)
@given(rows_of_any_tree(), st.booleans())
def test_prompts_share_exactly_the_tokens_that_a_tree_written_out_shares(
    tmp_path_factory: pytest.TempPathFactory,
    drawn: list[tuple[int, int, int, int]],
    streamed: bool,
) -> None:
    """Every token written out; equal contents by `StreamTree` are equal histories of tokens."""
    texts: list[list[tuple[int, str, int]]] = []
    rows, lengths = [], []
    for rank, (own, output, parent, place) in enumerate(drawn):
        more: dict[str, Any] = {"request_id": f"n{rank}"}
        text: list[tuple[int, str, int]] = []
        if 0 <= parent < rank:
            at = 1 + place % len(texts[parent])
            text = texts[parent][:at]
            more |= {"parent_id": f"n{parent}", "fork_at_token": at}
            own = place % 3
        prompt = len(text) + own
        text = text + [(rank, "prompt", p) for p in range(len(text), prompt)]
        texts.append(text + [(rank, "output", p) for p in range(output)])
        rows.append(row(rank, prompt, output, **more))
        lengths.append(prompt)
    path = write(tmp_path_factory.mktemp("tree"), rows)
    workload = TraceWorkload(path, keep_rows=0 if streamed else 10**6)
    tree = StreamTree()
    scheduler = VllmScheduler(
        PagedAllocator(9, 1), max_num_seqs=9, max_num_batched_tokens=9, max_model_len=10**6
    )
    keys: dict[object, tuple[tuple[int, str, int], ...]] = {}
    seen: dict[tuple[tuple[int, str, int], ...], object] = {}
    for request, text, prompt in zip(workload, texts, lengths, strict=True):
        sequence = scheduler.add(request)
        tree.open(sequence)
        known = len(text) if request.output_stream is not None else prompt
        if request.segments is None:
            continue
        for end in range(1, known + 1):
            piece = next(i for i, e in enumerate(sequence.piece_ends) if end <= e)
            key = (sequence.piece_bases[piece], end)
            history = tuple(text[:end])
            assert keys.setdefault(key, history) == history
            assert seen.setdefault(history, key) == key
    parents = {one["parent_id"] for one in rows if "parent_id" in one}
    for request in workload:
        assert (request.output_stream is not None) == (request.request_id in parents)


def test_a_tree_is_the_same_when_the_file_is_read_again_in_chunks(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = replayed(tmp_path, TREE)
    monkeypatch.setattr(columns, "CHUNK_ROWS", 2)
    workload = TraceWorkload(tmp_path / "trace.jsonl", keep_rows=1)
    assert list(workload) == list(workload) == held
    assert workload.shares_prefixes


def test_beams_of_many_integers_make_a_chunk_of_fewer_rows(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rows = [row(i, 5, 5, beam_width=2, beam_parents=[[0, 1]] * 20) for i in range(7)]
    held = replayed(tmp_path, rows)
    monkeypatch.setattr(columns, "MAX_BUFFERED", 70)
    reader = TraceWorkload(tmp_path / "trace.jsonl")._reader()
    assert [len(chunk) for chunk in reader.chunks()] == [2, 2, 2, 1]
    assert reader.beam_parents == 280
    streamed = TraceWorkload(tmp_path / "trace.jsonl", keep_rows=10)
    assert streamed._columns is None
    assert list(streamed) == held


def test_late_rows_are_sorted_and_keep_their_parents(tmp_path: Path) -> None:
    rows = [
        row(5, 10, 5, request_id="a"),
        row(1, 3, 1, request_id="early"),
        row(5, 12, 5, request_id="b", parent_id="a", fork_at_token=12),
    ]
    requests = replayed(tmp_path, rows)
    assert [r.request_id for r in requests] == ["early", "a", "b"]
    assert requests[2].segments == ((("prompt", "a"), 10), (("output", "a"), 2))
    assert requests[0].segments is None


def test_a_limit_leaves_out_children_and_what_only_they_would_share(tmp_path: Path) -> None:
    assert replayed(tmp_path, TREE, limit=1) == [Request("root", 0, 100, 20)]
    assert not TraceWorkload(tmp_path / "trace.jsonl", limit=1).shares_prefixes


def test_a_chain_of_a_thousand_requests_is_the_deepest(tmp_path: Path) -> None:
    """Each prompt is the one above, all its output and one token: two pieces more."""
    rows = [row(0, 1, 1, request_id="n0")]
    for rank in range(1, MAX_PIECES // 2 + 1):
        prompt = 1 + 2 * rank
        rows.append(
            row(
                0,
                prompt,
                1,
                request_id=f"n{rank}",
                parent_id=f"n{rank - 1}",
                fork_at_token=prompt - 1,
            )
        )
    deepest = replayed(tmp_path, rows[:-1])[-1]
    assert deepest.segments is not None
    assert len(deepest.segments) == 999
    with pytest.raises(InputError, match=r":501: .*1,001 pieces.* more than 1,000"):
        replayed(tmp_path, rows)


def test_a_long_chain_that_shares_only_its_beginning_is_not_deep(tmp_path: Path) -> None:
    rows = [row(0, 5, 1, request_id="n0")]
    rows += [
        row(0, 6, 1, request_id=f"n{rank}", parent_id=f"n{rank - 1}", fork_at_token=5)
        for rank in range(1, 5000)
    ]
    workload = TraceWorkload(write(tmp_path, rows))
    assert list(workload)[-1].segments == ((("prompt", "n0"), 5), (("prompt", "n4999"), 1))
    assert workload._trees is not None
    assert {link.name for link in workload._trees._links.values()} == {"n0"}


# Digest


def test_the_digest_tells_branches_and_trees_apart(tmp_path: Path) -> None:
    base = [row(0, 9, 9, request_id="a"), row(0, 9, 4, request_id="b")]
    more: list[dict[str, Any]] = [
        {},
        {"n": 2},
        {"n": 3},
        {"beam_width": 2},
        {"beam_width": 2, "beam_parents": [[0, 0], [1, 0]]},
        {"beam_width": 2, "beam_parents": [[0, 0], [1, 1]]},
        {"parent_id": "a", "fork_at_token": 5},
        {"parent_id": "a", "fork_at_token": 6},
    ]
    digests = {TraceWorkload(write(tmp_path, [base[0], base[1] | one])).digest for one in more}
    assert len(digests) == len(more)
