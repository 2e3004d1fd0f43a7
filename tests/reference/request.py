"""The state of one request."""

from __future__ import annotations

from dataclasses import dataclass, field

from tests.reference.pool import Block
from tests.reference.tokens import PrefixIds, Token, output_token


@dataclass(eq=False)
class RefRequest:
    """A request; its counts are named as in SPEC.md, `known` being `len(tokens)`."""

    request_id: str
    prompt: int
    output: int
    priority: int = 0
    arrival: int = 0
    prompt_ids: list[Token] = field(default_factory=list)
    """Only read with prefix caching."""

    known: int = 0
    """Prompt and sampled tokens."""
    computed: int = 0
    """Tokens whose KV is computed or being computed."""
    place: int = 0
    """Placeholders of sampled tokens that have not arrived (async)."""
    inflight: int = 0
    """Tokens scheduled whose output has not been processed."""
    stale: int = 0
    """Those of `inflight` that were scheduled before a preemption."""
    drafts: int = 0
    verifies: int = 0
    """Steps that verified drafts so far."""
    is_prefill_chunk: bool = False
    """Its last chunk ended before its last token."""
    preemptions: int = 0
    finished: bool = False

    tables: list[list[Block]] = field(default_factory=list)
    """A block table for each group; the null block stands where one fell out of the window."""
    considered: list[int] = field(default_factory=list)
    """For each group the blocks that were hashed, or left un-hashed for good."""
    prefixes: list[int] = field(default_factory=list)
    """The number of the tokens from the first up to the end of each hash block."""
    junction: int = 0
    """The length that some group hit, where another group hit less (section 6)."""

    def __post_init__(self) -> None:
        self.known = self.prompt

    def extend_prefixes(self, ids: PrefixIds, block_size: int, beyond: int) -> None:
        """Number the hash blocks whose tokens, and `beyond` more, are known (section 5)."""
        while (len(self.prefixes) + 1) * block_size + beyond <= self.known:
            start = len(self.prefixes) * block_size
            tokens = tuple(self._token(start + i) for i in range(block_size + beyond))
            before = self.prefixes[-1] if self.prefixes else 0
            self.prefixes.append(ids.number(before, tokens))

    def _token(self, index: int) -> Token:
        if index < self.prompt:
            return self.prompt_ids[index]
        return output_token(self.request_id, index - self.prompt)
