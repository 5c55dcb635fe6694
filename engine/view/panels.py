"""A panel for each machine: the rows of the inputs that it holds, and its own rows of the layer.

Inputs are on the left, one below the other; the layer is on the right.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from partita.engine.view.cells import Cells, padding_around
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.ir.buffer import Edge

CAPTION, BETWEEN, ACROSS = 20.0, 14.0, 90.0
"""Room above a grid for its words, between what lies below one another, and between inputs and layer."""


@dataclass(frozen=True)
class Panel:
    """A machine's inputs (None where it holds nothing of one) and its own rows of the layer, if any."""

    machine: int
    inputs: tuple[Cells | None, ...]
    layer: Cells | None
    top: float
    bottom: float

    @property
    def grids(self) -> list[Cells]:
        """All that is drawn."""
        return [cells for cells in (*self.inputs, self.layer) if cells is not None]


def edges_into(owned: Ownership, layer: str) -> list[Edge]:
    """Returns an edge for each input of a layer, in their order."""
    return [Edge(source, layer, number) for number, source in enumerate(owned.graph[layer].sources)]


def panels(owned: Ownership, layer: str, *, left: float, top: float) -> list[Panel]:
    """Places a panel for each machine that has rows of the layer or of its inputs, from the top."""
    sources = [name for name in owned.graph[layer].sources if not owned.graph[name].is_placeholder]
    machines = [m for m in range(owned.machines) if any(owned.rows(name, m) for name in (layer, *sources))]
    inputs = {m: [_input(owned, edge, m) for edge in edges_into(owned, layer)] for m in machines}
    read = [cells for of_one in inputs.values() for cells in of_one if cells is not None]
    right = left + max([ACROSS, *(max(cells.width + ACROSS, cells.right + BETWEEN) for cells in read)])
    found = []
    for machine in machines:
        first = y = top + (CAPTION if owned.machines > 1 else 0.0)
        placed: list[Cells | None] = []
        for cells in inputs[machine]:
            placed.append(cells and replace(cells, left=left, top=y + CAPTION))
            y += 0.0 if cells is None else CAPTION + cells.height + BETWEEN
        mine, bottom, own = owned.rows(layer, machine), y - BETWEEN, None
        if mine:
            own = Cells(owned.graph[layer], mine, alone=owned.machines == 1)
            height = max(bottom - first, CAPTION + own.height)
            middle = first + (height - CAPTION - own.height) / 2
            own, bottom = replace(own, left=right, top=middle + CAPTION), first + height
        found.append(Panel(machine, tuple(placed), own, top, bottom))
        top = bottom + 2 * BETWEEN
    return found


def _input(owned: Ownership, edge: Edge, machine: int) -> Cells | None:
    """Returns what a machine holds of an input, at the origin of the page."""
    source, wiring = owned.graph[edge.layer], owned.graph[edge.consumer].wirings[edge.number]
    own, needed = owned.rows(source.name, machine), owned.needed(edge, machine)
    if not own | needed:
        return None
    start, stop = (own | needed).hull[0]
    around = [*padding_around(wiring, source.shape), (0, 0)]
    above, below = around[0] if owned.rows(edge.consumer, machine) else (0, 0)
    vertical = (above if start == 0 else 0, below if stop == source.n_rows else 0)
    return Cells(source, own, needed - own, vertical, around[1], alone=owned.machines == 1)
