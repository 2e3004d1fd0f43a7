"""The vector instructions that the intrinsics of `simd` share, emitted through llvmlite."""

from __future__ import annotations

from typing import Any

from llvmlite import ir
from numba.core import cgutils

I8, I32, I64, F32 = ir.IntType(8), ir.IntType(32), ir.IntType(64), ir.FloatType()
FAST = ("fast",)
_LINE = 16  # floats per cache line, the unit of a prefetch

Value = Any
"""An llvmlite value: the library carries no types."""


def i64(value: int) -> Value:
    """A constant for addresses and counts."""
    return ir.Constant(I64, value)


class Code:
    """The instructions that the intrinsics share, on one builder and one vector width."""

    def __init__(self, context: Any, builder: Any, lanes: int) -> None:
        self.context, self.builder, self.lanes = context, builder, lanes
        self.vector = ir.VectorType(F32, lanes)

    def at(self, array_type: Any, array: Value, *offsets: Value) -> Value:
        """The address of element sum(offsets) of a numba array."""
        place = self.context.make_array(array_type)(self.context, self.builder, array).data
        for offset in offsets:
            place = self.builder.gep(place, [offset])
        return place

    def step(self, place: Value, index: Value, stride: Value) -> Value:
        """The address index * stride elements on."""
        return self.builder.gep(place, [self.builder.mul(index, stride)])

    def load(self, place: Value, column: int) -> Value:
        """The vector at element `column` of the row at `place`."""
        spot = self.builder.gep(place, [i64(column)])
        return self.builder.load(self.builder.bitcast(spot, self.vector.as_pointer()), align=4)

    def store(self, vector: Value, place: Value, column: int = 0) -> None:
        """Write a vector to element `column` of the row at `place`."""
        spot = self.builder.gep(place, [i64(column)])
        self.builder.store(vector, self.builder.bitcast(spot, vector.type.as_pointer()), align=4)

    def fma(self, left: Value, right: Value, total: Value) -> Value:
        """left * right + total; LLVM fuses it."""
        product = self.builder.fmul(left, right, flags=FAST)
        return self.builder.fadd(product, total, flags=FAST)

    def splat(self, scalar: Value) -> Value:
        """A vector of one value."""
        empty = ir.Constant(ir.VectorType(scalar.type, self.lanes), ir.Undefined)
        first = self.builder.insert_element(empty, scalar, ir.Constant(I32, 0))
        return self.shuffle(first, first, [0] * self.lanes)

    def shuffle(self, left: Value, right: Value, lanes: list[int]) -> Value:
        """Chosen lanes of two vectors, counted through both."""
        mask = ir.Constant(ir.VectorType(I32, len(lanes)), lanes)
        return self.builder.shuffle_vector(left, right, mask)

    def registers(self, count: int) -> list[Value]:
        """Vector variables, zero; LLVM turns them into registers."""
        zero = ir.Constant(self.vector, [0.0] * self.lanes)
        places = [cgutils.alloca_once(self.builder, self.vector) for _ in range(count)]
        for place in places:
            self.builder.store(zero, place)
        return places

    def add_into(self, register: Value, left: Value, right: Value) -> None:
        """register += left * right."""
        self.builder.store(self.fma(left, right, self.builder.load(register)), register)

    def prefetch(self, row: Value, columns: range) -> None:
        """Ask for the cache lines of a row's columns."""
        signature = ir.FunctionType(ir.VoidType(), [I8.as_pointer(), I32, I32, I32])
        hint = cgutils.get_or_insert_function(self.builder.module, signature, "llvm.prefetch.p0")
        for column in range(columns.start, columns.stop, _LINE):
            spot = self.builder.bitcast(self.builder.gep(row, [i64(column)]), I8.as_pointer())
            arguments = [
                ir.Constant(I32, value) for value in (0, 2, 1)
            ]  # read, into the second-level cache, data
            self.builder.call(hint, [spot, *arguments])

    def sums(self, vectors: list[Value]) -> Value:
        """One vector with the sum of each of `vectors` (a power of two of them)."""
        group = self.lanes  # lanes that still belong to one of the vectors
        while len(vectors) > 1 or group > 1:
            half = group // 2
            if len(vectors) > 1:
                pairs = list(zip(vectors[::2], vectors[1::2], strict=True))
                low = [lane for lane in range(2 * vectors[0].type.count) if lane % group < half]
                vectors = [self._halves(a, b, low, half) for a, b in pairs]
            else:
                low = [lane for lane in range(vectors[0].type.count) if lane % group < half]
                vectors = [self._halves(vectors[0], vectors[0], low, half)]
            group = half
        return vectors[0]

    def _halves(self, left: Value, right: Value, low: list[int], half: int) -> Value:
        """Lanes `low` of two vectors plus the lanes `half` further on."""
        high = [lane + half for lane in low]
        return self.builder.fadd(
            self.shuffle(left, right, low), self.shuffle(left, right, high), flags=FAST
        )
