"""The figures of PyTorch's ways to train a module beside ours, as rows of a table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from partita.layers.tables import columns, wrapped
from partita.partitioner.text import readable_seconds

HEADS: Final = ("", "step", "over eager", "rounds", "first loss", "")


@dataclass(frozen=True)
class Beside:
    """A way to train the module, and its figures.

    Args:
        name: of the way.
        step_s: median of the rounds; None if it could not be run.
        gain: the step of PyTorch's eager mode on one thread over this one, the median of the rounds.
        lowest, highest: of this ratio in a round.
        loss: of the first step. All begin with the numbers of the module and see the same minibatch.
        note: how the module was cut, or why it could not be run.
    """

    name: str
    step_s: float | None = None
    gain: float | None = None
    lowest: float | None = None
    highest: float | None = None
    loss: float | None = None
    note: str = ""


def beside_rows(found: Sequence[Beside]) -> list[list[str]]:
    """Returns the cells of a table, line by line; the first line are the heads."""
    return [list(HEADS), *map(_row, found)]


def _row(one: Beside) -> list[str]:
    if one.step_s is None:
        return [one.name, "-", "-", "-", "-", one.note]
    return [
        one.name,
        readable_seconds(one.step_s),
        f"{one.gain:.2f}x",
        f"{one.lowest:.2f} to {one.highest:.2f}",
        f"{one.loss:.5g}",
        one.note,
    ]


def beside_text(found: Sequence[Beside], width: int | None = None) -> list[str]:
    """Returns the lines of a table, and below it how modules were cut, or why they could not be."""
    table = [row[:-1] for row in beside_rows(found)]
    notes = [f"  {one.name}: {one.note}" for one in found if one.note]
    return [
        "beside PyTorch on this machine, in turn; two processes have a thread each:",
        *columns(table, width=width),
        *(line for note in notes for line in wrapped(note, width)),
    ]
