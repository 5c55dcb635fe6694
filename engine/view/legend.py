"""The words around the picture: its title, and what colours and lines mean."""

from __future__ import annotations

import math

from partita.engine.view import svg
from partita.engine.view.look import Look
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_bytes, readable_seconds

LINE = 22.0
COLUMNS = (30.0, 190.0, 275.0, 335.0)
"""Where name, parameters, bytes sent and busy begin or (numbers) end."""
WIDTH, BETWEEN = 345.0, 40.0
NARROW = 20
"""Machines up to which the legend stands beside the picture, in one column; else below it, in several."""


def predicted_text(plan: Plan) -> str:
    """The predicted length of a step, and whether it is a guess."""
    doubt = "" if plan.costs.calibrated else " (uncalibrated)"
    return f"predicted step {readable_seconds(plan.predicted_step_s)}{doubt}"


def heading(plan: Plan, *, x: float, y: float) -> str:
    """The network, its size and the predicted step."""
    machines = counted(len(plan.cluster), "machine")
    told = (
        f"{machines} · {plan.portions} · {plan.precision} · "
        f"{counted(plan.graph.n_parameters, 'parameter')} · {predicted_text(plan)}"
    )
    return svg.text(x, y, plan.graph.name, size=22, font_weight=700) + svg.text(
        x, y + 22, told, fill=svg.SOFT
    )


def heading_width(plan: Plan) -> float:
    """A guess of how wide the heading gets."""
    return max(
        svg.text_width("x" * 92 + str(plan.graph.n_parameters), size=11),
        svg.text_width(plan.graph.name, size=22),
    )


class Legend:
    """A row for each machine, in one column or several, and a sample of each kind of line."""

    def __init__(self, plan: Plan, look: Look) -> None:
        self.plan, self.look, self.count = plan, look, len(plan.cluster)
        self.sent = [0] * self.count
        for message in plan.messages:
            self.sent[message.source] += message.n_bytes

    @property
    def is_narrow(self) -> bool:
        """Whether it has one column and stands beside the picture."""
        return self.count <= NARROW

    def lines(self, width: float) -> int:
        """Machines in each of its columns, where there is so much room."""
        return self.count if self.is_narrow else math.ceil(self.count / max(3, self._columns(width)))

    def _columns(self, width: float) -> int:
        return int((width + BETWEEN) // (WIDTH + BETWEEN)) - 1  # one is left for the kinds of lines

    def width(self, lines: int) -> float:
        """In pixels, with so many machines in each column."""
        columns = math.ceil(self.count / lines) + (not self.is_narrow)
        return columns * (WIDTH + BETWEEN) - BETWEEN

    def height(self, lines: int) -> float:
        """In pixels, with so many machines in each column."""
        samples = 4 if self.plan.micro_batches > 1 else 3
        return LINE * (lines + 2 + samples if self.is_narrow else max(lines + 2, 2 + samples))

    def drawn(self, *, x: float, y: float, lines: int) -> str:
        """From a left upper corner on."""
        found = []
        for column, first in enumerate(range(0, self.count, lines)):
            at = x + column * (WIDTH + BETWEEN)
            found.append(self._head(at, y))
            for n, machine in enumerate(range(first, min(first + lines, self.count)), start=1):
                found.append(self._machine(machine, x=at, y=y + LINE * n))
        if self.is_narrow:
            y += LINE * (lines + 2)
        else:
            x += self.width(lines) - WIDTH
        return "".join(found) + _lines(x, y, self._up) + self._notes(x, y + 2 * LINE)

    @property
    def _up(self) -> str:
        by_inputs = any(piece.inputs is not None for piece in self.plan.pieces)
        return "states and partial sums go up" if by_inputs else "states go up"

    def _notes(self, x: float, y: float) -> str:
        said = ["in the colour of who sends, wider for more bytes"]
        if self.plan.micro_batches > 1:
            said.append(f"a line is for all {self.plan.micro_batches} micro-batches")
        notes = (
            svg.text(x + COLUMNS[0], y + LINE * n, note, size=11.5, fill=svg.SOFT)
            for n, note in enumerate(said)
        )
        return "".join(notes)

    def _head(self, x: float, y: float) -> str:
        numbers = zip(COLUMNS[1:], ("parameters", "sends", "busy"), strict=True)
        return svg.text(x + COLUMNS[0], y, "machine", size=11, fill=svg.SOFT) + "".join(
            svg.text(x + column, y, word, size=11, fill=svg.SOFT, text_anchor="end")
            for column, word in numbers
        )

    def _machine(self, m: int, *, x: float, y: float) -> str:
        plan, palette = self.plan, self.look.palette
        busy = (
            plan.simulated_step.busy_s[m] / plan.simulated_step.step_s if plan.simulated_step.step_s else 0.0
        )
        numbers = (f"{plan.n_parameters(m):,}", readable_bytes(self.sent[m]), f"{busy:.0%}")
        name = svg.shortened(plan.cluster.machines[m].name, most=14)
        swatch = svg.element("rect", x=x, y=y - 13, width=22, height=17, rx=3, fill=palette.fill(m))
        tag = svg.text(x + 11, y - 1, f"#{m}", size=9, fill=palette.ink(m), text_anchor="middle")
        cells = (
            svg.text(x + column, y, words, text_anchor="end")
            for column, words in zip(COLUMNS[1:], numbers, strict=True)
        )
        told = svg.title(plan.cluster.machines[m].place)
        return svg.element("g", told, swatch, tag, svg.text(x + COLUMNS[0], y, name), *cells)


def _lines(x: float, y: float, up: str) -> str:
    found = []
    for n, (words, dash) in enumerate(((up, None), ("errors come down", "6 5"))):
        at = y + LINE * n
        ends = (at + 5, at - 5) if dash is None else (at - 13, at - 3)
        found.append(
            svg.element(
                "path",
                d=f"M{svg.number(x + 11)} {svg.number(ends[0])}V{svg.number(ends[1])}",
                stroke=svg.SOFT,
                stroke_width=2.5,
                stroke_dasharray=dash and "4 3",
                marker_end="url(#to)",
            )
        )
        found.append(svg.text(x + COLUMNS[0], at, words, size=11.5, fill=svg.SOFT))
    return "".join(found)
