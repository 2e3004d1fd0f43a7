"""docs/claims.md: what is said about paged KV memory, where it holds, and where it does not."""

from __future__ import annotations

from dataclasses import dataclass

from kvsim.papers.target import FigureResult, Values

INTRODUCTION = """\
# Claims about paged KV memory

Written by `kvsim reproduce --write-docs`; do not edit. Every claim has the scenario that shows it
and one where it does not hold; `kvsim run NAME` runs either. Shares are those of all KV slots
unless said otherwise. `kvsim reproduce claims` checks the numbers.
"""
OPEN = "open"


@dataclass(frozen=True)
class Claim:
    """A claim; texts hold the values they quote as `{key:format}`."""

    said: str
    verdict: str
    """Or `OPEN`: nothing here can show it yet."""
    ours: str
    shown_by: str | None = None
    counter: str = ""
    counter_in: str | None = None


CLAIMS = (
    Claim(
        said="8,192 slots reserved, 350 used: 7,842 empty, 95.7 %",
        verdict="holds for a short answer reserved at the longest length",
        ours="{empty_slots:,.0f} slots, {empty_percent:.1f} %, are never filled; in blocks of 16 it"
        " is {empty_slots_paged:.0f} slots",
        shown_by="claims/one-short-answer",
        counter="where requests are about as long as what is reserved, {full_live_percent:.1f} % of"
        " the slots hold live KV",
        counter_in="claims/full-reservations",
    ),
    Claim(
        said="Llama-3-70B takes 4 x 80 x 64 x 128 = 2,621,440 bytes of KV per token, 10.7 GB at"
        " 4,096 tokens",
        verdict="naive: it charges every query head, the model has 8 KV heads for 64",
        ours="naive {naive_bytes:,.0f} bytes and {naive_gb:.1f} GB, real {real_bytes:,.0f} bytes"
        " and {real_gb:.2f} GB; four A100-80GB hold {pool_tokens_70b:,.0f} tokens",
        shown_by="claims/kv-bytes",
        counter="the naive formula is right for OPT-13B, which has a KV head for every query head"
        " (naive / real = {naive_over_real_opt:.0f}): its variant holds fewer tokens than the 70B",
        counter_in="claims/kv-bytes",
    ),
    Claim(
        said="contiguous memory uses 20 to 40 % of its slots and wastes 60 to 80 %",
        verdict="holds for ShareGPT's lengths under Orca's reservation rules",
        ours="tokens fill {max_live_percent:.1f} % (orca-max) to {oracle_live_percent:.1f} %"
        " (orca-oracle)",
        shown_by="papers/sosp23-fig2",
        counter="{full_live_percent:.1f} % where reservations are used",
        counter_in="claims/full-reservations",
    ),
    Claim(
        said="paging wastes at most one partial block per sequence, and nothing externally",
        verdict="holds, by construction, in a pool of one block size",
        ours="{paged_tail:.2f} empty slots per request, of at most 15; external fragmentation"
        " {paged_external:.0f}",
        shown_by="papers/sosp23-fig2",
        counter="the bound holds, that it is little does not: short requests in blocks of 256 use"
        " {short_used_256:.0f} % of the slots they are given. Pools that share memory between block"
        " sizes are not modelled",
        counter_in="claims/large-blocks",
    ),
    Claim(
        said="2 to 4 times the throughput",
        verdict="holds against reservations at the longest length where memory limits the batch;"
        " against reservations that know the output it is {rate_over_oracle:.1f} to"
        " {knee_over_oracle:.1f} x",
        ours="{rate_over_oracle:.2f} x orca-oracle and {rate_over_max:.2f} x orca-max at"
        " saturation; {knee_over_oracle:.2f} x the sustained rate of orca-oracle for OPT-66B"
        " (papers/sosp23-fig12-66b). All ratios of sustained rates are in"
        " [reproductions](reproductions.md)",
        shown_by="papers/sosp23-fig2",
        counter="{prefill_bound_rate:.2f} x where computing prompts binds, although"
        " {prefill_bound_paged:.0f} requests run at once instead of {prefill_bound_reserved:.0f}",
        counter_in="claims/prefill-bound",
    ),
    Claim(
        said="beam search saves 50 % of the memory and more",
        verdict="holds from about four beams on, if beams descend from each other as in neutral"
        " ancestry; the paper itself reports 37.6 % for a width of 2, 53.1 % for 4 and 55.2 % for 6"
        " (SOSP'23, Fig. 15, Alpaca, READ)",
        ours="{beam_4_saving:.1f} % with four beams of neutral ancestry",
        shown_by="claims/beams",
        counter="{beam_2_saving:.1f} % with two, and {beam_4_independent_saving:.1f} % with four"
        " that each continue themselves and share the prompt only",
        counter_in="claims/beams",
    ),
    Claim(
        said="beam search needs about the prompt's blocks + K x the blocks of what is generated",
        verdict="an upper bound, reached where every beam continues itself",
        ours="{beam_4_blocks:.1f} blocks per request of four beams that continue themselves; which"
        " is the claim's sum",
        shown_by="claims/beams",
        counter="with neutral ancestry four beams need {beam_4_of_bound:.0f} % of that: most of"
        " what is generated is shared too",
        counter_in="claims/beams",
    ),
    Claim(
        said="looking blocks up in a table costs little, but not nothing",
        verdict=OPEN,
        ours="needs kernels. The paper reports attention 20 to 26 % slower than FasterTransformer's"
        " (SOSP'23, Fig. 18a, READ)",
    ),
    Claim(
        said="blocks of 8 or 16 for short prompts",
        verdict="holds for memory: blocks of 64 are {short_used_64:.0f} % used, blocks of 256"
        " {short_used_256:.0f} %",
        ours="requests of 19 + 58 tokens use {short_used_8:.0f} % of their slots in blocks of 8,"
        " {short_used_16:.0f} % in 16, {short_used_64:.0f} % in 64; requests/s {short_rate_8:.1f},"
        " {short_rate_16:.1f}, {short_rate_64:.1f} at equal kernel speed",
        shown_by="claims/large-blocks",
        counter="with prompts of 3,000 to 5,000 tokens blocks of 256 are {long_used_256:.1f} % used"
        " and serve {long_rate_256_over_16:.2f} x the requests of blocks of 16",
        counter_in="claims/long-prompts",
    ),
    Claim(
        said="blocks of 32 or 64 for bandwidth",
        verdict=OPEN,
        ours="needs kernels; the read efficiencies in papers/sosp23-fig18b are fitted to a figure",
    ),
    Claim(
        said="paging addresses capacity, not bandwidth",
        verdict="holds",
        ours="sixteen requests that fit either memory take {few_tpot:.2f} x the time per token."
        " Where paging lets {batch_over_max:.1f} x as many run (papers/sosp23-fig2, over orca-max),"
        " a token takes {tpot_over_max:.1f} x as long",
        shown_by="claims/few-requests",
        counter="bandwidth is touched where blocks are small: a token takes"
        " {tpot_block_1_over_16:.1f} x as long in blocks of 1 as in blocks of 16 (fit)",
        counter_in="papers/sosp23-fig18b",
    ),
)


def claims_page(found: FigureResult) -> str:
    """The page, from the results of the figure `claims`."""
    values = {result.target.key: result.mean for result in found.results}
    return "\n".join([INTRODUCTION, *(_section(claim, values) for claim in CLAIMS)])


def _section(claim: Claim, values: Values) -> str:
    verdict = claim.verdict.format_map(values)
    lines = [f"## {claim.said[:1].upper()}{claim.said[1:]}", "", f"* **Verdict**: {verdict}."]
    ours = claim.ours.format_map(values)
    shown = "" if claim.shown_by is None else f" (`{claim.shown_by}`)"
    lines.append(f"* **Our figure**: {ours}{shown}.")
    if claim.counter_in is not None:
        counter = claim.counter.format_map(values)
        lines.append(f"* **Does not hold**: {counter} (`{claim.counter_in}`).")
    return "\n".join(lines) + "\n"
