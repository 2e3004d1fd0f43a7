"""Faults written into the kernels' source: the comparison with float64 must notice each.

A mutated copy of a kernel module is imported under a name of its own and takes the module's place.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import pytest
import torch

from gpu_backend import launches, ops, reference
from gpu_backend.configs import DecodeConfig, PrefillConfig
from gpu_backend.kernels import cache, common, decode, prefill
from tests.gpu_backend.kernels.poisoned import Shape, batch, differs
from tests.gpu_backend.kernels.test_addresses import DIM, FAR, TOKENS, tokens, vast

__all__ = ["tokens", "vast"]  # fixtures

# a faulty kernel may read scratch nobody wrote: whatever is there, NaN among it, is no failure
pytestmark = pytest.mark.filterwarnings("ignore::RuntimeWarning")

PREFILL_TILES = PrefillConfig(rows=16, tile=16, warps=1, stages=1)
POISONED_BLOCK = 0  # a wild id would end the process of a kernel that goes too far
Mutate = Callable[[ModuleType, str, str], None]


@pytest.fixture
def mutate(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Mutate:
    """Replaces text that occurs once in a kernel module, and puts the result in its place."""

    def apply(module: ModuleType, old: str, new: str) -> None:
        assert module.__file__ is not None
        source = Path(module.__file__).read_text(encoding="utf-8")
        assert source.count(old) == 1, f"{old!r} occurs {source.count(old)} times"
        name = module.__name__.rsplit(".", 1)[1]
        path = tmp_path / f"{name}.py"
        path.write_text(source.replace(old, new), encoding="utf-8")
        spec = importlib.util.spec_from_file_location(f"mutated_{name}", path)
        assert spec is not None
        assert spec.loader is not None
        mutant = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(mutant)
        if module is common:
            for user in (decode, prefill):
                monkeypatch.setattr(user, "attend", mutant.attend)
        else:
            monkeypatch.setattr(launches, f"{name}_kernels", mutant)

    return apply


def decode_is_wrong(chunk: int, *, window: int = 0, contexts: tuple[int, ...] = (33, 18)) -> bool:
    shape = Shape(window=window)
    case = batch(shape, contexts, rubbish=POISONED_BLOCK)
    config = DecodeConfig(tile=16, chunk=chunk, warps=1, stages=1)
    arguments, options = (*case.paged, case.context_lens), shape.paged_options
    found = ops.paged_decode(*arguments, **options, out=case.out, config=config)
    return differs(found, reference.paged_decode(*arguments, **options))


def prefill_is_wrong(*, window: int = 0) -> bool:
    shape = Shape(window=window)
    case = batch(shape, [19, 11, 21], [1, 11, 9], rubbish=POISONED_BLOCK)
    arguments = (*case.paged, case.query_start, case.context_lens)
    options = shape.paged_options
    found = ops.paged_prefill(*arguments, **options, out=case.out, config=PREFILL_TILES)
    return differs(found, reference.paged_prefill(*arguments, **options))


def test_nothing_is_noticed_without_a_mutation(
    mutate: Mutate, monkeypatch: pytest.MonkeyPatch
) -> None:
    for module in (common, decode, prefill, cache):
        mutate(module, '"""\n\nimport triton\n', '"""\n\nimport triton \n')
    assert not decode_is_wrong(64)
    monkeypatch.setattr(launches, "REDUCE_TILE", 2)
    assert not decode_is_wrong(16, contexts=(16 * 7 + 1, 33))
    assert not decode_is_wrong(16, window=9)
    assert not prefill_is_wrong()
    assert not prefill_is_wrong(window=9)


@pytest.mark.parametrize("chunk", [64, 16], ids=["one chunk", "chunks"])
def test_values_without_a_mask(chunk: int, mutate: Mutate) -> None:
    mutate(common, "load_tile(value_ptr, offsets, valid,", "load_tile(value_ptr, offsets, tokens >= 0,")  # fmt: skip # noqa: E501
    assert decode_is_wrong(chunk)
    assert prefill_is_wrong()


@pytest.mark.parametrize("chunk", [64, 16], ids=["one chunk", "chunks"])
def test_one_token_too_far(chunk: int, mutate: Mutate) -> None:
    mutate(common, "valid = tokens < end", "valid = tokens <= end")
    assert decode_is_wrong(chunk)
    # Here the causal mask hides the token too many; only its value, NaN, gives it away.
    assert prefill_is_wrong()


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (
            "tl.minimum((chunk + 1) * CHUNK, context)",
            "tl.minimum((chunk + 1) * CHUNK, context - 1)",
        ),
        ("tl.maximum(chunk * CHUNK, first)", "chunk * CHUNK + 1"),
        ("heads = kv_head * GROUP + rows", "heads = kv_head + rows * tl.num_programs(0)"),
        ("place_ptr + seq * table_stride", "place_ptr"),
    ],
    ids=["chunk ends early", "chunk begins late", "heads of other groups", "first table row"],
)
def test_other_faults_of_decode(old: str, new: str, mutate: Mutate) -> None:
    mutate(decode, old, new)
    assert decode_is_wrong(16)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("weights = tl.exp2(lse - new_top)", "weights = tl.where(valid, 1.0, 0.0)"),
        ("accumulated = accumulated * shrink + tl.sum", "accumulated = accumulated + tl.sum"),
        ("total = total * shrink + tl.sum", "total = total + tl.sum"),
        ("accumulated / tl.where(total > 0.0, total, 1.0)", "accumulated"),
        ("used = tl.cdiv(context, CHUNK)", "used = context // CHUNK"),
    ],
    ids=["equal weights", "no rescaling", "total not rescaled", "not normalised", "last chunk"],
)
def test_a_wrong_reduce(
    old: str, new: str, mutate: Mutate, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launches, "REDUCE_TILE", 2)
    mutate(decode, old, new)
    assert decode_is_wrong(16, contexts=(16 * 7 + 1, 33))


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("first_position + tl.arange(0, ROWS) //", "first_position - 1 + tl.arange(0, ROWS) //"),
        ("first_position + tl.arange(0, ROWS) //", "first_position + 1 + tl.arange(0, ROWS) //"),
        ("// QUERIES + middle <= tile", "// QUERIES + middle < tile"),
        ("tl.minimum(QUERIES, queries_left)", "tl.minimum(QUERIES, queries_left) - 1"),
    ],
    ids=["does not see itself", "sees the next token", "wrong sequence", "ends early"],
)
def test_other_faults_of_prefill(old: str, new: str, mutate: Mutate) -> None:
    mutate(prefill, old, new)
    assert prefill_is_wrong()


def test_a_window_one_token_too_wide(mutate: Mutate) -> None:
    mutate(decode, "first = tl.maximum(context - WINDOW, 0)\n    begin", "first = tl.maximum(context - WINDOW - 1, 0)\n    begin")  # fmt: skip # noqa: E501
    assert decode_is_wrong(64, window=9)


def test_a_prefill_window_one_token_too_narrow(mutate: Mutate) -> None:
    mutate(common, "> positions[:, None] - WINDOW", "> positions[:, None] - WINDOW + 1")
    assert prefill_is_wrong(window=9)


def test_a_chunk_without_its_weight(mutate: Mutate) -> None:
    mutate(common, "top + tl.log2(total)", "top")
    assert decode_is_wrong(16)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("accumulated * shrink[:, None]", "accumulated"),
        ("total * shrink + tl.sum", "total + tl.sum"),
        ("tokens % BLOCK_SIZE", "tokens % (BLOCK_SIZE - 1)"),
        ("tl.dot(weights.to(values.dtype), values, accumulated,", "tl.dot(weights, values,"),
    ],
    ids=["no rescaling", "total not rescaled", "wrong place in a block", "last tile only"],
)
def test_faults_of_what_both_share(old: str, new: str, mutate: Mutate) -> None:
    mutate(common, old, new)
    assert decode_is_wrong(64)
    assert prefill_is_wrong()


def test_paged_addresses_of_32_bits(
    mutate: Mutate, vast: torch.Tensor, tokens: torch.Tensor
) -> None:
    mutate(common, "other=0).to(tl.int64)", "other=0)")
    query = torch.randn(1, 2, DIM).half()
    table = torch.tensor([[FAR]], dtype=torch.int32)
    lens = torch.tensor([TOKENS], dtype=torch.int32)
    expected = reference.attend(query, tokens, tokens, scale=0.2)
    found = ops.paged_decode(query, vast, vast, table, lens, scale=0.2, layout="nhd")
    assert differs(found, expected)


def test_contiguous_addresses_of_32_bits(
    mutate: Mutate, vast: torch.Tensor, tokens: torch.Tensor
) -> None:
    mutate(decode, "base += tl.load(place_ptr + seq) * slot_stride", "base += (tl.load(place_ptr + seq).to(tl.int32) * slot_stride)")  # fmt: skip # noqa: E501
    query = torch.randn(1, 2, DIM).half()
    arena, start = vast.flatten(0, 1), torch.tensor([FAR * int(vast.shape[1])])
    lens = torch.tensor([TOKENS], dtype=torch.int32)
    expected = reference.attend(query, tokens, tokens, scale=0.2)
    found = ops.contiguous_decode(query, arena, arena, start, lens, scale=0.2)
    assert differs(found, expected)


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("(slot % BLOCK_SIZE) * slot_stride", "(slot // BLOCK_SIZE) * slot_stride"),
        ("if slot < 0:", "if slot < -1:"),
        ("value = tl.load(value_ptr + value_at", "value = tl.load(key_ptr + value_at"),
    ],
    ids=["wrong place", "skipped slot written", "keys as values"],
)
def test_faults_of_writing(old: str, new: str, mutate: Mutate) -> None:
    mutate(cache, old, new)
    key, value = torch.randn(2, 3, 2, 24)
    # The cache is the middle of a larger pool: a slot beside it is seen, and harms nobody.
    found, expected = torch.zeros(2, 2, 6, 3, 2, 24)
    slots = torch.tensor([4, 10, -1])
    for write, pool in ((ops.reshape_and_cache, found), (reference.reshape_and_cache, expected)):
        write(key, value, pool[0, 1:5], pool[1, 1:5], slots, layout="nhd")
    assert not torch.equal(found, expected)


def test_a_copy_to_the_source(mutate: Mutate) -> None:
    mutate(cache, "tl.program_id(0) * 2 + 1)", "tl.program_id(0) * 2)")
    keys, values = torch.randn(2, 4, 3, 2, 24)
    ops.copy_blocks(keys, values, torch.tensor([[0, 2]]))
    assert not torch.equal(keys[0], keys[2])
