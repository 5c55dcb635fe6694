"""The bytes of numbers of a range in which there are tables: of these, only some rows.

for each table, the number of its rows; then for each, the rows      int64
the numbers outside of tables, in order; then the rows of each       of the dtype of the numbers

A message of a compressor may take the place of the numbers outside of tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.numerics.row_gradient import Rows, Values
from partita.engine.parameters.slots import Table, outside
from partita.engine.parameters.vector import Vector

Piece: TypeAlias = "tuple[int, Vector] | RowPiece"
"""The start of contiguous numbers in their vector, and the numbers; or rows of a table."""


class RowPiece(NamedTuple):
    """Some rows of a table, ascending, each once: `[k]`, and `[k, width]`."""

    table: Table
    rows: Rows
    values: Values


def encode(numbers: Sequence[Vector], tables: Sequence[tuple[Rows, Values]]) -> list[npt.NDArray[Any]]:
    """Returns the buffers of a payload: the numbers outside of tables, and rows of each table."""
    counts = np.array([len(rows) for rows, _ in tables], np.int64)
    whole = (np.ascontiguousarray(values) for _, values in tables)
    return [np.concatenate([counts, *(rows for rows, _ in tables)]), *numbers, *whole]


def n_bytes(
    start: int, stop: int, tables: Sequence[Table], item_bytes: int, *, rows_alone: bool = False
) -> tuple[int, int]:
    """Returns the least and the most bytes of such a payload, for a range of a vector; with `rows_alone`,
    less those of what lies outside of tables.
    """
    outside_tables = 0 if rows_alone else stop - start - sum(table.stop - table.start for table in tables)
    least = outside_tables * item_bytes + 8 * len(tables)
    return least, least + sum(table.n_rows * (8 + table.width * item_bytes) for table in tables)


def between(piece: Piece, start: int, stop: int) -> Iterator[Piece]:
    """Yields the numbers of a piece in `[start, stop)` of the vector, which may cut a row."""
    if not isinstance(piece, RowPiece):
        at, numbers = piece
        low, high = max(start, at), min(stop, at + numbers.size)
        if low < high:
            yield low, numbers[low - at : high - at]
        return
    table, rows, values = piece
    firsts = table.start + rows * table.width
    whole = (firsts >= start) & (firsts + table.width <= stop)
    if whole.any():
        yield RowPiece(table, rows[whole], values[whole])
    for n in np.flatnonzero(~whole & (firsts < stop) & (firsts + table.width > start)):
        yield from between((int(firsts[n]), values[n]), start, stop)


def decode(
    pieces: Iterable[npt.NDArray[np.uint8]],
    start: int,
    stop: int,
    tables: Sequence[Table],
    dtype: npt.DTypeLike,
    *,
    message: int | None = None,
) -> Iterator[Piece]:
    """Yields the numbers of such a payload, which are not copied if it is one aligned piece.

    Args:
        pieces: its bytes, as writable arrays.
        start: of the range of a vector.
        stop: of the range.
        tables: those in the range, ascending.
        dtype: of the numbers.
        message: numbers in the message that comes, as the first piece, in the place of those outside of
            tables; None: there is none.

    Raises:
        ValueError: it is not of this range; no piece was yielded before.
    """
    found = list(pieces)
    data = found[0] if len(found) == 1 and not found[0].ctypes.data % 8 else np.concatenate(found)
    kind = np.dtype(dtype)
    if data.size < 8 * len(tables):
        raise ValueError(f"{data.size} bytes do not say how many rows {len(tables)} tables have")
    counts = data[: 8 * len(tables)].view(np.int64).tolist()
    parts = list(outside(tables, start, stop)) if message is None else [slice(start, start + message)]
    n_rows, n_numbers = sum(counts), sum(part.stop - part.start for part in parts)
    n_numbers += sum(count * table.width for count, table in zip(counts, tables, strict=True))
    at = 8 * (len(tables) + n_rows)
    if min(counts, default=0) < 0 or data.size != at + n_numbers * kind.itemsize:
        raise ValueError(f"{data.size} bytes are not {counts} rows of tables in [{start}:{stop}]")
    rows, numbers = data[8 * len(tables) : at].view(np.int64), data[at:].view(kind)
    of = np.split(rows, np.cumsum(counts)[:-1])
    for table, some in zip(tables, of, strict=True):
        if len(some) and not (some[0] >= 0 and some[-1] < table.n_rows and (np.diff(some) > 0).all()):
            raise ValueError(f"not rows from 0 to {table.n_rows - 1}, ascending: {some[:8].tolist()} ...")
    for part in parts:
        yield part.start, numbers[: part.stop - part.start]
        numbers = numbers[part.stop - part.start :]
    for table, some in zip(tables, of, strict=True):
        yield RowPiece(table, some, numbers[: len(some) * table.width].reshape(-1, table.width))
        numbers = numbers[len(some) * table.width :]
