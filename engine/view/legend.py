"""The words around the picture of a plan: its title, and the meaning of colours and lines."""

from __future__ import annotations

import math

from partita.engine.view import svg
from partita.engine.view.palette import Palette
from partita.layers.text import counted, readable_bytes
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_seconds

LINE = 22.0
COLUMNS = (30.0, 190.0, 275.0, 335.0)
"""Where name, parameters, bytes sent and busy begin or (numbers) end."""
WIDTH, BETWEEN = 345.0, 40.0
NARROW = 20
"""Machines up to which the legend stands beside the picture, in one column; else below it, in several."""


def predicted_text(plan: Plan) -> str:
    """Writes the predicted length of a step, and whether it is a guess."""
    doubt = "" if plan.costs.calibrated else " (uncalibrated)"
    return f"predicted step {readable_seconds(plan.predicted_step_s)}{doubt}"


def heading(plan: Plan, *, x: float, y: float) -> str:
    """Writes the name of the network, its size and the predicted step."""
    machines = counted(len(plan.cluster), "machine")
    parameters = counted(plan.graph.n_parameters, "parameter")
    words = f"{machines} · {plan.batch_text} · {plan.precision} · {parameters} · {predicted_text(plan)}"
    name = svg.text(x, y, plan.graph.name, size=22, font_weight=700)
    return name + svg.text(x, y + 22, words, fill=svg.SOFT)


def heading_width(plan: Plan) -> float:
    """Estimates the width of the heading."""
    below = svg.text_width("x" * 92 + str(plan.graph.n_parameters), size=11)
    return max(below, svg.text_width(plan.graph.name, size=22))


class Legend:
    """A row for each machine, in one column or several, and a sample of each kind of line."""

    def __init__(self, plan: Plan, palette: Palette, room: float) -> None:
        self.plan, self.palette, self.count = plan, palette, len(plan.cluster)
        self.is_narrow = self.count <= NARROW
        columns = int((room + BETWEEN) // (WIDTH + BETWEEN)) - 1  # one is left for the kinds of lines
        self.lines = self.count if self.is_narrow else math.ceil(self.count / max(3, columns))
        columns = math.ceil(self.count / self.lines) + (not self.is_narrow)
        self.width = columns * (WIDTH + BETWEEN) - BETWEEN
        samples = 4 if plan.micro_batches > 1 else 3
        rows = self.lines + 2 + samples if self.is_narrow else max(self.lines + 2, 2 + samples)
        self.height = LINE * rows
        step = plan.simulated_step
        self.busy = [busy_s / step.step_s if step.step_s else 0.0 for busy_s in step.busy_s]
        self.sent = [0] * self.count
        for message in plan.messages:
            self.sent[message.source] += message.n_bytes

    def drawn(self, *, x: float, y: float) -> str:
        """Draws the legend from a left upper corner on."""
        found = []
        for column, first in enumerate(range(0, self.count, self.lines)):
            at = x + column * (WIDTH + BETWEEN)
            found.append(_row(at, y, ("machine", "parameters", "sends", "busy"), size=11, fill=svg.SOFT))
            for n, machine in enumerate(range(first, min(first + self.lines, self.count)), start=1):
                found.append(self._machine(machine, x=at, y=y + LINE * n))
        if self.is_narrow:
            y += LINE * (self.lines + 2)
        else:
            x += self.width - WIDTH
        sums = any(piece.inputs is not None for piece in self.plan.pieces)
        forward = "forward: activations and partial sums" if sums else "forward: activations"
        notes = ["in the colour of who sends, wider for more bytes"]
        if self.plan.micro_batches > 1:
            notes.append(f"a line is for all {self.plan.micro_batches} micro-batches")
        for n, words in enumerate((forward, "backward: gradients", *notes)):
            at = y + LINE * n
            if n < 2:
                ends = (at - 13, at - 3) if n else (at + 5, at - 5)
                d, dash = svg.path("M", x + 11, ends[0], "V", ends[1]), "4 3" if n else None
                found.append(svg.line(d, svg.SOFT, 2.5, dash=dash, head="to"))
            found.append(svg.text(x + COLUMNS[0], at, words, size=11.5, fill=svg.SOFT))
        return "".join(found)

    def _machine(self, m: int, *, x: float, y: float) -> str:
        plan, machine = self.plan, self.plan.cluster.machines[m]
        numbers = (f"{plan.n_parameters(m):,}", readable_bytes(self.sent[m]), f"{self.busy[m]:.0%}")
        row = _row(x, y, (svg.shortened(machine.name, most=14), *numbers))
        return svg.element("g", self.palette.swatch(m, x, y - 13), row, tooltip=machine.place)


def _row(x: float, y: float, words: tuple[str, ...], *, size: float = 12, fill: str = svg.INK) -> str:
    """Writes a name to the left and numbers to the right of their columns."""
    anchors = (None, *["end"] * (len(words) - 1))
    return "".join(
        svg.text(x + column, y, word, size=size, fill=fill, text_anchor=anchor)
        for column, word, anchor in zip(COLUMNS, words, anchors, strict=True)
    )
