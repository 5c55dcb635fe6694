"""A plan as a user holds it: everything that follows from a cut, printed as a table, drawn as SVG."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.draw import draw_plan
from partita.partitioner.table import plan_table


@dataclass(frozen=True)
class Plan(BarePlan):
    """One replica of a network over the machines of a cluster, made by `partition`. Fields: `BarePlan`."""

    def draw(self, path: str | Path) -> Path:
        """Writes the plan as an SVG picture: layers, parts as colours, messages as lines."""
        target = Path(path)
        target.write_text(draw_plan(self), encoding="utf-8")
        return target

    def __str__(self) -> str:
        return plan_table(self)
