"""Settings of `workload.chat`: conversations that share system prompts and repeat themselves."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from kvsim.scenario.fields import Seconds, Section
from kvsim.scenario.lengths import ArrivalSettings, LengthLaw
from kvsim.workload import ChatWorkload
from kvsim.workload.lengths import MAX_TOKENS


class ChatRecipe(Section):
    """Conversations of several turns; a prompt holds everything said before it."""

    conversations: Annotated[
        int, Field(ge=1, le=100_000_000, json_schema_extra={"unit": "conversation"})
    ] = Field(description="conversations that start")
    turns: LengthLaw = Field(
        description="law of the turns of a conversation (`tokens` means turns)"
    )
    user_tokens: LengthLaw = Field(description="law of the length of what a user says")
    output_tokens: LengthLaw = Field(description="law of the length of an answer")
    system_tokens: LengthLaw = Field(description="law of the length of a system prompt")
    system_prompts: Annotated[int, Field(ge=0, le=1_000_000)] = Field(
        default=1, description="system prompts there are; every conversation has one of them"
    )
    turn_gap_s: Annotated[Seconds, Field(le=1e6)] = Field(
        default=30.0,
        description="mean seconds from one turn to the next, exponential; the next turn does not"
        " wait for the answer",
    )
    max_total_tokens: Annotated[
        int, Field(ge=2, le=MAX_TOKENS, json_schema_extra={"unit": "token"})
    ] = Field(
        default=MAX_TOKENS,
        description="a conversation ends before the turn whose prompt and output exceed this",
    )

    def build(self, arrivals: ArrivalSettings, *, rate_scale: float, seed: int) -> ChatWorkload:
        """The generator."""
        return ChatWorkload(
            arrivals.build(),
            conversations=self.conversations,
            turns=self.turns.build(),
            user_tokens=self.user_tokens.build(),
            output_tokens=self.output_tokens.build(),
            system_tokens=self.system_tokens.build(),
            system_prompts=self.system_prompts,
            turn_gap_s=self.turn_gap_s,
            max_total_tokens=self.max_total_tokens,
            rate_scale=rate_scale,
            seed=seed,
        )
