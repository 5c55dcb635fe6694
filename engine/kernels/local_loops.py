"""The loops over places of layers whose nodes take weighted sums of patches, no two places sharing a weight.

Every place is a small matrix product over the examples of its patch. A patch row is contiguous (its columns
times their channels), so each product runs over strips of rows `[inputs, example]`.

Arrays are flat; their axes are: sums and gradients of sums `[place row, place column, filter, example]`,
inputs `[row, column, channel, example]`, weights `[place row, place column, filter, patch row, patch column,
channel]`. Sums are float32 or float64; operands have that type, or are bfloat16's bits.

A sum is a chain of fused multiply-adds in a fixed order. Forward: bias, then inputs in the order of the
patch. For the gradient of an input: receivers in ascending rows, then columns, then filters. For that of a
weight: examples. Neither tiles, nor vectors, nor cuts, nor threads change the bits.
"""

from __future__ import annotations

from typing import NamedTuple

from partita.engine.kernels.kernel import Array
from partita.engine.kernels.patches import PatchGeometry, inside, receivers
from partita.engine.kernels.tiles.forms import Tile
from partita.engine.kernels.tiles.llvm_vectors import LINE_BYTES
from partita.engine.kernels.tiles.transposition import transpose
from partita.engine.kernels.tiles.vector_products import NOWHERE, Extent, Following, Strides, multiply, spread
from partita.engine.numerics import compiled, compiled_reassociating, downcast, upcast


class Places(NamedTuple):
    """The part of a layer that a machine holds.

    Args:
        first: the machine's rows are `[first, last)`.
        columns: places in a row.
        filters: nodes at a place.
        batch: examples.
        window: the row of the input at which the array of inputs begins, or of their gradient.
    """

    first: int
    last: int
    columns: int
    filters: int
    batch: int
    window: int


@compiled
def forward(
    out: Array,
    x: Array,
    weight: Array,
    bias: Array,
    rows: tuple[int, int],
    p: Places,
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Computes the sums of rows `[start, stop)` of the places.

    Args:
        out: begins at row `start`.
        x: the window of the input.
        weight: of the machine's rows.
        bias: of the machine's rows; empty if there is none.
        rows: `(start, stop)`.
        p: the machine's part.
        g: the patches on the picture.
        tile: the largest tile.
    """
    run, line = g.size_x * g.channels, g.width * g.channels * p.batch
    fan_in = g.size_y * run
    for row in range(rows[0], rows[1]):
        top = row * g.stride_y - g.before_y
        low_y, high_y = inside(top, g.size_y, g.height)
        for column in range(p.columns):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            node = ((row - p.first) * p.columns + column) * p.filters
            at = ((row - rows[0]) * p.columns + column) * p.filters * p.batch
            into = Strides(at, p.batch, 0, 0)
            if bias.size:
                spread(out, into, bias, node, p.filters, p.batch, tile)
            multiply(
                out,
                into,
                weight,
                Strides(node * fan_in + low_y * run + low * g.channels, fan_in, run, 1),
                x,
                Strides(
                    (top + low_y - p.window) * line + (left + low) * g.channels * p.batch, 0, line, p.batch
                ),
                Extent(p.filters, p.batch, high_y - low_y, (high - low) * g.channels),
                bias.size > 0,
                Following((node + p.filters) * fan_in, g.stride_x * g.channels * p.batch, 0),
                tile,
            )


@compiled
def backward_input(
    out: Array,
    sums: Array,
    weight: Array,
    grad: Array,
    rows: tuple[int, int],
    accumulate: bool,
    p: Places,
    g: PatchGeometry,
    tile: Tile,
) -> None:
    """Computes the gradient of rows `[start, stop)` of the input, from the machine's places.

    Place after place, as the weights lie in memory: each input meets its receivers in ascending order.

    Args:
        out: the gradient window, in storage type.
        sums: `out` itself, or if that is bfloat16's bits, float32 scratch for as many rows as a patch has.
        weight: of the machine's rows.
        grad: gradient of the sums of the machine's rows.
        rows: `(start, stop)`.
        accumulate: whether to add to what is there.
        p: the machine's part.
        g: the patches on the picture.
        tile: the largest tile.
    """
    run, line = g.size_x * g.channels, g.width * g.channels * p.batch
    fan_in, slots = g.size_y * run, len(sums) // line
    opened = closed = rows[0]
    low_row, high_row = _receivers_of(rows, p, g)
    for row in range(low_row, high_row):
        top = row * g.stride_y - g.before_y
        low_y, high_y = max(rows[0], top), min(rows[1], top + g.size_y)
        is_whole = high_y - low_y == g.size_y
        opened, closed = _open(out, sums, opened, closed, high_y, accumulate, p.window, line)
        for column in range(p.columns):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            node = ((row - p.first) * p.columns + column) * p.filters
            slot, ahead = (low_y - p.window) % slots, (node + p.filters) * fan_in  # weights of the next place
            for y in range(low_y, high_y):
                at = node * fan_in + (y - top) * run + low * g.channels
                multiply(
                    sums,
                    Strides(slot * line + (left + low) * g.channels * p.batch, p.batch, 0, 0),
                    weight,
                    Strides(at, 1, 0, fan_in),
                    grad,
                    Strides(node * p.batch, 0, 0, p.batch),
                    Extent((high - low) * g.channels, p.batch, 1, p.filters),
                    True,
                    Following(ahead, 0, 0) if is_whole else Following(at + p.filters * fan_in, 0, fan_in),
                    tile,
                )
                slot, ahead = slot + 1 if slot + 1 < slots else 0, ahead + run * p.filters
    opened, closed = _open(out, sums, opened, closed, rows[1], accumulate, p.window, line)
    _close(out, sums, closed, opened, p.window, line)


@compiled
def _receivers_of(rows: tuple[int, int], p: Places, g: PatchGeometry) -> tuple[int, int]:
    return receivers(rows[0], g, p.first, p.last)[0], receivers(rows[1] - 1, g, p.first, p.last)[1]


@compiled
def _open(
    out: Array, sums: Array, opened: int, closed: int, stop: int, accumulate: bool, window: int, line: int
) -> tuple[int, int]:
    """Makes rows up to `stop` ready to be added to, and writes out rows whose slot is needed.

    Rows `[closed, opened)` are ready. Never more than a patch has are needed at once, so the lowest are done.
    """
    slots = len(sums) // line
    while opened < stop:
        if opened - closed == slots:
            _close(out, sums, closed, closed + 1, window, line)
            closed += 1
        at, place = (opened - window) % slots * line, (opened - window) * line
        for i in range(line):
            sums[at + i] = upcast(out[place + i]) if accumulate else sums.dtype.type(0)
        opened += 1
    return opened, closed


@compiled
def _close(out: Array, sums: Array, start: int, stop: int, window: int, line: int) -> None:
    if out.dtype == sums.dtype:  # they were summed where they belong
        return
    for row in range(start, stop):
        at, place = (row - window) % (len(sums) // line) * line, (row - window) * line
        for i in range(line):
            out[place + i] = downcast(sums[at + i], out[place + i])


@compiled
def backward_weight(
    out: Array,
    scratch: Array,
    x: Array,
    grad: Array,
    rows: tuple[int, int],
    p: Places,
    g: PatchGeometry,
    accumulate: bool,
    tile: Tile,
) -> None:
    """Computes the weight gradient of rows `[start, stop)` of the places; zero where a patch lies on padding.

    Vectors run over the inputs, for which each row of a patch is transposed once, `[example, input]`.

    Args:
        out: begins at row `start`, float32 or float64.
        scratch: for as many transposed rows as a patch has, in the type of `out`.
        x: the window of the input.
        grad: gradient of the sums of the machine's rows.
        rows: `(start, stop)`.
        p: the machine's part.
        g: the patches on the picture.
        accumulate: whether to add to what is there.
        tile: the largest tile.
    """
    run, row_size = g.size_x * g.channels, len(scratch) // g.size_y
    stride, fan_in, opened = row_size // p.batch, g.size_y * run, 0
    for row in range(rows[0], rows[1]):
        top = row * g.stride_y - g.before_y
        low_y, high_y = inside(top, g.size_y, g.height)
        opened = _transpose_rows(scratch, x, max(opened, top + low_y), top + high_y, p, g)
        for column in range(p.columns):
            left = column * g.stride_x - g.before_x
            low, high = inside(left, g.size_x, g.width)
            node = (row * p.columns + column) * p.filters
            at = (node - rows[0] * p.columns * p.filters) * fan_in
            if not accumulate and (high - low < g.size_x or high_y - low_y < g.size_y):
                out[at : at + p.filters * fan_in] = 0
            slot = (top + low_y) % g.size_y
            for y in range(low_y, high_y):
                multiply(
                    out,
                    Strides(at + y * run + low * g.channels, fan_in, 0, 0),
                    grad,
                    Strides((node - p.first * p.columns * p.filters) * p.batch, p.batch, 0, 1),
                    scratch,
                    Strides(slot * row_size + (left + low) * g.channels, 0, 0, stride),
                    Extent(p.filters, (high - low) * g.channels, 1, p.batch),
                    accumulate,
                    NOWHERE,
                    tile,
                )
                slot = slot + 1 if slot + 1 < g.size_y else 0


@compiled
def _transpose_rows(scratch: Array, x: Array, opened: int, stop: int, p: Places, g: PatchGeometry) -> int:
    """Transposes rows of the input up to `stop`, each into its slot; returns the first that is not there."""
    run, row_size = g.width * g.channels, len(scratch) // g.size_y
    while opened < stop:
        at, stride = opened % g.size_y * row_size, row_size // p.batch
        transpose(x, (opened - p.window) * run * p.batch, p.batch, scratch, at, stride, run, p.batch)
        opened += 1
    return opened


@compiled_reassociating
def backward_bias(grad: Array, out: Array) -> None:
    """Sums the gradient over the examples: `[node, example]` to `[node]`."""
    for node in range(len(out)):
        total = out.dtype.type(0)
        for e in range(grad.shape[1]):
            total += upcast(grad[node, e])
        out[node] = total


def transposed_row(g: PatchGeometry, batch: int, item_bytes: int) -> int:
    """Size of a transposed row of the input.

    The lines of an example are padded to an odd number of cache lines: were it a power of two, examples would
    compete for a few places of the cache.
    """
    in_line = LINE_BYTES // item_bytes
    return (-(-g.width * g.channels // in_line) | 1) * in_line * batch


@compiled_reassociating
def accumulate_bias(grad: Array, out: Array) -> None:
    """Adds the gradient, summed over the examples, to `[node]`."""
    for node in range(len(out)):
        total = upcast(out[node])
        for e in range(grad.shape[1]):
            total += upcast(grad[node, e])
        out[node] = downcast(total, out[node])
