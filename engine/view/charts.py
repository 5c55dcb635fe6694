"""Charts of the page: bars for the messages of a plan by size, and for the memory of its machines."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from partita.engine.view import svg
from partita.engine.view.palette import Palette
from partita.layers.text import counted
from partita.partitioner.ir.buffer import BufferKind
from partita.partitioner.ir.step_kind import StepKind
from partita.partitioner.lower.messages import Message
from partita.partitioner.plan import Plan
from partita.partitioner.predict.memory import vector_bytes
from partita.partitioner.text import readable_bytes

LINE, BAR, SIZE = 22.0, 14.0, 11.5
"""From one bar to the next, and its height, in pixels; size of words."""
LENGTH, WORDS = 560.0, 330.0
"""Of the longest bar, and room behind it, in pixels."""
MOST = 24
"""Kinds of messages that are told apart; the others are one more."""
STATES, ERRORS, OTHERS = "#0072b2", "#e69f00", "#9aa5b1"


@dataclass(frozen=True)
class Row:
    """A bar of one or more segments.

    Args:
        name: before it.
        segments: values, each with a fill.
        words: behind it.
        limit: where a mark stands; None for no mark.
    """

    name: str
    segments: tuple[tuple[float, str], ...]
    words: str
    limit: float | None = None


def drawn(title: str, rows: Sequence[Row]) -> str:
    """The chart as the text of an SVG file."""
    left = 20 + max((svg.text_width(row.name, size=SIZE) for row in rows), default=0.0)
    most = max((max(sum(v for v, _ in row.segments), row.limit or 0.0) for row in rows), default=0.0)
    scale = LENGTH / most if most else 0.0
    parts = [_row(row, left, 8 + LINE * n, scale) for n, row in enumerate(rows)]
    return svg.document(title, left + LENGTH + WORDS, 16 + LINE * len(rows), parts)


def _row(row: Row, left: float, top: float, scale: float) -> str:
    x, found = left, []
    for value, fill in row.segments:
        found.append(svg.element("rect", x=x, y=top, width=value * scale, height=BAR, fill=fill))
        x += value * scale
    if row.limit is not None:
        at = left + row.limit * scale
        found.append(svg.element("rect", x=at - 1, y=top - 3, width=2, height=BAR + 6, fill=svg.INK))
        x = max(x, at)
    return svg.element(
        "g",
        svg.title(f"{row.name}: {row.words}"),
        svg.text(left - 8, top + BAR - 3, row.name, size=SIZE, text_anchor="end"),
        *found,
        svg.text(x + 8, top + BAR - 3, row.words, size=SIZE, fill=svg.SOFT),
    )


def messages(plan: Plan) -> str:
    """What travels in a step, the largest first."""
    groups: dict[tuple[str, str], list[Message]] = {}
    for message in plan.messages:
        groups.setdefault((_what(message), _fill(message)), []).append(message)
    ordered = sorted(groups.items(), key=lambda item: -sum(m.n_bytes for m in item[1]))
    rows = [_of_kind(what, fill, group) for (what, fill), group in ordered[:MOST]]
    rest = [message for _, group in ordered[MOST:] for message in group]
    if rest:
        rows.append(_of_kind(f"{len(ordered) - MOST} others", OTHERS, rest))
    return drawn("messages by size", rows)


def _of_kind(what: str, fill: str, group: Sequence[Message]) -> Row:
    total, largest = sum(m.n_bytes for m in group), max(m.n_bytes for m in group)
    count = counted(len(group), "message")
    words = f"{readable_bytes(total)} in {count}" + (
        f", the largest {readable_bytes(largest)}" if len(group) > 1 else ""
    )
    return Row(what, ((total, fill),), words)


def _what(message: Message) -> str:
    """`states of h1`, `errors of h1 from h2`, `sums over scores of loss`; of all portions the same."""
    content = message.buffer.contents
    if not message.layer:
        return content
    edge, told = message.buffer.edge, f"{content} of {message.layer}"
    return told if edge is None else f"{told} from {edge.consumer}"


def _fill(message: Message) -> str:
    if message.buffer.holds_errors:
        return ERRORS
    return STATES if message.buffer.kind in (BufferKind.ACTIVATIONS, BufferKind.PARTIAL_SUMS) else OTHERS


def memory(plan: Plan) -> str:
    """What each machine's part takes at most, and its limit where it has one."""
    return drawn("memory by machine", list(_by_machine(plan)))


def _by_machine(plan: Plan) -> Iterator[Row]:
    palette, kind = Palette(len(plan.cluster)), StepKind().of(plan.graph)
    for m, machine in enumerate(plan.cluster.machines):
        total = plan.memory_bytes(m)
        vectors = vector_bytes(plan.sizes, plan.n_parameters(m), kind, driver="downpour", rule_vectors=1)
        pale = svg.mixed(palette.colour(m), "#ffffff", 0.55)
        words = f"{readable_bytes(total)}, of parameters and their kin {readable_bytes(vectors)}"
        segments = ((float(vectors), palette.colour(m)), (float(total - vectors), pale))
        yield Row(machine.place, segments, words, machine.memory_bytes)
