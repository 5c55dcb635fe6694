"""Rows of a few numbers moved from one place to another by vectors, in compiled code.

Loops over 8 or 32 examples spend more time on their own bounds than on numbers. Here a row is whole vectors,
then half a vector, then a masked one: 4 to 8 times as fast as a compiled loop for 8 examples.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, TypeAlias, cast

from llvmlite import ir
from numba import types
from numba.extending import intrinsic

from partita.engine.kernels.tiles.llvm_vectors import (
    I64,
    VECTOR_BYTES,
    Vectors,
    cgutils,
    data_of,
    number,
)

_Combine: TypeAlias = Callable[
    [ir.IRBuilder, ir.Value, Callable[[], ir.Value], Callable[[], ir.Value]], ir.Value
]
"""Returns what is written: of the builder, a vector that is moved, the row's term, and what is there."""


class Rows(NamedTuple):
    """Rows in a flat array: where the first begins, and from one to the next."""

    at: int
    stride: int


def _mover(combine: _Combine) -> Callable[..., None]:
    """A function for compiled code `(out, into, x, from_x, terms, at, rows, lanes)`."""

    def declare(typing_context, out, into, x, from_x, terms, at, rows, lanes):  # type: ignore[no-untyped-def]
        takes = (out, into, x, from_x, terms, types.intp, types.intp, types.intp)

        def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
            target, source, added = (data_of(context, builder, takes[k], arguments[k]) for k in (0, 2, 4))
            into, from_x = (cgutils.unpack_tuple(builder, arguments[k], 2) for k in (1, 3))
            at, rows, lanes = arguments[5:]
            with cgutils.for_range(builder, rows) as row:
                places = [
                    builder.gep(data, [builder.add(begin, builder.mul(row.index, stride))])
                    for data, (begin, stride) in ((target, into), (source, from_x))
                ]
                term = builder.gep(added, [builder.add(at, row.index)])
                _move_row(builder, places, term, lanes, combine)
            return context.get_dummy_value()

        return types.void(*takes), generate

    return cast(Callable[..., None], intrinsic(declare))


def _move_row(
    builder: ir.IRBuilder, places: list[ir.Value], term: ir.Value, lanes: ir.Value, combine: _Combine
) -> None:
    """Writes one row: whole vectors, half a vector if so much is left, and the rest by a mask."""
    target, source = places
    scalar = target.type.pointee
    whole, half = (Vectors(builder, scalar, size=size) for size in (VECTOR_BYTES, VECTOR_BYTES // 2))

    def move(vectors: Vectors, lane: ir.Value, mask: ir.Value | None) -> None:
        place, given = builder.gep(target, [lane]), builder.gep(source, [lane])
        found = combine(
            builder,
            vectors.load(given, mask),
            lambda: vectors.repeat_upcast(builder.load(term)),
            lambda: vectors.load(place, mask),
        )
        vectors.store(found, place, mask)

    width, halved = number(whole.lanes), number(half.lanes)
    end = builder.mul(builder.sdiv(lanes, width), width)
    with cgutils.for_range_slice(builder, number(0), end, width, I64) as (lane, _):
        move(whole, lane, None)
    left = builder.sub(lanes, end)
    more = builder.icmp_signed(">=", left, halved)
    with builder.if_then(more):
        move(half, end, None)
    begin = builder.select(more, builder.add(end, halved), end)
    rest = builder.sub(lanes, begin)
    with builder.if_then(builder.icmp_signed(">", rest, number(0))):
        move(half, begin, half.mask(rest))


def _sum(builder: ir.IRBuilder, one: ir.Value, other: ir.Value) -> ir.Value:
    found: ir.Value = builder.fadd(one, other)
    return found


copy_rows = _mover(lambda builder, moved, term, there: moved)
"""`copy_rows(out, into, x, from_x, x, 0, rows, lanes)` copies rows of so many numbers, upcast, between flat
arrays; `into` and `from_x` are `Rows`. The operands do not overlap. For compiled code, without checks.
"""
add_terms = _mover(lambda builder, moved, term, there: _sum(builder, moved, term()))
"""`add_terms(out, into, x, from_x, terms, at, rows, lanes)` copies each row, and adds `terms[at + row]`."""
add_rows = _mover(lambda builder, moved, term, there: _sum(builder, there(), moved))
"""`add_rows(out, into, x, from_x, x, 0, rows, lanes)` adds each row to that of `out`."""
