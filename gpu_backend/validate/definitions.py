"""What the figures of a validation mean: anchor in the page -> name, and a sentence with units."""

from __future__ import annotations

from collections.abc import Mapping

DEFINITIONS: Mapping[str, tuple[str, str]] = {
    "error": (
        "error",
        "Simulated or predicted over measured, minus 1 (%). Above 0 the simulation is too "
        "high, for times too slow. Checks judge its size without the sign.",
    ),
    "median": (
        "median, p90, p99",
        "The size of the error that half, 90 % or 99 % of the steps do not exceed (%); of a "
        "latency, the time that so many requests do not exceed (ms).",
    ),
    "bias": (
        "bias",
        "Median of the errors with their sign: what is left when too fast and too slow steps "
        "cancel (%).",
    ),
    "lockstep": (
        "lockstep",
        "A simulation of the closed loop of the first seed is taken down; the device then "
        "runs its steps in the same order. So step times are compared in pairs (ms).",
    ),
    "counts": (
        "counts",
        "Whether every step on the device had the same numbers of decodes, prefill chunks, "
        "tokens, memory and preemptions as the simulated one (equal or not).",
    ),
    "rows": (
        "rows checked against float64",
        "Rows of the attention's output on the device that were compared with a reference in "
        "double precision; a row that differs stops the validation (count, all repeats "
        "together).",
    ),
    "noise": (
        "noise floor",
        "The error of one measurement of a step against another one: medians of every other "
        "repeat. No clock can be better (%).",
    ),
    "bound": (
        "bound in force",
        "For step times, the stated bound or twice the noise, whichever is more; otherwise "
        "the stated bound (%).",
    ),
    "free": (
        "free run",
        "The device runs the traffic at its own pace, and so does the simulation. Steps need "
        "not be the same on both sides.",
    ),
    "closed": (
        "closed loop",
        "A fixed number of clients; each sends its next request when one of its requests ends.",
    ),
    "load": (
        "load",
        "Arrival rate as a share of the saturation rate that the simulation predicts for the "
        "variant: at load 0.9, 90 % of it (requests/s).",
    ),
    "rate": (
        "request rate",
        "Finished requests over the time from the start to the end of the last step (requests/s).",
    ),
    "saturation": (
        "saturation rate",
        "The request rate of the closed loop (requests/s).",
    ),
    "kv-usage": (
        "KV usage",
        "Allocated slots over all slots of the KV memory during a step, averaged over busy "
        "time (% of the capacity).",
    ),
    "batch": (
        "batch",
        "Requests that run in a step, averaged over busy time (requests).",
    ),
    "busy": (
        "busy time",
        "The sum of the steps' durations; time without a step is left out (s).",
    ),
    "preemptions": (
        "preemptions",
        "Times a running request lost its memory to another one, mean over the runs (count).",
    ),
    "ttft": (
        "TTFT",
        "Time to first token: arrival to first token, queueing included, of the finished "
        "requests of all seeds together (ms).",
    ),
    "tpot": (
        "TPOT",
        "Time per output token: first to last token over the output tokens less one, of the "
        "finished requests of all seeds together (ms).",
    ),
    "slowness": (
        "slowness",
        "Times of a few probe batches during a run over their times at the calibration: 1.1 "
        "times is 10 % slower, median over the batches. Measured lockstep times are divided "
        "by it, the clock of a free run is multiplied by it (times).",
    ),
    "interval": (
        "95 % interval",
        "Of the difference, from the differences of the seeds by Student's t (%).",
    ),
    "control": (
        "negative control",
        "A simulation with a known mistake; it counts as noticed when at least one bound "
        "fails that holds without the mistake.",
    ),
}

FRAMEWORK_DEFINITIONS: Mapping[str, tuple[str, str]] = {
    "allocated": (
        "allocated",
        "Bytes in tensors. Growing by one token makes a longer tensor while the old one is "
        "still there (MiB).",
    ),
    "reserved": (
        "reserved",
        "Bytes that the allocator took from the device and did not give back; of the arena, "
        "everything below the highest address ever used (MiB).",
    ),
    "idle": (
        "idle",
        "1 - allocated / reserved, mean over the events (%).",
    ),
    "refused": (
        "refused",
        "Requests that found no room and were given up (count).",
    ),
}
"""Of the traffic in a framework's own allocator."""

CONSTANTS: Mapping[str, str] = {
    "tokens": "Tokens computed in a step -> matrix products, elementwise work and the host (s).",
    "rows": "Sequences that sample a token -> output head and sampler (s).",
    "decode_s": "Attention of a step without chunks, beyond the table of tokens (s per step).",
    "decode_row_s": "Attention of each decode of a step without chunks (s per decode).",
    "decode_context_s": "Reading the context of these decodes (s per token).",
    "prefill_s": "Attention of a step with chunks, beyond the table of tokens (s per step).",
    "chunk_s": "Attention of each chunk (s per chunk).",
    "pair_s": "Attention of a chunk's tokens to earlier ones (s per pair of tokens).",
    "prior_s": "Reading what a chunk's sequence computed before (s per token).",
    "mixed_row_s": "Attention of each decode of a step with chunks (s per decode).",
    "mixed_context_s": "Reading the context of these decodes (s per token).",
    "copy_s": "Moving tokens inside the device (s per token).",
}
"""What the clock of a profile computes with, all layers together."""
