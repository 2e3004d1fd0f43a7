"""A request with its branches, and the ancestry of beams."""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Seq

from kvsim.core.group_memory import GroupMemory
from kvsim.core.request import Branching, Request, Sequence, State

KINDS = ("parallel", "beam")
ANCESTRIES = ("independent", "wright_fisher", "trace")

Draw = Callable[[Request, int, int], int]
"""(request, generation, survivor) -> its parent, uniform in 0..width-1, the same when asked again.

The core has no randomness of its own. Generations count from 1: the first is chosen after the
second generated token, for the first token of every beam continues the prompt.
"""

ONE = Branching("parallel", 1)


class SequenceGroup:
    """The running state of one request with its branches.

    `root` stands for the request in queues, plans and records. It computes the prompt; the other
    branches are forked from it then. All branches have sampled equally many tokens.
    """

    __slots__ = ("beams", "decoding", "forked", "root", "sampled")

    def __init__(self, root: Sequence) -> None:
        request = root.request
        self.root = root
        width = (request.branches or ONE).width
        others = [Sequence(request, root.max_model_len) for _ in range(width - 1)]
        self.beams = [root, *others]
        """All branches; with beam search the survivors in their order."""
        self.forked = width == 1
        """Whether the branches have tables of their own."""
        self.decoding = False
        """Whether all known tokens are computed: each branch computes one token per step."""
        self.sampled = 0
        """Tokens that each branch has generated."""

    @property
    def width(self) -> int:
        """Branches."""
        return len(self.beams)

    @property
    def active(self) -> list[Sequence]:
        """The branches that hold memory, if the group runs."""
        return self.beams if self.forked else [self.root]

    @property
    def root_first(self) -> list[Sequence]:
        """All branches, the root before the others, as memories want a group that waits."""
        return [self.root, *(beam for beam in self.beams if beam is not self.root)]

    @property
    def generation(self) -> int:
        """Selections of survivors made once the latest token is sampled."""
        return self.sampled - 1

    def targets(self) -> list[int]:
        """Tokens that each of `active` has to compute: known ones, or the prompt before a fork."""
        if self.forked:
            return [branch.tokens for branch in self.beams]
        return [self.root.request.prompt_tokens]

    def missing(self) -> list[int]:
        """Known tokens that each of `active` has not computed; a decode has one."""
        pairs = zip(self.active, self.targets(), strict=True)
        return [target - branch.computed for branch, target in pairs]

    def recompute_tokens(self) -> int:
        """Tokens to be computed again if the group lost its memory now: the prompt's once."""
        prompt = self.root.request.prompt_tokens
        return prompt + sum(branch.computed - prompt for branch in self.active)

    def set_state(self, state: State) -> None:
        """Note the state of all branches."""
        for branch in self.beams:
            branch.state = state

    def forks_now(self) -> bool:
        """Whether the root has computed the prompt that the other branches are to share."""
        return not self.forked and self.root.computed == self.root.request.prompt_tokens

    def fork(self, memory: GroupMemory) -> None:
        """Give every branch the computed prompt. Takes no free block."""
        root = self.root
        self.beams = self.root_first
        for child in self.beams[1:]:
            memory.fork(root, child, root.computed)
            child.computed = root.computed
            child.tokens = root.tokens
        self.forked = True

    def sample(self) -> bool:
        """Each branch receives a token; whether it is the last one."""
        self.sampled += 1
        tokens = self.root.request.prompt_tokens + self.sampled
        for branch in self.beams:
            branch.tokens = tokens
        return tokens >= self.root.final_tokens

    def lose_memory(self, memory: GroupMemory) -> None:
        """Release all branches together; their tokens stay known."""
        for branch in self.active:
            memory.release(branch, resumes=True)
            branch.high_water = max(branch.high_water, branch.computed)
            branch.computed = 0
        self.forked = self.width == 1
        self.decoding = False

    def survive(self, memory: GroupMemory, draw: Draw | None) -> None:
        """Choose the parents of this generation's beams and hand their tables on."""
        request = self.root.request
        branching = request.branches
        if branching is None or branching.kind != "beam" or self.generation < 1:
            return
        if branching.ancestry == "trace":
            self.beams = inherit(memory, self.beams, branching.parents[self.generation - 1])
        elif branching.ancestry == "wright_fisher":
            assert draw is not None
            parents = [draw(request, self.generation, i) for i in range(self.width)]
            self.beams = inherit(memory, self.beams, parents)


def inherit(memory: GroupMemory, beams: Seq[Sequence], parents: Seq[int]) -> list[Sequence]:
    """The next beams: survivor i continues beam `parents[i]`.

    The first survivor of a parent goes on with its memory; further ones take the place of beams
    that have no survivor. Takes no free block.
    """
    wanted = set(parents)
    idle = [beam for index, beam in enumerate(beams) if index not in wanted]
    survivors: list[Sequence] = []
    continued: set[int] = set()
    for index in parents:
        parent = beams[index]
        if index not in continued:
            continued.add(index)
            survivors.append(parent)
            continue
        child = idle.pop()
        memory.replace(child, parent, parent.computed)
        child.computed = parent.computed
        survivors.append(child)
    return survivors


def check_branching(request: Request, draw: Draw | None) -> None:
    """Raise `ValueError` unless the request's branches are ones that can be served."""
    branching = request.branches
    if branching is None:
        return
    kind, width, ancestry, parents = branching
    if kind not in KINDS:
        raise ValueError(f"branches: kind (={kind!r}) must be one of {KINDS}")
    if width < 1:
        raise ValueError(f"branches: width (={width}) must be >= 1")
    if ancestry not in ANCESTRIES:
        raise ValueError(f"branches: ancestry (={ancestry!r}) must be one of {ANCESTRIES}")
    if kind == "parallel" and ancestry != "independent":
        raise ValueError(f"branches: parallel ones have no ancestry (={ancestry!r})")
    if ancestry == "wright_fisher" and draw is None:
        raise ValueError("branches: ancestry wright_fisher needs a draw function")
    if ancestry != "trace":
        return
    if len(parents) < request.output_tokens - 2:
        raise ValueError(
            f"branches: {len(parents)} rows of parents, {request.output_tokens} output tokens "
            f"need {request.output_tokens - 2}"
        )
    for row in parents:
        if len(row) != width or not all(0 <= parent < width for parent in row):
            raise ValueError(f"branches: parents {row} are not {width} of 0..{width - 1}")
