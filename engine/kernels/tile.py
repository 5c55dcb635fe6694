"""A tile of a matrix product that stays in registers: the innermost loop of convolutions, in LLVM's vectors.

A tile has a few rows and a few vectors of lanes. Each step takes one number for each row, repeats it over the
lanes, and adds its product with one vector of the other operand: as many fused multiply-adds as the tile has
vectors, for a load each of rows and lanes. What LLVM makes of plain loops keeps the sums in memory instead,
which costs more than half of the speed.

Every element of the result is a chain of fused multiply-adds over leaps, then steps, in ascending order:
neither the size of the tile, nor the machine's vectors, nor where a product is cut changes its bits.

Numba notices an edit only in the file of the function that it cached: after editing this one, delete
`__pycache__`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple, cast

from llvmlite import binding, ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic

from partita.engine.kernels.kernel import Array
from partita.engine.numerics import compiled

_I1, _I16, _I32, _I64 = (ir.IntType(width) for width in (1, 16, 32, 64))
_FEATURES: Final = binding.get_host_cpu_features()
VECTOR_BYTES: Final = 64 if _FEATURES.get("avx512f") else 32 if _FEATURES.get("avx2") else 16
"""Of the machine's vectors."""
ROWS: Final = 6 if VECTOR_BYTES == 32 else 8
"""Of a tile: with two vectors of lanes, as many sums as fit into the registers (16 on AVX2, else 32)."""


class Walk(NamedTuple):
    """How an operand lies in a flat array: its number for a row, leap and step stands at
    `at + row * row_stride + leap * leap_stride + step * step_stride`.
    """

    at: int
    row_stride: int
    leap_stride: int
    step_stride: int


class Extent(NamedTuple):
    """How large a product is: rows by lanes of the result, leaps by steps of the sum."""

    rows: int
    lanes: int
    leaps: int
    steps: int


@dataclass(frozen=True)
class _Kind:
    """A tile to generate: its vectors, the numbers in each, and whether its last lanes are masked."""

    vectors: int
    masked: bool


class _Generator:
    """Writes the code of one kind of tile for one combination of types."""

    def __init__(
        self, kind: _Kind, context: Any, builder: ir.IRBuilder, signature: Any, arguments: Any
    ) -> None:
        self.kind, self.builder = kind, builder
        _, out_walk, _, left_walk, _, right_walk, extent = arguments
        self.scalar = context.get_data_type(signature.args[0].dtype)
        self.lanes = VECTOR_BYTES // (8 if self.scalar == ir.DoubleType() else 4)
        self.vector = ir.VectorType(self.scalar, self.lanes)
        n_rows, n_lanes, self.leaps, self.steps = self._fields(extent, 4)
        last = builder.sub(n_rows, _number(1))
        self.rows = [
            builder.select(builder.icmp_signed("<", _number(r), n_rows), _number(r), last)
            for r in range(ROWS)
        ]  # rows beyond the last repeat it: they compute and store the same numbers again
        self.masks = [self._mask(builder.sub(n_lanes, _number(v * self.lanes))) for v in range(kind.vectors)]
        self.out, self.left, self.right = (
            context.make_array(signature.args[k])(context, builder, arguments[k]).data for k in (0, 2, 4)
        )
        self.out_walk, self.left_walk, self.right_walk = (
            self._fields(walk, 4) for walk in (out_walk, left_walk, right_walk)
        )

    def write(self) -> None:
        """The whole tile."""
        builder, (at, row_stride, _, _) = self.builder, self.out_walk
        begins = [builder.add(at, builder.mul(row, row_stride)) for row in self.rows]
        sums = [self._load(self.out, begin, v) for begin in begins for v in range(self.kind.vectors)]
        sums = self._loop(self.leaps, self._leap, sums)
        for n, total in enumerate(sums):
            self._store(total, begins[n // self.kind.vectors], n % self.kind.vectors)

    def _leap(self, leap: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
        builder = self.builder
        at, row_stride, leap_stride, step_stride = self.left_walk
        begin = builder.add(at, builder.mul(leap, leap_stride))
        begins = [builder.add(begin, builder.mul(row, row_stride)) for row in self.rows]
        lanes = builder.add(self.right_walk[0], builder.mul(leap, self.right_walk[2]))

        def step(number: ir.Value, sums: Sequence[ir.Value]) -> list[ir.Value]:
            ahead = builder.mul(number, step_stride)
            right = builder.add(lanes, builder.mul(number, self.right_walk[3]))
            vectors = [self._load(self.right, right, v) for v in range(self.kind.vectors)]
            found = []
            for r, row in enumerate(begins):
                repeated = self._repeat(
                    self._widened(builder.load(builder.gep(self.left, [builder.add(row, ahead)])))
                )
                for v, vector in enumerate(vectors):
                    found.append(self._fma(repeated, vector, sums[r * self.kind.vectors + v]))
            return found

        return self._loop(self.steps, step, sums)

    def _loop(
        self,
        count: ir.Value,
        body: Callable[[ir.Value, Sequence[ir.Value]], list[ir.Value]],
        state: Sequence[ir.Value],
    ) -> list[ir.Value]:
        """Runs the body for 0, 1 ... below `count`; what it returns it is given the next time."""
        builder, entry = self.builder, self.builder.block
        head, leave = builder.append_basic_block("tile"), builder.append_basic_block("tile_end")
        builder.cbranch(builder.icmp_signed(">", count, _number(0)), head, leave)
        builder.position_at_end(head)
        number = builder.phi(_I64)
        carried = [builder.phi(value.type) for value in state]
        following = body(number, carried)
        end, advanced = builder.block, builder.add(number, _number(1))
        for phi, first, next_ in zip(
            [number, *carried], [_number(0), *state], [advanced, *following], strict=True
        ):
            phi.add_incoming(first, entry)
            phi.add_incoming(next_, end)
        builder.cbranch(builder.icmp_signed("<", advanced, count), head, leave)
        builder.position_at_end(leave)
        found = [builder.phi(value.type) for value in state]
        for phi, first, last in zip(found, state, following, strict=True):
            phi.add_incoming(first, entry)
            phi.add_incoming(last, end)
        return found

    # Vectors

    def _load(self, data: ir.Value, at: ir.Value, v: int) -> ir.Value:
        """Vector number `v` from position `at` on, widened; zeros where it is masked."""
        builder, stored = self.builder, ir.VectorType(data.type.pointee, self.lanes)
        place = builder.gep(data, [builder.add(at, _number(v * self.lanes))])
        pointer = builder.bitcast(place, stored.as_pointer())
        if not self.kind.masked:
            found = builder.load(pointer, align=_alignment(stored))
        else:
            mask, size = self.masks[v], ir.Constant(_I32, _alignment(stored))
            load = self._declared("masked.load", stored, [pointer.type, _I32, mask.type, stored], ".p0")
            found = builder.call(load, [pointer, size, mask, ir.Constant(stored, None)])
        return self._widened(found)

    def _store(self, value: ir.Value, at: ir.Value, v: int) -> None:
        builder = self.builder
        place = builder.gep(self.out, [builder.add(at, _number(v * self.lanes))])
        pointer = builder.bitcast(place, self.vector.as_pointer())
        if not self.kind.masked:
            builder.store(value, pointer, align=_alignment(self.vector))
            return
        mask, size = self.masks[v], ir.Constant(_I32, _alignment(self.vector))
        store = self._declared(
            "masked.store", self.vector, [self.vector, pointer.type, _I32, mask.type], ".p0", ir.VoidType()
        )
        builder.call(store, [value, pointer, size, mask])

    def _widened(self, value: ir.Value) -> ir.Value:
        """Of bfloat16's bits, the number; anything else stays."""
        element = value.type.element if isinstance(value.type, ir.VectorType) else value.type
        if element != _I16:
            return value
        wide, single = (_like(value.type, kind) for kind in (_I32, ir.FloatType()))
        shift = ir.Constant(wide, [16] * self.lanes if isinstance(wide, ir.VectorType) else 16)
        return self.builder.bitcast(self.builder.shl(self.builder.zext(value, wide), shift), single)

    def _repeat(self, value: ir.Value) -> ir.Value:
        vector = ir.VectorType(value.type, self.lanes)
        first = self.builder.insert_element(ir.Constant(vector, ir.Undefined), value, ir.Constant(_I32, 0))
        zeros = ir.Constant(ir.VectorType(_I32, self.lanes), [0] * self.lanes)
        return self.builder.shuffle_vector(first, ir.Constant(vector, ir.Undefined), zeros)

    def _mask(self, lanes: ir.Value) -> ir.Value:
        numbers = ir.Constant(ir.VectorType(_I64, self.lanes), list(range(self.lanes)))
        return self.builder.icmp_signed("<", numbers, self._repeat(lanes))

    def _fma(self, a: ir.Value, b: ir.Value, c: ir.Value) -> ir.Value:
        return self.builder.call(self._declared("fma", self.vector, [self.vector] * 3), [a, b, c])

    def _declared(
        self,
        name: str,
        vector: ir.VectorType,
        takes: list[ir.Type],
        suffix: str = "",
        returns: ir.Type | None = None,
    ) -> Any:
        element = {ir.FloatType(): "f32", ir.DoubleType(): "f64", _I16: "i16"}[vector.element]
        function = ir.FunctionType(returns or vector, takes)
        return cgutils.get_or_insert_function(
            self.builder.module, function, f"llvm.{name}.v{vector.count}{element}{suffix}"
        )

    def _fields(self, named: ir.Value, count: int) -> list[ir.Value]:
        return [self.builder.extract_value(named, k) for k in range(count)]


def _number(value: int) -> ir.Constant:
    return ir.Constant(_I64, value)


def _alignment(vector: ir.VectorType) -> int:
    """Bytes: that of one number."""
    return {ir.FloatType(): 4, ir.DoubleType(): 8, _I16: 2}[vector.element]


def _like(shape: ir.Type, element: ir.Type) -> ir.Type:
    return ir.VectorType(element, shape.count) if isinstance(shape, ir.VectorType) else element


def _tile(kind: _Kind) -> Callable[..., None]:
    """The function that compiled code calls for one tile of this kind."""

    def declare(typing_context, out, out_walk, left, left_walk, right, right_walk, extent):  # type: ignore[no-untyped-def]
        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            _Generator(kind, context, builder, signature, arguments).write()
            return context.get_dummy_value()

        return types.void(out, out_walk, left, left_walk, right, right_walk, extent), generate

    return cast(Callable[..., None], intrinsic(declare))


_two_vectors = _tile(_Kind(vectors=2, masked=False))
_two_masked = _tile(_Kind(vectors=2, masked=True))
_one_masked = _tile(_Kind(vectors=1, masked=True))


@compiled
def multiply_add(
    out: Array, out_walk: Walk, left: Array, left_walk: Walk, right: Array, right_walk: Walk, extent: Extent
) -> None:
    """`out[row, lane] += sum over leaps and steps of left[row, leap, step] * right[leap, step, lane]`.

    Lanes lie one after another, in `out` and in `right`. For compiled code, without checks.

    Args:
        out: float32 or float64, flat, C-contiguous, as the others.
        out_walk: where its numbers stand; it has no leaps and steps.
        left: of the type of `out`, or bfloat16's bits.
        left_walk: where its numbers stand.
        right: of the type of `out`, or bfloat16's bits.
        right_walk: where its numbers stand; it has no rows.
        extent: how many there are; best a multiple of `ROWS` rows, and of two vectors of lanes.
    """
    lanes = VECTOR_BYTES // out.itemsize
    for row in range(0, extent.rows, ROWS):
        rows = min(ROWS, extent.rows - row)
        from_left = Walk(
            left_walk.at + row * left_walk.row_stride,
            left_walk.row_stride,
            left_walk.leap_stride,
            left_walk.step_stride,
        )
        for lane in range(0, extent.lanes, 2 * lanes):
            into = Walk(out_walk.at + row * out_walk.row_stride + lane, out_walk.row_stride, 0, 0)
            from_right = Walk(right_walk.at + lane, 0, right_walk.leap_stride, right_walk.step_stride)
            rest = Extent(rows, extent.lanes - lane, extent.leaps, extent.steps)
            if rest.lanes >= 2 * lanes:
                _two_vectors(out, into, left, from_left, right, from_right, rest)
            elif rest.lanes > lanes:
                _two_masked(out, into, left, from_left, right, from_right, rest)
            else:
                _one_masked(out, into, left, from_left, right, from_right, rest)
