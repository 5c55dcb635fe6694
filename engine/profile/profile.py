"""The profile of a network on several numbers of machines: measurements and simulations."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from partita.engine.profile import perfetto
from partita.engine.profile.beside import Beside
from partita.engine.profile.changes import Change
from partita.engine.profile.measure import Measured
from partita.engine.profile.report import MachineReport, PointReport, Report
from partita.engine.run.data import slow_nodes
from partita.layers.text import counted
from partita.partitioner.pictures import view
from partita.partitioner.plan import Plan
from partita.partitioner.predict.timeline import Timeline

MOST_STEPS: Final = 10
"""Steps of each plan in a trace file."""


@dataclass(frozen=True)
class Point:
    """The results for one number of machines.

    Args:
        plan: how the network is cut over them.
        measured: None where this machine cannot play them side by side.
        changes: changes that would gain most.
    """

    plan: Plan
    measured: Measured | None
    changes: tuple[Change, ...]

    @property
    def machines(self) -> int:
        """Number of machines of the row."""
        return len(self.plan.cluster)

    @property
    def predicted(self) -> Timeline:
        """The step on the virtual clock."""
        return self.plan.simulated_step


@dataclass(frozen=True)
class Profile:
    """The gain of a network on several numbers of machines.

    Args:
        points: results by number of machines; the others are compared with the first.
        cores: cores of this machine.
        steps: steps measured of each plan.
        elsewhere: whether workers measured, see `ProfileArguments.on`.
        remarks, beside: see `Report`.
    """

    points: tuple[Point, ...]
    cores: int
    steps: int
    elsewhere: bool = False
    remarks: tuple[str, ...] = ()
    beside: tuple[Beside, ...] = ()

    def report(self) -> Report:
        """Returns the profile in plain numbers."""
        plan = self.points[0].plan
        return Report(
            plan.graph.name,
            plan.graph.n_parameters,
            plan.batch,
            plan.precision,
            bool(plan.graph.losses),
            self.cores,
            self.steps,
            all(point.plan.costs.calibrated for point in self.points),
            tuple(_reported(point, self.points[0]) for point in self.points),
            self.elsewhere,
            (*self.remarks, *slow_nodes(plan.graph)),
            self.beside,
        )

    def draw(self, path: str | Path) -> Path:
        """Writes the speed-up curve as an SVG picture."""
        return _written(path, view("speed_up").draw_speed_up(self.report()).encode())

    def write_json(self, path: str | Path) -> Path:
        """Writes the report as JSON."""
        return _written(path, self.report().to_json().encode())

    def write_trace(self, path: str | Path) -> Path:
        """Writes the steps of every machine in Chrome's trace format, which https://ui.perfetto.dev shows."""
        return _written(path, perfetto.to_json([_recording(point) for point in self.points]))

    def write_page(self, path: str | Path) -> Path:
        """Writes a page of HTML that needs no other file: the curve, the table, the steps, the changes."""
        return _written(path, view("pages").profile_page(self).encode())

    def __str__(self) -> str:
        return str(self.report())


def _reported(point: Point, first: Point) -> PointReport:
    predicted, measured = point.predicted.step_s, point.measured
    speed_up = predicted_speed_up = first.predicted.step_s / predicted
    if measured is not None and first.measured is not None:
        speed_up = first.measured.step_s / measured.step_s
    return PointReport(
        point.machines,
        "simulated" if measured is None else "measured",
        predicted if measured is None else measured.step_s,
        None if measured is None else measured.spread,
        speed_up,
        speed_up * first.machines / point.machines,
        predicted,
        predicted_speed_up,
        None if measured is None else predicted / measured.step_s - 1,
        0.0 if measured is None else 2 * max(measured.typical.doubt_s),
        tuple(_parts(point)),
        point.changes,
    )


def _parts(point: Point) -> Iterator[MachineReport]:
    measured = point.measured
    times = point.predicted.times if measured is None else measured.times
    for m, (machine, at) in enumerate(zip(point.plan.cluster.machines, times, strict=True)):
        if measured is None:
            sent = [message.n_bytes for message in point.plan.messages if message.source == m]
            messages, n_bytes = len(sent), sum(sent)
        else:
            messages, n_bytes = measured.sent_messages[m], measured.sent_bytes[m]
        times_s = (at.computing_s, at.sending_s, at.waiting_s, at.idle_s)
        yield MachineReport(machine.name, machine.threads, *times_s, messages, n_bytes)


def _recording(point: Point) -> perfetto.Recording:
    name = counted(point.machines, "machine")
    machines = tuple(machine.name for machine in point.plan.cluster.machines)
    if point.measured is None:
        return perfetto.Recording(f"{name}, simulated", machines, [(0.0, point.predicted)])
    measured = point.measured
    first = measured.traces[0].began_s
    steps = zip(measured.traces[:MOST_STEPS], measured.timelines[:MOST_STEPS], strict=True)
    return perfetto.Recording(f"{name}, measured", machines, [(t.began_s - first, line) for t, line in steps])


def _written(path: str | Path, content: bytes) -> Path:
    target = Path(path)
    target.write_bytes(content)
    return target
