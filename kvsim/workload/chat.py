"""Conversations of several turns under shared system prompts."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterator
from functools import cached_property
from heapq import heappop, heappush
from typing import NamedTuple

import numpy as np

from kvsim.core.request import Request
from kvsim.errors import InputError
from kvsim.workload.arrivals import Arrivals
from kvsim.workload.base import CHUNK_ROWS, NS_PER_S, RowCounts, digest_of, scaled
from kvsim.workload.checks import check_integer, check_number, check_rate_scale, check_seed
from kvsim.workload.lengths import MAX_TOKENS, Ints, TokenLaw

Segment = tuple[Hashable, int]


class _Turn(NamedTuple):
    """A turn to come; turns of one instant keep the order of their conversations."""

    arrival_ns: int
    conversation: int
    rank: int
    said: tuple[Segment, ...]
    """Everything before this turn: the system prompt, earlier turns and their answers."""
    users: list[int]
    outputs: list[int]
    gaps_ns: list[int]


class ChatWorkload:
    """Conversations whose turns repeat all that was said, in an open loop.

    arrivals          when conversations start; a law without a limit on concurrency
    conversations     how many start
    turns             turns of a conversation, a law of small integers
    system_prompts    how many system prompts there are; a conversation has one of them, each
                      equally likely, or none where this is 0
    system_tokens, user_tokens, output_tokens   laws of lengths
    turn_gap_s        mean time from the arrival of a turn to the next one's, exponential; the next
                      turn does not wait for the answer
    max_total_tokens  a conversation ends before the turn whose prompt and output exceed this; the
                      turns it loses are counted as `too_long`
    rate_scale        3 makes conversations start three times as often; gaps stay as they are

    A prompt is the system prompt, then every earlier user turn and answer, then this turn's words:
    `segments` names a stream for each, and `output_stream` the answer's. Requests are called c0-t0,
    c0-t1, c1-t0, ... Each law has a random stream of its own (PCG64, spawned from `seed`).
    """

    max_concurrency: int | None = None
    chunk_tokens: int | None = None
    shares_prefixes: bool = True

    def __init__(
        self,
        arrivals: Arrivals,
        *,
        conversations: int,
        turns: TokenLaw,
        user_tokens: TokenLaw,
        output_tokens: TokenLaw,
        system_tokens: TokenLaw,
        system_prompts: int = 1,
        turn_gap_s: float = 30.0,
        max_total_tokens: int = MAX_TOKENS,
        seed: int = 0,
        rate_scale: float = 1.0,
        source: str = "generated chat",
    ) -> None:
        check_integer(conversations, "conversations", 1, 1_000_000_000)
        check_integer(system_prompts, "system_prompts", 0, 1_000_000)
        check_number(turn_gap_s, "turn_gap_s", 0, 1e6, "s")
        check_integer(max_total_tokens, "max_total_tokens", 2, MAX_TOKENS)
        check_seed(seed)
        check_rate_scale(rate_scale)
        if arrivals.max_concurrency is not None:
            raise InputError(
                "must be an open loop: turns arrive at times of their own",
                where="arrivals",
                fix="Use poisson, gamma or constant arrivals",
            )
        self.arrivals = arrivals
        self.conversations = conversations
        self.turns = turns
        self.user_tokens = user_tokens
        self.output_tokens = output_tokens
        self.system_tokens = system_tokens
        self.system_prompts = system_prompts
        self.turn_gap_s = turn_gap_s
        self.max_total_tokens = max_total_tokens
        self.seed = seed
        self.rate_scale = rate_scale
        self.source = source

    @property
    def digest(self) -> str:
        """SHA-256 of the rows; makes them once."""
        return self._made[0]

    @property
    def counts(self) -> RowCounts:
        """Turns made, and those lost to `max_total_tokens`; makes the rows once."""
        return self._made[1]

    def __iter__(self) -> Iterator[Request]:
        waiting: list[_Turn] = []
        for first in self._first_turns():
            while waiting and waiting[0].arrival_ns <= first.arrival_ns:
                yield from self._sent(waiting)
            heappush(waiting, first)
        while waiting:
            yield from self._sent(waiting)

    @cached_property
    def _made(self) -> tuple[str, RowCounts]:
        hashed = hashlib.sha256()
        kept = 0
        for request in self:
            kept += 1
            hashed.update(repr(tuple(request)).encode())
        planned = sum(len(first.users) for first in self._first_turns())
        lost = {"too_long": planned - kept} if planned > kept else {}
        return digest_of({"rows": hashed.hexdigest()}), RowCounts(planned, kept, lost)

    def _sent(self, waiting: list[_Turn]) -> Iterator[Request]:
        """Send the earliest turn and plan the one after it; nothing, if it is too long."""
        now = heappop(waiting)
        name = f"c{now.conversation}-t{now.rank}"
        user, output = now.users[now.rank], now.outputs[now.rank]
        said = (*now.said, (("user", now.conversation, now.rank), user))
        prompt = sum(tokens for _, tokens in said)
        if prompt + output > self.max_total_tokens:
            return
        answer = ("output", now.conversation, now.rank)
        yield Request(name, now.arrival_ns, prompt, output, segments=said, output_stream=answer)
        if now.rank + 1 < len(now.users):
            later = now._replace(
                arrival_ns=now.arrival_ns + now.gaps_ns[now.rank],
                rank=now.rank + 1,
                said=(*said, (answer, output)),
            )
            heappush(waiting, later)

    def _first_turns(self) -> Iterator[_Turn]:
        seeds = np.random.SeedSequence(self.seed).spawn(7)
        starts, choices, systems, turns, users, outputs, gaps = (
            np.random.Generator(np.random.PCG64(child)) for child in seeds
        )
        lengths = self.system_tokens.draw(systems, self.system_prompts).tolist()
        conversation = 0
        for times in self.arrivals.times_ns(starts, self.conversations, CHUNK_ROWS):
            counts = self.turns.draw(turns, len(times)).tolist()
            chosen = (choices.random(len(times)) * self.system_prompts).astype(np.int64).tolist()
            rows = zip(
                scaled(times.tolist(), self.rate_scale),
                chosen,
                _in_rows(lambda count: self.user_tokens.draw(users, count), counts),
                _in_rows(lambda count: self.output_tokens.draw(outputs, count), counts),
                _in_rows(lambda count: self._gaps_ns(gaps, count), counts),
                strict=True,
            )
            for arrival, system, *turns_of_one in rows:
                said = ((("system", system), lengths[system]),) if lengths else ()
                yield _Turn(arrival, conversation, 0, said, *turns_of_one)
                conversation += 1

    def _gaps_ns(self, rng: np.random.Generator, count: int) -> Ints:
        return np.rint(rng.exponential(self.turn_gap_s, count) * NS_PER_S).astype(np.int64)


def _in_rows(draw: Callable[[int], Ints], counts: list[int]) -> Iterator[list[int]]:
    """Draws for each of `counts`, the same as one by one: a call costs more than its numbers."""
    start = 0
    while start < len(counts):
        stop, total = start + 1, counts[start]
        while stop < len(counts) and total + counts[stop] <= CHUNK_ROWS:
            total += counts[stop]
            stop += 1
        drawn, taken = draw(total).tolist(), 0
        for count in counts[start:stop]:
            yield drawn[taken : taken + count]
            taken += count
        start = stop
