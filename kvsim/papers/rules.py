"""The rules behind Fig. 2 on one request, where closed forms give every share exactly."""

from __future__ import annotations

from kvsim.papers.runs import summary_of, variant_of
from kvsim.papers.target import Figure, Job, Target, within
from kvsim.scenario import build_server

SCENARIO = "papers/sosp23-rules"
PROMPT, OUTPUT = 200, 304
FIRST, END = 10, 300
"""The window opens as the first of these iterations starts and closes as the second does."""
BLOCK_SIZE, NUM_BLOCKS, MAX_LEN = 16, 983, 2048
SLOTS = BLOCK_SIZE * NUM_BLOCKS
LARGEST_CHUNK_TOKENS = 2048
_EXACT = 1e-9
"""Room for the rounding of a sum of floats; shares are compared in slots."""

ESTIMATES = {"max": MAX_LEN, "pow2": PROMPT + 512, "oracle": PROMPT + OUTPUT}


def measure(job: Job) -> dict[str, float]:
    """Mean slots by the paper's rule, tails of the paged memory, chunks of an empty buddy pool."""
    found = summary_of(SCENARIO, seed=job.seed)["variants"]
    values: dict[str, float] = {}
    for reserve in ESTIMATES:
        shares = found[f"orca-{reserve}"]["memory"]["paper"]
        for term in ("tokens", "reservation", "internal"):
            values[f"{reserve}/{term}"] = shares[term] * SLOTS
        allocator = build_server(variant_of("papers/sosp23-fig2", f"orca-{reserve}")).allocator
        values[f"{reserve}/chunk"] = allocator.largest_free_extent()
        values[f"{reserve}/slots"] = allocator.capacity_slots
    paged = found["vllm"]["memory"]
    detail = paged["by_iteration"]["detail"]
    window = found["vllm"]["measured"]
    values["vllm/iterations"] = window["steps"]
    values["vllm/output"] = window["output_tokens"]
    values["vllm/tokens"] = paged["paper"]["tokens"] * SLOTS
    values["vllm/tail"] = paged["empty_tail_slots_per_sequence"]
    values["vllm/internal"] = detail["internal"]["tail"] * SLOTS
    values["vllm/reservation"] = detail["reservation"]["tail"] * SLOTS
    return values


def expected() -> dict[str, float]:
    """The same by arithmetic: iteration j holds P + j tokens and weighs as any other."""
    count = END - FIRST
    lengths = [PROMPT + j for j in range(FIRST, END)]
    tokens = sum(lengths) / count
    final = PROMPT + OUTPUT
    values = {"vllm/iterations": count, "vllm/output": count, "vllm/tokens": tokens}
    for reserve, estimate in ESTIMATES.items():
        values[f"{reserve}/tokens"] = tokens
        values[f"{reserve}/reservation"] = final - tokens
        values[f"{reserve}/internal"] = min(estimate, MAX_LEN) - final
        values[f"{reserve}/chunk"] = LARGEST_CHUNK_TOKENS
        values[f"{reserve}/slots"] = SLOTS
    tails = [-length % BLOCK_SIZE for length in lengths]
    last_tail = -(final - 1) % BLOCK_SIZE
    last_block = -(-(final - 1) // BLOCK_SIZE)
    in_last_block = sum(-(-length // BLOCK_SIZE) == last_block for length in lengths)
    values["vllm/tail"] = sum(tails) / count
    values["vllm/internal"] = last_tail * in_last_block / count
    values["vllm/reservation"] = values["vllm/tail"] - values["vllm/internal"]
    return values


_COUNTS = ("iterations", "output", "chunk", "slots")
_WORDS = {
    "iterations": "iterations that start inside the window",
    "output": "tokens delivered inside the window",
    "tokens": "tokens held, mean over iterations",
    "reservation": "reserved and filled later",
    "internal": "never filled",
    "chunk": "largest chunk of the empty buddy pool",
    "slots": "slots of the pool",
    "tail": "empty tail, mean over iterations",
}


def _target(key: str, value: float) -> Target:
    system, term = key.split("/")
    name = "vllm" if system == "vllm" else f"orca-{system}"
    return Target(
        key=key,
        what=f"{name}: {_WORDS[term]}",
        unit={"iterations": "iterations", "output": "tokens"}.get(term, "slots"),
        paper=value,
        tag="READ" if term in ("chunk", "slots") else "FORMULA",
        basis="closed form",
        accepted=within(value, _EXACT),
        digits=0 if term in _COUNTS else 4,
    )


RULES = Figure(
    name="sosp23-rules",
    title="PagedAttention (SOSP'23): the rules behind Fig. 2 on one request",
    how="One request of 200 + 304 tokens, alone; every value must be that of the closed form:"
    " iteration j of 0 to 303 holds 200 + j tokens, and the window counts the 290 that start from"
    " the start of iteration 10 to before that of iteration 300, with equal weights.",
    measure=measure,
    scenario=SCENARIO,
    targets=tuple(_target(key, value) for key, value in expected().items()),
)
