"""Which layers have a time by shape, and what chunks of attention read."""

from __future__ import annotations

import pytest

from kvsim.catalog import get_gpu, get_model, kv_bytes_per_token
from kvsim.cost import CalibratedClock, RooflineClock
from kvsim.errors import InputError


@pytest.mark.parametrize("clock", [RooflineClock, CalibratedClock])
def test_linear_attention_has_no_time_by_shape(
    clock: type[RooflineClock] | type[CalibratedClock],
) -> None:
    with pytest.raises(InputError, match="linear-attention layers have no time") as error:
        clock(get_model("qwen3.5-27b"), get_gpu("h100"))
    assert error.value.fix


def test_beyond_a_chunk_only_the_other_layers_read_more() -> None:
    """12 of Llama 4's 48 layers read every token, 36 at most 8,192 of them."""
    model, gpu = get_model("llama-4-maverick"), get_gpu("h100")
    clock = RooflineClock(model, gpu, tp=8)
    token_s = kv_bytes_per_token(model, tp=8) / gpu.memory_bw
    short, full, long = (clock.decode_terms_s(1, tokens)[0] for tokens in (1, 8192, 108_192))
    assert full - short == pytest.approx(8191 * token_s)
    assert long - full == pytest.approx(100_000 * token_s * 12 / 48)
