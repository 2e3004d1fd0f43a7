"""The running set as a calendar: a step touches only the sequences something happens to.

A decoding sequence gains one token per step, so its state is `step counter + offset` and nothing
is stored per step. What can happen to it is known when it joins: it crosses a block boundary at
one residue of the step counter, and it ends at one step. Prefills are few and are listed.
"""

from __future__ import annotations

from kvsim.core.request import Sequence, State


class Calendar:
    """Running sequences by admission order, by boundary crossing, and by last step.

    `period` is the allocator's `append_period()`: 0 keeps no crossings.
    """

    __slots__ = (
        "_crossings",
        "_endings",
        "_next_order",
        "decode_tokens",
        "members",
        "num_decodes",
        "period",
        "prefill_tokens",
        "prefilling",
        "step",
    )

    def __init__(self, period: int) -> None:
        self.period = period
        self.step = 0
        """Number of the latest `schedule()`."""
        self.members: dict[int, Sequence] = {}
        """Everything that runs, by order of admission."""
        self.prefilling: dict[int, Sequence] = {}
        """Members whose known tokens are not all computed yet."""
        self.num_decodes = 0
        self.decode_tokens = 0
        """Computed tokens of all decodes (as of the last `advance`)."""
        self.prefill_tokens = 0
        """Computed tokens of all prefills."""
        self._next_order = 0
        self._crossings: dict[int, dict[int, Sequence]] = {}
        self._endings: dict[int, dict[int, Sequence]] = {}

    def admit(self, sequence: Sequence) -> None:
        """Append a sequence to the running order, as a prefill that has computed nothing."""
        order = self._next_order
        self._next_order = order + 1
        sequence.order = order
        sequence.state = State.PREFILLING
        sequence.admissions += 1
        sequence.computed = 0
        self.members[order] = sequence
        self.prefilling[order] = sequence

    def advance(self) -> None:
        """Every decode computes its next token in this step."""
        self.decode_tokens += self.num_decodes

    def crossings(self) -> list[Sequence]:
        """Decodes whose next token needs memory in this step, in running order."""
        if not self.period:
            return []
        bucket = self._crossings.get(self.step % self.period)
        if not bucket:
            return []
        return [bucket[order] for order in sorted(bucket)]

    def join(self, sequence: Sequence) -> None:
        """Turn a prefill that was completed in this step into a decode that goes on after it."""
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
            residue = (1 - offset) % self.period
            sequence.block_offset = residue
            self._crossings.setdefault(residue, {})[order] = sequence
        ending = self._endings.setdefault(sequence.final_tokens - 1 - offset, {})
        ending[order] = sequence

    def take_endings(self) -> list[Sequence]:
        """Decodes that sample their last token in this step; they stay members."""
        return list(self._endings.pop(self.step, {}).values())

    def computed_tokens(self, sequence: Sequence) -> int:
        """Tokens with KV after this step (between steps: after the latest)."""
        if sequence.state is State.DECODING:
            return self.step + sequence.offset
        return sequence.computed

    def known_tokens(self, sequence: Sequence) -> int:
        """Prompt and sampled tokens, as of the end of this step for a decode."""
        if sequence.state is State.DECODING:
            return self.step + sequence.offset + 1
        return sequence.tokens

    def drop(self, sequence: Sequence, step: int) -> None:
        """Take a member out; its `tokens` and `computed` become those after `step`.

        `step` is the last step in which it computed anything: the current one at a finish, the
        previous one for a victim or an abort.
        """
        order = sequence.order
        del self.members[order]
        if sequence.state is State.DECODING:
            computed = step + sequence.offset
            sequence.computed = computed
            sequence.tokens = computed + 1
            self.num_decodes -= 1
            self.decode_tokens -= computed
            if self.period:
                del self._crossings[sequence.block_offset][order]
            self._forget_ending(sequence)
        else:
            del self.prefilling[order]
            self.prefill_tokens -= sequence.computed

    def _forget_ending(self, sequence: Sequence) -> None:
        step = sequence.final_tokens - 1 - sequence.offset
        ending = self._endings.get(step)
        if ending is None:
            return
        ending.pop(sequence.order, None)
        if not ending:
            del self._endings[step]

    def check_integrity(self) -> None:
        """Totals, crossings and endings agree with the members, one by one."""
        decodes = [s for s in self.members.values() if s.state is State.DECODING]
        prefills = [s for s in self.members.values() if s.state is State.PREFILLING]
        assert len(decodes) == self.num_decodes, f"{len(decodes)} decodes != {self.num_decodes}"
        assert prefills == list(self.prefilling.values()), "prefilling list differs from members"
        decode_tokens = sum(self.computed_tokens(s) for s in decodes)
        assert decode_tokens == self.decode_tokens, f"{decode_tokens} != {self.decode_tokens}"
        prefill_tokens = sum(s.computed for s in prefills)
        assert prefill_tokens == self.prefill_tokens, f"{prefill_tokens} != {self.prefill_tokens}"
        crossings = sum(len(bucket) for bucket in self._crossings.values())
        assert crossings == (len(decodes) if self.period else 0), "a decode is in no bucket or two"
        endings = sum(len(ending) for ending in self._endings.values())
        assert endings == len(decodes), f"{endings} endings != {len(decodes)} decodes"
