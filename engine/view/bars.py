"""Bar charts of a plan: its messages by size, and the memory of its machines."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from partita.engine.view import svg
from partita.engine.view.canvas import canvas
from partita.engine.view.palette import Palette
from partita.layers.text import counted, readable_bytes
from partita.partitioner.ir.buffer import BufferKind
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.messages import Message
from partita.partitioner.plan import Plan
from partita.partitioner.predict.memory import vector_bytes

LINE, BAR, SIZE = 22.0, 14.0, 11.5
"""Pixels from one bar to the next, and height of a bar; size of words."""
LENGTH, WORDS = 560.0, 330.0
"""Pixels of the longest bar, and room behind it."""
MOST, LONGEST = 24, 60
"""Kinds of messages that are told apart (the others are one more), and characters of a name."""
FORWARD, BACKWARD, OTHERS = "#0072b2", "#e69f00", "#9aa5b1"


class Row(NamedTuple):
    """A bar: the name before it, segments (value and colour), words behind it, and the place of a mark."""

    name: str
    segments: tuple[tuple[float, str], ...]
    words: str
    limit: float | None = None


def draw_bars(title: str, rows: Sequence[Row]) -> str:
    """Draws a row of segments for each bar, as the text of an SVG file."""
    names = [svg.shortened(row.name, most=LONGEST) for row in rows]
    left = 20 + max((svg.text_width(name, size=SIZE) for name in names), default=0.0)
    ends = [max(sum(value for value, _ in row.segments), row.limit or 0.0) for row in rows]
    height = 16 + LINE * len(rows)
    with canvas(title, left + LENGTH + WORDS, height) as picture:
        axes = picture.axes(left, 8, LENGTH, LINE * max(len(rows), 1))
        axes.set(xlim=(0, max(ends, default=0.0) or 1), ylim=(max(len(rows), 1), 0), xticks=[], yticks=[])
        for n, (row, name, end) in enumerate(zip(rows, names, ends, strict=True)):
            start, middle, baseline = 0.0, n + BAR / 2 / LINE, 8 + LINE * n + BAR - 3
            for value, colour in row.segments:
                bar = axes.barh(middle, value, BAR / LINE, left=start, color=colour, clip_on=False)
                picture.tooltips(bar[0], [f"{row.name}: {row.words}"])
                start += value
            if row.limit is not None:
                axes.vlines(row.limit, n - 3 / LINE, n + (BAR + 3) / LINE, color=svg.INK, lw=2, clip_on=False)
            picture.text(left - 8, baseline, name, size=SIZE, ha="right", tooltip=row.name)
            x = left + LENGTH * end / axes.get_xlim()[1] + 8
            picture.text(x, baseline, row.words, size=SIZE, color=svg.SOFT)
    return picture.svg


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
    return draw_bars("memory by machine", rows)
