"""Constants of a device that were measured for one model: what `kvsim calibrate` writes."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from kvsim.catalog.json_size import check_json_size
from kvsim.errors import InputError

FORMAT = "kvsim-profile-1"
MAX_BYTES = 4_000_000
MAX_LISTS = 100_000
"""Lists and objects of a file; its tables have two with `MAX_SIZES` pairs."""
MAX_VALUES = 1_000_000
MAX_SIZES = 4096
MAX_SECONDS = 1e6
MAX_TOKENS = 100_000_000
_REMEASURE = "Measure it again with `kvsim calibrate`"


class LayoutConstants(NamedTuple):
    """Attention over all layers in one KV layout, in seconds."""

    decode_s: float
    """Per step without chunks, beyond the table of tokens."""
    decode_row_s: float
    """Per decode of a step without chunks."""
    decode_context_s: float
    """Per token of context that these decodes read."""
    prefill_s: float
    """Per step with chunks, beyond the table of tokens."""
    chunk_s: float
    """Per chunk."""
    pair_s: float
    """Per (new token, token it attends to) of a chunk, its own later tokens excluded."""
    prior_s: float
    """Per prior token of a chunk."""
    mixed_row_s: float
    """Per decode of a step with chunks."""
    mixed_context_s: float
    """Per token of context that these decodes read."""
    copy_s: float
    """Per token moved inside the device."""


class Constants(NamedTuple):
    """Everything the clock of a profile computes with, in seconds."""

    tokens: tuple[tuple[int, float], ...]
    """(tokens computed in a step, seconds): matrix products, elementwise work and the host. A table
    and no formula, since such times have steps: batches are padded, tiles are quantised. Linear
    between the sizes, and past the last one as between the last two."""
    rows: tuple[tuple[int, float], ...]
    """(sequences that sample a token, seconds): the head and the sampler, likewise."""
    layouts: dict[str, LayoutConstants]
    """By `paged-16`, `contiguous` and the like."""


class Profile(NamedTuple):
    """A profile file."""

    constants: Constants
    model: str
    device: str
    max_tokens: int
    """Most tokens of a step that was measured."""
    error_median: float
    """Relative error on measured steps that were not fitted."""
    error_p90: float
    sha256: str
    """Digest of the profile, as `digest` computes it."""
    document: dict[str, Any]
    """The whole file."""


def layout_key(block_size: int | None) -> str:
    """The name of paged memory with blocks of so many tokens; None: of contiguous memory."""
    return "contiguous" if block_size is None else f"paged-{block_size}"


def digest(document: Mapping[str, Any]) -> str:
    """SHA-256 of a profile's content, whatever its layout; its own `sha256` is left out."""
    content = {key: value for key, value in document.items() if key != "sha256"}
    text = json.dumps(content, sort_keys=True, separators=(",", ":"), allow_nan=False)
    return hashlib.sha256(text.encode()).hexdigest()


def read_profile(path: Path, *, sha256: str | None = None) -> Profile:
    """The profile in a file; with `sha256` only if it is that one.

    Raises `InputError` for a file that is missing, too large, not a profile, or changed since it
    was written.
    """
    where = str(path)
    try:
        with path.open("rb") as file:
            content = file.read(MAX_BYTES + 1)
    except OSError as error:
        raise InputError(f"cannot be read: {error.strerror}", where=where) from None
    except ValueError:
        raise InputError("leads nowhere", where=where, fix="Give the path of a file") from None
    if len(content) > MAX_BYTES:
        raise InputError(
            f"is larger than {MAX_BYTES} bytes, the limit of a profile", where=where, fix=_REMEASURE
        )
    check_json_size(content, where, max_lists=MAX_LISTS, max_values=MAX_VALUES, fix=_REMEASURE)
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        problem = str(error) if isinstance(error, json.JSONDecodeError) else "too deep or not UTF-8"
        raise InputError(f"is not JSON: {problem}", where=where, fix=_REMEASURE) from None
    return profile_from(document, where=where, sha256=sha256)


def profile_from(document: Any, *, where: str, sha256: str | None = None) -> Profile:
    """A checked profile. Raises `InputError` naming the part that is wrong."""
    if not isinstance(document, dict) or document.get("format") != FORMAT:
        raise InputError(
            f"is not a profile: its `format` is not {FORMAT!r}",
            where=where,
            fix="`kvsim calibrate` writes profiles",
        )
    reader = _Reader(where)
    found = _digest(document, reader)
    stated = document.get("sha256")
    if stated != found:
        raise reader.wrong("sha256", f"is {str(stated)[:80]!r}, the content has {found}")
    if sha256 is not None and sha256 != found:
        raise reader.wrong("sha256", f"is {found}, the scenario asks for {sha256}")
    constants = reader.mapping(document, "constants")
    errors = reader.mapping(reader.mapping(document, "errors"), "held_out", "errors.")
    _check_rest(document, reader)
    return Profile(
        _constants(constants, reader),
        reader.text(reader.mapping(document, "model"), "name", "model."),
        reader.text(reader.mapping(document, "device"), "name", "device."),
        reader.count(reader.mapping(document, "limits"), "max_num_batched_tokens", "limits."),
        reader.number(errors, "median", "errors.held_out."),
        reader.number(errors, "p90", "errors.held_out."),
        found,
        document,
    )


def _check_rest(document: dict[str, Any], reader: _Reader) -> None:
    """What a validation reads, long after it has begun to measure."""
    reader.text(reader.mapping(document, "device"), "mode", "device.")
    reader.count(reader.mapping(document, "model"), "layers", "model.")
    limits = reader.mapping(document, "limits")
    for name in ("max_num_seqs", "max_num_batched_tokens", "max_model_len", "slots"):
        reader.count(limits, name, "limits.")
    depths = document.get("measured_layers")
    if not isinstance(depths, list) or not 1 <= len(depths) <= 2:
        raise reader.wrong("measured_layers", "must be a list of one or two depths")
    for depth in depths:
        reader.count({"depth": depth}, "depth", "measured_layers: ")
    errors = reader.mapping(document, "errors")
    by_kind = reader.mapping(errors, "held_out_by_kind", "errors.")
    rows = [(errors, name) for name in ("fitted", "held_out")]
    rows += [(by_kind, name) for name in by_kind]
    if errors.get("depth_check") is not None:
        rows.append((errors, "depth_check"))
    for values, name in rows:
        _check_errors(reader.mapping(values, name, "errors."), f"errors.{name[:40]}.", reader)
    _check_errors(reader.mapping(document, "noise"), "noise.", reader)
    _check_probe(document.get("probe"), reader)


def _check_errors(values: dict[str, Any], prefix: str, reader: _Reader) -> None:
    for name in ("points", "median", "p90"):
        reader.number(values, name, prefix)
    bias = values.get("bias")
    reader.number({"bias": abs(bias) if isinstance(bias, int | float) else bias}, "bias", prefix)


def _check_probe(probe: Any, reader: _Reader) -> None:
    if not isinstance(probe, list) or not 1 <= len(probe) <= MAX_SIZES:
        raise reader.wrong("probe", f"must be a list of 1 to {MAX_SIZES} batches")
    for entry in probe:
        if not isinstance(entry, dict) or not reader.number(entry, "wall_s", "probe: "):
            raise reader.wrong("probe", "must hold batches that take more than 0 s")
        reader.text(entry, "layout", "probe: ")
        reader.count(entry, "layers", "probe: ")
        point = reader.mapping(entry, "point", "probe: ")
        chunks, decodes = point.get("chunks"), point.get("decodes")
        if not isinstance(chunks, list) or not isinstance(decodes, list):
            raise reader.wrong("probe", "must hold lists of decodes and chunks")
        if not all(isinstance(chunk, list) and len(chunk) == 2 for chunk in chunks):
            raise reader.wrong("probe", "must hold chunks of [new, prior] tokens")
        reader.number(point, "copy_tokens", "probe: ")
        for new, prior in [(context, 0) for context in decodes] + chunks:
            reader.count({"tokens": new}, "tokens", "probe: ")
            reader.number({"prior": prior}, "prior", "probe: ")


def _digest(document: dict[str, Any], reader: _Reader) -> str:
    try:
        return digest(document)
    except (ValueError, RecursionError):
        raise reader.wrong("content", "holds a number that is not finite, or is too deep") from None


def _constants(constants: Mapping[str, Any], reader: _Reader) -> Constants:
    layouts = reader.mapping(constants, "layouts", "constants.")
    if not 1 <= len(layouts) <= MAX_SIZES:
        raise reader.wrong("constants.layouts", f"must have 1 to {MAX_SIZES}, got {len(layouts)}")
    return Constants(
        _table(constants, "tokens", reader),
        _table(constants, "rows", reader),
        {name: _layout(layouts, name, reader) for name in layouts},
    )


def _layout(layouts: Mapping[str, Any], name: str, reader: _Reader) -> LayoutConstants:
    prefix = f"constants.layouts.{name[:40]}."
    values = reader.mapping(layouts, name, "constants.layouts.")
    return LayoutConstants(
        *(reader.number(values, field, prefix) for field in LayoutConstants._fields)
    )


def _table(
    constants: Mapping[str, Any], name: str, reader: _Reader
) -> tuple[tuple[int, float], ...]:
    where, table = f"constants.{name}", constants.get(name)
    if not isinstance(table, list) or not 1 <= len(table) <= MAX_SIZES:
        raise reader.wrong(where, f"must be a list of 1 to {MAX_SIZES} [{name}, seconds]")
    rows: list[tuple[int, float]] = []
    for row in table:
        if not isinstance(row, list) or len(row) != 2:
            raise reader.wrong(where, f"must hold [{name}, seconds], got {str(row)[:80]}")
        size = reader.count({name: row[0]}, name, f"{where}: ")
        if rows and size <= rows[-1][0]:
            raise reader.wrong(where, f"must have ascending sizes, got {size} after {rows[-1][0]}")
        rows.append((size, reader.number({"seconds": row[1]}, "seconds", f"{where}: ")))
    return tuple(rows)


class _Reader:
    """Checked access to the values of a profile."""

    def __init__(self, where: str) -> None:
        self._where = where

    def wrong(self, key: str, problem: str) -> InputError:
        """The error about one part."""
        return InputError(f"{key} {problem}", where=self._where, fix=_REMEASURE)

    def mapping(self, values: Mapping[str, Any], key: str, prefix: str = "") -> dict[str, Any]:
        """A mapping."""
        value = values.get(key)
        if not isinstance(value, dict):
            raise self.wrong(prefix + key, "must be a mapping")
        return value

    def text(self, values: Mapping[str, Any], key: str, prefix: str = "") -> str:
        """A short text."""
        value = values.get(key)
        if not isinstance(value, str) or not 1 <= len(value) <= 200 or not value.isprintable():
            raise self.wrong(prefix + key, "must be a printable text of 1 to 200 characters")
        return value

    def number(self, values: Mapping[str, Any], key: str, prefix: str = "") -> float:
        """A number of seconds, or a ratio, from 0 on."""
        value = values.get(key)
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise self.wrong(prefix + key, f"must be a number, got {str(value)[:80]}")
        if not 0 <= value <= MAX_SECONDS or not math.isfinite(value):
            raise self.wrong(prefix + key, f"must be in 0..{MAX_SECONDS:g}, got {value}")
        return float(value)

    def count(self, values: Mapping[str, Any], key: str, prefix: str = "") -> int:
        """A whole number from 1 on."""
        value = values.get(key)
        if type(value) is not int or not 1 <= value <= MAX_TOKENS:
            raise self.wrong(
                prefix + key, f"must be a whole number in 1..{MAX_TOKENS}, got {str(value)[:80]}"
            )
        return value
