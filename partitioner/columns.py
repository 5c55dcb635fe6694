"""Cells in columns, as text of any width: no word is ever broken.

A table that is too wide is printed in blocks of columns, each with the row's name before it. Where even one
column beside the names is too much, each row becomes a paragraph.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from textwrap import wrap

_GAP = "  "


def columns(
    rows: Sequence[Sequence[str]], *, left: Collection[int] = (0,), keys: int = 1, width: int | None = None
) -> list[str]:
    """The lines of a table.

    Args:
        rows: cells, as many in each row; the first row are the heads.
        left: columns whose cells stand to the left; the others stand to the right.
        keys: how many of the first columns name a row; every block begins with them.
        width: characters of a line, at most, where no single word is longer; any number if not given.
    """
    widths = [max(len(row[column]) for row in rows) for column in range(len(rows[0]))]
    names = sum(widths[:keys]) + len(_GAP) * (keys - 1)
    if width is not None and names + len(_GAP) + max(widths[keys:], default=0) > width:
        return list(_paragraphs(rows, keys, width))
    lines: list[str] = []
    for block in _blocks(widths, keys, names, width):
        if lines:
            lines.append("")
        for row in rows:
            cells = (
                row[column].ljust(widths[column]) if column in left else row[column].rjust(widths[column])
                for column in (*range(keys), *block)
            )
            lines.append(_GAP.join(cells).rstrip())
    return lines


def wrapped(line: str, width: int | None = None) -> list[str]:
    """A line of words as lines that are no wider; the first line's indentation, and two spaces, begin the
    others.
    """
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
    """The columns behind the names, as many at a time as fit."""
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
    """A row's name, and below it what its cells are: `    parameters 5,765, sends 72.2 KiB`."""
    heads, *others = rows
    for row in others:
        yield from _wrap(" ".join(filter(None, row[:keys])), width, "", _GAP)
        cells = zip(heads[keys:], row[keys:], strict=True)
        told = ", ".join(f"{head} {cell}".strip() for head, cell in cells if cell)
        yield from _wrap(told, width, _GAP * 2, _GAP * 2)
