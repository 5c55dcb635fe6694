"""The steps that pictures show: predicted of a plan, or measured, with waits and the critical path."""

from __future__ import annotations

from collections.abc import Iterator

from partita.engine.profile.timeline import KERNEL, KIND_OF, MESSAGES, label_of
from partita.engine.profile.timeline import Timeline as Step
from partita.engine.runtime.trace import COMMUNICATION
from partita.engine.view.timeline import Lane, Timeline, TimelineBar, TimelineFlight, draw_timeline, lanes_of
from partita.layers.text import counted
from partita.partitioner.ir.program import Op
from partita.partitioner.plan import Plan
from partita.partitioner.predict.playback import Bar, Flight, Playback
from partita.partitioner.text import readable_seconds

FLIGHTS = 4
"""Machines up to which every message is drawn on its way; of more, those on the critical path."""


def said_of_step(plan: Plan) -> str:
    """How long a step is predicted to take, and whether that is a guess."""
    doubt = "" if plan.costs.calibrated else " (uncalibrated)"
    return f"predicted step {readable_seconds(plan.predicted_step_s)}{doubt}"


def draw_step(plan: Plan) -> str:
    """Draws the predicted step of a plan, as the text of an SVG file."""
    return draw_timeline(predicted_timeline(plan))


def predicted_timeline(plan: Plan) -> Timeline:
    """Of a step of training, or of the way up where the network has no loss."""
    playback, names = plan.playback, tuple(machine.name for machine in plan.cluster.machines)
    path = playback.critical_path
    on_path = {(bar.machine, bar.position) for bar in path if isinstance(bar, Bar)}
    bars = [
        _drawn(playback, names, bar, critical=(bar.machine, bar.position) in on_path) for bar in playback.bars
    ]
    for machine in range(len(names)):
        bars += _waits(playback, names, machine)
    flights = playback.flights if len(names) <= FLIGHTS else tuple(f for f in path if isinstance(f, Flight))
    return Timeline(
        f"{plan.graph.name}: one step",
        f"{said_of_step(plan)} · {counted(len(names), 'machine')} · {plan.portions}",
        lanes_of(names),
        tuple(bars),
        tuple(_flight(playback, names, flight, critical=flight in set(path)) for flight in flights),
    )


def _drawn(playback: Playback, names: tuple[str, ...], bar: Bar, *, critical: bool) -> TimelineBar:
    instruction = playback.instruction(bar)
    lane = 2 * bar.machine + (instruction.op in (Op.SEND, Op.RECV))
    label, kind = label_of(instruction, names), KIND_OF[instruction.op]
    return TimelineBar(lane, bar.start_s, bar.stop_s, label, kind, critical)


def _waits(playback: Playback, names: tuple[str, ...], machine: int) -> Iterator[TimelineBar]:
    """The gaps between a machine's computations, and what came at the end of each."""
    mine = [bar for bar in playback.bars if bar.machine == machine]
    received = [bar for bar in mine if playback.instruction(bar).op is Op.RECV]
    reached = 0.0
    for bar in mine:
        instruction = playback.instruction(bar)
        if instruction.op in (Op.SEND, Op.RECV):
            continue
        if bar.start_s > reached:
            last = max(
                (r for r in received if r.stop_s <= bar.start_s + 1e-12), key=lambda r: r.stop_s, default=None
            )
            label = "waits" if last is None or last.stop_s <= reached else _waits_for(playback, names, last)
            yield TimelineBar(2 * machine, reached, bar.start_s, label, "wait")
        reached = max(reached, bar.stop_s)


def _waits_for(playback: Playback, names: tuple[str, ...], received: Bar) -> str:
    instruction = playback.instruction(received)
    return f"waits for {instruction.target.buffer.description} from {names[instruction.peer or 0]}"


def _flight(playback: Playback, names: tuple[str, ...], flight: Flight, *, critical: bool) -> TimelineFlight:
    sent = playback.programs[flight.source].instructions[flight.send]
    label = f"{sent.target} from {names[flight.source]} to {names[flight.destination]}"
    lanes = 2 * flight.source + 1, 2 * flight.destination + 1
    return TimelineFlight(*lanes, flight.start_s, flight.stop_s, label, critical)


def step_timeline(step: Step, title: str, subtitle: str, *, until_s: float = 0.0) -> Timeline:
    """Lays a step out: a lane for each kernel thread, and a thin one for messages.

    Args:
        step: measured or predicted.
        title: above it.
        subtitle: below that.
        until_s: where its axis ends at least.
    """
    lanes: list[Lane] = []
    number: dict[tuple[int, int], int] = {}
    for machine, name in enumerate(step.machines):
        threads = {bar.thread for bar in step.bars if bar.machine == machine} | {KERNEL}
        for thread in sorted(threads - {COMMUNICATION}):
            number[machine, thread] = len(lanes)
            lanes.append(Lane(name if thread == KERNEL else ""))
        number[machine, COMMUNICATION] = len(lanes)
        lanes.append(Lane("", thin=True))
    bars = [
        TimelineBar(
            number[b.machine, COMMUNICATION if b.kind in MESSAGES else b.thread],
            b.start_s,
            b.stop_s,
            b.label,
            b.kind,
        )
        for b in step.bars
    ]
    for machine in range(len(step.machines)):
        lane = number[machine, KERNEL]
        for wait in step.waits(machine):
            bars.append(TimelineBar(lane, wait.start_s, wait.stop_s, f"waits for {wait.what}", "wait"))
    flights = tuple(
        TimelineFlight(
            number[f.source, COMMUNICATION],
            number[f.destination, COMMUNICATION],
            f.sent_s,
            f.arrived_s,
            f.label,
        )
        for f in (step.flights if len(step.machines) <= FLIGHTS else ())
    )
    return Timeline(title, subtitle, tuple(lanes), tuple(bars), flights, until_s)
