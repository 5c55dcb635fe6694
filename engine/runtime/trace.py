"""Traces: the times of each instruction of a step, and of each message from end to end.

A part's threads record while the part plays; a trace is read from the record. The time at which an
instruction became ready is not recorded, because it follows: the last one that it waits for was done.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.protocol.clocks import Offset
from partita.engine.protocol.instruction_scheduler import AHEAD
from partita.engine.protocol.messages import Tensor
from partita.partitioner.ir.buffer import Buffer
from partita.partitioner.ir.program import COMPUTES, Op, Program
from partita.partitioner.predict.timeline import COMMUNICATION, Bar, Flight, Timeline

Times: TypeAlias = npt.NDArray[np.float64]
"""Seconds, one for each instruction of a program; NaN where there is none."""

_FIELDS: Final = 4
_NEVER: Final = float("nan")


class Recorder:
    """The times of the instructions of one part's step: a microsecond or two to record each.

    `begin` and `arrived` are for the thread that owns the mailbox; `played` is for any thread.

    Attributes:
        on: whether instructions are recorded; to be set before a step begins. Arrivals always are, because
            messages may be there before that.
    """

    def __init__(self, program: Program, host_of: Callable[[int], str]) -> None:
        """A recorder of a program's steps; `host_of` is the host that plays a machine's part."""
        self._receives = {(host_of(peer), str(buffer)): n for (peer, buffer), n in _receives(program).items()}
        # Messages may be here before the step is: each step of those that can be under way has its own.
        self._arrived = [[_NEVER] * len(program) for _ in range(AHEAD + 1)]
        self._played = [(_NEVER, _NEVER, 0)] * len(program)
        self._communication = 0
        self._step = 0
        self._began = self._over = 0.0
        self.on = False

    def begin(self, step: int, now: float) -> None:
        """Notes the beginning of a step."""
        self._communication = threading.get_ident()
        self._step, self._began = step, now

    def arrived(self, sender: str, tensor: Tensor, now: float) -> None:
        """Notes a message that has arrived, whether or not it can be placed."""
        position = self._receives.get((sender, tensor.buffer))
        if position is not None:
            self._arrived[tensor.step % len(self._arrived)][position] = now

    def played(self, position: int, started: float, stopped: float) -> None:
        """Notes an instruction that the calling thread has carried out."""
        if self.on:
            self._played[position] = started, stopped, threading.get_ident()

    def end(self, now: float) -> None:
        """Notes the end of the step."""
        self._over = now

    def table(self) -> Times:
        """The step that is over, in the shape of `table_shape`; a new array."""
        numbers = {self._communication: COMMUNICATION}
        threads = [numbers.setdefault(ident, len(numbers)) for _, _, ident in self._played]
        arrived = self._arrived[self._step % len(self._arrived)]
        started, stopped = ([played[n] for played in self._played] for n in (0, 1))
        return np.array(
            [
                [*arrived, _NEVER],
                [*started, self._began],
                [*stopped, self._over],
                [*threads, COMMUNICATION],
            ]
        )


def table_shape(program: Program) -> tuple[int, int]:
    """`[field, instruction]`: arrived, started, stopped, thread; the last column is the step itself."""
    return _FIELDS, len(program) + 1


@dataclass(frozen=True, eq=False)
class PartTrace:
    """A part's step, on the clock of the process that asked for it.

    Args:
        program: its instructions.
        began_s, over_s: the begin and the end of the step.
        arrived_s: the arrival of each message.
        started_s, stopped_s: the begin and the end of each instruction. A SEND: from when it is copied out
            until the transport has it; a RECV: while it is put into its place.
        thread: 0 for the thread that receives messages, kernel threads from 1.
        uncertainty_s: the largest shift of all these times against other parts.
    """

    program: Program
    began_s: float
    over_s: float
    arrived_s: Times
    started_s: Times
    stopped_s: Times
    thread: npt.NDArray[np.int64]
    uncertainty_s: float

    @classmethod
    def of(cls, program: Program, table: npt.NDArray[Any], clock: Offset) -> PartTrace:
        """The trace in a recorder's table, its times moved by the offset of its clock."""
        arrived, started, stopped = table[:3] + clock.offset_s
        thread = table[3, :-1].astype(np.int64)
        return cls(
            program,
            float(started[-1]),
            float(stopped[-1]),
            arrived[:-1],
            started[:-1],
            stopped[:-1],
            thread,
            clock.uncertainty_s,
        )

    @cached_property
    def ready_s(self) -> Times:
        """When the instructions that each one waits for were done; messages do not count."""
        return np.array(
            [
                max((self.stopped_s[k] for k in instruction.after), default=self.began_s)
                for instruction in self.program.instructions
            ]
        )

    def bars(self, machine: int, zero_s: float) -> Iterator[Bar]:
        """Yields the instructions as bars of a machine, in seconds from `zero_s` on."""
        times = (times - zero_s for times in (self.started_s, self.stopped_s, self.ready_s))
        columns = (column.tolist() for column in (self.thread, *times))
        for position, values in enumerate(zip(*columns, strict=True)):
            yield Bar(machine, position, *values)

    @property
    def busy_s(self) -> float:
        """Seconds in kernels, summed over the threads."""
        computes = [instruction.op in COMPUTES for instruction in self.program.instructions]
        return float((self.stopped_s - self.started_s)[np.array(computes, bool)].sum())


@dataclass(frozen=True, eq=False)
class StepTrace:
    """All parts' traces of one step, in the order of the machines, on one clock."""

    parts: tuple[PartTrace, ...]

    @property
    def began_s(self) -> float:
        """The begin of the first part's step."""
        return min(part.began_s for part in self.parts)

    @property
    def over_s(self) -> float:
        """The end of the last part's step."""
        return max(part.over_s for part in self.parts)

    @cached_property
    def timeline(self) -> Timeline:
        """The step as bars, messages in flight and waits."""
        return Timeline(
            tuple(part.program for part in self.parts),
            tuple(tuple(part.bars(m, self.began_s)) for m, part in enumerate(self.parts)),
            tuple(sorted(self._flights(), key=lambda flight: flight.start_s)),
            self.over_s - self.began_s,
            tuple(part.busy_s for part in self.parts),
            tuple(part.uncertainty_s for part in self.parts),
        )

    def _flights(self) -> Iterator[Flight]:
        """Yields every message of the step, by sender."""
        receives = [_receives(part.program) for part in self.parts]
        for source, part in enumerate(self.parts):
            for send, instruction in enumerate(part.program.instructions):
                to = instruction.peer
                if instruction.op is Op.SEND and to is not None:
                    receive = receives[to][source, instruction.target.buffer.sent]
                    times = part.stopped_s[send], self.parts[to].arrived_s[receive]
                    yield Flight(source, to, send, receive, *(float(time) - self.began_s for time in times))


def _receives(program: Program) -> dict[tuple[int, Buffer], int]:
    return {
        (i.peer, i.target.buffer.sent): n
        for n, i in enumerate(program.instructions)
        if i.op is Op.RECV and i.peer is not None
    }
