"""Text for people: quantities with their units, and tables of cells.

Quantities are written and read back as "10 Gbit/s", "64 GiB", "50 us", "80 Gflop/s". In a table no word is
broken: one that is too wide is printed in blocks of columns, each with the row's name before it, and where
even one column beside the names is too much, each row becomes a paragraph.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from decimal import Decimal, InvalidOperation
from textwrap import wrap
from typing import Final

_BINARY: Final = {"KiB": 2.0**10, "MiB": 2.0**20, "GiB": 2.0**30, "TiB": 2.0**40}
_DECIMAL: Final = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}

SECONDS: Final[Mapping[str, float]] = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "ns": 1e-9}
BYTES: Final[Mapping[str, float]] = {**{f"{k}B": n for k, n in _DECIMAL.items()}, **_BINARY}
BYTES_PER_S: Final[Mapping[str, float]] = {
    **{f"{unit}/s": n for unit, n in BYTES.items()},
    **{f"{k}bit/s": n / 8 for k, n in _DECIMAL.items()},
}
FLOPS_PER_S: Final[Mapping[str, float]] = {f"{k}flop/s": n for k, n in _DECIMAL.items()}

_WRITTEN: Final = re.compile(r"\s*([0-9.eE+-]+)\s*(\S+)\s*")
_GAP: Final = "  "


def readable_bytes(n_bytes: float) -> str:
    """Writes a number of bytes: `1.5 MiB`."""
    for unit in ("B", "KiB", "MiB"):
        if n_bytes < 1024:
            return f"{n_bytes:.0f} {unit}" if unit == "B" else f"{n_bytes:.1f} {unit}"
        n_bytes /= 1024
    return f"{n_bytes:.1f} GiB"


def readable_seconds(seconds: float) -> str:
    """Writes a number of seconds: `3.1 ms`."""
    for factor, unit in ((1.0, "s"), (1e3, "ms")):
        if seconds * factor >= 1:
            return f"{seconds * factor:.3g} {unit}"
    return f"{seconds * 1e6:.3g} µs"


def parse_quantity(written: object, units: Mapping[str, float]) -> float:
    """Reads a quantity in the plain unit (seconds, bytes, bytes per second, operations per second).

    `units` are the plain unit's multiples by their names, recommended ones first.

    Raises:
        ValueError: the text is no quantity; the message says what would be, from "write" on.
    """
    found = _WRITTEN.fullmatch(written) if isinstance(written, str) else None
    if found is not None and found[2] in units:
        try:
            number = float(Decimal(found[1]) * Decimal(repr(units[found[2]])))
        except (InvalidOperation, OverflowError):
            number = math.nan
        if math.isfinite(number):
            return number
    raise ValueError(f"write a number and one of {', '.join(units)}")


def quantity(number: float, units: Mapping[str, float], *, digits: int | None = None) -> str:
    """Writes a quantity in the unit in which it is shortest.

    Without a number of significant digits, `parse_quantity` gives the very number back.
    """
    if digits is not None:
        fitting = [unit for unit, size in units.items() if 1.0 <= abs(number) / size < 1000.0]
        plain = [unit for unit, size in units.items() if size == 1.0]
        texts = (f"{number / units[unit]:.{digits}g} {unit}" for unit in fitting or plain)
        return min(texts, key=len)
    written = [f"{_plain(number, size)} {unit}" for unit, size in units.items()]
    return min((text for text in written if parse_quantity(text, units) == number), key=_length)


def _length(text: str) -> tuple[int, int]:
    """Ranks texts by their digits but for zeros at the end, then by their letters."""
    return len(text.split()[0].replace(".", "").strip("0")), len(text)


def _plain(number: float, size: float) -> str:
    """The number of units of this size, in plain decimals."""
    return f"{(Decimal(repr(float(number))) / Decimal(repr(size))).normalize():f}"


def columns(
    rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), keys: int = 1, width: int | None = None
) -> list[str]:
    """Lays out cells as the lines of a table; the first row are the heads.

    Columns in `left` are aligned to the left. Every block begins with the first `keys` columns. No line is
    longer than `width`, unless a single word is.
    """
    from rich.cells import cell_len

    widths = [max(cell_len(row[column]) for row in rows) for column in range(len(rows[0]))]
    names = sum(widths[:keys]) + len(_GAP) * (keys - 1)
    if width is not None and names + len(_GAP) + max(widths[keys:], default=0) > width:
        return list(_paragraphs(rows, keys, width))
    lines: list[str] = []
    for block in _blocks(widths, keys, names, width):
        lines += [""] if lines else []
        lines += _table(rows, [*range(keys), *block], left)
    return lines


def _table(rows: Sequence[Sequence[str]], chosen: Sequence[int], left: Collection[int]) -> list[str]:
    # Only a process that prints a table imports rich: every host imports this module.
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, show_header=False, pad_edge=False, padding=(0, len(_GAP), 0, 0))
    for column in chosen:
        table.add_column(justify="left" if column in left else "right", no_wrap=True)
    for row in rows:
        table.add_row(*(Text(row[column]) for column in chosen))
    console = Console(color_system=None, force_jupyter=False, width=1 << 16)
    with console.capture() as captured:
        console.print(table)
    return [line.rstrip() for line in captured.get().splitlines()]


def wrapped(line: str, width: int | None = None) -> list[str]:
    """Wraps a line of words; the first line's indentation, and two spaces, begin the others."""
    if width is None or len(line) <= width:
        return [line]
    start = line[: len(line) - len(line.lstrip())]
    return _wrap(line.lstrip(), width, start, f"{start}  ")


def _wrap(text: str, width: int, first: str, others: str) -> list[str]:
    return wrap(
        text,
        width,
        initial_indent=first,
        subsequent_indent=others,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _blocks(widths: Sequence[int], keys: int, names: int, width: int | None) -> Iterator[list[int]]:
    """Groups the columns behind the names, as many at a time as fit."""
    block: list[int] = []
    used = names
    for column in range(keys, len(widths)):
        wide = len(_GAP) + widths[column]
        if block and width is not None and used + wide > width:
            yield block
            block, used = [], names
        block.append(column)
        used += wide
    yield block


def _paragraphs(rows: Sequence[Sequence[str]], keys: int, width: int) -> Iterator[str]:
    """Prints a row's name, and below it its cells: `    parameters 5,765, sends 72.2 KiB`."""
    heads, *others = rows
    for row in others:
        yield from _wrap(" ".join(filter(None, row[:keys])), width, "", _GAP)
        cells = zip(heads[keys:], row[keys:], strict=True)
        told = ", ".join(f"{head} {cell}".strip() for head, cell in cells if cell)
        yield from _wrap(told, width, _GAP * 2, _GAP * 2)
