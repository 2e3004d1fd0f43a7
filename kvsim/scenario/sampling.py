"""Settings of the section `sampling`: how many outputs a request asks for."""

from __future__ import annotations

from collections.abc import Callable
from hashlib import blake2b
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from kvsim.core.request import Branching, Request
from kvsim.core.sequence_group import Draw
from kvsim.errors import InputError
from kvsim.scenario.fields import Section, by_key, key_tag

if TYPE_CHECKING:
    from kvsim.scenario.settings import Scenario

MAX_BRANCHES = 64
Branches = Annotated[int, Field(ge=1, le=MAX_BRANCHES, json_schema_extra={"unit": "branch"})]
ServedAs = Annotated[
    Literal["groups", "requests"] | None,
    Field(
        description="groups (branches share their prompt's blocks, are scheduled and preempted"
        " together, and copy on write: SOSP'23, vLLM v0) or requests (each sample is a request of"
        " its own that may find its prompt in the prefix cache: vLLM v1); left out, requests with"
        " profile vllm-0.33, else groups"
    ),
]
Ancestry = Literal["independent", "wright_fisher"]


class ParallelSampling(Section):
    """Several outputs of one prompt."""

    n: Branches = Field(description="outputs of every request (vLLM's `n`); 1: no branches")
    served_as: ServedAs = None

    def branches_of(self, request: Request) -> Branching | None:
        """What the request's branches are; None for one."""
        return Branching("parallel", self.n) if self.n > 1 else None

    @property
    def most_branches(self) -> int:
        """Most branches of a request."""
        return self.n


class BeamSampling(Section):
    """Beam search: the best continuations survive each step. Served as groups."""

    beam_width: Branches = Field(description="beams of every request; 1: no branches")
    ancestry: Ancestry = Field(
        default="wright_fisher",
        description="which beams the survivors of a step continue, which a simulation without text"
        " cannot know: independent (each continues itself, nothing generated is shared) or"
        " wright_fisher (each draws one uniformly: the neutral model of ancestry)",
    )

    served_as: Literal["groups"] | None = Field(
        default=None, description="groups: beams are always scheduled and preempted together"
    )

    def branches_of(self, request: Request) -> Branching | None:
        """What the request's branches are; None for one."""
        return Branching("beam", self.beam_width, self.ancestry) if self.beam_width > 1 else None

    @property
    def most_branches(self) -> int:
        """Most branches of a request."""
        return self.beam_width


class TraceSampling(Section):
    """Branches, beams with their parents, and trees as the rows of the trace state them."""

    from_trace: Literal[True] = Field(
        description="true: the columns n, beam_width, beam_parents, parent_id and fork_at_token"
    )
    served_as: ServedAs = None

    def branches_of(self, request: Request) -> Branching | None:
        """The request's own."""
        return request.branches

    @property
    def most_branches(self) -> int:
        """Most branches of a request: not known before the trace is read."""
        return MAX_BRANCHES


SAMPLING_KINDS: dict[str, type[Section]] = {
    "n": ParallelSampling,
    "beam_width": BeamSampling,
    "from_trace": TraceSampling,
}
SamplingSettings = Annotated[
    Annotated[ParallelSampling, key_tag("n")]
    | Annotated[BeamSampling, key_tag("beam_width")]
    | Annotated[TraceSampling, key_tag("from_trace")],
    by_key("n", "beam_width", "from_trace"),
]


def served_as(scenario: Scenario) -> Literal["groups", "requests"] | None:
    """How branches are served; None where no request has any."""
    sampling = scenario.sampling
    if sampling is None or sampling.most_branches == 1:
        return None
    if sampling.served_as is not None:
        return sampling.served_as
    modern = scenario.profile == "vllm-0.33" and not isinstance(sampling, BeamSampling)
    return "requests" if modern else "groups"


def uses_groups(scenario: Scenario) -> bool:
    """Whether the scheduler of sequence groups serves the requests."""
    return served_as(scenario) == "groups" or scenario.engine.preemption_mode != "recompute"


def why_groups(scenario: Scenario) -> tuple[str, str]:
    """Why the scheduler of groups serves the requests, and how to have another."""
    mode = scenario.engine.preemption_mode
    if mode != "recompute":
        return f"with engine.preemption_mode = {mode}", "or set preemption_mode to recompute"
    beams = isinstance(scenario.sampling, BeamSampling)
    instead = "or remove sampling" if beams else "or set sampling.served_as to requests"
    return "while branches are served as groups", instead


def branching_of(scenario: Scenario) -> Callable[[Request], Request]:
    """Gives a request of the traffic its branches.

    The function raises `InputError` for a request whose branches nothing asks for or serves.
    """
    sampling, serving = scenario.sampling, served_as(scenario)

    def branched(request: Request) -> Request:
        if sampling is None:
            if request.branches is not None and request.branches.width > 1:
                raise _unasked(request)
            return request
        branches = sampling.branches_of(request)
        if branches is not None and branches.kind == "beam" and serving == "requests":
            raise InputError(
                f"request {request.request_id} has {branches.width} beams, which sampling.served_as"
                " = requests cannot serve",
                where="sampling.served_as",
                fix="Set it to groups",
            )
        return request._replace(branches=branches)

    return branched


def _unasked(request: Request) -> InputError:
    assert request.branches is not None
    return InputError(
        f"request {request.request_id} has {request.branches.width} branches in the trace, and"
        " nothing says how to serve them",
        where="sampling",
        fix="Set sampling to {from_trace: true}, or to {n: 1} to leave them out",
    )


def neutral_draw(seed: int) -> Draw:
    """Parents of beams, uniform and independent, the same whenever they are asked for again."""

    def draw(request: Request, generation: int, survivor: int) -> int:
        assert request.branches is not None
        text = f"{seed} {generation} {survivor} {request.request_id}"
        digest = blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % request.branches.width

    return draw
