"""How many tokens a physical page holds: exact, from the model's shape."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kvsim.catalog import GqaAttention, LayerGroup, Model, get_model, tokens_per_page
from kvsim.errors import InputError


@pytest.mark.parametrize(
    ("page_kib", "tp", "width", "tokens"),
    [
        (64, 1, None, 32),
        (64, 2, None, 64),
        (64, 8, None, 256),
        (2048, 1, None, 1024),
        (2048, 2, None, 2048),
        (2048, 8, None, 8192),
        (2048, 16, None, 8192),
        (128, 1, None, 64),
        (256, 1, None, 128),
        (2048, 1, 1, 2048),
    ],
)
def test_tokens_per_page_of_llama_3_8b(
    page_kib: int, tp: int, width: int | None, tokens: int
) -> None:
    """page_bytes / (max(1, 8 / tp) heads x 128 x bytes); vAttention has 32 to 128 at 64 KiB."""
    model = get_model("llama-3-8b")
    assert tokens_per_page(model, page_kib, tp=tp, kv_dtype_bytes=width) == tokens


def _with_attention(**changes: int) -> Model:
    model = get_model("llama-3-8b")
    assert isinstance(model.attention, GqaAttention)
    return replace(model, groups=(LayerGroup(32, replace(model.attention, **changes), None),))


def test_a_page_that_holds_no_whole_number_of_tokens_is_refused_with_those_that_do() -> None:
    odd = _with_attention(head_dim=96, v_head_dim=96)
    with pytest.raises(InputError, match="holds no whole number of tokens") as caught:
        tokens_per_page(odd, 64)
    assert (caught.value.where, caught.value.fix) == ("page_kib", "Use paged memory")
    wide = _with_attention(kv_heads=32, head_dim=2048, v_head_dim=2048)
    with pytest.raises(InputError, match="131072 bytes per token on each GPU") as caught:
        tokens_per_page(wide, 64)
    assert caught.value.fix == "Use pages of 128 or 256 or 2048 KiB"


def test_models_without_equal_k_and_v_in_every_layer_are_refused() -> None:
    with pytest.raises(InputError, match="latent attention, which keeps one tensor per layer"):
        tokens_per_page(get_model("deepseek-v3"), 2048)
    with pytest.raises(InputError, match="K and V of different widths"):
        tokens_per_page(_with_attention(v_head_dim=64), 2048)
    groups = (*_with_attention(kv_heads=4).groups, *get_model("llama-3-8b").groups)
    with pytest.raises(InputError, match="layers with different KV bytes per token"):
        tokens_per_page(replace(get_model("llama-3-8b"), groups=groups), 2048)
