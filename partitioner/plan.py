"""A plan as a user holds it: everything that follows from a cut, printed as a table, drawn as SVG."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from partita.layers.region import Shape
from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.pictures import view
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
        drawn = view().draw_plan(self) if layer is None else view().draw_layer(self, layer, nodes)
        target.write_text(drawn, encoding="utf-8")
        return target

    def draw_timeline(self, path: str | Path) -> Path:
        """Writes the predicted step as an SVG picture: what each machine does when, who waits for what.

        Args:
            path: of the file.
        """
        target = Path(path)
        target.write_text(view().draw_step(self), encoding="utf-8")
        return target

    def write_page(self, path: str | Path) -> Path:
        """Writes all that is known of the plan as one HTML page, which needs no other file.

        The table, the picture, the timeline of a predicted step (which can be enlarged), the messages by
        size, and the memory of each machine.

        Args:
            path: of the file.
        """
        target = Path(path)
        target.write_text(view().plan_page(self, str(self)), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return plan_table(self)
