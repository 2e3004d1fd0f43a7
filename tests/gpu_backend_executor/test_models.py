"""The decoders around the attention: one model in two libraries, and padding that changes nothing.

The attention in these tests is a dense one in numpy.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from gpu_backend.executor import ModelShape, cpu_model
from gpu_backend.executor.padding import padded_rows
from gpu_backend.executor.runtime import Settings
from tests.gpu_backend_executor.runs import run, tight

SHAPE = ModelShape(hidden=64, heads=6, kv_heads=2, head_dim=16, intermediate=96, vocab=499)
COUNTS = (67, 33, 7, 5, 4, 3, 2, 1)
"""Tokens, fewer each time: what a larger step left behind lies in the padding."""


def attention(query: Any, key: Any, value: Any) -> Any:
    """Causal, of one sequence from its first token on."""
    group = query.shape[1] // key.shape[1]
    key, value = key.repeat(group, axis=1), value.repeat(group, axis=1)
    scores = np.einsum("phd,chd->hpc", query, key) * query.shape[2] ** -0.5
    scores += np.triu(np.full(scores.shape[1:], -np.inf), 1)
    weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
    weights /= weights.sum(axis=-1, keepdims=True)
    return np.einsum("hpc,chd->phd", weights, value)


def padded_attention(count: int, rows: int) -> Callable[..., Any]:
    """What a model asks for: sees `count` tokens, answers with `rows` rows."""

    def attend(layer: int, query: Any, key: Any, value: Any) -> Any:
        assert len(query) == len(key) == len(value) == count
        out = np.zeros((rows, *query.shape[1:]), np.float32)
        out[:count] = attention(query, key, value)
        return out

    return attend


def tokens_of(count: int) -> tuple[Any, Any, Any]:
    """Tokens, positions, and the indices after which one is sampled."""
    tokens = np.random.default_rng(count).integers(0, SHAPE.vocab, count)
    return tokens, np.arange(count), np.arange(count)[-3:]


def numpy_decoder() -> cpu_model.Decoder:
    return cpu_model.Decoder(SHAPE, layers=3, max_tokens=80, seed=5)


def numpy_logits(model: cpu_model.Decoder, count: int, rows: int) -> Any:
    return model.logits(*tokens_of(count), padded_attention(count, rows))


def unpadded(
    monkeypatch: pytest.MonkeyPatch, module: Any, compute: Callable[..., Any], *arguments: Any
) -> Any:
    with monkeypatch.context() as patch:
        patch.setattr(module, "padded_rows", lambda n: n)
        return compute(*arguments)


def test_rows_are_padded_to_few_counts() -> None:
    assert [padded_rows(n) for n in range(6)] == [0, 1, 2, 4, 4, 8]
    assert [padded_rows(n) for n in (61, 64, 65, 72, 73)] == [64, 64, 72, 72, 80]
    assert all(n <= padded_rows(n) < n + 8 for n in range(300))


def test_padding_changes_no_row_in_numpy(monkeypatch: pytest.MonkeyPatch) -> None:
    model = numpy_decoder()
    for count in COUNTS:
        found = numpy_logits(model, count, padded_rows(count))
        expected = unpadded(monkeypatch, cpu_model, numpy_logits, numpy_decoder(), count, count)
        assert found.shape == (min(count, 3), SHAPE.vocab)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_padding_changes_no_sampled_token_of_a_run(monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("numba")
    from gpu_backend.executor import cpu

    def outputs() -> list[int]:
        found: list[int] = []

        def listen(executor: Any) -> None:
            step_seconds = executor.step_seconds

            def listening(plan: Any) -> float:
                seconds: float = step_seconds(plan)
                found.extend(executor.sampled.tolist())
                return seconds

            executor.step_seconds = listening

        run(tight, prepare=listen, check_every=0)
        return found

    padded = outputs()
    assert len(set(padded)) > 20
    monkeypatch.setattr(cpu, "padded_rows", lambda n: n)
    assert unpadded(monkeypatch, cpu_model, outputs) == padded


def torch_decoder() -> Any:
    """`numpy_decoder` in torch."""
    torch = pytest.importorskip("torch")
    from gpu_backend.executor.torch_model import TorchDecoder

    settings = Settings(SHAPE, layers=3, rows=4, max_tokens=80)
    model, source = TorchDecoder(settings, torch.float32, torch.device("cpu")), numpy_decoder()
    model.embedding.copy_(torch.from_numpy(source.embedding))
    model.final_norm.copy_(torch.from_numpy(source.final_norm))
    for mine, other in zip(model.layers, source.layers, strict=True):
        for tensor, array in zip(mine, other, strict=True):
            tensor.copy_(
                torch.from_numpy(array).t() if array.ndim == 2 else torch.from_numpy(array)
            )
    return model


def torch_logits(model: Any, count: int, rows: int) -> Any:
    torch = pytest.importorskip("torch")
    from gpu_backend.executor.torch_staging import DeviceInputs

    attend = padded_attention(count, rows)
    tokens, positions, sampled = (torch.from_numpy(array) for array in tokens_of(count))
    none = torch.empty(0)
    inputs = DeviceInputs(count, tokens, positions, none, sampled, none, none, none)

    def in_numpy(layer: int, *tensors: Any) -> Any:
        return torch.from_numpy(attend(layer, *(tensor.numpy() for tensor in tensors)))

    return model.logits(inputs, in_numpy).numpy()


def test_the_decoder_in_torch_is_the_decoder_in_numpy() -> None:
    ours, theirs = torch_decoder(), numpy_decoder()
    for count in COUNTS:
        rows = padded_rows(count)
        found, expected = torch_logits(ours, count, rows), numpy_logits(theirs, count, rows)
        assert np.abs(expected).max() > 5
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_padding_changes_no_row_in_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    model = torch_decoder()
    from gpu_backend.executor import torch_model

    for count in COUNTS:
        found = torch_logits(model, count, padded_rows(count))
        expected = unpadded(monkeypatch, torch_model, torch_logits, torch_decoder(), count, count)
        np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-4)


def test_what_the_reference_reads_of_a_torch_decoder_is_its_weights() -> None:
    ours, theirs = torch_decoder().weights(), numpy_decoder().weights()
    tokens = np.array([3, 498, 3])
    np.testing.assert_array_equal(ours.rows(tokens), theirs.rows(tokens))
    assert theirs.projection is not None
    for mine, other in zip(ours.projection(), theirs.projection(), strict=True):
        np.testing.assert_array_equal(mine, other)
