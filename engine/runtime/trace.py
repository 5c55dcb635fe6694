"""What a part did in a step, and when: each instruction, and each message from end to end.

A recorder is written by the part's threads while it plays; a trace is what it comes to. When an instruction
became ready is not recorded, because it follows: when the last one that it waits for was done.
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
from partita.partitioner.ir.program import Op, Program

Times: TypeAlias = npt.NDArray[np.float64]
"""Seconds, one for each instruction of a program; NaN where there is none."""

COMMUNICATION: Final = 0
"""The thread that takes messages in; kernel threads, which send too, are 1 and above."""

_FIELDS: Final = 4
_NEVER: Final = float("nan")


class Recorder:
    """What the threads of one part write down of the step that is played: a microsecond or two for each
    instruction.

    `begin` and `arrived` are for the thread that owns the mailbox; `played` is for any thread.

    Attributes:
        on: whether instructions are written down; to be set before a step begins. Messages always are,
            because they may be there before that.
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
        """A step begins, of which everything is written down if `on` says so."""
        self._communication = threading.get_ident()
        self._step, self._began = step, now

    def arrived(self, sender: str, tensor: Tensor, now: float) -> None:
        """A message is here, whether or not anything can be done with it."""
        position = self._receives.get((sender, tensor.buffer))
        if position is not None:
            self._arrived[tensor.step % len(self._arrived)][position] = now

    def played(self, position: int, started: float, stopped: float) -> None:
        """The calling thread has carried out the instruction at this position."""
        if self.on:
            self._played[position] = started, stopped, threading.get_ident()

    def end(self, now: float) -> None:
        """The step is over."""
        self._over = now

    def table(self) -> Times:
        """The step that is over, as `table_shape` says; a new array."""
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
    """A part's step, on the clock of who asked for it.

    Args:
        program: what was played.
        began_s, over_s: when the step began and ended.
        arrived_s: when a message was here.
        started_s, stopped_s: when an instruction was begun and done. Of a SEND: from when it is copied out
            until the transport has it; of a RECV: while it is put into its place.
        thread: 0 for the one that takes messages in, kernel threads from 1.
        uncertainty_s: by how much all of these may be shifted against other parts.
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
        """What a recorder's table says, its times moved by the offset of its clock."""
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
        """When each instruction had all that it waits for: others before it, not messages."""
        return np.array(
            [
                max((self.stopped_s[k] for k in instruction.after), default=self.began_s)
                for instruction in self.program.instructions
            ]
        )


@dataclass(frozen=True)
class Delivery:
    """A message of a step, from end to end.

    Args:
        source, destination: the machines.
        send, receive: positions in their programs.
        handed_over_s: when the sender's transport had it.
        arrived_s: when it was at its destination.
        wanted_s: from when the destination could have used it.
        placed_s: when it was in its place.
    """

    source: int
    destination: int
    send: int
    receive: int
    handed_over_s: float
    arrived_s: float
    wanted_s: float
    placed_s: float


@dataclass(frozen=True, eq=False)
class StepTrace:
    """All parts' traces of one step, in the order of the machines, on one clock."""

    parts: tuple[PartTrace, ...]

    @property
    def began_s(self) -> float:
        """When the first part began."""
        return min(part.began_s for part in self.parts)

    @property
    def over_s(self) -> float:
        """When the last part was done."""
        return max(part.over_s for part in self.parts)

    def deliveries(self) -> Iterator[Delivery]:
        """Every message of the step, by sender."""
        receives = [_receives(part.program) for part in self.parts]
        for source, part in enumerate(self.parts):
            for send, instruction in enumerate(part.program.instructions):
                if instruction.op is not Op.SEND or instruction.peer is None:
                    continue
                to = self.parts[instruction.peer]
                receive = receives[instruction.peer][source, instruction.target.buffer.sent]
                yield Delivery(
                    source,
                    instruction.peer,
                    send,
                    receive,
                    float(part.stopped_s[send]),
                    float(to.arrived_s[receive]),
                    float(to.ready_s[receive]),
                    float(to.stopped_s[receive]),
                )


def _receives(program: Program) -> dict[tuple[int, Buffer], int]:
    return {
        (i.peer, i.target.buffer.sent): n
        for n, i in enumerate(program.instructions)
        if i.op is Op.RECV and i.peer is not None
    }
