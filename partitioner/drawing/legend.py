"""The words around the picture: its title, and what colours and lines mean."""

from __future__ import annotations

from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.drawing import svg
from partita.partitioner.table import readable_bytes

LINE = 22.0
COLUMNS = (30.0, 190.0, 275.0, 335.0)
"""Where name, parameters, bytes sent and busy begin or (numbers) end."""
WIDTH = 345.0


def heading(plan: BarePlan, *, x: float, y: float) -> str:
    """The network, its size and the predicted step."""
    machines = f"{len(plan.cluster)} machine{'s' if len(plan.cluster) > 1 else ''}"
    told = (
        f"{machines} · {plan.portions} · {plan.precision} · {plan.graph.n_parameters:,} parameters · "
        f"predicted step {plan.predicted_step_s * 1e3:.2f} ms (uncalibrated)"
    )
    return svg.text(x, y, plan.graph.name, size=22, font_weight=700) + svg.text(
        x, y + 22, told, fill=svg.SOFT
    )


def heading_width(plan: BarePlan) -> float:
    """A guess of how wide the heading gets."""
    return max(
        svg.text_width("x" * 92 + str(plan.graph.n_parameters), size=11),
        svg.text_width(plan.graph.name, size=22),
    )


def legend(plan: BarePlan, *, x: float, y: float) -> str:
    """A row for each machine, and a sample of each kind of line."""
    head = [
        svg.text(x + COLUMNS[0], y, "machine", size=11, fill=svg.SOFT),
        *(
            svg.text(x + column, y, word, size=11, fill=svg.SOFT, text_anchor="end")
            for column, word in zip(COLUMNS[1:], ("parameters", "sends", "busy"), strict=True)
        ),
    ]
    rows = [_machine(plan, m, x=x, y=y + LINE * (m + 1)) for m in range(len(plan.cluster))]
    return "".join(head + rows) + _lines(x, y + LINE * (len(plan.cluster) + 2))


def height(plan: BarePlan) -> float:
    """Of the legend, in pixels."""
    return LINE * (len(plan.cluster) + 5)


def _machine(plan: BarePlan, m: int, *, x: float, y: float) -> str:
    sent = sum(message.n_bytes for message in plan.messages if message.source == m)
    busy = plan.playback.busy_s[m] / plan.playback.step_s if plan.playback.step_s else 0.0
    numbers = (f"{plan.n_parameters(m):,}", readable_bytes(sent), f"{busy:.0%}")
    name = svg.shortened(plan.cluster.machines[m].name, most=14)
    fill = svg.colour(m)
    swatch = svg.element("rect", x=x, y=y - 13, width=22, height=17, rx=3, fill=fill)
    tag = svg.text(x + 11, y - 1, f"#{m}", size=9, fill=svg.ink_on(fill), text_anchor="middle")
    cells = (
        svg.text(x + column, y, words, text_anchor="end")
        for column, words in zip(COLUMNS[1:], numbers, strict=True)
    )
    told = svg.title(plan.cluster.machines[m].place)
    return svg.element("g", told, swatch, tag, svg.text(x + COLUMNS[0], y, name), *cells)


def _lines(x: float, y: float) -> str:
    found = []
    for n, (words, dash) in enumerate((("states go up", None), ("errors come down", "6 5"))):
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
    note = "in the colour of who sends, wider for more bytes"
    return "".join(found) + svg.text(x + COLUMNS[0], y + 2 * LINE, note, size=11.5, fill=svg.SOFT)
