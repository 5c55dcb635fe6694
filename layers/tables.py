"""Tables of text, and lines of words, for a terminal of any width.

In a table no word is broken: one that is too wide is printed in blocks of columns, each with the row's name
before it, and where even one column beside the names is too much, each row becomes a paragraph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap
from typing import Final

_GAP: Final = "  "


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
