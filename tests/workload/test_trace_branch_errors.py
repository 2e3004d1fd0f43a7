"""Rows whose branches cannot be used: the reason, the place, the value."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload import ReadRules, TraceWorkload
from kvsim.workload.branch_columns import MAX_PARENTS
from tests.workload.trace_rows import row, write

A = row(1, 8, 4, request_id="a")
SEVERAL = row(1, 8, 4, request_id="a", n=2)
HUGE = 10**12

BAD: dict[str, tuple[list[dict[str, Any]], str, str]] = {
    # rows, the last of which is bad, the reason, the problem
    "no samples": ([row(0, 8, 4, n=0)], "bad_value", "n: 0 is not an integer from 1 to 64"),
    "many samples": ([row(0, 8, 4, n=65)], "bad_value", "n: 65 is not an integer from 1 to 64"),
    "text samples": ([row(0, 8, 4, n="two")], "bad_value", "n: 'two' is not an integer from 1"),
    "half a sample": ([row(0, 8, 4, n=1.5)], "bad_value", "n: 1.5 is not an integer from 1 to 64"),
    "true samples": ([row(0, 8, 4, n=True)], "bad_value", "n: True is not an integer from 1 to"),
    "listed samples": ([row(0, 8, 4, n=[2])], "bad_value", r"n: \[2\] is not an integer from 1"),
    "huge beams": ([row(0, 8, 4, beam_width=HUGE)], "bad_value", "beam_width: 1000000000000 is"),
    "fewer than no beams": ([row(0, 8, 4, beam_width=-2)], "bad_value", "beam_width: -2 is not"),
    "samples and beams": (
        [row(0, 8, 4, n=2, beam_width=2)],
        "bad_value",
        "columns n and beam_width: a request has parallel samples or beams, not both",
    ),
    "parents of no beams": (
        [row(0, 8, 4, beam_parents=[[0, 0]])],
        "bad_value",
        "column beam_parents: needs a beam_width",
    ),
    "parents no list": (
        [row(0, 8, 4, beam_width=2, beam_parents={"a": 1})],
        "bad_value",
        r"column beam_parents: \{'a': 1\} is not a list of lists, which CSV cannot hold",
    ),
    "parents as text": (
        [row(0, 8, 4, beam_width=2, beam_parents="[[0, 1]]")],
        "bad_value",
        "is not a list of lists, which CSV cannot hold: use JSON lines",
    ),
    "too few selections": (
        [row(0, 8, 5, beam_width=2, beam_parents=[[0, 0]])],
        "bad_value",
        "column beam_parents: 1 rows, but 5 output tokens need 3",
    ),
    "a selection of one": (
        [row(0, 8, 4, beam_width=2, beam_parents=[[0, 0], [1]])],
        "bad_value",
        r"column beam_parents: \[1\] is not a list of 2 integers from 0 to 1",
    ),
    "a beam there is not": (
        [row(0, 8, 4, beam_width=2, beam_parents=[[0, 2], [0, 0]])],
        "bad_value",
        r"column beam_parents: \[0, 2\] is not a list of 2 integers from 0 to 1",
    ),
    "a beam below": (
        [row(0, 8, 4, beam_width=2, beam_parents=[[0, -1], [0, 0]])],
        "bad_value",
        r"\[0, -1\] is not a list of 2",
    ),
    "a huge beam": (
        [row(0, 8, 3, beam_width=2, beam_parents=[[0, HUGE]])],
        "bad_value",
        r"\[0, 1000000000000\] is not a list of 2",
    ),
    "a true beam": (
        [row(0, 8, 3, beam_width=2, beam_parents=[[0, True]])],
        "bad_value",
        r"\[0, True\] is not a list of 2",
    ),
    "a beam of nothing": (
        [row(0, 8, 3, beam_width=2, beam_parents=[[0, None]])],
        "bad_value",
        r"\[0, None\] is not a list of 2",
    ),
    "a selection of nothing": (
        [row(0, 8, 3, beam_width=2, beam_parents=[None])],
        "bad_value",
        "None is not a list of 2",
    ),
    "lists in lists": (
        [row(0, 8, 3, beam_width=2, beam_parents=[[[0], [1]]])],
        "bad_value",
        r"\[\[0\], \[1\]\] is not a list of 2",
    ),
    "an integer too many": (
        [row(0, 8, 3, beam_width=2, beam_parents=[[0, 0]] * (MAX_PARENTS // 2 + 1))],
        "bad_value",
        "column beam_parents: 500,001 rows of 2 are more than 1,000,000 integers",
    ),
    "a parent that is not there": (
        [A, row(1, 8, 4, parent_id="b", fork_at_token=3)],
        "unknown_parent",
        "column parent_id: 'b' is the request_id of no usable row above",
    ),
    "a parent of itself": (
        [row(1, 8, 4, request_id="b", parent_id="b", fork_at_token=3)],
        "unknown_parent",
        "'b' is the request_id of no usable row above",
    ),
    "a parent without a name": (
        [row(1, 8, 4), row(1, 8, 4, parent_id="r0", fork_at_token=3)],
        "unknown_parent",
        "'r0' is the request_id of no usable row above",
    ),
    "a parent that is a list": (
        [A, row(1, 8, 4, parent_id=["a"], fork_at_token=3)],
        "bad_value",
        r"column parent_id: \['a'\] is not printable text",
    ),
    "a parent but no place": (
        [A, row(1, 8, 4, parent_id="a")],
        "bad_value",
        "column parent_id: needs a fork_at_token",
    ),
    "a place but no parent": (
        [A, row(1, 8, 4, parent_id=None, fork_at_token=3)],
        "bad_value",
        "column fork_at_token: needs a parent_id",
    ),
    "no token": (
        [A, row(1, 8, 4, parent_id="a", fork_at_token=0)],
        "bad_value",
        "column fork_at_token: 0 is not an integer from 1 to 100000000",
    ),
    "fewer than no tokens": (
        [A, row(1, 8, 4, parent_id="a", fork_at_token=-3)],
        "bad_value",
        "column fork_at_token: -3 is not an integer",
    ),
    "a huge number of tokens": (
        [A, row(1, 8, 4, parent_id="a", fork_at_token=HUGE)],
        "bad_value",
        "column fork_at_token: 1000000000000 is not an integer",
    ),
    "behind the prompt": (
        [A, row(1, 8, 4, parent_id="a", fork_at_token=9)],
        "bad_fork",
        "column fork_at_token: 9 is more than the prompt, 8 tokens",
    ),
    "behind the parent": (
        [A, row(1, 20, 4, parent_id="a", fork_at_token=13)],
        "bad_fork",
        "column fork_at_token: 13 is more than the 12 tokens of 'a', prompt and output",
    ),
    "in one of several outputs": (
        [SEVERAL, row(1, 20, 4, parent_id="a", fork_at_token=9)],
        "bad_fork",
        "9 is more than the prompt of 'a', 8 tokens, which has several outputs",
    ),
    "before the parent": (
        [A, row(0.5, 8, 4, parent_id="a", fork_at_token=3)],
        "bad_fork",
        "column parent_id: 'a' arrives after this row",
    ),
}


@pytest.mark.parametrize("case", BAD)
def test_a_bad_row_is_an_error_with_its_line_or_dropped_and_counted(
    tmp_path: Path, case: str
) -> None:
    rows, reason, problem = BAD[case]
    path = write(tmp_path, [row(0, 1, 1, request_id="first"), *rows, row(9, 1, 1)])
    wide = 2**25
    with pytest.raises(InputError, match=problem) as error:
        TraceWorkload(path, rules=ReadRules(max_line_bytes=wide))
    assert str(error.value).startswith(f"{path}:{len(rows) + 1}: ")
    assert len(str(error.value)) < 300 + len(str(path))
    drop = ReadRules(on_bad_row="drop", max_line_bytes=wide)
    workload = TraceWorkload(path, rules=drop)
    assert workload.counts.dropped == {reason: 1}
    kept = [r.request_id for r in workload]
    assert kept == ["first", *[o.get("request_id", "r1") for o in rows[:-1]], f"r{len(rows)}"]


def test_children_of_a_dropped_row_are_dropped_too(tmp_path: Path) -> None:
    rows = [
        row(0, 8, 0, request_id="empty"),
        row(0, 8, 1, request_id="b", parent_id="empty", fork_at_token=3),
        row(0, 8, 1, request_id="c", parent_id="b", fork_at_token=3),
        row(0, 8, 1, request_id="d"),
    ]
    path = write(tmp_path, rows)
    workload = TraceWorkload(path, rules=ReadRules(on_bad_row="drop"))
    assert workload.counts.dropped == {"unknown_parent": 2, "zero_output": 1}
    assert list(workload) == [Request("d", 0, 8, 1)]


@pytest.mark.parametrize("column", ["n", "beam_width", "beam_parents", "parent_id"])
def test_a_deep_value_is_refused_at_every_depth(tmp_path: Path, column: str) -> None:
    """Also where JSON can just be read and its text can no longer be written."""
    path = tmp_path / "trace.jsonl"
    head = '{"arrival_s": 0, "prompt_tokens": 1, "output_tokens": 1, '
    head += '"beam_width": 2, ' if column == "beam_parents" else ""
    for depth in [2, 50, *range(900, 1010), 100_000]:
        path.write_text(f'{head}"{column}": {"[" * depth}{"]" * depth}}}\n')
        with pytest.raises(InputError, match=r":1: (column|the JSON value is nested too deeply)"):
            TraceWorkload(path)


def test_other_formats_do_not_read_these_columns(tmp_path: Path) -> None:
    path = tmp_path / "trace.csv"
    path.write_text("arrived_at,num_prefill_tokens,num_decode_tokens,n,parent_id\n0,8,4,3,a\n")
    assert list(TraceWorkload(path)) == [Request("r0", 0, 8, 4)]
