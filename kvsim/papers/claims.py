"""What is commonly said about paged KV memory, measured where it holds and where it does not."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from kvsim.catalog import get_model, kv_bytes_per_token, naive_kv_bytes_per_token
from kvsim.papers import fig12
from kvsim.papers.runs import summary_of
from kvsim.papers.target import Basis, Figure, Interval, Job, Target, within

Entries = dict[str, Any]
CONTEXT_TOKENS = 4096
KNEES = "papers/sosp23-fig12-66b"
GB = 1e9


def _one_short_answer(found: Entries) -> dict[str, float]:
    reserved = found["contiguous"]["memory"]
    internal = reserved["by_iteration"]["internal"]
    paged = found["paged"]["memory"]
    return {
        "empty_slots": internal * reserved["capacity_slots"],
        "empty_percent": 100 * internal,
        "empty_slots_paged": paged["by_iteration"]["internal"] * paged["capacity_slots"],
    }


def _kv_bytes(found: Entries) -> dict[str, float]:
    grouped, full = get_model("llama-3-70b"), get_model("opt-13b")
    naive, real = naive_kv_bytes_per_token(grouped), kv_bytes_per_token(grouped)
    return {
        "naive_bytes": naive,
        "naive_gb": naive * CONTEXT_TOKENS / GB,
        "real_bytes": real,
        "real_gb": real * CONTEXT_TOKENS / GB,
        "naive_over_real_opt": naive_kv_bytes_per_token(full) / kv_bytes_per_token(full),
        "pool_tokens_70b": found["llama-3-70b"]["memory"]["capacity_slots"],
    }


def _full_reservations(found: Entries) -> dict[str, float]:
    return {"full_live_percent": 100 * found["contiguous-max"]["memory"]["by_iteration"]["live"]}


def _fig2(found: Entries) -> dict[str, float]:
    def rate(name: str) -> float:
        return float(found[name]["throughput"]["requests_per_s"])

    shares = {name: 100 * entry["memory"]["paper"]["tokens"] for name, entry in found.items()}
    paged, reserved = found["vllm"], found["orca-max"]
    return {
        "max_live_percent": shares["orca-max"],
        "oracle_live_percent": shares["orca-oracle"],
        "paged_tail": paged["memory"]["empty_tail_slots_per_sequence"],
        "paged_external": paged["memory"]["by_iteration"]["external"],
        "rate_over_oracle": rate("vllm") / rate("orca-oracle"),
        "rate_over_max": rate("vllm") / rate("orca-max"),
        "batch_over_max": paged["batch"]["mean"] / reserved["batch"]["mean"],
        "tpot_over_max": paged["tpot_s"]["mean"] / reserved["tpot_s"]["mean"],
    }


def _large_blocks(found: Entries) -> dict[str, float]:
    values = {}
    for name, entry in found.items():
        terms = entry["memory"]["by_iteration"]
        size = name.removeprefix("block-")
        used = terms["live"] + terms["reservation"] + terms["internal"]
        values[f"short_used_{size}"] = 100 * terms["live"] / used
        values[f"short_rate_{size}"] = entry["throughput"]["requests_per_s"]
    return values


def _long_prompts(found: Entries) -> dict[str, float]:
    rates = {name: entry["throughput"]["requests_per_s"] for name, entry in found.items()}
    terms = found["block-256"]["memory"]["by_iteration"]
    used = terms["live"] + terms["reservation"] + terms["internal"]
    return {
        "long_used_256": 100 * terms["live"] / used,
        "long_rate_256_over_16": rates["block-256"] / rates["block-16"],
    }


def _prefill_bound(found: Entries) -> dict[str, float]:
    rates = {name: entry["throughput"]["requests_per_s"] for name, entry in found.items()}
    batches = {name: entry["batch"]["mean"] for name, entry in found.items()}
    return {
        "prefill_bound_rate": rates["paged"] / rates["contiguous-max"],
        "prefill_bound_paged": batches["paged"],
        "prefill_bound_reserved": batches["contiguous-max"],
        "prefill_bound_batch": batches["paged"] / batches["contiguous-max"],
    }


def _few_requests(found: Entries) -> dict[str, float]:
    tpot = {name: entry["tpot_s"]["mean"] for name, entry in found.items()}
    return {"few_tpot": tpot["paged"] / tpot["contiguous-max"]}


def _beams(found: Entries) -> dict[str, float]:
    def blocks(name: str) -> float:
        entry = found[name]
        return float(entry["sharing"]["physical_blocks"] / entry["batch"]["mean_by_time"])

    savings = {name: 100 * entry["sharing"]["saving"] for name, entry in found.items()}
    alone = blocks("beam-4-independent")
    return {
        "beam_2_saving": savings["beam-2"],
        "beam_4_saving": savings["beam-4"],
        "beam_4_independent_saving": savings["beam-4-independent"],
        "beam_4_blocks": alone,
        "beam_4_of_bound": 100 * blocks("beam-4") / alone,
    }


def _fig18b(found: Entries) -> dict[str, float]:
    tpot = {name: entry["tpot_s"]["mean"] for name, entry in found.items()}
    return {"tpot_block_1_over_16": tpot["block-1"] / tpot["block-16"]}


def _knees(job: Job) -> dict[str, float]:
    """Sustained rates of Fig. 12, one over the other."""
    name = KNEES.removeprefix("papers/")
    vllm, oracle = (
        fig12.measure(job._replace(figure=name, part=system))[system]
        for system in ("vllm", "orca-oracle")
    )
    return {"knee_over_oracle": vllm / oracle}


PARTS: dict[str, Callable[[Entries], dict[str, float]]] = {
    "papers/sosp23-fig2": _fig2,
    "papers/sosp23-fig18b": _fig18b,
    "claims/one-short-answer": _one_short_answer,
    "claims/kv-bytes": _kv_bytes,
    "claims/full-reservations": _full_reservations,
    "claims/large-blocks": _large_blocks,
    "claims/long-prompts": _long_prompts,
    "claims/prefill-bound": _prefill_bound,
    "claims/few-requests": _few_requests,
    "claims/beams": _beams,
}
"""What is read off the variants of each scenario."""


def measure(job: Job) -> dict[str, float]:
    """The values of one scenario."""
    if job.part == KNEES:
        return _knees(job)
    found = summary_of(job.part, seed=job.seed, lengths=job.lengths)["variants"]
    return PARTS[job.part](found)


def _target(
    key: str,
    what: str,
    unit: str,
    claimed: float | None,
    accepted: Interval | None,
    *,
    digits: int = 2,
    basis: Basis = "prediction",
) -> Target:
    return Target(key, what, unit, claimed, "CLAIM", basis, accepted, digits=digits)


CLAIMS_FIGURE = Figure(
    name="claims",
    title="Claims about paged KV memory",
    how="Seed 0 of the scenarios named in docs/claims.md.",
    measure=measure,
    parts=(KNEES, *PARTS),
    uses_lengths=True,
    targets=(
        _target(
            "empty_slots", "reserved, never filled", "slots", 7842, within(7842, 1e-6), digits=0
        ),
        _target("empty_percent", "the same", "% of slots", 95.7, within(95.7, 0.05), digits=1),
        _target("empty_slots_paged", "paged instead", "slots", None, Interval(0, 15), digits=0),
        _target(
            "naive_bytes",
            "Llama-3-70B, naive",
            "B/token",
            2_621_440,
            within(2_621_440, 0),
            digits=0,
        ),
        _target(
            "real_bytes", "Llama-3-70B, real", "B/token", 327_680, within(327_680, 0), digits=0
        ),
        _target("naive_gb", "4,096 tokens, naive", "GB", 10.7, within(10.7, 0.05), digits=1),
        _target("real_gb", "4,096 tokens, real", "GB", 1.34, within(1.34, 0.005)),
        _target("naive_over_real_opt", "OPT-13B, naive over real", "x", None, within(1, 0)),
        _target("max_live_percent", "orca-max: used", "% of slots", 20, Interval(18, 42), digits=1),
        _target(
            "oracle_live_percent", "orca-oracle: used", "% of slots", 40, Interval(18, 42), digits=1
        ),
        _target(
            "full_live_percent", "full reservations: used", "% of slots", None, Interval(80, 100)
        ),
        _target("paged_tail", "paged: empty tail", "slots/request", None, Interval(0, 15)),
        _target("paged_external", "paged: external", "share", 0, within(0, 0)),
        _target("short_used_256", "short requests, block 256: used", "%", None, Interval(0, 50)),
        _target("rate_over_oracle", "throughput over orca-oracle", "x", 2, Interval(1.5, 2.9)),
        _target("rate_over_max", "throughput over orca-max", "x", 4, Interval(2.3, 8.5)),
        _target(
            "knee_over_oracle",
            "OPT-66B: sustained rate over orca-oracle",
            "x",
            2,
            Interval(1.5, 2.9),
            basis="fit",
        ),
        _target("prefill_bound_rate", "prefill bound: throughput", "x", None, Interval(0.98, 1.05)),
        _target("prefill_bound_batch", "prefill bound: batch", "x", None, Interval(2, 3)),
        _target("prefill_bound_paged", "prefill bound: paged", "requests", None, None, digits=1),
        _target(
            "prefill_bound_reserved",
            "prefill bound: contiguous",
            "requests",
            None,
            Interval(8, 9),
            digits=1,
        ),
        _target("short_used_8", "short requests, block 8: used", "%", None, Interval(80, 100)),
        _target("short_used_16", "short requests, block 16: used", "%", None, Interval(80, 100)),
        _target("short_used_64", "short requests, block 64: used", "%", None, Interval(0, 80)),
        *(
            _target(f"short_rate_{size}", f"short requests, block {size}", "requests/s", None, None)
            for size in (8, 16, 64)
        ),
        _target("long_used_256", "long prompts, block 256: used", "%", None, Interval(95, 100)),
        _target("pool_tokens_70b", "Llama-3-70B, four A100-80GB", "slots", None, None, digits=0),
        _target(
            "long_rate_256_over_16", "long prompts, block 256 over 16", "x", None, within(1, 0.05)
        ),
        _target("beam_4_saving", "four beams: saved", "%", 50, Interval(50, 75), digits=1),
        _target("beam_2_saving", "two beams: saved", "%", None, Interval(0, 50), digits=1),
        _target(
            "beam_4_independent_saving",
            "four independent beams: saved",
            "%",
            None,
            Interval(0, 50),
            digits=1,
        ),
        _target("beam_4_blocks", "four independent beams", "blocks/request", None, None, digits=1),
        _target("beam_4_of_bound", "four beams over independent ones", "%", None, Interval(0, 100)),
        _target("few_tpot", "time per token, few requests", "x", 1, within(1, 1e-9)),
        _target("batch_over_max", "batch over orca-max", "x", None, Interval(3, 8)),
        _target("tpot_over_max", "time per token over orca-max", "x", None, Interval(1, 5)),
        _target(
            "tpot_block_1_over_16", "block 1 over 16", "x", None, Interval(1.2, 10), basis="fit"
        ),
    ),
)
