"""A plan as a user holds it: everything that follows from a cut, printed as a table, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.layers.region import Shape
from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.draw import draw_plan
from partita.partitioner.draw_layer import draw_layer
from partita.partitioner.table import plan_table


@dataclass(frozen=True)
class Plan(BarePlan):
    """One replica of a network over the machines of a cluster, made by `partition`. Fields: `BarePlan`."""

    def draw(
        self, path: str | Path, *, layer: str | None = None, nodes: Sequence[Shape | int] | None = None
    ) -> Path:
        """Writes the plan as an SVG picture: layers, parts as colours, messages as lines.

        Args:
            path: of the file.
            layer: draws this layer alone, node by node, with its inputs: who feeds whom, and where it is cut,
                which rows travel.
            nodes: of that layer, those whose senders are marked, by their positions in the grid, for example
                `[(0, 0, 0)]`; the middle one if not given.

        Raises:
            ValueError: there is no such layer or node, the layer has too many to be drawn, or nodes are given
                without a layer.
        """
        if layer is None and nodes is not None:
            raise ValueError(f"nodes {nodes} are marked in the picture of a layer; name the layer too")
        target = Path(path)
        drawn = draw_plan(self) if layer is None else draw_layer(self, layer, nodes)
        target.write_text(drawn, encoding="utf-8")
        return target

    def __str__(self) -> str:
        return plan_table(self)
