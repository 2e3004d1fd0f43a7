"""A copy of the addresses that is only told what changed stays equal to them."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from gpu_backend.executor.addresses import ContiguousAddresses, PagedAddresses
from kvsim.core.contiguous import Extent
from kvsim.core.request import Request, Sequence

ROWS, COLUMNS = 4, 6
ROW = st.integers(0, ROWS - 1)
ACTION = st.one_of(
    st.tuples(st.just("new"), ROW, st.integers(0, COLUMNS)),
    st.tuples(st.just("grow"), ROW, st.integers(0, 3)),
    st.tuples(st.just("move"), ROW, ROW),
    st.tuples(st.just("take"), ROW, ROW),
)


def apply(copy: Any, changes: Any) -> None:
    *indices, values = changes
    places = list(zip(*indices, strict=True))
    assert len(set(places)) == len(places)
    copy[tuple(indices)] = values


@given(st.lists(ACTION, max_size=30))
def test_a_copy_of_the_block_table_follows_it(actions: list[tuple[str, int, int]]) -> None:
    addresses = PagedAddresses(4, rows=ROWS, columns=COLUMNS)
    copy = addresses.table.copy()
    tables: list[list[int]] = [[] for _ in range(ROWS)]
    fresh = iter(range(1, 10_000))
    for kind, row, number in [*actions, ("take", 0, 0)]:
        if kind in ("new", "grow"):
            before = [] if kind == "new" else tables[row]
            count = min(len(before) + number, COLUMNS)
            tables[row] = before + [next(fresh) for _ in range(count - len(before))]
            sequence = Sequence(Request("r", 0, 1, 1), 2)
            sequence.table = tables[row]
            addresses.place(row, sequence, is_new=kind == "new")
        elif kind == "move" and row != number:
            addresses.move_row(row, number)
            tables[number] = list(tables[row])
        elif kind == "take":
            apply(copy, addresses.take_changes())
            assert addresses.take_changes().shape == (3, 0)
    for row, table in enumerate(tables):
        assert copy[row, : len(table)].tolist() == table
    np.testing.assert_array_equal(copy, addresses.table)


@given(st.lists(ACTION, max_size=30))
def test_a_copy_of_the_first_slots_follows_them(actions: list[tuple[str, int, int]]) -> None:
    addresses = ContiguousAddresses(rows=ROWS)
    copy = addresses.start_slots.copy()
    starts = [0] * ROWS
    for kind, row, number in [*actions, ("take", 0, 0)]:
        if kind in ("new", "grow"):
            starts[row] = 7 * number
            sequence = Sequence(Request("r", 0, 1, 1), 2)
            sequence.extent = Extent(starts[row], 8, 8, 8)
            addresses.place(row, sequence, is_new=kind == "new")
        elif kind == "move":
            addresses.move_row(row, number)
            starts[number] = starts[row]
        else:
            apply(copy, addresses.take_changes())
            assert addresses.take_changes().shape == (2, 0)
    assert copy.tolist() == addresses.start_slots.tolist() == starts


def test_only_what_changed_is_told() -> None:
    addresses = PagedAddresses(4, rows=3, columns=8)
    sequence = Sequence(Request("r", 0, 1, 1), 2)
    sequence.table = [5, 6]
    addresses.place(1, sequence, is_new=True)
    assert addresses.take_changes().T.tolist() == [[1, 0, 5], [1, 1, 6]]
    addresses.place(1, sequence, is_new=False)
    assert addresses.take_changes().size == 0
    sequence.table.append(9)
    addresses.place(1, sequence, is_new=False)
    assert addresses.take_changes().T.tolist() == [[1, 2, 9]]
    addresses.move_row(1, 0)
    assert addresses.take_changes().T.tolist() == [[0, 0, 5], [0, 1, 6], [0, 2, 9]]


@pytest.mark.parametrize("kind", [PagedAddresses, ContiguousAddresses])
def test_slots_follow_the_rows(kind: type) -> None:
    sequence = Sequence(Request("r", 0, 1, 1), 2)
    addresses: PagedAddresses | ContiguousAddresses
    if kind is PagedAddresses:
        addresses, sequence.table = PagedAddresses(3, rows=2, columns=4), [7, 2]
        expected = [21, 22, 23, 6, 7, 8]
    else:
        addresses, sequence.extent = ContiguousAddresses(rows=2), Extent(11, 6, 6, 6)
        expected = [11, 12, 13, 14, 15, 16]
    addresses.place(1, sequence, is_new=True)
    assert addresses.slots(np.full(6, 1), np.arange(6)).tolist() == expected
