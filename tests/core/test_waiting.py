"""Queues and victims against sorted lists."""

from __future__ import annotations

from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kvsim.core.request import Request, Sequence
from kvsim.core.waiting import FcfsQueue, LastAdmitted, LeastUrgent, PriorityQueue, WaitingQueue


def sequence(name: str, priority: int = 0, arrival: int = 0) -> Sequence:
    return Sequence(Request(name, arrival, 1, 1, priority=priority), max_model_len=10)


def names(queue: WaitingQueue) -> list[str]:
    return [one.request.request_id for one in queue]


def urgency(one: Sequence) -> tuple[int, int, str]:
    return one.request.priority, one.request.arrival_ns, one.request.request_id


# Examples


def test_preempted_sequences_go_to_the_front_one_by_one() -> None:
    """vllm/SPEC.md section 2c: the one admitted first is preempted last and comes back first."""
    queue = FcfsQueue()
    queue.add(sequence("new"))
    for name in ("admitted third", "admitted second", "admitted first"):
        queue.requeue(sequence(name))
    assert names(queue) == ["admitted first", "admitted second", "admitted third", "new"]


def test_a_preempted_sequence_is_filed_by_priority_like_any_other() -> None:
    queue = PriorityQueue()
    queue.add(sequence("urgent", priority=-1, arrival=5))
    queue.add(sequence("late", arrival=9))
    queue.requeue(sequence("early", arrival=3))
    assert names(queue) == ["urgent", "early", "late"]


def test_ids_of_equal_priority_and_arrival_are_compared_as_text() -> None:
    """vllm/SPEC.md section 2b: u10 comes before u2."""
    queue = PriorityQueue()
    for name in ("u2", "u10", "u1"):
        queue.add(sequence(name))
    assert names(queue) == ["u1", "u10", "u2"]


def test_the_victim_of_a_tie_is_the_first_in_running_order_whatever_its_id() -> None:
    """vllm/SPEC.md section 2a: the id is not looked at."""
    victims = LeastUrgent()
    members: dict[int, Sequence] = {}
    for order, (name, priority) in enumerate([("a", 0), ("z", 1), ("b", 1), ("c", 1)]):
        one = sequence(name, priority)
        one.order = order
        members[order] = one
        victims.admitted(one, members)
    assert victims.choose(members).request.request_id == "z"


# Everything at random

ARGUMENTS = st.tuples(st.integers(-1, 1), st.integers(0, 3))


class QueueMachine(RuleBasedStateMachine):
    """A list in admission order stands for the queue."""

    @initialize(by_priority=st.booleans())
    def build(self, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.queue: WaitingQueue = PriorityQueue() if by_priority else FcfsQueue()
        self.expected: list[Sequence] = []
        self.count = 0

    def new(self, arguments: tuple[int, int]) -> Sequence:
        self.count += 1
        return sequence(f"r{self.count}", *arguments)

    def sort(self) -> None:
        if self.by_priority:
            self.expected.sort(key=urgency)

    @rule(arguments=ARGUMENTS)
    def add(self, arguments: tuple[int, int]) -> None:
        one = self.new(arguments)
        self.queue.add(one)
        self.expected.append(one)
        self.sort()

    @rule(arguments=ARGUMENTS)
    def requeue(self, arguments: tuple[int, int]) -> None:
        one = self.new(arguments)
        self.queue.requeue(one)
        self.expected.insert(0, one)
        self.sort()

    @precondition(lambda self: self.expected)
    @rule()
    def pop(self) -> None:
        assert self.queue.pop() is self.expected.pop(0)

    @precondition(lambda self: self.expected)
    @rule(data=st.data())
    def remove(self, data: st.DataObject) -> None:
        one = data.draw(st.sampled_from(self.expected))
        self.queue.remove(one)
        self.expected.remove(one)

    @invariant()
    def the_order_is_that_of_the_list(self) -> None:
        assert list(self.queue) == self.expected
        assert len(self.queue) == len(self.expected)
        if self.expected:
            assert self.queue.head() is self.expected[0]


class VictimMachine(RuleBasedStateMachine):
    """The running sequences as a list, in order of admission."""

    @initialize(by_priority=st.booleans())
    def build(self, by_priority: bool) -> None:
        self.by_priority = by_priority
        self.victims: Any = LeastUrgent() if by_priority else LastAdmitted()
        self.members: dict[int, Sequence] = {}
        self.waiting: list[Sequence] = []
        self.next_order = 0

    def admit(self, one: Sequence) -> None:
        one.order = self.next_order
        self.next_order += 1
        self.members[one.order] = one
        self.victims.admitted(one, self.members)

    @rule(arguments=ARGUMENTS)
    def admit_new(self, arguments: tuple[int, int]) -> None:
        self.admit(sequence(f"r{self.next_order}", *arguments))

    @precondition(lambda self: self.waiting)
    @rule(data=st.data())
    def admit_again(self, data: st.DataObject) -> None:
        self.admit(self.waiting.pop(data.draw(st.integers(0, len(self.waiting) - 1))))

    @precondition(lambda self: self.members)
    @rule(data=st.data())
    def finish(self, data: st.DataObject) -> None:
        del self.members[data.draw(st.sampled_from(sorted(self.members)))]

    @precondition(lambda self: self.members)
    @rule()
    def preempt(self) -> None:
        running = list(self.members.values())
        if self.by_priority:
            # max() returns the first of several greatest ones
            expected = max(running, key=lambda one: urgency(one)[:2])
        else:
            expected = running[-1]
        victim = self.victims.choose(self.members)
        assert victim is expected
        del self.members[victim.order]
        self.waiting.append(victim)


QueueMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestQueueMachine = QueueMachine.TestCase
VictimMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=30)
TestVictimMachine = VictimMachine.TestCase
