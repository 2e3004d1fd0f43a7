"""Forked block tables: sharing, copy-on-write, and a state machine that knows every token."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.accounting import split
from kvsim.core.branches import BranchingAllocator
from kvsim.core.paged import PagedAllocator
from kvsim.core.plan import Copy, Transfer
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
    """Random admissions, appends, forks, swaps and releases against the tokens of each sequence.

    Each token is unique. The KV memory is modelled slot by slot, with the copies carried out as a
    device would, so a lost copy or a write into somebody else's slot shows as a wrong token.
    """

    @initialize(
        blocks=st.integers(2, 30),
        block_size=st.sampled_from([1, 3, 4, 16]),
        host_blocks=st.integers(0, 20),
    )
    def build(self, blocks: int, block_size: int, host_blocks: int) -> None:
        self.allocator = BranchingAllocator(blocks, block_size, host_blocks=host_blocks)
        self.swapped: list[list[int]] = []
        self.host_slots: dict[int, int] = {}
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

    @precondition(lambda self: self.on_device())
    @rule(data=st.data(), count=st.integers(1, 20))
    def append(self, data: st.DataObject, count: int) -> None:
        key = data.draw(st.sampled_from(self.on_device()))
        one, length = self.held[key], len(self.tokens[key])
        count = min(count, one.final_kv_tokens - length)
        if count < 1:
            return
        size, free = self.allocator.block_size, self.allocator.free_count()
        last = one.table[-1]
        copies = length % size != 0 and any(
            last in self.held[name].table for name in self.on_device() if name != key
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

    @precondition(lambda self: self.on_device())
    @rule(data=st.data(), more=st.integers(0, 8))
    def fork(self, data: st.DataObject, more: int) -> None:
        key = data.draw(st.sampled_from(self.on_device()))
        parent, tokens = self.held[key], self.tokens[key]
        child = sequence(len(tokens), 1 + more)
        free = self.allocator.pool.free_ids()
        self.allocator.fork(parent, child, len(tokens))
        assert free == self.allocator.pool.free_ids()
        self.held[self.next], self.tokens[self.next] = child, list(tokens)
        self.next += 1

    @precondition(lambda self: self.on_device())
    @rule(data=st.data(), more=st.integers(1, 8))
    def fork_at(self, data: st.DataObject, more: int) -> None:
        """Whole blocks are shared; the rest is a copy, which needs a block."""
        key = data.draw(st.sampled_from(self.on_device()))
        parent, size = self.held[key], self.allocator.block_size
        upto = data.draw(st.integers(1, len(self.tokens[key])))
        child, free = sequence(upto, more), self.allocator.free_count()
        fits = upto % size == 0 or free > 0
        assert self.allocator.fork_at(parent, child, upto) == fits
        if not fits:
            assert child.table == []
            return
        assert free - self.allocator.free_count() == (upto % size != 0)
        assert child.table[: upto // size] == parent.table[: upto // size]
        self.held[self.next], self.tokens[self.next] = child, self.tokens[key][:upto]
        self.write(self.next, 0)
        self.next += 1

    @precondition(lambda self: self.on_device())
    @rule(data=st.data())
    def replace(self, data: st.DataObject) -> None:
        """A beam goes on from another one's tokens."""
        keys = st.sampled_from(self.on_device())
        key, source = data.draw(keys), data.draw(keys)
        tokens = self.tokens[source]
        if key == source or len(tokens) > self.held[key].final_kv_tokens:
            return
        self.allocator.replace(self.held[key], self.held[source], len(tokens))
        assert self.held[key].table == self.held[source].table
        self.tokens[key] = list(tokens)

    @precondition(lambda self: self.on_device())
    @rule(data=st.data())
    def swap_out(self, data: st.DataObject) -> None:
        """Any sequences together, those that share blocks with others too."""
        keys = data.draw(st.lists(st.sampled_from(self.on_device()), min_size=1, unique=True))
        allocator, size = self.allocator, self.allocator.block_size
        group = [self.held[key] for key in keys]
        for key in keys:
            self.held[key].computed = len(self.tokens[key])
        before = [list(one.table) for one in group]
        filled = {self.at(one.table, p) for one in group for p in range(one.computed)}
        blocks = {block for table in before for block in table}
        assert allocator.footprint(group) == (len(filled), len(blocks))
        transfer = allocator.swap_out(group)
        if len(blocks) > allocator.host.num_blocks - sum(map(self.num_host_blocks, self.swapped)):
            assert transfer is None
            assert [one.table for one in group] == before
            return
        assert transfer == Transfer("swap_out", len(filled), len(blocks))
        for one, table in zip(group, before, strict=True):
            host = allocator.host.tables[one]
            for p in range(one.computed):
                self.host_slots[host[p // size] * size + p % size] = self.slots[self.at(table, p)]
        self.swapped.append(keys)

    @precondition(lambda self: self.swapped)
    @rule(data=st.data())
    def swap_in(self, data: st.DataObject) -> None:
        """What shared a block, the filled slots of a last one too, shares it again."""
        keys = self.swapped[data.draw(st.integers(0, len(self.swapped) - 1))]
        allocator, size = self.allocator, self.allocator.block_size
        group = [self.held[key] for key in keys]
        tables = [allocator.host.tables[one] for one in group]
        blocks, free = self.num_host_blocks(keys), allocator.free_count()
        writes = [min(1, one.final_kv_tokens - one.computed) for one in group]
        need = allocator.blocks_to_swap_in(group, writes)
        assert allocator.blocks_to_swap_in(group, [0] * len(group)) == blocks
        transfer = allocator.swap_in(group)
        if blocks > free:
            assert transfer is None
            assert [allocator.host.tables[one] for one in group] == tables
            return
        filled = {
            self.at(table, p)
            for one, table in zip(group, tables, strict=True)
            for p in range(one.computed)
        }
        assert transfer == Transfer("swap_in", len(filled), blocks)
        assert free - allocator.free_count() == blocks
        assert need == blocks + allocator.blocks_to_append(group, writes)
        for one, host in zip(group, tables, strict=True):
            for p in range(one.computed):
                self.slots[self.at(one.table, p)] = self.host_slots[
                    host[p // size] * size + p % size
                ]
        self.swapped.remove(keys)

    def at(self, table: list[int], position: int) -> int:
        size = self.allocator.block_size
        return table[position // size] * size + position % size

    def num_host_blocks(self, keys: list[int]) -> int:
        tables = self.allocator.host.tables
        return len({block for key in keys for block in tables[self.held[key]]})

    def on_device(self) -> list[int]:
        away = {key for keys in self.swapped for key in keys}
        return [key for key in self.held if key not in away]

    @precondition(lambda self: self.held)
    @rule(data=st.data())
    def release(self, data: st.DataObject) -> None:
        key = data.draw(st.sampled_from(sorted(self.held)))
        self.allocator.release(self.held.pop(key))
        del self.tokens[key]
        self.swapped = [rest for keys in self.swapped if (rest := [k for k in keys if k != key])]

    @invariant()
    def every_token_is_where_its_table_says(self) -> None:
        size, tables = self.allocator.block_size, self.allocator.host.tables
        device = self.on_device()
        for key, tokens in self.tokens.items():
            one = self.held[key]
            table, slots = one.table, self.slots
            if key not in device:
                assert table == []
                table, slots = tables[one], self.host_slots
            assert len(table) == -(-len(tokens) // size)
            assert [slots[self.at(table, p)] for p in range(len(tokens))] == tokens

    @invariant()
    def table_entries_are_reference_counts_on_either_side(self) -> None:
        allocator = self.allocator
        tables = [self.held[key].table for key in self.on_device()]
        distinct = {block for table in tables for block in table}
        assert sum(map(len, tables)) == sum(map(allocator.pool.ref_cnt, distinct))
        host = allocator.host
        assert sum(map(len, host.tables.values())) == host.num_entries()
        assert host.num_held == sum(map(self.num_host_blocks, self.swapped))
        assert host.num_held + host.num_free == host.num_blocks
        assert host.peak_blocks >= host.num_held

    @invariant()
    def every_slot_is_accounted_for(self) -> None:
        allocator = self.allocator
        allocator.check_integrity([self.held[key] for key in self.on_device()])
        terms = split(
            allocator.usage,
            live_tokens=sum(len(self.tokens[key]) for key in self.on_device()),
            capacity=allocator.capacity_slots,
            reserves_ahead=False,
            held_up=False,
        )
        distinct = {
            self.at(self.held[key].table, p)
            for key in self.on_device()
            for p in range(len(self.tokens[key]))
        }
        assert terms.live == len(distinct)
        assert terms.total == allocator.capacity_slots
        assert min(terms) >= 0
        assert terms.usable_free == allocator.free_count() * allocator.block_size


BranchingMachine.TestCase.settings = settings(max_examples=150, stateful_step_count=40)
TestBranchingMachine = BranchingMachine.TestCase
