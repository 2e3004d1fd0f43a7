from __future__ import annotations

import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import pytest
import torch

from gpu_backend import reference
from gpu_backend.bench import peer_calls, peers
from gpu_backend.bench.peer_calls import Inputs, PeerCall, Unavailable
from gpu_backend.bench.peers import Peer
from gpu_backend.bench.pool import Point, Pool
from tests.gpu_backend_bench.benches import tiny_bench

POINT = Point(3, 21, 8)


def paged_reference(inputs: Inputs) -> torch.Tensor:
    return reference.paged_decode(
        inputs.query, inputs.key_cache, inputs.value_cache, inputs.table, inputs.lens,
        scale=inputs.scale, layout="nhd",
    ).to(inputs.query.dtype)  # fmt: skip


def right(inputs: Inputs) -> PeerCall:
    return lambda: paged_reference(inputs)


def row_of(make: Callable[[Inputs], PeerCall], *us: float, paged: bool = True) -> dict[str, Any]:
    return peers.peer_row(Pool(tiny_bench(*us), 2000), POINT, Peer("other", paged, make))


def test_torchs_own_attention_is_right_and_timed_beside_ours() -> None:
    row = row_of(peer_calls.sdpa, 10.0, 25.0, paged=False)
    assert row["status"] == "measured"
    assert row["checked_sequences"] == 3
    assert (row["us"], row["ours_us"]) == (pytest.approx(10), pytest.approx(25))
    assert row["factor"] == pytest.approx(2.5)


@pytest.mark.parametrize("how", ["graph", "events"])
def test_both_are_timed_in_the_same_way(how: str) -> None:
    pool = Pool(tiny_bench(), 2000)
    pool.bench.stopwatch.how = how  # type: ignore[attr-defined]
    row = peers.peer_row(pool, POINT, Peer("other", True, right))
    assert (row["timing"], row["ours_timing"]) == (how, how)


def test_a_paged_peer_gets_the_paged_inputs() -> None:
    assert row_of(right)["status"] == "measured"
    assert row_of(right, paged=False)["status"] == "wrong"


@pytest.mark.parametrize("row", [0, 1, 2])
def test_a_wrong_result_is_reported_and_not_timed(row: int) -> None:
    def wrong(inputs: Inputs) -> PeerCall:
        found = paged_reference(inputs)
        found[row, 0, 0] += 1
        return lambda: found

    pool = Pool(tiny_bench(), 2000)
    found = peers.peer_row(pool, POINT, Peer("other", True, wrong))
    assert found["status"] == "wrong"
    assert found["peer_correct"] is False
    assert "us" not in found
    assert pool.bench.stopwatch.prepared == []  # type: ignore[attr-defined]


def test_a_result_of_another_shape_is_wrong() -> None:
    row = row_of(lambda inputs: lambda: paged_reference(inputs)[None])
    assert row["status"] == "wrong"
    assert "[1, 3, 4, 16]" in row["why"]
    assert row_of(lambda inputs: lambda: paged_reference(inputs).float())["status"] == "wrong"


def test_a_peer_that_fails_is_recorded() -> None:
    def fails(inputs: Inputs) -> PeerCall:
        raise RuntimeError("no kernel image")

    row = row_of(fails)
    assert (row["status"], row["error"], row["why"]) == (
        "failed", "RuntimeError", "no kernel image",
    )  # fmt: skip


def test_what_is_not_installed_is_said_once_per_peer(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(inputs: Inputs) -> PeerCall:
        raise ModuleNotFoundError("No module named 'other'", name="other")

    def large_blocks(inputs: Inputs) -> PeerCall:
        if inputs.block_size < 16:
            raise Unavailable("wants large blocks")
        return right(inputs)

    monkeypatch.setattr(peers, "TINY_BLOCK_SIZES", (8, 16))
    monkeypatch.setattr(peers, "TINY_SHAPES", ((2, 40), (1, 20)))
    rows = list(
        peers.measure(
            tiny_bench(), (Peer("other", True, missing), Peer("large", True, large_blocks))
        )
    )
    assert [(row["peer"], row["block_size"], row["status"]) for row in rows] == [
        ("other", 8, "not installed"),
        ("large", 8, "unavailable"),
        ("large", 16, "measured"),
        ("large", 16, "measured"),
    ]
    assert rows[0]["why"] == "No module named 'other'"


def test_a_peer_that_compiles_waits_for_time() -> None:
    bench = tiny_bench(tiny=False, seconds_left=lambda: 10.0, memory_bytes=1 << 20)
    slow = Peer("slow", True, right, compiles=True)
    small = Peer("quick", False, right)
    rows = list(peers.measure(bench, (slow, small)))
    assert rows[0]["why"] == "no time left for its compiler"
    assert {row["peer"] for row in rows} == {"slow", "quick"}


def inputs() -> Inputs:
    return peers._inputs(Pool(tiny_bench(), 2000), POINT)[0]


def module(monkeypatch: pytest.MonkeyPatch, name: str, **content: Any) -> None:
    fake = ModuleType(name)
    for key, value in content.items():
        setattr(fake, key, value)
    monkeypatch.setitem(sys.modules, name, fake)


def as_if_on_a_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peer_calls, "_need_cuda", lambda inputs: None)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device=None: (9, 0))


def fa3(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    *,
    cache_seqlens: torch.Tensor,
    softmax_scale: float,
    page_table: torch.Tensor | None = None,
) -> torch.Tensor:
    """The convention of FlashAttention-3: queries [batch, 1, heads, d], pages or none."""
    if page_table is None:
        page_table = torch.arange(q.shape[0], dtype=torch.int32)[:, None]
    assert q.shape[1] == 1
    return reference.paged_decode(
        q[:, 0], k_cache, v_cache, page_table, cache_seqlens, scale=softmax_scale, layout="nhd"
    ).to(q.dtype)[:, None]


@pytest.mark.parametrize("name", ["fa3_fwd_interface", "flash_attn_interface"])
@pytest.mark.parametrize(
    ("make", "paged"), [(peer_calls.fa3_paged, True), (peer_calls.fa3_contiguous, False)]
)
def test_flash_attention_gets_its_arguments(
    name: str, make: Callable[[Inputs], PeerCall], paged: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    module(monkeypatch, name, flash_attn_with_kvcache=fa3)
    assert row_of(make, paged=paged)["status"] == "measured"


def test_flash_attention_that_is_not_there() -> None:
    with pytest.raises(ModuleNotFoundError, match="neither"):
        peer_calls.fa3_paged(inputs())


class FakeFlashInfer:
    """The convention of FlashInfer's wrapper: pages of sequence i are indices[indptr[i] : ...]."""

    def __init__(
        self, workspace: torch.Tensor, layout: str, *, use_cuda_graph: bool,
        use_tensor_cores: bool, paged_kv_indptr_buffer: torch.Tensor,
        paged_kv_indices_buffer: torch.Tensor, paged_kv_last_page_len_buffer: torch.Tensor,
    ) -> None:  # fmt: skip
        assert layout == "NHD"
        assert use_cuda_graph
        assert len(paged_kv_indptr_buffer) == len(paged_kv_last_page_len_buffer) + 1

    def plan(
        self, indptr: torch.Tensor, indices: torch.Tensor, last: torch.Tensor, heads: int,
        kv_heads: int, head_dim: int, page_size: int, *, q_data_type: torch.dtype,
        kv_data_type: torch.dtype, sm_scale: float,
    ) -> None:  # fmt: skip
        assert indptr.dtype == indices.dtype == last.dtype == torch.int32
        counts = (indptr[1:] - indptr[:-1]).tolist()
        self.tables = torch.nn.utils.rnn.pad_sequence(indices.split(counts), batch_first=True)
        self.lens = ((indptr[1:] - indptr[:-1] - 1) * page_size + last).int()
        self.scale, self.shape = sm_scale, (heads, kv_heads, head_dim, page_size)

    def run(self, query: torch.Tensor, cache: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        assert self.shape == (query.shape[1], cache[0].shape[2], query.shape[2], cache[0].shape[1])
        return reference.paged_decode(
            query, *cache, self.tables, self.lens, scale=self.scale, layout="nhd"
        ).to(query.dtype)


@pytest.mark.parametrize("tensor_cores", [True, False])
def test_flashinfer_gets_its_arguments(tensor_cores: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_on_a_gpu(monkeypatch)
    monkeypatch.setenv("FLASHINFER_CUDA_ARCH_LIST", "9.0a")
    module(monkeypatch, "flashinfer", BatchDecodeWithPagedKVCacheWrapper=FakeFlashInfer)

    def make(inputs: Inputs) -> PeerCall:
        return peer_calls.flashinfer(inputs, tensor_cores=tensor_cores)

    assert row_of(make)["status"] == "measured"


def install_xformers(monkeypatch: pytest.MonkeyPatch, block_n: int) -> None:
    class Mask:
        @staticmethod
        def from_seqlens(**arguments: Any) -> dict[str, Any]:
            return arguments

    class FwOp:
        BLOCK_N = block_n

    def forward(
        query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *,
        attn_bias: dict[str, Any], scale: float, op: type,
    ) -> torch.Tensor:  # fmt: skip
        """[1, batch, kv_heads, group, d] over [1, pages * size, kv_heads, group, d]."""
        assert op is FwOp
        assert attn_bias["q_seqlen"] == [1] * query.shape[1]
        size = attn_bias["page_size"]
        keys, values = (each[0, :, :, 0].unflatten(0, (-1, size)) for each in (key, value))
        lens = torch.tensor(attn_bias["kv_seqlen"], dtype=torch.int32)
        found = reference.paged_decode(
            query[0].flatten(1, 2), keys, values, attn_bias["block_tables"], lens,
            scale=scale, layout="nhd",
        )  # fmt: skip
        return found.to(query.dtype).view(query.shape)

    module(monkeypatch, "xformers.ops.fmha", memory_efficient_attention_forward=forward)
    module(monkeypatch, "xformers.ops.fmha.triton_splitk", FwOp=FwOp)
    module(monkeypatch, "xformers.ops.fmha.attn_bias", PagedBlockDiagonalPaddedKeysMask=Mask)
    for name in ("xformers", "xformers.ops"):
        module(monkeypatch, name, __path__=[])


def test_xformers_gets_its_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_on_a_gpu(monkeypatch)
    install_xformers(monkeypatch, block_n=8)
    assert row_of(peer_calls.xformers_paged)["status"] == "measured"


def test_xformers_takes_no_small_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_on_a_gpu(monkeypatch)
    install_xformers(monkeypatch, block_n=64)
    row = row_of(peer_calls.xformers_paged)
    assert (row["status"], row["why"]) == ("unavailable", "wants blocks of a multiple of 64 tokens")


def test_flex_attention_uncompiled_is_right(monkeypatch: pytest.MonkeyPatch) -> None:
    as_if_on_a_gpu(monkeypatch)
    monkeypatch.setattr(torch, "compile", lambda function, dynamic: attention)
    row = row_of(peer_calls.flex_attention, paged=False)
    assert row["status"] == "measured"


def attention(
    query: torch.Tensor, key: torch.Tensor, value: torch.Tensor, *, scale: float, enable_gqa: bool
) -> torch.Tensor:
    return torch.nn.functional.scaled_dot_product_attention(
        query, key, value, scale=scale, enable_gqa=enable_gqa
    )


def test_a_gpu_is_needed_where_one_is() -> None:
    for make in (peer_calls.flex_attention, peer_calls.xformers_paged):
        assert row_of(make)["why"] == "runs on CUDA"
