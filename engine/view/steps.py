"""Gantt charts of steps: predicted of a plan, or measured, with waits and the critical path."""

from __future__ import annotations

from bisect import bisect
from collections.abc import Iterator, Sequence
from dataclasses import replace

from partita.engine.profile.measure import Measured
from partita.engine.profile.profile import Point
from partita.engine.profile.timeline import KERNEL, KIND_OF, MESSAGES, Timeline, label_of
from partita.engine.runtime.trace import COMMUNICATION
from partita.engine.view.gantt import Gantt, GanttArrow, GanttBar, Lane, draw_gantt, lanes_of
from partita.engine.view.legend import predicted_text
from partita.layers.text import counted
from partita.partitioner.ir.program import Instruction, Op
from partita.partitioner.plan import Plan
from partita.partitioner.predict.simulated_step import Bar
from partita.partitioner.text import readable_seconds

ARROWS = 4
"""Number of machines up to which every message is drawn on its way; of more, those on the critical path."""
AS_LONG = 0.05
"""Relative difference of a drawn step from the reported one up to which the subtitle does not mention it."""


def draw_step(plan: Plan) -> str:
    """Draws the predicted step of a plan, as the text of an SVG file."""
    return draw_gantt(predicted_gantt(plan))


def predicted_gantt(plan: Plan) -> Gantt:
    """Lays a predicted step out: of training, or of the forward pass where the network has no loss."""
    simulated_step, names = plan.simulated_step, tuple(machine.name for machine in plan.cluster.machines)
    path = set(simulated_step.critical_path)
    on_path = {(found.machine, found.position) for found in path if isinstance(found, Bar)}
    bars: list[GanttBar] = []
    played: list[list[tuple[Bar, Instruction]]] = [[] for _ in names]
    for bar in simulated_step.bars:
        instruction = simulated_step.instruction(bar)
        played[bar.machine].append((bar, instruction))
        lane = 2 * bar.machine + (instruction.op in (Op.SEND, Op.RECV))
        label, kind = label_of(instruction, names), KIND_OF[instruction.op]
        critical = (bar.machine, bar.position) in on_path
        bars.append(GanttBar(lane, bar.start_s, bar.stop_s, label, kind, critical))
    for mine in played:
        bars += _waits(mine, names)
    arrows = []
    for flight in simulated_step.flights:
        if len(names) <= ARROWS or flight in path:
            sent = simulated_step.programs[flight.source].instructions[flight.send].target
            label = f"{sent} from {names[flight.source]} to {names[flight.destination]}"
            lanes = 2 * flight.source + 1, 2 * flight.destination + 1
            arrows.append(GanttArrow(*lanes, flight.start_s, flight.stop_s, label, flight in path))
    subtitle = f"{predicted_text(plan)} · {counted(len(names), 'machine')} · {plan.batch_text}"
    return Gantt(f"{plan.graph.name}: one step", subtitle, lanes_of(names), tuple(bars), tuple(arrows))


def _waits(mine: Sequence[tuple[Bar, Instruction]], names: tuple[str, ...]) -> Iterator[GanttBar]:
    """Yields the gaps between a machine's computations, named after the message that came last in each."""
    reached = 0.0
    received = sorted((bar.stop_s, n) for n, (bar, what) in enumerate(mine) if what.op is Op.RECV)
    for bar, instruction in mine:
        if instruction.op in (Op.SEND, Op.RECV):
            continue
        if bar.start_s > reached:
            last = bisect(received, (bar.start_s + 1e-12, len(mine))) - 1
            label = "waits"
            if last >= 0 and received[last][0] > reached:
                came = mine[received[last][1]][1]
                label = f"waits for {came.target.buffer.description} from {names[came.peer or 0]}"
            yield GanttBar(2 * bar.machine, reached, bar.start_s, label, "wait")
        reached = max(reached, bar.stop_s)


def measured_gantt(step: Timeline, title: str, subtitle: str, *, until_s: float = 0.0) -> Gantt:
    """Lays a step out, with a lane for each kernel thread and a thin one for messages.

    Args:
        step: measured or predicted.
        title: of the chart.
        subtitle: below the title.
        until_s: least end of the axis.
    """
    lanes: list[Lane] = []
    number: dict[tuple[int, int], int] = {}
    for machine, name in enumerate(step.machines):
        threads = {bar.thread for bar in step.bars if bar.machine == machine} | {KERNEL}
        for thread in (*sorted(threads - {COMMUNICATION}), COMMUNICATION):
            number[machine, thread] = len(lanes)
            lanes.append(Lane(name if thread == KERNEL else "", thin=thread == COMMUNICATION))
    bars = []
    for bar in step.bars:
        lane = number[bar.machine, COMMUNICATION if bar.kind in MESSAGES else bar.thread]
        bars.append(GanttBar(lane, bar.start_s, bar.stop_s, bar.label, bar.kind))
    for machine in range(len(step.machines)):
        for wait in step.waits(machine):
            lane, label = number[machine, KERNEL], f"waits for {wait.what}"
            bars.append(GanttBar(lane, wait.start_s, wait.stop_s, label, "wait"))
    arrows = []
    for flight in step.flights if len(step.machines) <= ARROWS else ():
        ends = number[flight.source, COMMUNICATION], number[flight.destination, COMMUNICATION]
        arrows.append(GanttArrow(*ends, flight.sent_s, flight.arrived_s, flight.label))
    return Gantt(title, subtitle, tuple(lanes), tuple(bars), tuple(arrows), until_s)


def steps_of(point: Point) -> tuple[Gantt, ...]:
    """Lays the measured step of a point out, if there is one, and the predicted step, on one axis."""
    measured, predicted = point.measured, predicted_gantt(point.plan)
    if measured is None:
        return (predicted,)
    until_s = max(measured.typical.step_s, predicted.stop_s)
    subtitle = f"{_which(measured)} · {counted(point.machines, 'machine')} · {point.plan.batch_text}"
    drawn = measured_gantt(measured.typical, predicted.title, subtitle, until_s=until_s)
    return drawn, replace(predicted, until_s=until_s)


def _which(measured: Measured) -> str:
    """Names the step that is drawn: one of those that were traced, and tracing takes time by itself."""
    drawn, reported = readable_seconds(measured.typical.step_s), readable_seconds(measured.step_s)
    if abs(measured.typical.step_s - measured.step_s) <= AS_LONG * measured.step_s:
        return f"a measured step of {drawn}"
    return f"a measured step of {drawn}, of those traced the nearest to the {reported} that a step takes"
