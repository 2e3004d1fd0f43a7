"""Group schedulers to test, and a device that executes their plans slot by slot."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator
from typing import Any

from kvsim.core.branches import BranchingAllocator
from kvsim.core.group_scheduler import GroupScheduler
from kvsim.core.plan import StepPlan
from kvsim.core.request import Branching, Request, Sequence

MODEL_LEN = 200


def seeded_draw(seed: int) -> Callable[[Request, int, int], int]:
    """The same parent whenever the same survivor of the same generation is asked for."""

    def draw(request: Request, generation: int, survivor: int) -> int:
        assert request.branches is not None
        key = f"{seed} {request.request_id} {generation} {survivor}"
        return random.Random(key).randrange(request.branches.width)

    return draw


def scheduler(blocks: int, block_size: int, **settings: Any) -> GroupScheduler:
    given = {"max_num_seqs": 64, "max_num_batched_tokens": 4000, "max_model_len": MODEL_LEN}
    return GroupScheduler(
        BranchingAllocator(blocks, block_size, null_block=False),
        draw=seeded_draw(0),
        **(given | settings),
    )


def request(name: str, prompt: int, output: int, *branching: Any) -> Request:
    return Request(name, 0, prompt, output, branches=Branching(*branching) if branching else None)


def steps(engine: GroupScheduler) -> Iterator[StepPlan]:
    """Every step, between its schedule and its completion."""
    for _ in range(20_000):
        if not engine.has_work():
            engine.memory.check_integrity([])
            assert engine.memory.usage.allocated == 0
            return
        plan = engine.schedule()
        yield plan
        engine.complete(plan)
    raise AssertionError("the run does not end")


class Device:
    """KV memory slot by slot: executes copies and writes, and reads every table back."""

    def __init__(self, engine: GroupScheduler) -> None:
        self.engine = engine
        self.slots: dict[int, object] = {}
        self.content: dict[Sequence, list[object]] = {}
        self.fork = engine.memory.fork
        engine.memory.fork = self.note_fork  # type: ignore[method-assign]

    def note_fork(self, parent: Sequence, child: Sequence, computed: int) -> None:
        self.fork(parent, child, computed)
        if child not in self.content or computed > child.request.prompt_tokens:
            self.content[child] = self.content[parent][:computed]

    def known(self, branch: Sequence) -> list[object]:
        """The branch's tokens: each is unique but for the prompt."""
        name, prompt = branch.request.request_id, branch.request.prompt_tokens
        content = self.content.setdefault(branch, [(name, p) for p in range(prompt)])
        while len(content) < branch.tokens:
            content.append(object())
        return content

    def run(self, plan: StepPlan) -> None:
        size = self.engine.memory.block_size
        for source, target, tokens in plan.copies:
            for offset in range(tokens):
                self.slots[target + offset] = self.slots[source + offset]
        for branch, count in plan.scheduled():
            known = self.known(branch)
            for p in range(branch.computed - count, branch.computed):
                self.slots[branch.table[p // size] * size + p % size] = known[p]
        for branch in self.engine.running():
            read = [
                self.slots[branch.table[p // size] * size + p % size]
                for p in range(branch.computed)
            ]
            assert read == self.known(branch)[: branch.computed]
