"""Plans and profiles as pages of HTML that need no other file: templates filled with texts and pictures."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from jinja2 import Environment, PackageLoader, StrictUndefined

from partita.engine.profile.beside import beside_rows
from partita.engine.profile.profile import Profile
from partita.engine.profile.report import MachineReport, PointReport, rows_of
from partita.engine.view import theme
from partita.engine.view.bars import draw_memory, draw_messages
from partita.engine.view.crowds import parted
from partita.engine.view.gantt import Gantt, draw_gantt
from partita.engine.view.plan_picture import draw_plan
from partita.engine.view.speed_up import draw_speed_up
from partita.engine.view.steps import predicted_gantt, steps_of
from partita.layers.text import counted, readable_bytes
from partita.partitioner.plan import Plan
from partita.partitioner.text import readable_seconds

_TEMPLATES: Final = Environment(
    loader=PackageLoader("partita.engine.view"),
    autoescape=True,
    undefined=StrictUndefined,
    trim_blocks=True,
    lstrip_blocks=True,
)
_TEMPLATES.globals.update(counted=counted, seconds=readable_seconds, size=readable_bytes, dark=theme.dark_of)


def plan_page(plan: Plan, table: str) -> str:
    """Writes a page with all that is known of a plan: numbers, table as text, pictures, messages, memory."""
    busy = [times.computing_s / plan.simulated_step.step_s for times in plan.simulated_step.times]
    n_bytes = sum(message.n_bytes for message in plan.messages)
    portions = f", as {plan.micro_batches} micro-batches" if plan.micro_batches > 1 else ""
    numbers = (
        (
            readable_seconds(plan.predicted_step_s),
            f"predicted step{'' if plan.costs.calibrated else ' (uncalibrated)'}",
        ),
        (len(plan.cluster), "machines"),
        (plan.batch, f"examples in a batch{portions}"),
        (f"{plan.graph.n_parameters:,}", "parameters"),
        (plan.precision, "precision"),
        (readable_bytes(n_bytes), f"in {counted(len(plan.messages), 'message')} a step"),
        (f"{min(busy):.0%} to {max(busy):.0%}", "of the step machines compute"),
        (readable_bytes(max(map(plan.memory_bytes, range(len(plan.cluster))))), "peak memory of a machine"),
    )
    return _TEMPLATES.get_template("plan.html").render(
        plan=plan,
        table=table,
        numbers=numbers,
        n_bytes=n_bytes,
        network=draw_plan(plan),
        step=drawn_step(predicted_gantt(plan)),
        messages=draw_messages(plan),
        memory=draw_memory(plan),
    )


def profile_page(profile: Profile) -> str:
    """Writes a page with the speed-up of a profile, its table, its steps, and what would gain most."""
    report = profile.report()
    return _TEMPLATES.get_template("profile.html").render(
        report=report,
        curve=draw_speed_up(report),
        rows=rows_of(report),
        beside=beside_rows(report.beside) if report.beside else [],
        points=report.points,
        steps=[[drawn_step(step) for step in steps_of(point)] for point in profile.points],
        parts=[_parts(point.parts) for point in report.points],
        sentences=[_sentence(point) for point in report.points],
    )


class DrawnStep(NamedTuple):
    """A step on a page: its words, its picture, and that of the machines that are shown on demand."""

    gantt: Gantt
    picture: str
    rest: str
    rest_title: str


def drawn_step(gantt: Gantt) -> DrawnStep:
    """Draws a step for a page, of many machines in two charts."""
    chart, rest = parted(gantt)
    if rest is None:
        return DrawnStep(chart, draw_gantt(chart, bare=True), "", "")
    title = rest.title.rpartition(": ")[2]
    return DrawnStep(chart, draw_gantt(chart, bare=True), draw_gantt(rest, bare=True), title)


def _sentence(point: PointReport) -> str:
    predicted = readable_seconds(point.predicted_step_s)
    gained = f"{point.speed_up:.2f}x as fast as one machine, efficiency {point.efficiency:.0%}"
    if point.prediction_error is None:
        return f"Simulated: {predicted} a step, {gained}."
    measured = f"Measured: {readable_seconds(point.step_s)} a step, {gained}."
    sentence = f"{measured} Predicted: {predicted}, {point.prediction_error:+.0%}."
    if point.machines == 1:
        return sentence
    doubt = readable_seconds(point.clock_doubt_s)
    return f"{sentence} Times of two machines may be shifted against each other by {doubt} at most."


def _parts(parts: Sequence[MachineReport]) -> list[list[str]]:
    rows = [["", "machine", "computing", "sending", "waiting", "idle", "messages", "sent"]]
    for number, part in enumerate(parts):
        times = (part.computing_s, part.sending_s, part.waiting_s, part.idle_s)
        sent = [str(part.sent_messages), readable_bytes(part.sent_bytes)]
        rows.append([str(number), part.name, *map(readable_seconds, times), *sent])
    return rows
