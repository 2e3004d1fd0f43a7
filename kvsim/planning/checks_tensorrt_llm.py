"""The figures of a TensorRT-LLM log against its rules and the model's bytes."""

from __future__ import annotations

from collections.abc import Iterator

from kvsim.catalog import GIB, Model, kv_bytes_per_token
from kvsim.errors import InputError
from kvsim.planning.checks import Check, check, number, whole
from kvsim.planning.fractions import why_tokens_differ
from kvsim.startup_logs import StartupLog

_GPUS = (1, 2, 4, 8, 16)


def checks_of(log: StartupLog, model: Model | None) -> tuple[list[Check], list[str]]:
    """Checks, and notes on what cannot be checked. Raises `InputError` as the model's bytes do."""
    notes = [why_tokens_differ("tensorrt-llm")]
    if len(_windows(log)) > 1:
        notes.append("blocks of several windows share the memory: tokens are not checked")
        return [], notes
    token_bytes = _token_bytes(log, model, notes)
    found = [*_whole_blocks(log), *_fraction(log, token_bytes, notes), *_printed_bytes(log, model)]
    if token_bytes is not None:
        found += [*_size(log, *token_bytes), *_available(log, *token_bytes)]
    return found, notes


def _windows(log: StartupLog) -> set[str]:
    """Windows whose blocks the log prints."""
    blocks = log.figures.get("num_gpu_blocks")
    workers = [one.worker or "" for one in blocks.readings] if blocks else []
    return {name.rpartition("window ")[2] for name in workers if "window " in name}


def _choices(model: Model) -> dict[int, str]:
    """Bytes of a token on one GPU: a log names neither the GPUs nor the cache's type."""
    choices: dict[int, str] = {}
    for kv_dtype_bytes in (model.kv_dtype_bytes, 1):
        for tp in _GPUS:
            try:
                token_bytes = kv_bytes_per_token(model, tp=tp, kv_dtype_bytes=kv_dtype_bytes)
            except InputError:
                continue  # heads that so many GPUs cannot share
            choices.setdefault(token_bytes, f"{model.name}, tp {tp}, {8 * kv_dtype_bytes} bits")
    return choices


def _token_bytes(log: StartupLog, model: Model | None, notes: list[str]) -> tuple[int, str] | None:
    """Bytes of a token on one GPU and where they are from: as printed, else the model's that fit.

    Where none fits those of one GPU at the model's own type, which then do not agree.
    """
    printed = number(log.settings.get("kv_bytes_per_token"))
    if printed is not None:
        return int(printed[0]), "as printed"
    size, tokens = (number(log.figures.get(name)) for name in ("kv_size_gib", "kv_tokens"))
    if model is None or size is None or tokens is None:
        return None
    notes.append("the log names neither tensor parallel size nor cache type: those that fit")
    low, high = ((size[0] + way * size[1]) * GIB for way in (-1, 1))
    choices = _choices(model)
    fits = [one for one in choices if low <= one * tokens[0] <= high]
    taken = (fits or list(choices))[0]
    return taken, choices[taken]


def _printed_bytes(log: StartupLog, model: Model | None) -> Iterator[Check]:
    """The bytes of a token, where printed, are the model's on some number of GPUs."""
    found = log.settings.get("kv_bytes_per_token")
    printed = number(found)
    if found is None or printed is None or model is None:
        return
    choices = _choices(model)
    taken = int(printed[0]) if int(printed[0]) in choices else next(iter(choices))
    yield check("kv_bytes_per_token", found, taken, taken, choices[taken])


def _whole_blocks(log: StartupLog) -> Iterator[Check]:
    """Tokens are blocks times their size, or a multiple of it where no blocks are printed."""
    tokens, blocks = log.figures.get("kv_tokens"), number(log.figures.get("num_gpu_blocks"))
    printed, size = number(tokens), whole(log, "block_size", 0)
    if tokens is None or printed is None or size < 1:
        return
    if blocks is None:
        expected = printed[0] // size * size
        yield check("kv_tokens", tokens, expected, expected, f"whole blocks of {size} tokens")
    else:
        expected = blocks[0] * size
        yield check("kv_tokens", tokens, expected, expected, f"num_gpu_blocks * {size}")


def _size(log: StartupLog, token_bytes: int, source: str) -> Iterator[Check]:
    size, tokens = log.figures.get("kv_size_gib"), number(log.figures.get("kv_tokens"))
    if size is None or tokens is None:
        return
    expected = tokens[0] * token_bytes / GIB
    how = f"kv_tokens * {token_bytes:,} bytes of a token, {source}"
    yield check("kv_size_gib", size, expected, expected, how)


def _available(log: StartupLog, token_bytes: int, source: str) -> Iterator[Check]:
    """Tokens are the whole blocks in the memory, or fewer where max_tokens asks for fewer.

    Early releases round the last block up.
    """
    tokens, pool = log.figures.get("kv_tokens"), number(log.figures.get("available_kv_gib"))
    size, cap = whole(log, "block_size", 0), number(log.settings.get("max_tokens"))
    if tokens is None or pool is None or size < 1 or token_bytes < 1:
        return
    block_bytes = size * token_bytes
    low = int((pool[0] - pool[1]) * GIB) // block_bytes * size
    high = -(-int((pool[0] + pool[1]) * GIB) // block_bytes) * size
    if cap is not None:
        low = min(low, -(-int(cap[0]) // size) * size)
    how = f"available_kv_gib / {block_bytes:,} bytes of a block, {source}"
    yield check("kv_tokens", tokens, low, high, how)


def _fraction(
    log: StartupLog, token_bytes: tuple[int, str] | None, notes: list[str]
) -> Iterator[Check]:
    """The pool is the fraction of what loading left free, less at most a block."""
    free, size = log.figures.get("free_before_kv_gib"), log.figures.get("kv_size_gib")
    left, share = number(free), number(log.settings.get("free_gpu_memory_fraction"))
    if left is None or share is None or size is None:
        notes.append(
            "the log does not print both the fraction and what loading leaves free: how the pool's"
            " size follows from them is not checked"
        )
        return
    if log.settings.get("max_tokens") is not None:
        notes.append("max_tokens may hold the pool below the fraction: that is not checked")
        return
    block = whole(log, "block_size", 64) * token_bytes[0] / GIB if token_bytes else 0.05
    low, high = ((left[0] + way * left[1]) * share[0] for way in (-1, 1))
    how = "free_gpu_memory_fraction * free_before_kv_gib, in whole blocks"
    yield check("kv_size_gib", size, low - block, high + block, how)
