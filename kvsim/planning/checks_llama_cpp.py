"""The figures of a llama.cpp log against its rules and the model's bytes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from kvsim.catalog import GIB, GatedDeltaNet, GqaAttention, LayerGroup, Model
from kvsim.planning import llama_cpp
from kvsim.planning.checks import Check, check, number, whole
from kvsim.planning.fractions import FRACTIONS
from kvsim.startup_logs import StartupLog


def checks_of(log: StartupLog, model: Model | None) -> tuple[list[Check], list[str]]:
    """Checks, and notes on what cannot be checked. Raises `InputError` as the model's bytes do."""
    notes = [FRACTIONS["llama.cpp"], "weights and compute buffers are shown as printed"]
    found = [*_cells(log), *_buffers(log)]
    if model is None:
        return found, notes
    if any(not isinstance(g.attention, GqaAttention) for g in model.groups if g.keeps_text):
        notes.append("releases keep a latent cache in different ways: its bytes are not checked")
        return found, notes
    return [*found, *_sizes(log, model, notes), *_window(log, model), *_states(log, model)], notes


def _streams(log: StartupLog) -> int:
    """Sequences with cells of their own: all, unless the cache is unified."""
    unified = log.settings.get("kv_unified")
    if unified is not None and unified.value is False:
        return max(1, whole(log, "n_seq_max", 1))
    own, context = (number(log.settings.get(name)) for name in ("n_ctx_seq", "n_ctx"))
    if own is None or context is None or not own[0]:
        return 1
    return max(1, round(context[0] / own[0]))


def _cells(log: StartupLog) -> Iterator[Check]:
    """Cells are the context, padded: as a whole, or each sequence's part."""
    tokens, context = log.figures.get("kv_tokens"), number(log.settings.get("n_ctx"))
    if tokens is None or context is None or context[0] < 1:
        return
    most = max(
        streams * llama_cpp.full_cells(int(context[0]), streams=streams)
        for streams in (1, _streams(log))
    )
    yield check("kv_tokens", tokens, context[0], most, "n_ctx, padded to 256 cells")


def _buffers(log: StartupLog) -> Iterator[Check]:
    """What the devices hold is the size of the cache."""
    size, buffers = log.figures.get("kv_size_gib"), log.figures.get("kv_buffer_gib")
    printed = number(buffers)
    if size is None or buffers is None or printed is None or "buffer" in size.chosen.source:
        return
    low, high = printed[0] - printed[1], printed[0] + printed[1]
    yield check("kv_size_gib", size, low, high, "KV buffers of all devices")


def _types(log: StartupLog) -> list[tuple[str, str]]:
    """Types of keys and values; logs of 2023 print none, and some bindings then used f32."""
    found = log.settings.get("kv_cache_dtype")
    if found is None or found.value is None:
        return [("f16", "f16"), ("f32", "f32")]
    keys, _, values = str(found.value).partition("/")
    return [(keys, values or keys)]


def _sizes(log: StartupLog, model: Model, notes: list[str]) -> Iterator[Check]:
    """Cells times the bytes of the layers, of each of the pools where there are two."""
    kept = [group for group in model.groups if group.keeps_text]
    cells = number(log.figures.get("kv_tokens")) or number(log.settings.get("n_ctx"))
    windows = number(log.figures.get("kv_swa_tokens"))
    if cells is None:
        return
    pools: list[tuple[str, list[LayerGroup], float]] = [("kv_size_gib", kept, cells[0])]
    if windows is not None:
        full = [group for group in kept if group.limit_tokens is None]
        limited = [group for group in kept if group.limit_tokens is not None]
        pools = [("kv_full_gib", full, cells[0]), ("kv_swa_gib", limited, windows[0])]
    for name, groups, tokens in pools:
        size = log.figures.get(name)
        if size is None:
            continue
        choices = _types(log)
        every = []
        for keys, values in choices:
            expected = sum(_pool_bytes(one, int(tokens), keys, values) for one in groups) / GIB
            how = f"{int(tokens):,} cells of {model.name}'s layers, K {keys}, V {values}"
            every.append(check(name, size, expected, expected, how))
        if len(choices) > 1:
            notes.append("the log prints no cache type: f16 or f32")
        yield next((one for one in every if one.agrees), every[0])


def _pool_bytes(group: LayerGroup, tokens: int, keys: str, values: str) -> int:
    attention = group.attention
    if not isinstance(attention, GqaAttention):
        return 0
    return llama_cpp.pool(
        tokens,
        layers=group.layers,
        k_elements=attention.kv_heads * attention.head_dim,
        v_elements=attention.kv_heads * attention.v_head_dim,
        k_type=keys,
        v_type=values,
    ).kv_bytes


def _window(log: StartupLog, model: Model) -> Iterator[Check]:
    """Cells of layers with a window: the window and a batch, padded."""
    swa, cells = log.figures.get("kv_swa_tokens"), number(log.figures.get("kv_tokens"))
    batch = number(log.settings.get("n_ubatch"))
    limits = {group.limit_tokens for group in model.groups if group.limit_tokens is not None}
    if swa is None or cells is None or batch is None or len(limits) != 1:
        return
    if swa.value == cells[0]:
        return  # asked for with --swa-full
    window, sequences = limits.pop(), whole(log, "n_seq_max", 1)
    shared = llama_cpp.window_cells(
        int(cells[0]), window=window, n_ubatch=int(batch[0]), sequences=sequences
    )
    streams = _streams(log)
    apart = streams * llama_cpp.window_cells(
        int(cells[0]) // streams, window=window, n_ubatch=int(batch[0])
    )
    expected = apart if swa.value == apart else shared
    how = f"window of {window} and n_ubatch, padded to 256 cells"
    yield check("kv_swa_tokens", swa, expected, expected, how)


def _states(log: StartupLog, model: Model) -> Iterator[Check]:
    """States of linear attention are kept in f32, one per sequence."""
    states = log.figures.get("state_gib")
    kept = [group for group in model.groups if group.kind == "state"]
    if states is None or not kept:
        return
    per_sequence = 0
    for group in kept:
        if not isinstance(group.attention, GatedDeltaNet):
            return
        size = llama_cpp.STATE_ELEMENT_BYTES
        wide = replace(group.attention, state_dtype_bytes=size, conv_dtype_bytes=size)
        per_sequence += group.layers * wide.state_bytes(1)
    expected = whole(log, "n_seq_max", 1) * per_sequence / GIB
    how = f"n_seq_max * {per_sequence:,} bytes of states in f32"
    yield check("state_gib", states, expected, expected, how)
