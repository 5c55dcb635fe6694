"""Transposes matrices in squares that fit the registers; examples, the last axis, become the first."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.llvm_vectors import Vectors, data_of, lanes_of, number
from partita.engine.numerics import compiled_to_be_called


def _transposed(vectors: Vectors, rows: list[ir.Value]) -> list[ir.Value]:
    """Transposes a square of vectors: pairs exchange halves, then quarters ... down to single lanes."""
    rows, half = list(rows), vectors.lanes // 2
    while half:
        for i in (i for i in range(vectors.lanes) if not i & half):
            a, b = rows[i], rows[i + half]
            low = [j if not j & half else vectors.lanes + j - half for j in range(vectors.lanes)]
            rows[i] = vectors.shuffled(a, b, low)
            rows[i + half] = vectors.shuffled(a, b, [j + half for j in low])
        half //= 2
    return rows


def _declare_square(typing_context, x, x_at, x_stride, out, out_at, out_stride, rows, columns):  # type: ignore[no-untyped-def]
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, x_at, x_stride, _, out_at, out_stride, n_rows, n_columns = arguments
        source, target = (data_of(context, builder, signature.args[k], arguments[k]) for k in (0, 3))
        vectors = Vectors(builder, target.type.pointee)
        there, last = vectors.mask(n_columns), builder.sub(n_rows, number(1))
        loaded = []
        for i in range(vectors.lanes):  # rows beyond the last repeat it, and are masked below
            row = builder.select(builder.icmp_signed("<", number(i), n_rows), number(i), last)
            place = builder.gep(source, [builder.add(x_at, builder.mul(row, x_stride))])
            loaded.append(vectors.load(place, there))
        wanted = vectors.mask(n_rows)
        for j, column in enumerate(_transposed(vectors, loaded)):
            with builder.if_then(builder.icmp_signed("<", number(j), n_columns)):
                place = builder.gep(target, [builder.add(out_at, builder.mul(number(j), out_stride))])
                vectors.store(column, place, wanted)
        return context.get_dummy_value()

    sizes = (types.intp,) * 2
    return types.void(x, *sizes, out, *sizes, *sizes), generate


_transpose_square = cast(Callable[..., None], intrinsic(_declare_square))


@compiled_to_be_called
def transpose(
    x: Array, x_at: int, x_stride: int, out: Array, out_at: int, out_stride: int, rows: int, columns: int
) -> None:
    """Writes `out[column, row] = x[row, column]`, upcast. For compiled code, without checks.

    Args:
        x: array of the type of `out`, or bfloat16's bits; flat, C-contiguous.
        x_at: index of the first row in `x`.
        x_stride: distance between rows of `x`.
        out: float32 or float64, flat, C-contiguous.
        out_at: index of the first row in `out`.
        out_stride: distance between rows of `out`.
        rows: rows of `x`.
        columns: columns of `x`.
    """
    lanes = lanes_of(out)
    for row in range(0, rows, lanes):
        for column in range(0, columns, lanes):
            from_, to = x_at + row * x_stride + column, out_at + column * out_stride + row
            _transpose_square(
                x, from_, x_stride, out, to, out_stride, min(lanes, rows - row), min(lanes, columns - column)
            )
