"""A profile as one page of HTML that needs no other file: nothing in it comes from elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from html import escape
from typing import Final

from partita.engine.profile.measure import Measured
from partita.engine.profile.profile import Point, Profile
from partita.engine.profile.report import (
    MachineReport,
    PointReport,
    Report,
    rows_of,
)
from partita.engine.view.plan_page import SCRIPT, STYLE
from partita.engine.view.speed_up import draw_speed_up
from partita.engine.view.steps import predicted_timeline, step_timeline
from partita.engine.view.timeline import Picture, Timeline
from partita.layers.text import counted
from partita.partitioner.text import readable_bytes, readable_seconds

AS_LONG: Final = 0.05
"""By so much a drawn step may differ from the one that figures speak of, without a word of it."""
MORE_STYLE: Final = """
section { margin-top: 2.6rem; } section > h2 { font-size: 20px; margin-bottom: 2px; }
h3 { font-size: 14px; margin: 14px 0 4px; } ol { margin: 4px 0; padding-left: 20px; font-size: 13px; }
.card { margin: 10px 0; }
.beside { display: flex; flex-wrap: wrap; gap: 26px; } .beside h2 { margin: 0; }
.beside > svg { flex: 2 1 420px; max-width: 100%; height: auto; } .beside > div { flex: 1 1 260px; }
table { border-collapse: collapse; font-size: 13px; font-variant-numeric: tabular-nums; white-space: nowrap; }
th, td { text-align: right; padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); }
th { font-weight: 600; color: var(--soft); } td:nth-child(2), th:nth-child(2) { text-align: left; }
tr:last-child td { border-bottom: 0; } tr.measured td:nth-child(2) { color: #b04c00; font-weight: 600; }
tr.simulated td:nth-child(2) { color: #0072b2; }
"""


def profile_page(profile: Profile) -> str:
    """The page of a profile."""
    report, steps = profile.report(), [_steps(point) for point in profile.points]
    sections = [_section(point, found) for point, found in zip(report.points, steps, strict=True)]
    body = [
        f"<h1>{escape(report.network)}</h1>",
        f"<p>{escape(report.title.partition(': ')[2])}; {escape(report.conditions)}</p>",
        f'<div class="card beside">{draw_speed_up(report)}{_summary(report)}</div>',
        f'<div class="card">{_table(rows_of(report), [point.source for point in report.points])}</div>',
        *sections,
    ]
    head = f'<meta charset="utf-8"><title>{escape(report.title)}</title><style>{STYLE}{MORE_STYLE}</style>'
    return (
        f'<!DOCTYPE html>\n<html lang="en"><head>{head}</head>\n'
        f"<body><main>{''.join(body)}</main><script>{SCRIPT}</script></body></html>\n"
    )


def _summary(report: Report) -> str:
    """The changes of every point, beside the curve."""
    lines = [f"<h3>{counted(point.machines, 'machine')}</h3>{_changes(point)}" for point in report.points]
    return f"<div><h2>What would gain most, simulated</h2>{''.join(lines)}</div>"


def _section(point: PointReport, steps: Sequence[Timeline]) -> str:
    """What is told of one number of machines."""
    zoom = f"zoom-{point.machines}"
    pictures = [Picture(step, zoomable=True) for step in steps]
    cards = (
        f'<div class="card" data-zoom="{zoom}" data-left="{picture.left}">{picture.text()}</div>'
        for picture in pictures
    )
    return (
        f"<section><h2>{counted(point.machines, 'machine')}</h2><p>{_sentence(point)}</p>"
        f'<label>enlarge <input type="range" id="{zoom}" min="0" max="5" step="0.05" value="0"></label>'
        f'{"".join(cards)}<div class="card">{_parts(point.parts)}</div></section>\n'
    )


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


def _steps(point: Point) -> tuple[Timeline, ...]:
    """Pictures of a measured and of the predicted step, on one axis."""
    measured, predicted = point.measured, predicted_timeline(point.plan)
    if measured is None:
        return (predicted,)
    until_s = max(measured.typical.step_s, predicted.stop_s)
    name = f"{point.plan.graph.name}: one step"
    told = f"{_which(measured)} · {counted(point.machines, 'machine')} · {point.plan.portions}"
    return step_timeline(measured.typical, name, told, until_s=until_s), replace(predicted, until_s=until_s)


def _which(measured: Measured) -> str:
    """The step that is drawn: one of those that were traced, which takes time by itself."""
    drawn, told = readable_seconds(measured.typical.step_s), readable_seconds(measured.step_s)
    if abs(measured.typical.step_s - measured.step_s) <= AS_LONG * measured.step_s:
        return f"a measured step of {drawn}"
    return f"a measured step of {drawn}, of those traced the nearest to the {told} that a step takes"
