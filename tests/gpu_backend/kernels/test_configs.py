"""The table of settings, and what a launch makes of it."""

from __future__ import annotations

import pytest
import torch

from gpu_backend import checks, configs, launches
from gpu_backend.launches import Attention


@pytest.mark.parametrize("name", ["sm_80", "sm_90", "default", "interpreter"])
@pytest.mark.parametrize("head_dim", [24, 64, 80, 128, 200, 256])
@pytest.mark.parametrize("element_bytes", [2, 4])
def test_every_class_has_settings_for_every_head_size(
    name: str, head_dim: int, element_bytes: int
) -> None:
    decode = configs.decode_config(name, head_dim, element_bytes)
    assert decode.chunk % decode.tile == 0
    assert configs.prefill_config(name, head_dim, element_bytes).rows >= 16


@pytest.mark.parametrize(
    ("capability", "name"), [((8, 0), "sm_80"), ((9, 0), "sm_90"), ((12, 0), "default")]
)
def test_a_gpu_is_known_by_its_capability(
    capability: tuple[int, int], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert configs.gpu_class(torch.device("cuda")) == name


@pytest.mark.parametrize(
    ("head_dim", "held"), [(1, 16), (16, 16), (24, 32), (64, 64), (80, 128), (256, 256)]
)
def test_head_sizes_are_padded_to_powers_of_two(head_dim: int, held: int) -> None:
    assert configs.padded(head_dim) == held


def test_settings_without_sense_are_refused() -> None:
    with pytest.raises(ValueError, match="tile 24 is no power of two"):
        configs.DecodeConfig(tile=24, chunk=48, warps=1, stages=1)
    with pytest.raises(ValueError, match="chunk 40 is no multiple of tile 16"):
        configs.DecodeConfig(tile=16, chunk=40, warps=1, stages=1)
    with pytest.raises(ValueError, match="rows 8 is no power of two from 16 on"):
        configs.PrefillConfig(rows=8, tile=16, warps=1, stages=1)


@pytest.mark.parametrize(
    ("context", "window", "chunks"),
    [(1, 0, 1), (512, 0, 1), (513, 0, 2), (8192, 0, 16), (8192, 512, 1), (8192, 513, 3)],
)
def test_a_context_is_split_by_what_is_visible_of_it(
    context: int, window: int, chunks: int
) -> None:
    cache = torch.empty(2, 16, 1, 64)
    table = torch.zeros(3, 512, dtype=torch.int32)
    view = checks.paged_view(cache, cache, table, "nhd")
    query = torch.empty(3, 4, 64)
    lens = torch.zeros(3, dtype=torch.int32)
    config = configs.decode_config("sm_90", 64, 2)
    attention = Attention(1.0, window=window)
    made = launches.decode_launches(query, query, view, lens, attention, context, config)
    assert made[0].grid == (1, chunks, 3)
    assert len(made) == (1 if chunks == 1 else 2)
