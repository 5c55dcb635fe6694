"""The timeline of a predicted step: the bars of a plan's playback, who waits for what, the critical path."""

from __future__ import annotations

from collections.abc import Iterator

from partita.layers.text import counted
from partita.partitioner.bare_plan import BarePlan
from partita.partitioner.drawing.timeline import Timeline, TimelineBar, TimelineFlight, lanes_of
from partita.partitioner.ir.program import Instruction, Op
from partita.partitioner.predict.playback import Bar, Flight, Playback
from partita.partitioner.readable import readable_seconds
from partita.partitioner.words import described

KIND_OF = {
    Op.MULTIPLY: "up",
    Op.UP: "up",
    Op.SUMMARISE: "up",
    Op.DELTA: "errors",
    Op.ERRORS: "errors",
    Op.LEARN: "learn",
    Op.GRADIENT: "learn",
    Op.SQUARES: "learn",
    Op.UPDATE: "learn",
    Op.FEED: "other",
    Op.ADD: "other",
    Op.SEND: "send",
    Op.RECV: "receive",
}
"""The kind of bar of each instruction."""
FLIGHTS = 4
"""Machines up to which every message is drawn on its way; of more, those on the critical path."""


def said_of_step(plan: BarePlan) -> str:
    """How long a step is predicted to take, and whether that is a guess."""
    doubt = "" if plan.costs.calibrated else " (uncalibrated)"
    return f"predicted step {readable_seconds(plan.predicted_step_s)}{doubt}"


def predicted_timeline(plan: BarePlan) -> Timeline:
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


def label_of(instruction: Instruction, names: tuple[str, ...]) -> str:
    """What an instruction does, in few words: `UP h1`, `SEND h1 to b`."""
    what = f"{instruction.op} {instruction.target.buffer}"
    if instruction.peer is None:
        return what
    return f"{what} {'to' if instruction.op is Op.SEND else 'from'} {names[instruction.peer]}"


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
    return f"waits for {described(instruction.target.buffer)} from {names[instruction.peer or 0]}"


def _flight(playback: Playback, names: tuple[str, ...], flight: Flight, *, critical: bool) -> TimelineFlight:
    sent = playback.programs[flight.source].instructions[flight.send]
    label = f"{sent.target} from {names[flight.source]} to {names[flight.destination]}"
    lanes = 2 * flight.source + 1, 2 * flight.destination + 1
    return TimelineFlight(*lanes, flight.start_s, flight.stop_s, label, critical)
