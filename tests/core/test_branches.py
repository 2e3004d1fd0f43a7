"""Forked block tables: sharing, copy-on-write, and a state machine that knows every token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.branches import BranchingAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy
from kvsim.core.protocols import NO_HIT
from kvsim.core.request import Request, Sequence


def sequence(prompt: int, output: int = 1) -> Sequence:
    return Sequence(Request("r", 0, prompt, output), max_model_len=100_000)


def computed(allocator: BranchingAllocator, prompt: int, output: int) -> Sequence:
    """A sequence whose prompt has KV."""
    one = sequence(prompt, output)
    assert allocator.admit(one, NO_HIT, prompt, prompt, 0)
    one.computed = prompt
    return one


def fork(allocator: BranchingAllocator, parent: Sequence) -> Sequence:
    child = Sequence(parent.request, parent.max_model_len)
    allocator.fork(parent, child, parent.computed)
    child.computed = parent.computed
    return child


def test_a_writer_copies_the_filled_slots_and_the_last_holder_writes_in_place() -> None:
    allocator = BranchingAllocator(9, 4)
    parent = computed(allocator, 6, 4)
    child = fork(allocator, parent)
    assert child.table == parent.table == [1, 2]
    assert child.table is not parent.table
    assert (allocator.horizon(parent, 6), allocator.horizon(child, 6)) == (0, 0)
    assert allocator.append(parent, 6, 0, 6)
    assert child.table == parent.table == [1, 2]
    assert allocator.append(parent, 6, 1, 7)
    assert (parent.table, child.table) == ([1, 3], [1, 2])
    assert (allocator.horizon(parent, 7), allocator.horizon(child, 6)) == (1, 2)
    assert allocator.append(child, 6, 1, 7)
    assert child.table == [1, 2]
    assert allocator.take_copies() == [Copy(source_slot=8, target_slot=12, tokens=2)]
    assert allocator.take_copies() == []
    allocator.check_integrity([parent, child])


def test_full_blocks_are_shared_without_a_copy() -> None:
    allocator = BranchingAllocator(9, 4)
    parent = computed(allocator, 8, 9)
    child = fork(allocator, parent)
    assert allocator.append_bulk([parent, child])
    assert (parent.table, child.table) == ([1, 2, 3], [1, 2, 4])
    assert allocator.take_copies() == []
    assert allocator.usage.shared == 8


def test_a_copy_that_does_not_fit_is_refused_and_changes_nothing() -> None:
    allocator = BranchingAllocator(4, 4)
    parent = computed(allocator, 6, 9)
    child = fork(allocator, parent)
    assert not allocator.append(parent, 6, 4, 10)
    assert not allocator.append(parent, 6, 3, 9)
    assert (parent.table, child.table) == ([1, 2], [1, 2])
    assert allocator.pool.free_ids() == [3]
    assert allocator.take_copies() == []
    allocator.check_integrity([parent, child])
    assert allocator.append(parent, 6, 2, 8)
    assert allocator.append(child, 6, 2, 8)
    assert allocator.free_count() == 0


def test_a_group_is_extended_wholly_or_not_at_all() -> None:
    allocator = BranchingAllocator(5, 4)
    parent = computed(allocator, 6, 9)
    group = [parent, *(fork(allocator, parent) for _ in range(3))]
    assert allocator.blocks_to_append(group, [1] * 4) == 3
    assert allocator.blocks_to_append(group[:2], [1, 3]) == 3
    assert allocator.blocks_to_append(group, [0, 0, 0, 1]) == 1
    assert not allocator.append_group(group, [1] * 4)
    assert {tuple(one.table) for one in group} == {(1, 2)}
    allocator.release(group.pop())
    assert allocator.append_group(group, [1] * 3)
    assert [one.table for one in group] == [[1, 3], [1, 4], [1, 2]]
    assert [copy.tokens for copy in allocator.take_copies()] == [2, 2]


def test_fork_refuses_what_cannot_be_a_branch() -> None:
    allocator = BranchingAllocator(9, 4)
    parent = computed(allocator, 6, 4)
    with pytest.raises(ValueError, match="does not end with token 9"):
        allocator.fork(parent, sequence(6, 4), 9)
    with pytest.raises(ValueError, match="ends at 5 tokens"):
        allocator.fork(parent, sequence(5), 6)
    with pytest.raises(ValueError, match="holds blocks already"):
        allocator.fork(parent, parent, 6)
    allocator.check_integrity([parent])


def test_slots_of_a_shared_tail_are_internal_only_if_no_holder_will_fill_them() -> None:
    allocator = BranchingAllocator(9, 8)
    parent = computed(allocator, 5, 2)
    assert allocator.usage.internal_tail == 2
    longer = sequence(5, 3)
    allocator.fork(parent, longer, 5)
    assert allocator.usage.internal_tail == 1
    assert allocator.usage.shared == 5
    allocator.check_integrity([parent, longer])
    allocator.release(longer)
    assert allocator.usage.internal_tail == 2
    allocator.check_integrity([parent])


@pytest.mark.parametrize("block_size", [1, 2, 7, 16])
@pytest.mark.parametrize("n", [1, 2, 3, 6])
def test_parallel_sampling_holds_and_copies_as_the_closed_form_says(
    n: int, block_size: int
) -> None:
    """Closed form 4, after every generated token, over whole and partial prompt blocks."""
    for prompt in {1, 2, block_size, block_size + 1, 3 * block_size - 1, 4 * block_size}:
        allocator = BranchingAllocator(2000, block_size)
        root = computed(allocator, prompt, 40)
        branches = [root, *(fork(allocator, root) for _ in range(n - 1))]
        copies: list[Copy] = []
        full = prompt // block_size
        for generated in range(1, 2 * block_size + 3):
            assert allocator.append_group(branches, [1] * n)
            copies += allocator.take_copies()
            for branch in branches:
                branch.computed += 1
            own = -(-(prompt + generated) // block_size)
            physical, logical = full + n * (own - full), n * own
            assert allocator.sharing_counts() == {
                "logical_blocks": logical,
                "physical_blocks": physical,
                "copies": len(copies),
                "copied_tokens": sum(copy.tokens for copy in copies),
            }
            assert (logical - physical) * n * own == (n - 1) * full * logical
            assert len(copies) == (n - 1 if prompt % block_size else 0)
            assert {copy.tokens for copy in copies} <= {prompt % block_size}
            allocator.check_integrity(branches)


@pytest.mark.parametrize("block_size", [1, 4, 16])
@pytest.mark.parametrize("m", [1, 2, 5])
def test_a_shared_prefix_saves_its_whole_blocks_once_per_further_request(
    m: int, block_size: int
) -> None:
    """Closed form 6: (m-1) * floor(p/B) blocks, once every request wrote behind the prefix."""
    for prefix in range(1, 3 * block_size + 2):
        allocator = BranchingAllocator(2000, block_size)
        holder = computed(allocator, prefix, 50)
        group = [holder, *(fork(allocator, holder) for _ in range(m - 1))]
        for index, one in enumerate(group):
            assert allocator.append(one, prefix, 3 + index, prefix + 3 + index)
        counts = allocator.sharing_counts()
        saved = counts["logical_blocks"] - counts["physical_blocks"]
        assert saved == (m - 1) * (prefix // block_size)
        assert allocator.usage.shared == saved * block_size


@given(
    rows=st.lists(st.tuples(st.integers(1, 40), st.integers(1, 30)), min_size=1, max_size=12),
    blocks=st.integers(4, 30),
    block_size=st.sampled_from([1, 4, 16]),
)
def test_without_a_fork_everything_equals_the_paged_allocator(
    rows: list[tuple[int, int]], blocks: int, block_size: int
) -> None:
    plain, branching = PagedAllocator(blocks, block_size), BranchingAllocator(blocks, block_size)
    assert plain.append_period() == branching.append_period()
    held: list[tuple[Sequence, Sequence]] = []
    for prompt, output in rows:
        pair = sequence(prompt, output), sequence(prompt, output)
        done = plain.admit(pair[0], NO_HIT, prompt, 0, 0)
        assert branching.admit(pair[1], NO_HIT, prompt, 0, 0) == done
        if done:
            held.append(pair)
        for one, other in held:
            at = len(one.table) * block_size
            assert plain.append(one, at, 1, at + 1) == branching.append(other, at, 1, at + 1)
            assert plain.horizon(one, at + 1) == branching.horizon(other, at + 1)
        if len(held) > 2:
            plain.release(held[0][0])
            branching.release(held.pop(0)[1])
        assert [one.table for one, _ in held] == [other.table for _, other in held]
        assert plain.dump() == branching.dump()
        assert plain.usage.allocated == branching.usage.allocated
        assert plain.usage.internal_tail == branching.usage.internal_tail
    assert branching.take_copies() == []


class BranchingMachine(RuleBasedStateMachine):
    """Random admissions, appends, forks and releases against a list of tokens per sequence.

    Each token is unique. The KV memory is modelled slot by slot, with the copies carried out as a
    device would, so a lost copy or a write into somebody else's slot shows as a wrong token.
    """

    @initialize(blocks=st.integers(2, 30), block_size=st.sampled_from([1, 3, 4, 16]))
    def build(self, blocks: int, block_size: int) -> None:
        self.allocator = BranchingAllocator(blocks, block_size)
        self.tokens: dict[int, list[int]] = {}
        self.held: dict[int, Sequence] = {}
        self.slots: dict[int, int] = {}
        self.next = 0
        self.next_token = 0

    def write(self, key: int, count: int) -> None:
        """Carry out the queued copies, then compute `count` fresh tokens."""
        size = self.allocator.block_size
        for source, target, tokens in self.allocator.take_copies():
            assert tokens == len(self.tokens[key]) % size
            for offset in range(tokens):
                self.slots[target + offset] = self.slots[source + offset]
        for _ in range(count):
            position = len(self.tokens[key])
            block = self.held[key].table[position // size]
            self.slots[block * size + position % size] = self.next_token
            self.tokens[key].append(self.next_token)
            self.next_token += 1

    @rule(prompt=st.integers(1, 40), output=st.integers(1, 30))
    def admit(self, prompt: int, output: int) -> None:
        one = sequence(prompt, output)
        fits = -(-prompt // self.allocator.block_size) <= self.allocator.free_count()
        assert self.allocator.admit(one, NO_HIT, prompt, prompt, 0) == fits
        if fits:
            self.held[self.next], self.tokens[self.next] = one, []
            self.write(self.next, prompt)
            self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data(), count=st.integers(1, 20))
    def append(self, data: st.DataObject, count: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        one, length = self.held[key], len(self.tokens[key])
        count = min(count, one.final_kv_tokens - length)
        if count < 1:
            return
        size, free = self.allocator.block_size, self.allocator.free_count()
        last = one.table[-1]
        copies = length % size != 0 and any(
            last in other.table for name, other in self.held.items() if name != key
        )
        assert (self.allocator.horizon(one, length) == 0) == (copies or length % size == 0)
        need = -(-(length + count) // size) - len(one.table) + copies
        before = list(one.table), self.allocator.pool.free_ids()
        assert self.allocator.append(one, length, count, length + count) == (need <= free)
        if need <= free:
            assert free - self.allocator.free_count() == need
            self.write(key, count)
        else:
            assert before == (one.table, self.allocator.pool.free_ids())
            assert self.allocator.take_copies() == []

    @precondition(lambda self: self.held)
    @rule(data=st.data(), more=st.integers(0, 8))
    def fork(self, data: st.DataObject, more: int) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        parent, tokens = self.held[key], self.tokens[key]
        child = sequence(len(tokens), 1 + more)
        free = self.allocator.pool.free_ids()
        self.allocator.fork(parent, child, len(tokens))
        assert free == self.allocator.pool.free_ids()
        self.held[self.next], self.tokens[self.next] = child, list(tokens)
        self.next += 1

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.allocator.release(self.held.pop(key))
        del self.tokens[key]

    @invariant()
    def every_token_is_where_its_table_says(self) -> None:
        size = self.allocator.block_size
        for key, tokens in self.tokens.items():
            table = self.held[key].table
            assert len(table) == -(-len(tokens) // size)
            read = [self.slots[table[p // size] * size + p % size] for p in range(len(tokens))]
            assert read == tokens

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        allocator = self.allocator
        allocator.check_integrity(list(self.held.values()))
        terms = split(
            allocator.usage,
            live_tokens=sum(map(len, self.tokens.values())),
            capacity=allocator.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        distinct = {
            self.held[key].table[p // allocator.block_size] * allocator.block_size
            + p % allocator.block_size
            for key, tokens in self.tokens.items()
            for p in range(len(tokens))
        }
        assert terms.live == len(distinct)
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        assert terms.usable_free == allocator.free_count() * allocator.block_size


BranchingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBranchingMachine = BranchingMachine.TestCase
