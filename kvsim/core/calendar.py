"""The running set as a calendar: a step touches only the sequences something happens to.

A decoding sequence gains one token per step, so its state is `step counter + offset` and nothing
is stored per step. What can happen to it is known when it joins: the steps at which its memory
changes, and the step at which it ends. Prefills are few and are listed.
"""

from __future__ import annotations

from kvsim.core.request import Sequence, State


class Calendar:
    """Running sequences by admission order, by next change of memory, and by last step.

    `period` is the allocator's `append_period()`. A regular memory changes every `period` steps of
    a sequence, so it is filed once, under the residue of the step; with 0 it never changes. An
    irregular one (None) is filed under its next step by `attend`, again and again.
    """

    __slots__ = (
        "_due",
        "_endings",
        "_next_order",
        "decode_tokens",
        "draining",
        "draining_tokens",
        "members",
        "num_decodes",
        "period",
        "prefill_tokens",
        "prefilling",
        "step",
    )

    def __init__(self, period: int | None) -> None:
        self.period = period
        self.step = 0
        """Number of the latest `schedule()`."""
        self.members: dict[int, Sequence] = {}
        """Everything that runs, by order of admission."""
        self.prefilling: dict[int, Sequence] = {}
        """Members whose known tokens are not all computed yet."""
        self.draining: dict[int, Sequence] = {}
        """Members that only wait for their last token."""
        self.num_decodes = 0
        self.decode_tokens = 0
        """Computed tokens of all decodes (as of the last `advance`)."""
        self.prefill_tokens = 0
        """Computed tokens of all prefills."""
        self.draining_tokens = 0
        """Computed tokens of everything that drains."""
        self._next_order = 0
        self._due: dict[int, dict[int, Sequence]] = {}
        self._endings: dict[int, dict[int, Sequence]] = {}

    def admit(self, sequence: Sequence, cached_tokens: int = 0) -> None:
        """Append a sequence to the running order, as a prefill behind its cached tokens."""
        order = self._next_order
        self._next_order = order + 1
        sequence.order = order
        sequence.state = State.PREFILLING
        sequence.admissions += 1
        sequence.computed = cached_tokens
        self.prefill_tokens += cached_tokens
        self.members[order] = sequence
        self.prefilling[order] = sequence

    def advance(self) -> None:
        """Every decode computes its next token in this step."""
        self.decode_tokens += self.num_decodes

    def due(self, ahead: int = 0) -> list[Sequence]:
        """Decodes whose memory changes in this step (or `ahead` later), in running order."""
        step = self.step + ahead
        if self.period:
            bucket = self._due.get(step % self.period)
        else:
            bucket = self._due.get(step)
        if not bucket:
            return []
        if len(bucket) == 1:
            return list(bucket.values())
        return [bucket[order] for order in sorted(bucket)]

    def attend(self, sequence: Sequence, step: int) -> None:
        """File a decode of irregular memory under the step of its next change."""
        order = sequence.order
        bucket = self._due.get(sequence.due)
        if bucket is not None and bucket.pop(order, None) is not None and not bucket:
            del self._due[sequence.due]
        sequence.due = step
        self._due.setdefault(step, {})[order] = sequence

    def join(self, sequence: Sequence) -> None:
        """Turn a prefill that is completed in this step into a decode that goes on after it."""
        order = sequence.order
        del self.prefilling[order]
        computed = sequence.computed
        offset = computed - self.step
        sequence.offset = offset
        sequence.state = State.DECODING
        self.num_decodes += 1
        self.decode_tokens += computed
        self.prefill_tokens -= computed
        if self.period:
            sequence.due = (1 - offset) % self.period
            self._due.setdefault(sequence.due, {})[order] = sequence
        ending = self._endings.setdefault(sequence.final_tokens - 1 - offset, {})
        ending[order] = sequence

    def take_endings(self, step: int) -> list[Sequence]:
        """Decodes that sample their last token in `step`; they stay members."""
        ending = self._endings.pop(step, None)
        return list(ending.values()) if ending else []

    def drain(self) -> None:
        """Those that sampled their last token in the step before compute nothing any more."""
        for sequence in self.take_endings(self.step - 1):
            self._leave_decodes(sequence, self.step - 1)
            sequence.tokens = sequence.computed
            sequence.state = State.DRAINING
            self.draining[sequence.order] = sequence
            self.draining_tokens += sequence.computed

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens with KV after this step (between steps: after the latest)."""
        if sequence.state is State.DECODING:
            return self.step + sequence.offset
        return sequence.computed

    def drop(self, sequence: Sequence, step: int) -> None:
        """Take a member out; its `computed` becomes that after `step`.

        `step` is the last step in which it computed anything: the current one at a finish, the
        previous one for a victim or an abort.
        """
        order = sequence.order
        del self.members[order]
        if sequence.state is State.DECODING:
            self._leave_decodes(sequence, step)
            self._forget_ending(sequence)
        elif sequence.state is State.DRAINING:
            del self.draining[order]
            self.draining_tokens -= sequence.computed
        else:
            del self.prefilling[order]
            self.prefill_tokens -= sequence.computed

    def _leave_decodes(self, sequence: Sequence, step: int) -> None:
        computed = step + sequence.offset
        sequence.computed = computed
        self.num_decodes -= 1
        self.decode_tokens -= computed
        if self.period != 0:
            bucket = self._due[sequence.due]
            del bucket[sequence.order]
            if not bucket:
                del self._due[sequence.due]

    def _forget_ending(self, sequence: Sequence) -> None:
        step = sequence.final_tokens - 1 - sequence.offset
        ending = self._endings.get(step)
        if ending is None:
            return
        ending.pop(sequence.order, None)
        if not ending:
            del self._endings[step]

    def check_integrity(self) -> None:
        """Totals, due lists and endings agree with the members, one by one."""
        decodes = [s for s in self.members.values() if s.state is State.DECODING]
        prefills = [s for s in self.members.values() if s.state is State.PREFILLING]
        draining = [s for s in self.members.values() if s.state is State.DRAINING]
        assert len(decodes) == self.num_decodes, f"{len(decodes)} decodes != {self.num_decodes}"
        assert prefills == list(self.prefilling.values()), "prefilling list differs from members"
        assert set(draining) == set(self.draining.values()), "draining list differs from members"
        decode_tokens = sum(self.computed_tokens(s) for s in decodes)
        assert decode_tokens == self.decode_tokens, f"{decode_tokens} != {self.decode_tokens}"
        prefill_tokens = sum(s.computed for s in prefills)
        assert prefill_tokens == self.prefill_tokens, f"{prefill_tokens} != {self.prefill_tokens}"
        draining_tokens = sum(s.computed for s in draining)
        assert draining_tokens == self.draining_tokens, (
            f"{draining_tokens} != {self.draining_tokens}"
        )
        due = sum(len(bucket) for bucket in self._due.values())
        assert due == (0 if self.period == 0 else len(decodes)), "a decode is filed never or twice"
        endings = sum(len(ending) for ending in self._endings.values())
        assert endings == len(decodes), f"{endings} endings != {len(decodes)} decodes"
