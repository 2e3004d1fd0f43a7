"""Random small configs and requests: every mode, and memory that is tight.

The same seed gives the same case. The modes are independent draws, so that any of them meets any
other, except for the pairs that recordings do not cover: speculation with async scheduling, eagle
with sliding windows, a full-attention block larger than the hash block, and drafts with prefill
chunks shorter than a draft (vLLM fails on some of them).
"""

from __future__ import annotations

from math import ceil, lcm
from random import Random
from typing import Any

from tools.vllm_recorder.inputs import Case, checked_case

Config = dict[str, Any]
Request = dict[str, Any]


def random_case(seed: int) -> Case:
    """The case of a seed."""
    rng = Random(seed)
    config = _config(rng)
    requests = _requests(rng, config)
    config["num_gpu_blocks"] = _pool(rng, config, requests)
    config["name"] = f"random-{seed}"
    config["note"] = f"random small case, seed {seed}"
    return checked_case(config, requests)


def _chance(rng: Random, probability: float) -> bool:
    return rng.random() < probability


def _config(rng: Random) -> Config:
    max_model_len = rng.choice((128, 256, 400, 777))
    chunked = _chance(rng, 0.88)
    caching = _chance(rng, 0.7)
    asynchronous = _chance(rng, 0.4)
    max_num_seqs = rng.choice((2, 4, 8, 8, 16, 16))
    budget = max(max_num_seqs, rng.choice((16, 24, 33, 48, 72, 128, 256)))
    block_size = rng.choice((4, 8, 16, 16, 32))
    groups = _groups(rng, block_size) if _chance(rng, 0.35) else None
    return {
        "num_gpu_blocks": 2,
        "block_size": block_size,
        "max_num_seqs": max_num_seqs,
        "max_num_batched_tokens": budget if chunked else max(max_model_len, budget),
        "max_model_len": max_model_len,
        "enable_chunked_prefill": chunked,
        "enable_prefix_caching": caching,
        "long_prefill_token_threshold": 0,
        "policy": rng.choice(("fcfs", "priority")),
        "watermark": rng.choice((0.0, 0.0, 0.03, 0.1, 0.3)),
        "scheduler_reserve_full_isl": _chance(rng, 0.6),
        "async_scheduling": asynchronous,
        "kv_groups": groups,
        "retention_interval": _retention(rng, block_size, groups),
        "spec": None,
        "step_time_s": None,
        "hash_id_tokens": rng.choice((16, 23, 24, 40)),
    } | _speculation(rng, caching=caching, may_draft=not asynchronous, groups=groups)


def _groups(rng: Random, block_size: int) -> list[dict[str, Any]]:
    def sliding(size: int | None = None) -> dict[str, Any]:
        group = {"type": "sliding", "window": rng.choice((12, 20, 24, 40, 64, 100))}
        return group if size is None else {**group, "block_size": size}

    kind = rng.choice(("sliding", "pair", "pair", "mixed", "many", "windows"))
    if kind == "sliding":
        return [sliding()]
    if kind == "pair":
        return [{"type": "full"}, sliding()]
    if kind == "mixed":
        # The full group keeps the smaller block, which is then the hash block as well.
        return [{"type": "full", "block_size": block_size}, sliding(block_size * 2)]
    if kind == "windows":
        return [{"type": "full"}, sliding(), sliding()]
    window = sliding()
    return [{"type": "full"}, *(dict(window) for _ in range(rng.choice((2, 3, 5))))]


def _retention(rng: Random, block_size: int, groups: list[dict[str, Any]] | None) -> int | None:
    if groups is None:
        return 0
    step = lcm(*(group.get("block_size", block_size) for group in groups))
    return rng.choice((0, 0, None, step, 2 * step, 4 * step))


def _speculation(
    rng: Random, *, caching: bool, may_draft: bool, groups: list[dict[str, Any]] | None
) -> Config:
    """The drafts, and the chunk limit that goes with them."""
    limit = rng.choice((1, 2, 3, 8, 20, 50)) if _chance(rng, 0.4) else 0
    if not may_draft or not _chance(rng, 0.45):
        return {"long_prefill_token_threshold": limit}
    methods = ("ngram", "draft_model") if groups else ("ngram", "draft_model", "eagle")
    drafts = rng.choice((1, 2, 3, 4, 5))
    if caching and 0 < limit < 1 + drafts:
        # An admission with one token left is padded to a whole draft, which the limit would cut.
        limit = 0
    pattern = [rng.randrange(drafts + 2) for _ in range(rng.choice((4, 5, 7)))]
    return {
        "long_prefill_token_threshold": limit,
        "spec": {
            "method": rng.choice(methods),
            "num_speculative_tokens": drafts,
            "accept_pattern": pattern,
        },
    }


def _requests(rng: Random, config: Config) -> list[Request]:
    make = rng.choice((_unique, _chats, _chats, _prefixes, _trees, _hash_ids))
    requests = make(rng, config)
    _arrivals(rng, requests)
    if config["policy"] == "priority":
        levels = rng.choice((2, 3, 10))
        for request in requests:
            if _chance(rng, 0.9):
                request["priority"] = rng.randrange(levels)
    if _chance(rng, 0.35):
        share = rng.choice((0.1, 0.3, 0.6))
        for request in requests:
            if _chance(rng, share):
                request["abort_step"] = request["arrival_step"] + rng.randrange(60)
    order = sorted(range(len(requests)), key=lambda index: requests[index]["arrival_step"])
    return [requests[index] for index in order]


def _arrivals(rng: Random, requests: list[Request]) -> None:
    """Set the arrival steps; requests that know one keep it."""
    kind = rng.choice(("burst", "steady", "steady", "steady", "waves"))
    gap = rng.choice((0, 1, 2, 4, 8))
    step = 0
    for number, request in enumerate(requests):
        if kind == "steady":
            step += rng.randrange(2 * gap + 1)
        elif kind == "waves" and number % 8 == 0:
            step += rng.randrange(10, 60)
        request["arrival_step"] = step + request.pop("after", 0)


def _size(rng: Random, config: Config, share: float = 0.7) -> int:
    """A prompt length: mostly short, some long, a few around the longest that is accepted."""
    limit = config["max_model_len"]
    if _chance(rng, 0.03):
        return int(limit + rng.choice((-2, -1, 0, 1)))
    size = int(rng.lognormvariate(3.6, 0.8))
    if _chance(rng, 0.25):
        # Whole blocks: the hit stops a block short of them.
        size = size // config["block_size"] * config["block_size"]
    return max(2, min(size, int(limit * share)))


def _output(rng: Random) -> int:
    return rng.choice((1, 2, 5)) if _chance(rng, 0.12) else rng.randrange(3, rng.choice((50, 120)))


def _new(name: str, prompt: int, output: int, **more: Any) -> Request:
    return {
        "id": name,
        "arrival_step": 0,
        "prompt_tokens": prompt,
        "output_tokens": output,
        **more,
    }


def _unique(rng: Random, config: Config) -> list[Request]:
    count = rng.randrange(12, 36)
    return [_new(f"r{index}", _size(rng, config), _output(rng)) for index in range(count)]


def _chats(rng: Random, config: Config) -> list[Request]:
    """Turns that repeat what was said before, under a few system prompts."""
    systems = [rng.randrange(8, 90) for _ in range(rng.choice((1, 2, 3)))]
    requests: list[Request] = []
    for chat in range(rng.randrange(5, 13)):
        system = rng.randrange(len(systems))
        said: list[list[Any]] = [[f"sys{system}", systems[system]]]
        after = 0
        for turn in range(rng.randrange(1, 5)):
            name = f"c{chat}-{turn}"
            said.append([f"user:{name}", rng.randrange(1, 60)])
            prompt = sum(length for _, length in said)
            if prompt > config["max_model_len"] + 20:
                break
            output = _output(rng)
            segments = [list(one) for one in said]
            requests.append(_new(name, prompt, output, segments=segments, after=after))
            said.append([f"out:{name}", output])
            after += output + rng.randrange(2, 30)
    return requests


def _prefixes(rng: Random, config: Config) -> list[Request]:
    """A prefix per group, cut at random, then tokens of its own."""
    longest = [rng.randrange(10, 120) for _ in range(rng.choice((2, 4)))]
    requests = []
    for index in range(rng.randrange(14, 36)):
        group = rng.randrange(len(longest))
        shared = longest[group] if _chance(rng, 0.6) else rng.randrange(longest[group])
        prompt = shared + rng.randrange(1, 40)
        requests.append(
            _new(
                f"p{index}",
                min(prompt, config["max_model_len"] - 1),
                _output(rng),
                prefix_group=f"g{group}",
                prefix_tokens=min(shared, config["max_model_len"] - 1),
            )
        )
    return requests


def _trees(rng: Random, config: Config) -> list[Request]:
    """Paths of a tree of segments; some prompts are another one word for word."""
    nodes: list[list[Any]] = [[f"n{index}", rng.randrange(1, 70)] for index in range(7)]
    paths = [[0], [0, 1], [0, 1, 2], [0, 3], [4], [4, 5], [4, 5, 6]]
    requests = []
    for index in range(rng.randrange(14, 36)):
        segments = [list(nodes[node]) for node in rng.choice(paths)]
        if _chance(rng, 0.5):
            segments.append([f"own{index}", rng.randrange(1, 50)])
        prompt = sum(length for _, length in segments)
        if prompt < 2:
            segments.append([f"own{index}", 2])
            prompt += 2
        requests.append(_new(f"t{index}", prompt, _output(rng), segments=segments))
    return requests


def _hash_ids(rng: Random, config: Config) -> list[Request]:
    """Prompts as lists of hashes, the way some traces give them."""
    unit = config["hash_id_tokens"]
    requests = []
    fresh = 1000
    for index in range(rng.randrange(14, 36)):
        chain = rng.randrange(4)
        numbers = [chain * 10 + level for level in range(rng.randrange(6))]
        for _ in range(rng.randrange(3)):
            fresh += 1
            numbers.append(fresh)
        numbers = numbers or [fresh + 500]
        prompt = len(numbers) * unit - (rng.randrange(unit) if _chance(rng, 0.7) else 0)
        requests.append(_new(f"h{index}", prompt, _output(rng), hash_ids=numbers))
    return requests


def _pool(rng: Random, config: Config, requests: list[Request]) -> int:
    """Blocks that hold the largest request and not much more.

    Now and then they hold less: such a request blocks the queue for ever. Without the gate on
    whole prompts it would be admitted and preempted for ever instead, which is no recording.
    """
    limit = config["max_model_len"]
    sizes = [
        min(limit, request["prompt_tokens"] + request["output_tokens"])
        for request in requests
        if request["prompt_tokens"] < limit
    ] or [limit]
    lookahead = (config["spec"] or {}).get("num_speculative_tokens", 0)
    groups: list[dict[str, Any]] = config["kv_groups"] or [{}]
    block_sizes: list[int] = [
        {"block_size": config["block_size"], **group}["block_size"] for group in groups
    ]

    def blocks(tokens: int) -> int:
        return sum(ceil(tokens / size) for size in block_sizes)

    largest = blocks(min(limit, max(sizes) + lookahead))
    together = blocks(sum(sizes) // len(sizes)) * min(config["max_num_seqs"], len(sizes))
    if config["scheduler_reserve_full_isl"] and _chance(rng, 0.04):
        return max(2, largest // 2)
    wanted = int(together * rng.choice((0.2, 0.3, 0.4, 0.5, 0.7, 1.0)))
    return max(largest + rng.randrange(1, 4), wanted) + 1
