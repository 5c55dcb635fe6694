"""The table that `net.summary()` returns: shape, parameters, bytes and operations of each layer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from partita.layers.graph import Graph, Grid
from partita.layers.tables import columns, wrapped
from partita.layers.text import counted, readable_bytes

WIDTH: Final = 80
"""Columns of a terminal, if nothing else is known."""
SHORTEST: Final = 12
"""Letters that are left of the longest names of layers, where a table would be too wide."""


@dataclass(frozen=True)
class Row:
    """A layer in the table.

    Attributes:
        name: of the layer.
        kind: its class, as users know it.
        shape: of its grid, axis 0 the rows.
        n_parameters: numbers of the parameters that it is the first to have.
        n_trainable: those of them that learn.
        flops: operations of the forward pass for one example.
        shares: names of the parameters that an earlier layer has, too.
        machines: where its rows are, in words; "" without a plan.
        note: see `Layer.note`.
    """

    name: str
    kind: str
    shape: tuple[int, ...]
    n_parameters: int
    n_trainable: int
    flops: float
    shares: tuple[str, ...] = ()
    machines: str = ""
    note: str = ""

    @property
    def trainable(self) -> str:
        """Returns whether its parameters learn: "yes", "no", "partly", or "" without parameters."""
        if not self.n_parameters:
            return ""
        return "yes" if self.n_trainable == self.n_parameters else "partly" if self.n_trainable else "no"


@dataclass(frozen=True, repr=False)
class NetworkSummary:
    """A table of the layers of a network, printed by `print` and shown by notebooks.

    Attributes:
        name: of the network.
        rows: one for each input, target and layer, in their order.
        item_bytes: bytes of one number of a parameter, 4 or 8.
    """

    name: str
    rows: tuple[Row, ...]
    item_bytes: int = 4

    @property
    def n_parameters(self) -> int:
        """Numbers of all parameters; those that layers share count once."""
        return sum(row.n_parameters for row in self.rows)

    @property
    def n_trainable(self) -> int:
        """Numbers of the parameters that learn."""
        return sum(row.n_trainable for row in self.rows)

    @property
    def n_bytes(self) -> int:
        """Bytes of all parameters, as optimizers and checkpoints have them."""
        return self.n_parameters * self.item_bytes

    @property
    def flops(self) -> float:
        """Operations of the forward pass for one example."""
        return sum(row.flops for row in self.rows)

    def text(self, width: int | None = WIDTH) -> str:
        """Returns the table, no line longer than `width` where a word is not; None for any length."""
        head = (
            f"network {self.name}: {counted(self.n_parameters, 'parameter')} ({readable_bytes(self.n_bytes)})"
        )
        if self.n_trainable < self.n_parameters:
            head += f", {self.n_parameters - self.n_trainable:,} of them not trainable"
        head += f"; {readable_flops(self.flops)}flop for an example, forward"
        cells = self.cells()
        if width is not None:
            cells = _narrowed(cells, width)
        left = [k for k, title in enumerate(cells[0]) if title not in ("parameters", "bytes", "flop")]
        return "\n".join(
            [*wrapped(head, width), "", *columns(cells, left=left, width=width), *self._notes(width)]
        )

    def cells(self) -> list[list[str]]:
        """Returns the heads and a row for each layer; a column that would say nothing is left out."""
        heads = ["layer", "kind", "shape", "parameters", "bytes", "trainable", "flop", "machines"]
        rows = [self._cells(row) for row in self.rows]
        kept = [True] * 7 + [any(row.machines for row in self.rows)]
        kept[5] = self.n_trainable < self.n_parameters
        return [[cell for cell, keep in zip(row, kept, strict=True) if keep] for row in (heads, *rows)]

    def _cells(self, row: Row) -> list[str]:
        own = row.n_parameters
        return [
            row.name,
            row.kind,
            "x".join(map(str, row.shape)),
            f"{own:,}" if own else "shared" if row.shares else "",
            readable_bytes(own * self.item_bytes) if own else "",
            row.trainable,
            readable_flops(row.flops).strip() if row.flops else "",
            row.machines,
        ]

    def _notes(self, width: int | None) -> list[str]:
        found = [f"{row.name} shares {', '.join(row.shares)}" for row in self.rows if row.shares]
        found += [f"{row.name} {row.note}" for row in self.rows if row.note]
        return [line for note in found for line in wrapped(note, width)]

    def __str__(self) -> str:
        return self.text()

    __repr__ = __str__

    def _repr_html_(self) -> str:
        """Returns the table as HTML, for notebooks."""
        head, *rows = self.cells()
        titles = "".join(f"<th>{escape(title)}</th>" for title in head)
        body = "".join(f"<tr>{''.join(f'<td>{escape(cell)}</td>' for cell in row)}</tr>" for row in rows)
        first = escape(self.text(None).split("\n", 1)[0])
        notes = "".join(f"<p>{escape(note)}</p>" for note in self._notes(None))
        return f"<p>{first}</p><table><thead><tr>{titles}</tr></thead><tbody>{body}</tbody></table>{notes}"


def summary_of(
    graph: Graph, *, item_bytes: int = 4, machines: Mapping[str, str] | None = None
) -> NetworkSummary:
    """Summarises a network.

    Args:
        graph: the network, finished or not.
        item_bytes: bytes of one number of a parameter.
        machines: for each layer, where its rows are, in words.
    """
    return NetworkSummary(graph.name, tuple(_rows(graph.grids, machines or {})), item_bytes)


def _rows(grids: Sequence[Grid], machines: Mapping[str, str]) -> list[Row]:
    seen: set[str] = set()
    found = []
    for grid in grids:
        own = [parameter for parameter in grid.parameters if parameter.name not in seen]
        shares = tuple(parameter.name for parameter in grid.parameters if parameter.name in seen)
        seen.update(parameter.name for parameter in own)
        sizes = [(parameter.size, parameter.trainable) for parameter in own]
        total, trainable = sum(n for n, _ in sizes), sum(n for n, learns in sizes if learns)
        flops = grid.flops_per_node * grid.n_nodes
        where = machines.get(grid.name, "")
        kind, note = grid.layer.kind, grid.layer.note
        found.append(Row(grid.name, kind, grid.shape, total, trainable, flops, shares, where, note))
    return found


def readable_flops(flops: float) -> str:
    """Writes a number of operations with a unit's prefix, for "flop" to follow: `1.2 M`."""
    for prefix in ("", "k", "M", "G"):
        if flops < 1000 or prefix == "G":
            break
        flops /= 1000
    return f"{flops:,.0f} " if not prefix else f"{flops:,.1f} {prefix}"


def _narrowed(cells: list[list[str]], width: int) -> list[list[str]]:
    """Shortens the longest names of layers, in their middle, where the table then fits."""
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]
    most = widths[0] - max(0, sum(widths) + 2 * (len(widths) - 1) - width)
    if not SHORTEST <= most < widths[0]:
        return cells
    return [[row[0] if len(row[0]) <= most else _shortened(row[0], most), *row[1:]] for row in cells]


def _shortened(name: str, most: int) -> str:
    ends = most // 2
    return f"{name[: most - ends - 1]}…{name[-ends:]}"
