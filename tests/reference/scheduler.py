"""The scheduler (SPEC.md, sections 2, 7 and 8)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from tests.reference.manager import CacheManager
from tests.reference.request import RefRequest
from tests.reference.settings import Settings


@dataclass(eq=False)
class Chunk:
    """What a step schedules of one request."""

    request: RefRequest
    tokens: int
    verified: int
    """Drafts among the tokens."""
    rejects_all: bool
    """The drafts are padding."""
    samples: bool = False


@dataclass
class Output:
    """What one call of `schedule` decided; lists are as in a recording's row."""

    step: int
    chunks: list[Chunk] = field(default_factory=list)
    preempted: list[str] = field(default_factory=list)
    admitted: list[list[Any]] = field(default_factory=list)


@dataclass
class Update:
    """What one processed output led to; lists are as in a recording's row."""

    finished: list[list[str]] = field(default_factory=list)
    drafts: list[list[Any]] = field(default_factory=list)


class ReferenceScheduler:
    """Decides step by step; the engine's loop calls `schedule` and `update`."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.manager = CacheManager(settings)
        self.waiting: list[RefRequest] = []
        self.running: list[RefRequest] = []
        self.has_just_finished = False
        """A request has finished or was aborted since the last `schedule`."""
        self.output = Output(-1)
        self.tok = self.inp = self.thr = 0
        """What is left of both budgets, and the cap of one chunk (0: none)."""
        self.index = 0
        """The place in `running`."""

    # Arrivals and ends

    def has_requests(self) -> bool:
        """Section 1: requests that have just finished count."""
        return bool(self.waiting or self.running or self.has_just_finished)

    def add(self, request: RefRequest) -> bool:
        """Section 8: a prompt that is too long is refused in the front end."""
        if request.prompt >= self.settings.max_model_len:
            return False
        self.waiting.append(request)
        return True

    def abort(self, request_id: str) -> bool:
        """Cancel a request; its blocks are freed at once and stay cached (section 5)."""
        for queue in (self.waiting, self.running):
            for request in queue:
                if request.request_id == request_id:
                    queue.remove(request)
                    self._end(request)
                    return True
        return False

    def _end(self, request: RefRequest) -> None:
        self.manager.release(request)
        request.finished = True
        self.has_just_finished = True

    def waiting_in_order(self) -> list[RefRequest]:
        """Section 2b, step 1: the head first; ids are compared as strings."""
        if self.settings.policy == "fcfs":
            return self.waiting
        return sorted(self.waiting, key=lambda r: (r.priority, r.arrival, r.request_id))

    # Section 2: schedule()

    def schedule(self, step: int) -> Output:
        """One step's decisions."""
        self.output = Output(step)
        self.tok = self.inp = self.settings.max_num_batched_tokens
        # section 2: a request alone is not capped; counted before any preemption
        is_alone = len(self.running) + len(self.waiting) <= 1
        self.thr = 0 if is_alone else self.settings.long_prefill_token_threshold
        self._serve_running()
        if not self.output.preempted:  # section 2b
            self._serve_waiting()
        for chunk in self.output.chunks:
            self._advance(chunk)
        self.has_just_finished = False
        return self.output

    def _advance(self, chunk: Chunk) -> None:
        """Section 1, `_update_after_schedule`: the next step sees the chunk as done."""
        request = chunk.request
        request.computed += chunk.tokens
        request.inflight += chunk.tokens
        request.is_prefill_chunk = request.computed < request.known + request.place
        chunk.samples = not request.is_prefill_chunk
        if self.settings.async_scheduling and chunk.samples:
            request.place += 1  # section 7

    def _left(self) -> int:
        """Section 2: a request may take so many tokens; none are left at 0 or below."""
        return min(self.tok, self.inp - self.settings.draft_slots)

    def _charge(self, tokens: int) -> None:
        """Section 2: `n` from one budget, `n + slots` from the other."""
        self.tok -= tokens
        self.inp -= tokens + self.settings.draft_slots

    # Section 2a: running requests

    def _serve_running(self) -> None:
        """In admission order, whether they prefill or decode."""
        self.index = 0
        while self.index < len(self.running) and self._left() > 0:
            request = self.running[self.index]
            new = self._tokens_of_running(request)
            if new == 0:
                self.index += 1
            elif self._make_room(request, new):
                self._put(request, new, drafts=request.drafts)
                self.index += 1
            elif self.settings.policy == "fcfs":
                return
            # else section 2a, step 3: with the request now at this index

    def _tokens_of_running(self, request: RefRequest) -> int:
        """Section 2a, steps 1 and 2; 0 skips the request."""
        most = request.prompt + request.output
        if request.place > 0 and request.computed + 2 - request.place >= most:
            return 0
        new = request.known + request.drafts + request.place - request.computed
        if self.thr > 0:
            new = min(new, self.thr)
        return min(new, self._left(), self.settings.max_model_len - request.computed - 1)

    def _make_room(self, request: RefRequest, new: int) -> bool:
        """Section 2a, step 3: preempt until the request fits; false if it fell itself."""
        while not self.manager.allocate(request, new, self.manager.no_hit()):
            victim = self._victim()
            self._take_back(victim)
            self._preempt(victim)
            if victim is request:
                return False
        return True

    def _victim(self) -> RefRequest:
        if self.settings.policy == "fcfs":
            return self.running[-1]
        # on a tie the first one in running order
        return max(self.running, key=lambda request: (request.priority, request.arrival))

    def _take_back(self, victim: RefRequest) -> None:
        """A victim already passed moves the index back; scheduled tokens are given back."""
        if self.running.index(victim) < self.index:
            self.index -= 1
        for chunk in self.output.chunks:
            if chunk.request is victim:
                self.output.chunks.remove(chunk)
                self.tok += chunk.tokens
                self.inp += chunk.tokens + self.settings.draft_slots
                return

    def _preempt(self, victim: RefRequest) -> None:
        """Section 2c: all is recomputed; sampled tokens are kept."""
        self.running.remove(victim)
        self.manager.release(victim)
        victim.computed = victim.drafts = victim.place = 0
        victim.stale = victim.inflight
        victim.preemptions += 1
        self.waiting.insert(0, victim)  # fcfs: the front; priority: the order does not matter
        self.output.preempted.append(victim.request_id)

    def _put(
        self, request: RefRequest, new: int, *, drafts: int, rejects_all: bool = False
    ) -> None:
        """Section 2a, step 4: the draft list is emptied whether used or not."""
        self._charge(new)
        verified = new + request.computed - request.known - request.place if drafts else 0
        self.output.chunks.append(Chunk(request, new, max(0, verified), rejects_all))
        request.drafts = 0

    # Section 2b: waiting requests

    def _serve_waiting(self) -> None:
        """Strictly from the head: where it cannot be admitted, nothing behind it is."""
        settings = self.settings
        may_pad = not any(chunk.request.is_prefill_chunk for chunk in self.output.chunks)
        any_running = bool(self.output.chunks)
        while self.waiting and self._left() > 0 and len(self.running) < settings.max_num_seqs:
            request = self.waiting_in_order()[0]
            # section 2b, step 2: at depth 2 outputs have drained before this
            assert request.stale == 0
            hit = self.manager.lookup(request)  # section 2b, step 3
            drafts = 0
            if may_pad and (any_running or hit.tokens):
                drafts = self._padding(request, hit.tokens)
            new = self._tokens_of_waiting(request.known - hit.tokens, drafts)
            if new == 0:
                return
            # section 2b, step 6; section 3: only waiting requests pay the watermark
            keep_free = settings.keep_free if self.running else 0
            full_isl = settings.scheduler_reserve_full_isl
            if not self.manager.allocate(request, new, hit, full_isl=full_isl, keep_free=keep_free):
                return
            # section 2b, step 7
            self.waiting.remove(request)
            self.running.append(request)
            request.computed = hit.tokens
            origin = "resumed" if request.preemptions else "new"
            self.output.admitted.append([request.request_id, hit.tokens, origin])
            self._put(request, new, drafts=drafts, rejects_all=True)

    def _padding(self, request: RefRequest, hit: int) -> int:
        """Section 2b, step 4: dummy drafts beside a single token."""
        drafts = self.settings.num_drafts
        fits = hit + drafts + 2 <= self.settings.max_model_len
        return drafts if request.known - hit == 1 and fits else 0

    def _tokens_of_waiting(self, new: int, drafts: int) -> int:
        """Section 2b, steps 4 and 5; 0 stops the loop."""
        left = self._left()
        if drafts and new + drafts > left:
            return 0
        new += drafts
        if self.thr > 0:
            new = min(new, self.thr)
        if not self.settings.enable_chunked_prefill and new > left:
            return 0
        return min(new, left)

    # Section 7: update_from_output()

    def update(self, output: Output) -> Update:
        """Process what the model made of an output."""
        update = Update()
        for chunk in output.chunks:
            if not chunk.request.finished:  # finished and aborted ones are ignored
                self._update_request(chunk, update)
        # a stopped request leaves after the loop
        self.running = [request for request in self.running if not request.finished]
        self.waiting = [request for request in self.waiting if not request.finished]
        for chunk in output.chunks:
            if chunk.samples and not chunk.request.finished:
                chunk.request.drafts = self.settings.num_drafts
        return update

    def _update_request(self, chunk: Chunk, update: Update) -> None:
        request = chunk.request
        is_stale = request.stale > 0
        request.inflight -= chunk.tokens
        if is_stale:
            request.stale -= chunk.tokens
        sampled = 1 if chunk.samples else 0
        if chunk.verified:
            accepted = self._accepted(chunk)
            sampled += accepted
            request.computed -= chunk.verified - accepted
            update.drafts.append([request.request_id, chunk.verified, accepted])
        dropped = self._append(request, sampled)
        if not is_stale:  # else the token alone is delivered
            request.computed -= dropped
            if self.settings.async_scheduling and chunk.samples:
                request.place -= 1
            if self.settings.async_scheduling or self.settings.spec:
                # section 5: cached again after the update, before a stopped request frees
                self.manager.cache(request, request.computed - request.inflight)
        if chunk.samples and self._has_stopped(request):
            self._end(request)
            update.finished.append([request.request_id, "length"])

    def _accepted(self, chunk: Chunk) -> int:
        """Section 9: what the recording's model accepts; pads count as a verify, accepted 0."""
        assert self.settings.spec is not None
        pattern: list[int] = self.settings.spec["accept_pattern"]
        accepted = pattern[chunk.request.verifies % len(pattern)]
        chunk.request.verifies += 1
        return 0 if chunk.rejects_all else min(accepted, chunk.verified)

    def _append(self, request: RefRequest, sampled: int) -> int:
        """Append one token at a time until the request stops; returns how many are dropped."""
        while sampled:
            request.known += 1
            sampled -= 1
            if self._has_stopped(request):
                break
        return sampled

    def _has_stopped(self, request: RefRequest) -> bool:
        """Section 7; section 8: a request that asks for more than fits ends at the limit."""
        is_full = request.known >= self.settings.max_model_len
        return is_full or request.known - request.prompt >= request.output
