"""Group schedulers to test, and a device that executes their plans slot by slot."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from collections.abc import Sequence as Seq
from typing import Any

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import StepPlan, Transfer
from kvsim.core.request import Branching, Fork, Request, Sequence
from kvsim.core.vllm_scheduler import VllmScheduler

MODEL_LEN = 200


def seeded_draw(seed: int) -> Callable[[Request, int, int], int]:
    """The same parent whenever the same survivor of the same generation is asked for."""

    def draw(request: Request, generation: int, survivor: int) -> int:
        assert request.branches is not None
        key = f"{seed} {request.request_id} {generation} {survivor}"
        return random.Random(key).randrange(request.branches.width)

    return draw


def scheduler(
    blocks: int, block_size: int, *, host_blocks: int = 0, **settings: Any
) -> GroupScheduler:
    given = {"max_num_seqs": 64, "max_num_batched_tokens": 4000, "max_model_len": MODEL_LEN}
    return GroupScheduler(
        BranchingAllocator(blocks, block_size, null_block=False, host_blocks=host_blocks),
        draw=seeded_draw(0),
        **(given | settings),
    )


def request(name: str, prompt: int, output: int, *branching: Any) -> Request:
    return Request(name, 0, prompt, output, branches=Branching(*branching) if branching else None)


def child(name: str, prompt: int, output: int, parent: str, tokens: int) -> Request:
    """A request that forks from another one."""
    return Request(name, 0, prompt, output, fork=Fork(parent, tokens))


def steps(engine: GroupScheduler) -> Iterator[StepPlan]:
    """Every step, between its schedule and its completion."""
    for _ in range(20_000):
        if not engine.has_work():
            engine.memory.check_integrity([])
            assert engine.memory.usage.allocated == 0
            if isinstance(engine.memory, BranchingAllocator):
                assert engine.memory.host.num_held == 0
            return
        plan = engine.schedule()
        yield plan
        engine.complete(plan)
    raise AssertionError("the run does not end")


class Device:
    """KV memory slot by slot: executes transfers, copies and writes, and reads every table back."""

    def __init__(self, engine: GroupScheduler) -> None:
        memory = engine.memory
        assert isinstance(memory, BranchingAllocator)
        self.engine = engine
        self.memory = memory
        self.slots: dict[int, object] = {}
        self.host_slots: dict[int, object] = {}
        self.content: dict[Sequence, list[object]] = {}
        self.moved: list[Transfer] = []
        """Transfers that the slots' contents were moved for."""
        self.fork, self.fork_at, self.replace = memory.fork, memory.fork_at, memory.replace
        self.swap_out, self.swap_in = memory.swap_out, memory.swap_in
        for name in ("fork", "fork_at", "replace", "swap_out", "swap_in"):
            setattr(memory, name, getattr(self, f"note_{name}"))

    def note_fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        self.fork(parent, child, computed)
        if child not in self.content or computed > child.request.prompt_tokens:
            self.content[child] = self.content[parent][:computed]

    def note_replace(self, branch: Sequence, parent: Sequence, computed: int) -> None:
        self.replace(branch, parent, computed)
        self.content[branch] = self.content[parent][:computed]

    def note_fork_at(self, parent: Sequence, child: Sequence, tokens: int) -> bool:
        """The child's prompt begins with the parent's tokens."""
        done = self.fork_at(parent, child, tokens)
        if done:
            own = self.known(child)[tokens:]
            self.content[child] = self.known(parent)[:tokens] + own
        return done

    def note_swap_out(self, branches: Seq[Sequence]) -> Transfer | None:
        before = [branch.table for branch in branches]
        transfer = self.swap_out(branches)
        if transfer is not None:
            assert not any(branch.table for branch in branches)
            after = [self.memory.host.tables[branch] for branch in branches]
            self.move(branches, (self.slots, before), (self.host_slots, after), transfer)
        return transfer

    def note_swap_in(self, branches: Seq[Sequence]) -> Transfer | None:
        before = [self.memory.host.tables[branch] for branch in branches]
        transfer = self.swap_in(branches)
        if transfer is not None:
            after = [branch.table for branch in branches]
            self.move(branches, (self.host_slots, before), (self.slots, after), transfer)
        return transfer

    def move(
        self,
        branches: Seq[Sequence],
        source: tuple[dict[int, object], list[list[int]]],
        target: tuple[dict[int, object], list[list[int]]],
        transfer: Transfer,
    ) -> None:
        """Move filled slots; every block moves once, and its holders stay together."""
        size = self.memory.block_size
        targets: dict[int, int] = {}
        filled: set[int] = set()
        for branch, old, new in zip(branches, source[1], target[1], strict=True):
            assert all(targets.setdefault(a, b) == b for a, b in zip(old, new, strict=True))
            filled |= {old[p // size] * size + p % size for p in range(branch.computed)}
        assert len(set(targets.values())) == len(targets) == transfer.blocks
        assert len(filled) == transfer.tokens
        for slot in filled:
            target[0][targets[slot // size] * size + slot % size] = source[0][slot]
        self.moved.append(transfer)

    def known(self, branch: Sequence) -> list[object]:
        """The branch's tokens: each is unique but for the prompt."""
        name, prompt = branch.request.request_id, branch.request.prompt_tokens
        content = self.content.setdefault(branch, [(name, p) for p in range(prompt)])
        while len(content) < branch.tokens:
            content.append(object())
        return content

    def run(self, plan: StepPlan) -> None:
        size = self.memory.block_size
        for source, target, tokens in plan.copies:
            for offset in range(tokens):
                self.slots[target + offset] = self.slots[source + offset]
        for branch, count in plan.scheduled():
            known = self.known(branch)
            for p in range(branch.computed - count, branch.computed):
                self.slots[branch.table[p // size] * size + p % size] = known[p]
        for branch in self.engine.running():
            self.check(branch, branch.table, self.slots)
        for group in self.engine.swapped:
            for branch in group.active:
                self.check(branch, self.memory.host.tables[branch], self.host_slots)

    def check(self, branch: Sequence, table: list[int], slots: dict[int, object]) -> None:
        size = self.memory.block_size
        read = [slots[table[p // size] * size + p % size] for p in range(branch.computed)]
        assert read == self.known(branch)[: branch.computed]


def serve_side_by_side(
    plain: VllmScheduler,
    groups: GroupScheduler,
    rows: list[tuple[int, int, int, int]],
    alike: Callable[[StepPlan, StepPlan], None],
) -> None:
    """Both serve requests with one branch; `alike` compares the two after every step.

    Rows are the gap to the arrival before (steps), prompt and output tokens, and the kind of
    branching: none, a sample or a beam.
    """
    kinds = [None, Branching("parallel", 1), Branching("beam", 1, "wright_fisher")]
    arrival, queue = 0, []
    for index, (gap, prompt, output, kind) in enumerate(rows):
        arrival += gap
        queue.append((Request(f"r{index}", arrival, prompt, output), kinds[kind]))
    for step in range(3000):
        while queue and queue[0][0].arrival_ns <= step:
            one, branches = queue.pop(0)
            assert plain.refuse(one) == groups.refuse(one._replace(branches=branches))
            if plain.refuse(one) is None:
                plain.add(one)
                groups.add(one._replace(branches=branches))
        assert plain.has_work() == groups.has_work()
        expected, plan = plain.schedule(), groups.schedule()
        alike(expected, plan)
        ended = [s.request.request_id for s in plain.complete(expected)]
        assert [s.request.request_id for s in groups.complete(plan)] == ended
        if not (queue or plain.has_work()) or not (plan.scheduled_tokens or plan.preempted):
            break
