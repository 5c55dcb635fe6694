"""Gantt charts of steps: predicted of a plan, or measured, with waits and the critical path."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.engine.profile.measure import Measured
from partita.engine.profile.profile import Point
from partita.engine.view.crowds import parted
from partita.engine.view.gantt import Gantt, GanttArrow, GanttBar, Lane, draw_gantt
from partita.engine.view.legend import predicted_text
from partita.layers.text import counted
from partita.partitioner.plan import Plan
from partita.partitioner.predict.timeline import COMMUNICATION, KERNEL, Bar, Flight, Timeline
from partita.partitioner.text import readable_seconds

ARROWS = 4
"""Number of machines up to which every message is drawn on its way; of more, those on the critical path."""
AS_LONG = 0.05
"""Relative difference of a drawn step from the reported one up to which the subtitle does not mention it."""


def draw_step(plan: Plan) -> str:
    """Draws the predicted step of a plan, as the text of an SVG file."""
    return draw_gantt(parted(predicted_gantt(plan)).chart)


def predicted_gantt(plan: Plan) -> Gantt:
    """Lays a predicted step out: of training, or of the forward pass where the network has no loss."""
    subtitle = f"{predicted_text(plan)} · {counted(len(plan.cluster), 'machine')} · {plan.batch_text}"
    step = plan.simulated_step
    return gantt_of(
        step, _names(plan), title=f"{plan.graph.name}: one step", subtitle=subtitle, path=step.critical_path
    )


def gantt_of(
    step: Timeline, names: tuple[str, ...], *, title: str, subtitle: str, path: Sequence[Bar | Flight] = ()
) -> Gantt:
    """Lays a step out, with a lane for each kernel thread and a thin one for messages.

    Args:
        step: measured or predicted.
        names: of the machines.
        title: of the chart.
        subtitle: below the title.
        path: critical path of a predicted step, to be marked.
    """
    marked = set(path)
    lanes: list[Lane] = []
    number: dict[tuple[int, int], int] = {}
    for machine, name in enumerate(names):
        threads = {bar.thread for bar in step.parts[machine]} | {KERNEL}
        for thread in (*sorted(threads - {COMMUNICATION}), COMMUNICATION):
            number[machine, thread] = len(lanes)
            note = _shares(step, machine) if thread == KERNEL else ""
            lanes.append(Lane(name if thread == KERNEL else "", thin=thread == COMMUNICATION, note=note))
    bars = []
    for bar in step.bars:
        lane = number[bar.machine, bar.thread if step.computes(bar) else COMMUNICATION]
        label = step.label(bar, names)
        bars.append(GanttBar(lane, bar.start_s, bar.stop_s, label, step.kind(bar), bar in marked))
    if path:
        bars += _pauses(step, names)
    for wait in () if path else step.waits:
        lane = number[wait.machine, KERNEL]
        bars.append(GanttBar(lane, wait.start_s, wait.stop_s, wait.label(names), "wait"))
    arrows = []
    for flight in step.flights:
        if len(names) <= ARROWS or flight in marked:
            label = f"{step.operand(flight)} from {names[flight.source]} to {names[flight.destination]}"
            ends = number[flight.source, COMMUNICATION], number[flight.destination, COMMUNICATION]
            arrows.append(GanttArrow(*ends, flight.start_s, flight.stop_s, label, flight in marked))
    return Gantt(title, subtitle, tuple(lanes), tuple(bars), tuple(arrows))


def _shares(step: Timeline, machine: int) -> str:
    """Writes the shares of a step that a machine computes and waits."""
    times, step_s = step.times[machine], step.step_s or 1.0
    return f"computes {times.computing_s / step_s:.0%}, waits {times.waiting_s / step_s:.0%}"


def _pauses(step: Timeline, names: tuple[str, ...]) -> Iterator[GanttBar]:
    """Yields the gaps between a machine's computations, named after the message that came last in each."""
    for part in step.parts:
        received = sorted((bar.stop_s, bar.position) for bar in part if step.kind(bar) == "receive")
        reached = 0.0
        for bar in sorted(filter(step.computes, part), key=lambda bar: bar.start_s):
            if bar.start_s > reached:
                last = bisect(received, (bar.start_s + 1e-12, len(part))) - 1
                label = "waits"
                if last >= 0 and received[last][0] > reached:
                    came = step.instruction(part[received[last][1]])
                    label = f"waits for {came.target.buffer.description} from {names[came.peer or 0]}"
                yield GanttBar(2 * bar.machine, reached, bar.start_s, label, "wait")
            reached = max(reached, bar.stop_s)


def steps_of(point: Point) -> tuple[Gantt, ...]:
    """Lays the measured step of a point out, if there is one, and the predicted step, on one axis."""
    measured, predicted = point.measured, predicted_gantt(point.plan)
    if measured is None:
        return (predicted,)
    until_s = max(measured.typical.step_s, predicted.stop_s)
    subtitle = f"{_which(measured)} · {counted(point.machines, 'machine')} · {point.plan.batch_text}"
    drawn = gantt_of(measured.typical, _names(point.plan), title=predicted.title, subtitle=subtitle)
    return replace(drawn, until_s=until_s), replace(predicted, until_s=until_s)


def _names(plan: Plan) -> tuple[str, ...]:
    return tuple(machine.name for machine in plan.cluster.machines)


def _which(measured: Measured) -> str:
    """Names the step that is drawn: one of those that were traced, and tracing takes time by itself."""
    drawn, reported = readable_seconds(measured.typical.step_s), readable_seconds(measured.step_s)
    if abs(measured.typical.step_s - measured.step_s) <= AS_LONG * measured.step_s:
        return f"a measured step of {drawn}"
    return f"a measured step of {drawn}, of those traced the nearest to the {reported} that a step takes"
