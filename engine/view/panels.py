"""What each machine holds of a layer and of its inputs, and where that lies on the page: one panel a machine.

On the left of a panel the rows of the inputs, one input below the other; on the right the machine's own rows
of the layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from partita.engine.view import svg
from partita.engine.view.cells import Place, Sheets, is_in, padding_around
from partita.layers.box import NOTHING, Box, BoxSet
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Edge

CAPTION, BETWEEN, ACROSS = 20.0, 14.0, 90.0
"""Room above a grid for its words, between what lies below one another, and between inputs and layer."""
WORDS = 11.0
"""Size of a caption."""


@dataclass(frozen=True)
class Held:
    """A machine's rows of one grid.

    Args:
        name: of the grid.
        cells: where they lie; every row between the first and the last has its place.
        own: the rows that belong to the machine.
        heard: those that it does not own, and needs.
    """

    name: str
    cells: Sheets
    own: BoxSet
    heard: BoxSet = NOTHING

    def shows(self, place: Place) -> bool:
        """Whether a place is drawn: a node of these rows, or padding beside them."""
        rows = self.own | self.heard
        inside = any(is_in(place, run) for run in rows)
        return self.cells.shows(place) and (inside or not self.cells.holds(place))

    def middle(self, box: Box) -> float:
        """The y of the middle of the box's rows."""
        top, bottom = (self.cells.corner((row, 0, 0))[1] for row in box[0])
        return (top + bottom) / 2 - 1


@dataclass(frozen=True)
class Panel:
    """A machine's inputs (None where it holds nothing of one) and its own rows of the layer, if any."""

    machine: int
    inputs: tuple[Held | None, ...]
    layer: Held | None
    top: float
    bottom: float


def edges_into(owned: Ownership, layer: str) -> tuple[Edge, ...]:
    """One for each input of a layer, in their order."""
    sources = enumerate(owned.graph[layer].sources)
    return tuple(Edge(source, layer, number) for number, source in sources)


def panels(owned: Ownership, layer: str, *, left: float, top: float) -> list[Panel]:
    """A panel for each machine that has rows of the layer or of what it listens to, from the top."""
    machines = [m for m in range(owned.machines) if _concerns(owned, layer, m)]
    inputs = {m: _inputs(owned, layer, m) for m in machines}
    widths = [held.cells.width for of_one in inputs.values() for held in of_one if held is not None]
    right = left + max(widths, default=0.0) + ACROSS
    found, y = [], top
    for machine in machines:
        panel = _panel(owned, layer, machine, inputs[machine], columns=(left, right), top=y)
        found.append(panel)
        y = panel.bottom + 2 * BETWEEN
    return found


def _concerns(owned: Ownership, layer: str, machine: int) -> bool:
    computed = [source for source in owned.graph[layer].sources if not owned.graph[source].is_placeholder]
    return any(owned.rows(name, machine) for name in (layer, *computed))


def _inputs(owned: Ownership, layer: str, machine: int) -> tuple[Held | None, ...]:
    """Each at the origin of the page."""
    grid, found = owned.graph[layer], []
    mine = owned.rows(layer, machine)
    for edge in edges_into(owned, layer):
        source = owned.graph[edge.layer]
        own, needed = owned.rows(source.name, machine), owned.needed(edge, machine)
        window = (own | needed).hull[0]
        around = [*padding_around(grid.layer.connectivity, source.shape), (0, 0)]
        above, below = around[0] if mine else (0, 0)
        vertical = (above if window[0] == 0 else 0, below if window[1] == source.n_rows else 0)
        cells = Sheets(source.shape, window, vertical, around[1], 0.0, 0.0)
        heard = needed - own
        found.append(Held(source.name, cells, own, heard) if own or heard else None)
    return tuple(found)


def _panel(
    owned: Ownership,
    layer: str,
    machine: int,
    inputs: Sequence[Held | None],
    *,
    columns: tuple[float, float],
    top: float,
) -> Panel:
    y, placed = top + (CAPTION if owned.machines > 1 else 0.0), []
    first = y
    for held in inputs:
        placed.append(None if held is None else _moved(held, columns[0], y + CAPTION))
        y += 0.0 if held is None else CAPTION + held.cells.height + BETWEEN
    mine = owned.rows(layer, machine)
    if not mine:
        return Panel(machine, tuple(placed), None, top, y - BETWEEN)
    shape, none = owned.graph[layer].shape, (0, 0)
    cells = Sheets(shape, mine.hull[0], none, none, 0.0, 0.0)
    height = max(y - BETWEEN - first, CAPTION + cells.height)
    own = Held(layer, cells, mine)
    middle = first + (height - CAPTION - cells.height) / 2
    return Panel(machine, tuple(placed), _moved(own, columns[1], middle + CAPTION), top, first + height)


def _moved(held: Held, left: float, top: float) -> Held:
    return replace(held, cells=replace(held.cells, left=left, top=top))


def caption(held: Held, *, alone: bool) -> str:
    """The words above a grid: its name, and its shape or the rows that the machine holds."""
    return svg.text(held.cells.left, held.cells.top - 7, _words(held, alone=alone), size=WORDS)


def right_of(held: Held, *, alone: bool) -> float:
    """Where a grid and its words end."""
    return held.cells.left + max(
        held.cells.width, svg.text_width(_words(held, alone=alone), size=WORDS) * 0.9
    )


def _words(held: Held, *, alone: bool) -> str:
    if alone:
        return f"{held.name} {'×'.join(map(str, held.cells.shape))}"
    return f"{held.name}, rows {held.own | held.heard}"
