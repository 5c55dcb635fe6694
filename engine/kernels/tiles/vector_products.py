"""Small matrix products that keep their sums in registers: the innermost loops of layers on patches.

A product is cut into tiles of a few rows by a few vectors of lanes. Each step of a tile takes one number for
each row, repeats it over the lanes, and adds its products with the vectors of the other operand; the sums go
to memory once, after the last step.

Every element is a chain of fused multiply-adds over outer steps, then steps, in ascending order: neither the
form of tiles, nor the machine's vectors, nor where a product is cut changes its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any, Final, NamedTuple, TypeAlias, cast

import numba
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.tiles.forms import ROWS, SIZES, Tile, form_of_kind, is_halved, lanes_in
from partita.engine.kernels.tiles.llvm_vectors import (
    I1,
    I64,
    LINE_BYTES,
    Vectors,
    cgutils,
    data_of,
    n_bytes,
    number,
    pointer_to,
)
from partita.engine.numerics import compiled_for_pointers

_MOST: Final = max(vectors for _, vectors in SIZES)
"""Vectors of the widest tile."""
_HALF: Final = 0
"""In the place of the number of vectors: half a vector."""
_FULL: Final = (ROWS + 1) * (_MOST + 1)
"""Added to the number of a tile without masks."""

Masks: TypeAlias = Sequence[ir.Value | None]


class Strides(NamedTuple):
    """The layout of an operand in a flat array: its number for a row, outer step and step stands at `at + row
    * row_stride + outer * outer_stride + step * step_stride`.
    """

    at: int
    row_stride: int
    outer_stride: int
    step_stride: int


class Extent(NamedTuple):
    """The size of a product: rows by lanes of the result, outer steps by steps of the sum."""

    rows: int
    lanes: int
    outer_steps: int
    steps: int


class Following(NamedTuple):
    """The operands of the next product, which are prefetched.

    Args:
        at: where in `left` as many numbers begin as the product reads; -1 for none.
        beyond: how many numbers of `right`, behind the last that each outer step reads.
        apart: 0 where the numbers of `left` lie one after another. Else they lie in a run for each step, of
            one number for each row, and this is the distance of two runs. For a single outer step.
    """

    at: int
    beyond: int
    apart: int


NOWHERE: Final = Following(-1, 0, 0)
"""Marks that nothing is prefetched."""


class _Ahead(NamedTuple):
    """The operands that a tile prefetches.

    Args:
        at: where in `left` they begin; -1 for none.
        beyond: as in `Following`.
        numbers: how many of `left` lie one after another, for each outer step.
        runs: how many times so many.
        apart: the distance of two runs.
    """

    at: int
    beyond: int
    numbers: int
    runs: int
    apart: int


class _Case(NamedTuple):
    """A tile, and when it is the one.

    Args:
        number: value of the switch.
        name: of its block.
        rows: rows.
        size: bytes of a vector.
        masks: of its vectors; None: of a single one, which has a mask of all lanes.
    """

    number: int
    name: str
    rows: int
    size: int
    masks: Masks | None = None


class _Tiles:
    """Writes the tiles for one combination of types, with vectors and tails of the kind `tile`."""

    def __init__(
        self, builder: ir.IRBuilder, scalar: ir.Type, arguments: Sequence[ir.Value], tile: Any
    ) -> None:
        self.size, self.tails = form_of_kind(tile)
        self.builder, self.scalar, self.vectors = builder, scalar, Vectors(builder, scalar, size=self.size)
        self.out, into, self.left, from_left, self.right, from_right, extent, continued, ahead, _ = arguments
        self.from_left = Strides(*cgutils.unpack_tuple(builder, from_left, 4))
        at, row_stride = cgutils.unpack_tuple(builder, into, 2)
        self.into = Strides(at, row_stride, number(0), number(0))
        at, outer_stride, step_stride = cgutils.unpack_tuple(builder, from_right, 3)
        self.from_right = Strides(at, number(0), outer_stride, step_stride)
        self.rows, self.lanes, self.outer_steps, self.steps = cgutils.unpack_tuple(builder, extent, 4)
        self.ahead = _Ahead(*cgutils.unpack_tuple(builder, ahead, 5))
        is_one = builder.icmp_signed(">=", self.ahead.at, number(0))
        self.asks = builder.or_(is_one, builder.icmp_signed(">", self.ahead.beyond, number(0)))
        self.is_continued = builder.trunc(continued, I1)

    def write(self) -> None:
        """Writes all tiles, and the choice between them."""
        builder = self.builder
        kind, cases = self._halved() if self.tails == "halved" else self._masked()
        end = builder.append_basic_block("end")
        choice = builder.switch(kind, end)
        for case in cases:
            block = builder.append_basic_block(case.name)
            choice.add_case(number(case.number), block)
            builder.position_at_end(block)
            self.vectors = Vectors(builder, self.scalar, size=case.size)
            self._tile(case.rows, case.masks or [self.vectors.mask(self.lanes)])
            builder.branch(end)
        builder.position_at_end(end)

    def _masked(self) -> tuple[ir.Value, list[_Case]]:
        """Numbers tiles by rows and vectors, the last one masked; others if need be by having no mask.

        Where half a vector holds all lanes, the tile has such vectors: some processors compute them twice as
        fast.
        """
        builder, lanes, half = self.builder, number(self.vectors.lanes), number(self.vectors.lanes // 2)
        n_vectors = builder.sdiv(builder.add(self.lanes, builder.sub(lanes, number(1))), lanes)
        before = builder.mul(builder.sub(n_vectors, number(1)), lanes)
        tails: dict[int, ir.Value | None] = {0: self.vectors.mask(builder.sub(self.lanes, before))}
        is_half = builder.icmp_signed("<=", self.lanes, half)
        which = builder.select(is_half, number(_HALF), n_vectors)
        kind = builder.add(builder.mul(self.rows, number(_MOST + 1)), which)
        if self.tails == "masked or whole":
            is_full = builder.icmp_signed("==", self.lanes, builder.mul(n_vectors, lanes))
            kind = builder.select(is_full, builder.add(kind, number(_FULL)), kind)
            tails[_FULL] = None
        cases = [
            _Case(
                group + rows * (_MOST + 1) + count,
                f"tile_{rows}_{count}",
                rows,
                self.size,
                [*[None] * (count - 1), tail],
            )
            for (rows, count), (group, tail) in product(SIZES, tails.items())
        ]
        halves = (
            _Case(rows * (_MOST + 1) + _HALF, f"tile_{rows}_half", rows, self.size // 2)
            for rows in range(1, ROWS + 1)
        )
        return kind, [*cases, *halves]

    def _halved(self) -> tuple[ir.Value, list[_Case]]:
        """Numbers tiles by rows and lanes: those of whole vectors, or of one that is narrower."""
        lanes, item = self.vectors.lanes, n_bytes(self.scalar)
        apart = _MOST * lanes + 1
        kind = self.builder.add(self.builder.mul(self.rows, number(apart)), self.lanes)
        sizes = [(rows, count, self.size) for rows, count in SIZES]
        narrow = (lanes >> k for k in range(1, lanes.bit_length()))
        sizes += [(rows, 1, item * width) for width in narrow for rows in range(1, ROWS + 1)]
        cases = [
            _Case(
                rows * apart + count * size // item, f"tile_{rows}_{count}_{size}", rows, size, [None] * count
            )
            for rows, count, size in sizes
        ]
        return kind, cases

    def _tile(self, n_rows: int, masks: Masks) -> None:
        """Writes one tile with these masks of its vectors."""
        builder, vectors = self.builder, self.vectors
        continued = vectors.repeat(self.is_continued)
        into, from_left = (
            [self._place(data, strides.at, (number(row), strides.row_stride)) for row in range(n_rows)]
            for data, strides in ((self.out, self.into), (self.left, self.from_left))
        )
        places = [(row, v, mask) for row in into for v, mask in enumerate(masks)]
        sums = [cgutils.alloca_once(builder, vectors.type) for _ in places]
        for total, (row, v, mask) in zip(sums, places, strict=True):
            held = continued if mask is None else builder.and_(continued, mask)
            builder.store(vectors.load(self._lane(row, v), held), total)
        with cgutils.for_range(builder, self.outer_steps) as outer:
            with builder.if_then(self.asks):
                self._ask(outer.index)
            with cgutils.for_range(builder, self.steps) as step:
                self._step(outer.index, step.index, from_left, masks, sums)
        for total, (row, v, mask) in zip(sums, places, strict=True):
            vectors.store(builder.load(total), self._lane(row, v), mask)

    def _step(
        self,
        outer: ir.Value,
        step: ir.Value,
        rows: Sequence[ir.Value],
        masks: Masks,
        sums: Sequence[ir.Value],
    ) -> None:
        """Multiplies one number for each row by one vector for each mask."""
        builder, vectors = self.builder, self.vectors
        from_left, from_right = (
            builder.add(builder.mul(outer, strides.outer_stride), builder.mul(step, strides.step_stride))
            for strides in (self.from_left, self.from_right)
        )
        begin = builder.gep(self.right, [builder.add(self.from_right.at, from_right)])
        lanes = [vectors.load(self._lane(begin, v), mask) for v, mask in enumerate(masks)]
        totals = iter(sums)
        for row in rows:
            repeated = vectors.repeat_upcast(builder.load(builder.gep(row, [from_left])))
            for vector in lanes:
                total = next(totals)
                builder.store(vectors.fma(repeated, vector, builder.load(total)), total)

    def _ask(self, outer: ir.Value) -> None:
        """Prefetches the share of an outer step in what follows."""
        builder, ahead = self.builder, self.ahead
        is_none = builder.icmp_signed("<", ahead.at, number(0))
        count = builder.select(is_none, number(0), ahead.numbers)
        with cgutils.for_range(builder, ahead.runs) as run:
            self._ask_for(
                self._place(self.left, ahead.at, (outer, ahead.numbers), (run.index, ahead.apart)), count
            )
        strides = self.from_right
        end = self._place(
            self.right, strides.at, (outer, strides.outer_stride), (self.steps, strides.step_stride)
        )
        self._ask_for(end, ahead.beyond)

    def _ask_for(self, begin: ir.Value, count: ir.Value) -> None:
        builder, in_line = self.builder, LINE_BYTES // n_bytes(begin.type.pointee)
        lines = builder.sdiv(builder.add(count, number(in_line - 1)), number(in_line))
        with cgutils.for_range(builder, lines) as line:
            self.vectors.prefetch(builder.gep(begin, [builder.mul(line.index, number(in_line))]))

    def _place(self, data: ir.Value, at: ir.Value, *moves: tuple[ir.Value, ir.Value]) -> ir.Value:
        """Returns the pointer to a position, after so many times each stride."""
        place = self.builder.gep(data, [at])
        for times, stride in moves:
            place = self.builder.gep(place, [self.builder.mul(times, stride)])
        return place

    def _lane(self, row: ir.Value, v: int) -> ir.Value:
        """Returns the pointer to vector number `v` of a row."""
        return self.builder.gep(row, [number(v * self.vectors.lanes)])


def _declare_tile(  # type: ignore[no-untyped-def]
    typing_context, out, into, left, from_left, right, from_right, extent, continued, ahead, tile
):
    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        builder.function.attributes.add("optsize")  # LLVM is to unroll no loop
        _Tiles(builder, context.get_data_type(out.dtype), arguments, tile).write()
        return context.get_dummy_value()

    takes = (out, into, left, from_left, right, from_right, extent, types.boolean, ahead, tile)
    return types.void(*takes), generate


_tile = cast(Callable[..., None], intrinsic(_declare_tile))


@compiled_for_pointers
def _multiply_tile(
    out: Any,
    into: tuple[int, int],
    left: Any,
    from_left: Strides,
    right: Any,
    from_right: tuple[int, int, int],
    extent: Extent,
    continued: bool,
    ahead: _Ahead,
    tile: Tile,
) -> None:
    """Computes one tile.

    Takes pointers (an array would be seven arguments), and of strides what it uses: `(at, row_stride)` of
    `into`, `(at, outer_stride, step_stride)` of `from_right`.
    """
    _tile(out, into, left, from_left, right, from_right, extent, continued, ahead, tile)


_inlined = numba.njit(nogil=True, error_model="numpy", inline="always")
"""Compiled with its callers, and not on its own, too: that saves a second."""


@_inlined
def multiply(
    out: Array,
    into: Strides,
    left: Array,
    from_left: Strides,
    right: Array,
    from_right: Strides,
    extent: Extent,
    continued: bool,
    following: Following,
    tile: Tile,
) -> None:
    """Writes `out[row, lane] = sum of left[row, outer, step] * right[outer, step, lane]`.

    Lanes are contiguous, in `out` and in `right`. For compiled code, without checks.

    Args:
        out: float32 or float64, flat, C-contiguous, as the others.
        into: its layout.
        left: of the type of `out`, or bfloat16's bits.
        from_left: its layout.
        right: of the type of `out`, or bfloat16's bits.
        from_right: its layout.
        extent: size of the product.
        continued: whether the sums continue what `out` holds, or begin with zero.
        following: what is read next.
        tile: the largest tile, of `forms`. All have the same bits.
    """
    lanes, tile_rows = lanes_in(out, tile), _even(extent.rows, tile.rows)
    tile_lanes = lanes * _even((extent.lanes + lanes - 1) // lanes, tile.vectors)
    lane, at, beyond = 0, following.at, following.beyond
    is_apart = at >= 0 and following.apart > 0
    runs = runs_left = 1
    if is_apart:
        runs, runs_left = (extent.steps * tile_rows + extent.rows - 1) // extent.rows, extent.steps
    while lane < extent.lanes:
        row, n_lanes = 0, min(tile_lanes, extent.lanes - lane)
        if is_halved(tile):
            n_lanes = _whole(n_lanes, lanes)
        while row < extent.rows:
            n_rows = min(tile_rows, extent.rows - row)
            numbers = extent.rows if is_apart else n_rows * extent.steps
            _multiply_tile(
                pointer_to(out),
                (into.at + row * into.row_stride + lane, into.row_stride),
                pointer_to(left),
                _from_row(from_left, row),
                pointer_to(right),
                (from_right.at + lane, from_right.outer_stride, from_right.step_stride),
                Extent(n_rows, n_lanes, extent.outer_steps, extent.steps),
                continued,
                _Ahead(at, beyond, numbers, min(runs, runs_left), following.apart),
                tile,
            )
            if is_apart:
                at, runs_left = at + runs * following.apart, runs_left - runs
            elif at >= 0:
                at += n_rows * extent.outer_steps * extent.steps
            row, beyond = row + n_rows, 0
        lane, at, is_apart, runs_left = lane + n_lanes, -1, False, 1


@register_jitable
def _whole(lanes: int, of_vector: int) -> int:
    """Returns the lanes of whole vectors; without any, those of the widest half of a half ... that fits."""
    if lanes >= of_vector:
        return lanes // of_vector * of_vector
    while of_vector > lanes:
        of_vector //= 2
    return of_vector


@register_jitable
def _from_row(strides: Strides, row: int) -> Strides:
    return Strides(
        strides.at + row * strides.row_stride, strides.row_stride, strides.outer_stride, strides.step_stride
    )


@register_jitable
def _even(count: int, most: int) -> int:
    """Returns how many to take at a time, if as few and as even portions as can be have `most` each."""
    if count <= most:
        return count
    portions = (count + most - 1) // most
    return (count + portions - 1) // portions


def _declare_spread(typing_context, out, into, numbers, at, rows, lanes, tile):  # type: ignore[no-untyped-def]
    takes = (out, into, numbers, types.intp, types.intp, types.intp, tile)

    def generate(context, builder, signature, arguments):  # type: ignore[no-untyped-def]
        _, strides, _, at, rows, lanes, _ = arguments
        target, source = (data_of(context, builder, takes[k], arguments[k]) for k in (0, 2))
        vectors, strides = (
            Vectors(builder, target.type.pointee, size=form_of_kind(tile)[0]),
            Strides(*cgutils.unpack_tuple(builder, strides, 4)),
        )
        with cgutils.for_range(builder, rows) as row:
            place = builder.gep(target, [builder.add(strides.at, builder.mul(row.index, strides.row_stride))])
            value = builder.load(builder.gep(source, [builder.add(at, row.index)]))
            repeated = vectors.repeat_upcast(value)
            with cgutils.for_range_slice(builder, number(0), lanes, number(vectors.lanes), I64) as (lane, _):
                mask = vectors.mask(builder.sub(lanes, lane))
                vectors.store(repeated, builder.gep(place, [lane]), mask)
        return context.get_dummy_value()

    return types.void(*takes), generate


spread = cast(Callable[..., None], intrinsic(_declare_spread))
"""`spread(out, into, numbers, at, rows, lanes, tile)` writes `numbers[at + row]`, upcast, into all lanes of
each row, which a product may continue. For compiled code, without checks.
"""
