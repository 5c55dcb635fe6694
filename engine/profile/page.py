"""A profile as one page of HTML that needs no other file: no script, no font, nothing from elsewhere."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from typing import Final

from partita.engine.profile.curve import curve
from partita.engine.profile.lanes import lanes, legend
from partita.engine.profile.report import (
    MachineReport,
    PointReport,
    Report,
    counted,
    readable_seconds,
    rows_of,
)
from partita.engine.profile.timeline import Timeline
from partita.partitioner.table import readable_bytes

STYLE: Final = """
:root { color-scheme: light; }
body { margin: 0 auto; max-width: 66rem; padding: 2rem 1.2rem 4rem; background: #f4f6f8; color: #1f2933;
  font: 15px/1.5 Inter, "Segoe UI", Helvetica, Arial, sans-serif; }
h1 { font-size: 1.5rem; margin: 0; } h2 { font-size: 1.15rem; margin: 2.2rem 0 .4rem; }
h3 { font-size: .95rem; margin: 1rem 0 .3rem; font-weight: 600; }
p { margin: .3rem 0; } .soft { color: #65717d; }
svg { display: block; max-width: 100%; height: auto; }
.card { background: #fff; border-radius: 10px; padding: 1rem 1.2rem; margin: .6rem 0; overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { text-align: right; padding: .25rem .7rem .25rem 0; border-bottom: 1px solid #e9edf1; }
th { font-weight: 600; color: #65717d; } td:nth-child(2), th:nth-child(2) { text-align: left; }
tr:last-child td { border-bottom: 0; } tr.measured td:nth-child(2) { color: #b04c00; font-weight: 600; }
tr.simulated td:nth-child(2) { color: #0072b2; }
.beside { display: flex; flex-wrap: wrap; gap: 1.5rem; } .beside h2 { font-size: 1rem; margin: 0; }
.beside > svg { flex: 2 1 26rem; } .beside > div { flex: 1 1 16rem; }
ol { margin: .3rem 0; padding-left: 1.3rem; }
"""


@dataclass(frozen=True)
class Steps:
    """A step of one plan, in two ways.

    Args:
        machines: how many.
        predicted: on the virtual clock.
        measured: a typical one, where there is one.
    """

    machines: int
    predicted: Timeline
    measured: Timeline | None


def page(report: Report, steps: Sequence[Steps]) -> str:
    """The page.

    Args:
        report: the numbers.
        steps: for each of its points, in their order.
    """
    sections = [_section(point, found) for point, found in zip(report.points, steps, strict=True)]
    body = [
        f"<h1>{escape(report.network)}</h1>",
        f"<p>{escape(report.title.partition(': ')[2])}</p>",
        f'<p class="soft">{escape(report.conditions)}</p>',
        f'<div class="card beside">{curve(report)}{_summary(report)}</div>',
        f'<div class="card">{_table(rows_of(report), [point.source for point in report.points])}</div>',
        f'<div class="card">{legend()}</div>',
        *sections,
    ]
    head = f'<meta charset="utf-8"><title>{escape(report.title)}</title><style>{STYLE}</style>'
    return f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n<body>\n{"".join(body)}\n</body></html>\n'


def _summary(report: Report) -> str:
    """The changes of every point, beside the curve."""
    lines = [f"<h3>{counted(point.machines)}</h3>{_changes(point)}" for point in report.points]
    return f"<div><h2>What would gain most, simulated</h2>{''.join(lines)}</div>"


def _section(point: PointReport, steps: Steps) -> str:
    """What is told of one number of machines."""
    until_s = max(steps.predicted.step_s, steps.measured.step_s if steps.measured else 0.0)
    return "\n".join(
        [
            f"<h2>{counted(point.machines)}</h2>",
            f"<p>{_sentence(point)}</p>",
            '<div class="card">',
            *_pictures(steps, until_s),
            "</div>",
            f'<div class="card">{_parts(point.parts)}</div>',
        ]
    )


def _pictures(steps: Steps, until_s: float) -> Iterator[str]:
    for how, timeline in (("measured", steps.measured), ("predicted", steps.predicted)):
        if timeline is not None:
            name = f"a {how} step on {counted(steps.machines)}"
            yield f"<h3>{name.capitalize()}</h3>{lanes(timeline, name=name, until_s=until_s)}"


def _sentence(point: PointReport) -> str:
    predicted = readable_seconds(point.predicted_step_s)
    gained = f"{point.speed_up:.2f}x as fast as one machine, efficiency {point.efficiency:.0%}"
    if point.prediction_error is None:
        return f"Simulated: {predicted} a step, {gained}."
    return (
        f"Measured: {readable_seconds(point.step_s)} a step, {gained}. Predicted: {predicted}, "
        f"{point.prediction_error:+.0%}.{_doubt(point)}"
    )


def _doubt(point: PointReport) -> str:
    if point.machines == 1:
        return ""
    doubt = readable_seconds(point.clock_doubt_s)
    return f" Times of two machines may be shifted against each other by {doubt} at most."


def _parts(parts: Sequence[MachineReport]) -> str:
    rows = [["", "machine", "computing", "sending", "waiting", "idle", "messages", "sent"]]
    for number, part in enumerate(parts):
        times = (part.computing_s, part.sending_s, part.waiting_s, part.idle_s)
        sent = [str(part.sent_messages), readable_bytes(part.sent_bytes)]
        rows.append([str(number), part.name, *map(readable_seconds, times), *sent])
    return _table(rows, [""] * len(parts))


def _changes(point: PointReport) -> str:
    if not point.changes:
        return "<p>Nothing that was tried gains 2%.</p>"
    return f"<ol>{''.join(f'<li>{escape(str(change))}</li>' for change in point.changes)}</ol>"


def _table(rows: Sequence[Sequence[str]], classes: Sequence[str]) -> str:
    head = "".join(f"<th>{escape(cell)}</th>" for cell in rows[0])
    lines = [
        f'<tr class="{kind}">{"".join(f"<td>{escape(cell)}</td>" for cell in row)}</tr>'
        for row, kind in zip(rows[1:], classes, strict=True)
    ]
    return f"<table><tr>{head}</tr>{''.join(lines)}</table>"
