"""Bar charts of a plan: its messages by size, and the memory of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from partita.engine.view import responsive, svg, theme
from partita.engine.view.palette import Palette
from partita.engine.view.responsive import share
from partita.layers.text import counted, readable_bytes
from partita.partitioner.ir.buffer import BufferKind
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.messages import Message
from partita.partitioner.plan import Plan
from partita.partitioner.predict.memory import vector_bytes

LINE, BAR, SIZE = 36.0, 12.0, 11.5
"""Pixels from one bar to the next, and height of a bar; size of the words above it."""
MOST, LONGEST = 24, 40
"""Kinds of messages that are told apart (the others are one more), and characters of a name."""
FORWARD, BACKWARD, OTHERS = (theme.DOING[kind][0] for kind in ("forward", "backward", "other"))


class Row(NamedTuple):
    """A bar: the name above it, its segments (value and colour), words beside it, and its marks.

    The mark of the limit is a line; that of what was planned is dashed.
    """

    name: str
    segments: tuple[tuple[float, str], ...]
    words: str
    limit: float | None = None
    planned: float | None = None


def draw_bars(title: str, rows: Sequence[Row]) -> str:
    """Draws a row of segments for each bar, as the text of an SVG file."""
    most = max((max(_total(row), row.limit or 0.0, row.planned or 0.0) for row in rows), default=0.0) or 1.0
    parts = [part for n, row in enumerate(rows) for part in _drawn(row, 10 + LINE * n, most)]
    return responsive.sheet(title, 14 + LINE * len(rows), parts)


def _total(row: Row) -> float:
    return sum(value for value, _ in row.segments)


def _drawn(row: Row, y: float, most: float) -> Iterator[str]:
    yield responsive.caption(row.name, row.words, y=y + 11, size=SIZE, most=LONGEST)
    start, bars = 0.0, []
    for value, colour in row.segments:
        place = {"x": share(start / most), "y": 0, "width": share(value / most), "height": BAR}
        bars.append(svg.element("rect", **place, fill=colour, tooltip=f"{row.name}: {row.words}"))
        start += value
    for words, mark, dashes in (("limit", row.limit, None), ("planned", row.planned, "3 2")):
        if mark is not None:
            at = share(mark / most)
            told = f"{row.name}: {words} {readable_bytes(mark)}"
            look = {"stroke": theme.INK, "stroke_width": 2, "stroke_dasharray": dashes, "tooltip": told}
            bars.append(svg.element("line", x1=at, x2=at, y1=-3, y2=BAR + 3, **look))
    yield responsive.plot(y + 16, BAR, *bars)


def draw_messages(plan: Plan) -> str:
    """Draws what travels in a step, the largest first."""
    groups: dict[tuple[str, str], list[Message]] = {}
    for message in plan.messages:
        groups.setdefault((_contents(message), _colour(message)), []).append(message)
    ordered = sorted(groups.items(), key=lambda item: -sum(m.n_bytes for m in item[1]))
    rows = [_row(contents, colour, group) for (contents, colour), group in ordered[:MOST]]
    rest = [message for _, group in ordered[MOST:] for message in group]
    if rest:
        rows.append(_row(f"{len(ordered) - MOST} others", OTHERS, rest))
    return draw_bars("messages by size", rows)


def _row(contents: str, colour: str, group: Sequence[Message]) -> Row:
    sizes = [message.n_bytes for message in group]
    largest = f", the largest {readable_bytes(max(sizes))}" if len(group) > 1 else ""
    words = f"{readable_bytes(sum(sizes))} in {counted(len(group), 'message')}{largest}"
    return Row(contents, ((sum(sizes), colour),), words)


def _contents(message: Message) -> str:
    """Describes a message without its micro-batch: `activations of h1`, `gradients of h1 from h2`."""
    content, edge = message.buffer.contents, message.buffer.edge
    if not message.layer:
        return content
    return f"{content} of {message.layer}" + (f" from {edge.consumer}" if edge else "")


def _colour(message: Message) -> str:
    if message.buffer.holds_grad:
        return BACKWARD
    forward = message.buffer.kind in (BufferKind.ACTIVATIONS, BufferKind.PARTIAL_SUMS)
    return FORWARD if forward else OTHERS


def draw_memory(plan: Plan) -> str:
    """Draws the peak memory of each machine's part, and the machine's limit where it has one."""
    palette = Palette(tuple(machine.name for machine in plan.cluster.machines))
    rows, kind = [], StepKind().of(plan.graph)
    for m, machine in enumerate(plan.cluster.machines):
        total, colour = plan.memory_bytes(m), palette.colour(m)
        vectors = vector_bytes(plan.sizes, plan.n_parameters(m), kind, driver="downpour", optimizer_vectors=1)
        pale = svg.mixed(colour, "#ffffff", 0.55)
        words = f"{readable_bytes(total)}, of parameters and optimizer state {readable_bytes(vectors)}"
        segments = ((float(vectors), colour), (float(total - vectors), pale))
        rows.append(Row(machine.place, segments, words, machine.memory_bytes))
    rows.sort(key=lambda row: -_total(row))
    if len(rows) > MOST:
        rest = rows[MOST:]
        words = f"{readable_bytes(_total(rest[0]))} each at most"
        rows = [*rows[:MOST], Row(counted(len(rest), "other machine"), ((_total(rest[0]), OTHERS),), words)]
    return draw_bars("memory by machine", rows)
