"""The arithmetic of a start, against what real servers printed."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kvsim.catalog import GIB
from kvsim.catalog.kv_groups import KvGroups, LayerType, uniform_groups
from kvsim.errors import InputError
from kvsim.planning.releases import LATEST, RELEASES, release_of
from kvsim.planning.start import KvLayout, longest_request, printed_gib, start
from tests.planning.logs import ROWS, row

KIB = 1024
HALF_A_DIGIT = 0.005 * GIB

VECTORS: dict[str, tuple[KvLayout, int, int]] = {
    # log: layout, tokens in flight, blocks per request of max_model_len
    "C062": (KvLayout(uniform_groups(36), 16, 36 * 64 * KIB), 2048, 2560),
    "C091": (
        KvLayout(
            KvGroups(10, (LayerType("full", None, 10), LayerType("sliding", 1024, 52, 6))),
            16,
            10 * 128 * KIB,
        ),
        8192,
        256 + 6 * 257,
    ),
    "C092": (
        KvLayout(
            KvGroups(4, (LayerType("full", None, 4), LayerType("sliding", 512, 22, 6))),
            16,
            4 * 16 * KIB,
        ),
        8192,
        128 + 6 * 129,
    ),
    "C093": (
        KvLayout(
            KvGroups(
                5,
                (LayerType("full", None, 5, tokens_factor=2), LayerType("sliding", 1024, 25, 5)),
            ),
            16,
            5 * 64 * KIB,
        ),
        2048,
        3072 + 5 * 193,
    ),
    "C145": (
        KvLayout(
            KvGroups(12, (LayerType("full", None, 12), LayerType("state", None, 36, 3))),
            544,
            12 * 544 * KIB,
        ),
        8192,
        482 + 3,
    ),
    "C096": (
        KvLayout(
            KvGroups(16, (LayerType("full", None, 16), LayerType("state", None, 48, 3))),
            1568,
            16 * 1568 * KIB,
            state_blocks=2,
        ),
        8192,
        84 + 3 * 2,
    ),
    "C016": (KvLayout(uniform_groups(61), 16, 16 * 61 * 1280), 8192, 8000),
}


@pytest.mark.parametrize("log", VECTORS)
def test_a_printed_pool_gives_the_printed_blocks_and_these_everything_else(log: str) -> None:
    """Blocks within the two decimals of the pool; tokens and concurrency exactly."""
    printed = row(log)
    layout, in_flight, per_request = VECTORS[log]
    release = release_of(version_of(printed), printed["engine"])
    length = printed["max_model_len"]
    assert layout.blocks_per_request(length, max_in_flight=in_flight) == per_request
    pool = printed["available_kv_gib"] * GIB
    low, high = (
        start(
            layout,
            release,
            max_model_len=length,
            max_in_flight=in_flight,
            available_bytes=int(pool + error),
        ).num_blocks
        for error in (-HALF_A_DIGIT, HALF_A_DIGIT)
    )
    blocks = BLOCKS.get(log, printed["num_gpu_blocks"])
    assert low <= blocks <= high
    found = start(
        layout,
        release,
        max_model_len=length,
        max_in_flight=in_flight,
        num_blocks=blocks,
    )
    assert found.kv_tokens == printed["kv_tokens"]
    assert f"{found.max_concurrency:.2f}" == f"{printed['max_concurrency']:.2f}"
    assert found.refusal is None


BLOCKS = {"C092": 416_009}
"""Where the blocks are not printed but follow from the other figures: 416,007 to 416,009."""


def version_of(printed: dict[str, Any]) -> str:
    """The number in a version such as `vllm-ascend ~0.20`; unknown ones have the usual rules."""
    found = re.search(r"\d+\.\d+(\.\d+)?", printed["version"] or "0.11")
    assert found is not None
    return found[0]


HYBRID = {
    "C091": "seven groups of layers share the pool: an exact vector above",
    "C096": "three of four groups keep states: an exact vector above",
    "C145": "three of four groups keep states: an exact vector above",
    "C100": "three of four layers keep a state: its blocks are not those of one kind of layers",
    "C112": "a plugin; 21 of 78 layers have an indexer, whose padding the log does not say",
}
"""Rows whose pool is not tokens times one number of bytes, and why."""


def sized() -> list[dict[str, Any]]:
    """Consistent vLLM rows that print the pool and blocks or tokens, for layers of one kind."""
    return [
        one
        for one in ROWS
        if one["server"] == "vllm"
        and one["status"] == "consistent"
        and None not in (one["available_kv_gib"], one["bytes_per_token_per_gpu"])
        and (one["num_gpu_blocks"] or one["kv_tokens"])
    ]


def layout_of(printed: dict[str, Any]) -> KvLayout:
    size = printed["block_size"] or 16
    return KvLayout(uniform_groups(), size, size * int(printed["bytes_per_token_per_gpu"]))


def test_enough_rows_are_looked_at() -> None:
    """36 with the hybrids, of 57 consistent ones."""
    assert len(sized()) == 36
    assert {one["id"] for one in sized()} >= set(HYBRID)


@pytest.mark.parametrize(
    "printed", [one for one in sized() if one["id"] not in HYBRID], ids=lambda one: one["id"]
)
def test_every_printed_pool_holds_the_printed_blocks(printed: dict[str, Any]) -> None:
    """And blocks give tokens, concurrency and refusal as printed."""
    layout, length = layout_of(printed), printed["max_model_len"] or 2048
    release = release_of(version_of(printed), printed["engine"])
    blocks = printed["num_gpu_blocks"] or printed["kv_tokens"] // layout.block_tokens
    pool = printed["available_kv_gib"] * GIB
    bounds = [int(pool + error) // layout.block_bytes for error in (-HALF_A_DIGIT, HALF_A_DIGIT)]
    assert bounds[0] <= blocks <= bounds[1]
    found = start(layout, release, max_model_len=length, max_in_flight=8192, num_blocks=blocks)
    if printed["kv_tokens"] and not release.prints_tokens_of_one_request:
        assert found.kv_tokens == printed["kv_tokens"]
    if printed["max_concurrency"] is not None:
        assert found.max_concurrency == pytest.approx(printed["max_concurrency"], abs=0.0051)
    refused = printed["error_class"] == "max_len_gt_kv_tokens"
    assert (found.refusal is not None) == refused


@pytest.mark.parametrize(
    ("pool_gib", "token_bytes", "length", "needed", "longest"),
    [
        (2.4, 147_456, 40_960, "5.62", 17_472),  # C158
        (1.67, 57_344, 32_768, "1.75", 31_264),  # C159: 31,328 with the pool's hidden digits
        (9.6, 65_536, 262_144, "16.00", 157_280),  # C160: 157,216
        (0.71, 131_072, 131_072, "16.00", 5_808),  # C068, a TPU: 5,632 in its larger blocks
        (3.58, 147_456, 32_768, "4.50", 26_064),  # case 08: 26,032
    ],
)
def test_v1_refuses_with_what_one_request_needs_and_what_would_fit(
    pool_gib: float, token_bytes: int, length: int, needed: str, longest: int
) -> None:
    """Printed with two decimals; the estimate is within what the pool's two decimals hide."""
    layout = KvLayout(uniform_groups(), 16, 16 * token_bytes)
    pool = int(pool_gib * GIB)
    found = start(
        layout, release_of("0.11"), max_model_len=length, max_in_flight=8192, available_bytes=pool
    )
    assert found.refusal is not None
    assert found.refusal.rule == "need_gt_available"
    assert printed_gib(found.refusal.needed_bytes) == needed
    hidden = 0.005 * GIB / token_bytes + 16
    assert abs(found.refusal.longest_request_tokens - longest) <= hidden
    assert found.refusal.longest_request_tokens % 16 == 0


def test_v0_refuses_more_tokens_than_it_stores() -> None:
    """C002: 29,000 against 23,648, with a concurrency below one."""
    printed = row("C002")
    layout = layout_of(printed)
    found = start(
        layout,
        release_of("0.6.4"),
        max_model_len=29_000,
        max_in_flight=29_000,
        num_blocks=printed["num_gpu_blocks"],
    )
    assert found.refusal is not None
    assert found.refusal.rule == "max_len_gt_kv_tokens"
    assert found.kv_tokens == found.longest_request_tokens == 23_648
    assert f"{found.max_concurrency:.2f}" == "0.82"


def test_the_longest_request_is_the_last_that_fits() -> None:
    """Whatever its layers keep; a window makes it longer than the pool has slots."""
    for layout, in_flight, _ in VECTORS.values():
        for blocks in (1, 7, 100, 12_345):
            longest = longest_request(layout, blocks, max_in_flight=in_flight)
            if longest:
                assert layout.blocks_per_request(longest, max_in_flight=in_flight) <= blocks
            more = layout.blocks_per_request(longest + 1, max_in_flight=in_flight)
            assert more > blocks


@pytest.mark.parametrize(
    ("version", "engine", "name"),
    [
        ("0.5.3", None, "vllm 0.5.3 and earlier"),
        ("0.6.3", None, "vllm 0.5.4 to 0.6.3"),
        ("v0.6.4.post1", None, "vllm 0.6.4 to 0.6.6, v0"),
        ("0.9.0", "v0", "vllm 0.7 to 0.10, v0"),
        ("0.8.4", None, "vllm 0.8, v1"),
        ("0.9.2", None, "vllm 0.9, v1"),
        ("0.10.1", None, "vllm 0.10, v1"),
        ("0.11.0rc2", None, "vllm 0.11 to 0.15, v1"),
        ("0.16.0", None, "vllm 0.16 to 0.20, v1"),
        ("0.22.1", None, "vllm 0.21 and 0.22, v1"),
        ("0.25.1", None, "vllm 0.23 to 0.25, v1"),
        ("0.26.0", None, "vllm 0.26, v1"),
        ("0.33", None, "vllm 0.27 and later, v1"),
    ],
)
def test_a_version_has_the_rules_of_its_range(version: str, engine: Any, name: str) -> None:
    """Post releases and candidates are those of their version."""
    assert release_of(version, engine).name == name


@pytest.mark.parametrize(
    ("version", "engine", "message"),
    [("latest", None, "is not understood"), ("0.5", "v1", "has no engine v1")],
)
def test_a_version_without_rules_is_refused(version: str, engine: Any, message: str) -> None:
    """With the way out."""
    with pytest.raises(InputError, match=message):
        release_of(version, engine)


def test_the_releases_are_in_order_and_the_last_is_the_latest() -> None:
    """Of each engine: ranges begin one after the other."""
    for engine in ("v0", "v1"):
        firsts = [one.first for one in RELEASES if one.engine == engine]
        assert firsts == sorted(firsts)
    assert RELEASES[-1] is LATEST
