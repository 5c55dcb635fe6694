"""The report of a profile in plain numbers: as a table of text, and as JSON that can be read back."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal

import msgspec

from partita.engine.profile.beside import Beside, beside_text
from partita.engine.profile.changes import Change
from partita.layers.tables import columns, wrapped
from partita.layers.text import counted, readable_bytes
from partita.partitioner.text import readable_seconds

FORMAT: Final = 1
"""Version of the JSON, raised when a number changes its meaning."""


@dataclass(frozen=True)
class MachineReport:
    """The parts of a machine's step, in seconds, and what it sends in a step.

    Args:
        name: name of the machine.
        threads: kernel threads.
        computing_s, sending_s, waiting_s, idle_s: parts of the step, which add up to it; see `timeline`.
        sent_messages, sent_bytes: messages to other machines.
    """

    name: str
    threads: int
    computing_s: float
    sending_s: float
    waiting_s: float
    idle_s: float
    sent_messages: int
    sent_bytes: int


@dataclass(frozen=True)
class PointReport:
    """The results for one number of machines.

    Args:
        machines: number of machines.
        source: whether the step, and where it goes, were measured or simulated.
        step_s: the tenth percentile of the measured steps, or the prediction.
        spread: relative difference between the median measured step and `step_s`; None if simulated.
        speed_up: over the first point (one machine, if the network fits there): of a measured step over a
            measured one, of a simulated over a simulated one.
        efficiency: speed-up divided by the ratio of the numbers of machines.
        predicted_step_s, predicted_speed_up: by simulation.
        prediction_error: predicted over measured step, less one; None if nothing was measured.
        clock_doubt_s: uncertainty of the shift between the clocks of two machines.
        parts: each machine.
        changes: changes that would gain most, by simulation.
    """

    machines: int
    source: Literal["measured", "simulated"]
    step_s: float
    spread: float | None
    speed_up: float
    efficiency: float
    predicted_step_s: float
    predicted_speed_up: float
    prediction_error: float | None
    clock_doubt_s: float
    parts: tuple[MachineReport, ...]
    changes: tuple[Change, ...]

    @property
    def sent_bytes(self) -> int:
        """Bytes that all machines send in a step."""
        return sum(part.sent_bytes for part in self.parts)


@dataclass(frozen=True)
class Report:
    """The report of a network on several numbers of machines.

    Args:
        network: name of the network.
        parameters: number of parameters.
        batch: examples in a step.
        precision: precision of activations and gradients.
        train: whether steps are of training, or the forward pass alone.
        cores: cores of the machine that measured.
        steps: steps measured of each plan.
        calibrated: whether predictions stand on measured kernels.
        points: results by number of machines.
        elsewhere: whether workers measured, see `ProfileArguments.on`, and not this machine.
        remarks: on a module that the network was made of; of nodes that do not run as compiled loops, with
            the lines that are the cause.
        beside: PyTorch's ways to train the module on two processes, and ours, if they were measured.
        format: version of the JSON.
    """

    network: str
    parameters: int
    batch: int
    precision: str
    train: bool
    cores: int
    steps: int
    calibrated: bool
    points: tuple[PointReport, ...]
    elsewhere: bool = False
    remarks: tuple[str, ...] = ()
    beside: tuple[Beside, ...] = ()
    format: int = FORMAT

    def to_json(self) -> str:
        """Returns the report as JSON; seconds and bytes, never rounded."""
        return msgspec.json.format(msgspec.json.encode(self), indent=2).decode() + "\n"

    @classmethod
    def from_json(cls, text: str | bytes) -> Report:
        """Reads what `to_json` wrote.

        Raises:
            ValueError: the text is no report, or one of another format.
        """
        try:
            found = msgspec.json.decode(text, type=cls)
        except msgspec.MsgspecError as error:
            raise ValueError(f"this is no report of a profile: {error}; write it again") from error
        if found.format != FORMAT:
            raise ValueError(
                f"the report has format {found.format}, but this version reads {FORMAT}; write it again"
            )
        return found

    @property
    def title(self) -> str:
        """The network and the kind of step, in a line."""
        step = "a training step" if self.train else "the forward pass"
        size = counted(self.parameters, "parameter")
        return f"{self.network}: {step}, batch {self.batch}, {self.precision}, {size}"

    @property
    def conditions(self) -> str:
        """The conditions of the measurements and simulations, in a line."""
        threads = sorted({part.threads for point in self.points for part in point.parts})
        first = self.points[0].machines
        lines = [f"{' or '.join(map(str, threads))} {'thread' if threads == [1] else 'threads'} a machine"]
        if any(point.source == "measured" for point in self.points):
            where = "at workers" if self.elsewhere else f"on this machine's {counted(self.cores, 'core')}"
            lines.append(f"measured: the tenth percentile of {counted(self.steps, 'step')}, {where}")
        if first > 1:
            lines.append(f"speed-up over {counted(first, 'machine')}, because it does not fit on fewer")
        lines.append(f"simulated: predicted, {'calibrated' if self.calibrated else 'uncalibrated'}")
        return "; ".join(lines)

    def text(self, width: int | None = None) -> str:
        """Returns a table and sentences, in lines of at most `width` characters, if it is given."""
        prose = [*wrapped(self.title, width), *wrapped(self.conditions, width)]
        changes = [line for change in changes_of(self) for line in wrapped(change, width)]
        table = columns(rows_of(self), left=(1,), keys=2, width=width)
        beside = ["", *beside_text(self.beside, width)] if self.beside else []
        remarks = ["", *map(remark_text, self.remarks)] if self.remarks else []
        most = ["", "what would gain most, simulated:", *changes]
        return "\n".join([*prose, "", *table, *beside, *most, *remarks])

    def __str__(self) -> str:
        return self.text()


def remark_text(remark: str) -> str:
    """Returns a remark as it is printed below a table."""
    return f"remark: {remark}"


HEADS: Final = (
    "machines",
    "",
    "step",
    "spread",
    "speed-up",
    "efficiency",
    "predicted",
    "error",
    "sent",
    "computing",
    "sending",
    "waiting",
    "idle",
)


def rows_of(report: Report) -> list[list[str]]:
    """Returns the cells of the table, line by line; the first line are the heads."""
    return [list(HEADS), *(_row(point) for point in report.points)]


def _row(point: PointReport) -> list[str]:
    seconds = [(part.computing_s, part.sending_s, part.waiting_s, part.idle_s) for part in point.parts]
    shares = [sum(column) for column in zip(*seconds, strict=True)]
    whole = sum(shares)
    return [
        str(point.machines),
        point.source,
        readable_seconds(point.step_s),
        "-" if point.spread is None else f"+{point.spread:.1%}",
        f"{point.speed_up:.2f}x",
        f"{point.efficiency:.0%}",
        readable_seconds(point.predicted_step_s),
        "-" if point.prediction_error is None else f"{point.prediction_error:+.0%}",
        readable_bytes(point.sent_bytes),
        *(f"{share / whole:.0%}" if whole else "-" for share in shares),
    ]


def changes_of(report: Report) -> list[str]:
    """Returns a line of changes for each number of machines."""
    return [
        f"  {counted(point.machines, 'machine')}: {changes_text(point.changes)}" for point in report.points
    ]


def changes_text(changes: tuple[Change, ...]) -> str:
    """Returns changes as a sentence."""
    return "; ".join(map(str, changes)) or "nothing that was tried gains 2%"
