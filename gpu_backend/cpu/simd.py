"""LLVM vector code that numba does not write by itself, as small intrinsics.

LLVM vectorises plain numba loops, but it neither keeps a tile of accumulators in registers nor
prefetches a row that a block table names. Everything that the attention kernel needs beyond plain
loops is here: two register-tiled products over rows at given offsets, the two passes of a softmax,
a sum at full speed (the read ceiling) and a shared counter.

Arrays are flat, C-contiguous float32; an offset counts elements from the array's start. Nothing is
checked: the callers check shapes and block ids once per call.
"""

from __future__ import annotations

import hashlib
import math
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from llvmlite import ir
from numba.core import cgutils, types
from numba.extending import intrinsic

from gpu_backend.cpu import emit
from gpu_backend.cpu.emit import FAST, I32, I64, Code, Value, i64

TOKENS = 4
"""Keys per tile of `score_tile`: its scores are computed for a multiple of this many keys."""

_ROW_STEP = 16  # a row of scores may be read and written up to the next multiple of this
_EXP2 = (1.0, 6.931471806e-1, 2.402265069e-1, 5.550410866e-2, 9.618129e-3, 1.333356e-3, 1.540353e-4)
"""Taylor coefficients of 2^x: relative error below 2e-7 for |x| <= 0.5."""


def source_digest() -> int:
    """A number that changes with this code: numba's cache looks at the calling file only."""
    sources = b"".join(Path(file).read_bytes() for file in (__file__, emit.__file__))
    return int.from_bytes(hashlib.sha256(sources).digest()[:4], "big")


def _lanes(context: Any, dim: int) -> int:
    """Floats per vector: the widest register of the target that divides `dim`."""
    features = context.codegen().magic_tuple()[2]
    return math.gcd(dim, 16 if "+avx512f" in features else 8)


@intrinsic(prefer_literal=True)
def score_tile(
    typing: Any,
    query: Any,
    key: Any,
    offsets: Any,
    scores: Any,
    stride: Any,
    count: Any,
    ahead: Any,
    rows: Any,
    dim: Any,
) -> Any:
    """scores[r * stride + j] = query[r] . key[offsets[j]], for r < rows and j < count.

    query [rows, dim]; rows of `key` are contiguous and start at the offsets; `count` is rounded up
    to a multiple of TOKENS, so offsets and scores must reach that far. While row j is used, row
    j + ahead is prefetched (0: none; else `offsets` must be that much longer). `ahead`, `rows` and
    `dim` are compile-time constants.
    """
    lookahead, height, width = ahead.literal_value, rows.literal_value, dim.literal_value
    arguments = (query, key, offsets, scores, stride, count, ahead, rows, dim)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Value:
        code = Code(context, builder, _lanes(context, width))
        q, k, first, s = (
            code.at(kind, value) for kind, value in zip(signature.args[:4], values[:4], strict=True)
        )
        tiles = builder.sdiv(builder.add(values[5], i64(TOKENS - 1)), i64(TOKENS))
        with cgutils.for_range(builder, tiles, intp=I64) as loop:
            token = builder.mul(loop.index, i64(TOKENS))
            place = builder.gep(first, [token])
            keys = [
                builder.gep(k, [builder.load(builder.gep(place, [i64(j)]))]) for j in range(TOKENS)
            ]
            if lookahead:
                for j in range(TOKENS):
                    offset = builder.load(builder.gep(place, [i64(lookahead + j)]))
                    code.prefetch(builder.gep(k, [offset]), range(width))
            totals = _dots(code, q, keys, height, width)
            for r in range(height):
                spot = builder.gep(code.step(s, values[4], i64(r)), [token])
                code.store(code.sums(totals[r]), spot)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def _dots(code: Code, query: Value, keys: list[Value], rows: int, dim: int) -> list[list[Value]]:
    """Products of each query row with each key, summed down to one vector each."""
    zero = ir.Constant(code.vector, [0.0] * code.lanes)
    totals = [[zero] * len(keys) for _ in range(rows)]
    for column in range(0, dim, code.lanes):
        parts = [code.load(row, column) for row in keys]
        for r in range(rows):
            q = code.load(query, r * dim + column)
            totals[r] = [
                code.fma(q, part, total) for part, total in zip(parts, totals[r], strict=True)
            ]
    return totals


@intrinsic(prefer_literal=True)
def weigh_tile(
    typing: Any,
    weights: Any,
    stride: Any,
    value: Any,
    offsets: Any,
    totals: Any,
    count: Any,
    ahead: Any,
    rows: Any,
    dim: Any,
) -> Any:
    """totals[r] += sum over j < count of weights[r * stride + j] * value[offsets[j]].

    totals [rows, dim]; rows of `value` are contiguous and start at the offsets; `ahead`, `rows` and
    `dim` as for `score_tile`, but `count` is exact.
    """
    lookahead, height, width = ahead.literal_value, rows.literal_value, dim.literal_value
    arguments = (weights, stride, value, offsets, totals, count, ahead, rows, dim)

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Value:
        code = Code(context, builder, _lanes(context, width))
        w, v, first, out = (code.at(signature.args[i], values[i]) for i in (0, 2, 3, 4))
        step = _columns(width, code.lanes, height)
        for start in range(0, width, step):
            columns = range(start, start + step, code.lanes)
            places = [(r, column) for r in range(height) for column in columns]
            sums = code.registers(len(places))
            for register, (r, column) in zip(sums, places, strict=True):
                builder.store(code.load(out, r * width + column), register)
            with cgutils.for_range(builder, values[5], intp=I64) as loop:
                place = builder.gep(first, [loop.index])
                row = builder.gep(v, [builder.load(place)])
                if lookahead:
                    offset = builder.load(builder.gep(place, [i64(lookahead)]))
                    code.prefetch(builder.gep(v, [offset]), range(start, start + step))
                parts = [code.load(row, column) for column in columns]
                for r in range(height):
                    spot = builder.gep(code.step(w, values[1], i64(r)), [loop.index])
                    weight = code.splat(builder.load(spot))
                    for i, part in enumerate(parts):
                        code.add_into(sums[r * len(parts) + i], weight, part)
            for register, (r, column) in zip(sums, places, strict=True):
                code.store(builder.load(register), out, r * width + column)
        return context.get_dummy_value()

    return types.void(*arguments), codegen


def _columns(dim: int, lanes: int, rows: int) -> int:
    """Columns summed at once: `rows` times that many must fit in the registers."""
    vectors = dim // lanes
    fitting = [n for n in range(1, vectors + 1) if vectors % n == 0 and n * rows <= 16]
    return max(fitting, default=1) * lanes


@intrinsic(prefer_literal=True)
def sum_ahead(typing: Any, values: Any, count: Any, ahead: Any) -> Any:
    """Sum of the first `count` floats (a multiple of 128), as fast as the memory gives them.

    Elements `ahead` further on are prefetched; past the array's end that is harmless.
    """
    width, lookahead = 128, ahead.literal_value

    def codegen(context: Any, builder: Any, signature: Any, arguments: Any) -> Value:
        code = Code(context, builder, _lanes(context, width))
        start = code.at(signature.args[0], arguments[0])
        sums = code.registers(width // code.lanes)
        one = ir.Constant(code.vector, [1.0] * code.lanes)
        with cgutils.for_range(builder, builder.sdiv(arguments[1], i64(width)), intp=I64) as loop:
            row = code.step(start, loop.index, i64(width))
            code.prefetch(builder.gep(row, [i64(lookahead)]), range(width))
            for i, register in enumerate(sums):
                code.add_into(register, one, code.load(row, i * code.lanes))
        total = builder.load(sums[0])
        for register in sums[1:]:
            total = builder.fadd(total, builder.load(register), flags=FAST)
        return builder.extract_element(code.sums([total]), ir.Constant(I32, 0))

    return types.float32(values, count, ahead), codegen


@intrinsic
def peak_of(typing: Any, row: Any, low: Any, high: Any, count: Any, least: Any) -> Any:
    """The largest of `least` and row[low:high]; `row` must reach to `count` rounded up to 16."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Value:
        code = Code(context, builder, _lanes(context, _ROW_STEP))
        peak = code.registers(1)[0]
        builder.store(code.splat(values[4]), peak)
        with _row_vectors(code, signature.args[0], values) as (_, found, inside):
            so_far = builder.load(peak)
            above = builder.and_(inside, builder.fcmp_ordered(">", found, so_far))
            builder.store(builder.select(above, found, so_far), peak)
        lanes = [
            builder.extract_element(builder.load(peak), ir.Constant(I32, i))
            for i in range(code.lanes)
        ]
        top = lanes[0]
        for lane in lanes[1:]:
            top = builder.select(builder.fcmp_ordered(">", lane, top), lane, top)
        return top

    return types.float32(row, types.int64, types.int64, types.int64, types.float32), codegen


@intrinsic
def weights_of(typing: Any, row: Any, low: Any, high: Any, count: Any, peak: Any) -> Any:
    """Replace row[low:high] by 2^(row - peak) and the rest up to `count` by 0; return the sum."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Value:
        code = Code(context, builder, _lanes(context, _ROW_STEP))
        total = code.registers(1)[0]
        peaks = code.splat(values[4])
        zero = ir.Constant(code.vector, [0.0] * code.lanes)
        with _row_vectors(code, signature.args[0], values) as (place, found, inside):
            power = _exp2(code, builder.fsub(found, peaks))
            weight = builder.select(inside, power, zero)
            code.store(weight, place)
            builder.store(builder.fadd(builder.load(total), weight, flags=FAST), total)
        return builder.extract_element(code.sums([builder.load(total)]), ir.Constant(I32, 0))

    return types.float32(row, types.int64, types.int64, types.int64, types.float32), codegen


@contextmanager
def _row_vectors(code: Code, row_type: Any, values: Any) -> Iterator[tuple[Value, Value, Value]]:
    """A loop over row[0:count] by vectors: (address, vector, lanes with low <= i < high)."""
    builder, row = code.builder, code.at(row_type, values[0])
    low, high, count = values[1:4]
    wide = ir.VectorType(I64, code.lanes)
    places = ir.Constant(wide, list(range(code.lanes)))
    steps = builder.sdiv(builder.add(count, i64(code.lanes - 1)), i64(code.lanes))
    with cgutils.for_range(builder, steps, intp=I64) as loop:
        first = builder.mul(loop.index, i64(code.lanes))
        lanes = builder.add(code.splat(first), places)
        inside = builder.and_(
            builder.icmp_signed(">=", lanes, code.splat(low)),
            builder.icmp_signed("<", lanes, code.splat(high)),
        )
        place = builder.gep(row, [first])
        yield place, code.load(place, 0), inside


def _exp2(code: Code, exponent: Value) -> Value:
    """2^exponent for exponents <= 0, relative error below 1e-6; below -126 it is 2^-126."""
    builder = code.builder

    def constant(value: float) -> Value:
        return ir.Constant(code.vector, [_float32(value)] * code.lanes)

    integers = ir.VectorType(I32, code.lanes)
    least = constant(-126.0)
    x = builder.select(builder.fcmp_ordered("<", exponent, least), least, exponent)
    name = f"llvm.floor.v{code.lanes}f32"
    signature = ir.FunctionType(code.vector, [code.vector])
    floor = cgutils.get_or_insert_function(builder.module, signature, name)
    whole = builder.call(floor, [builder.fadd(x, constant(0.5))])
    rest = builder.fsub(x, whole)
    power = constant(_EXP2[-1])
    for coefficient in _EXP2[-2::-1]:
        power = code.fma(power, rest, constant(coefficient))
    biased = builder.add(builder.fptosi(whole, integers), ir.Constant(integers, [127] * code.lanes))
    shifted = builder.shl(biased, ir.Constant(integers, [23] * code.lanes))
    return builder.fmul(power, builder.bitcast(shifted, code.vector))


def _float32(value: float) -> float:
    """The nearest float32: LLVM accepts no other constant."""
    return float(struct.unpack("f", struct.pack("f", value))[0])


@intrinsic
def take_next(typing: Any, counter: Any) -> Any:
    """counter[0]++ as one atomic operation: each of several threads gets another number."""

    def codegen(context: Any, builder: Any, signature: Any, values: Any) -> Value:
        place = context.make_array(signature.args[0])(context, builder, values[0]).data
        return builder.atomic_rmw("add", place, i64(1), "monotonic")

    return types.int64(counter), codegen
