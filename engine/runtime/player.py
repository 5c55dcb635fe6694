"""The interpreter of a part: carries out what the part machine asks for, on kernel threads, step after step.

A kernel thread that finishes a computation asks the machine for the next one itself, and sends what that
computation was waited for: so a message leaves while its numbers are in the cache, and a program without
messages never changes threads. (On a GPU it would wait for the numbers, so there the owner of the mailbox
sends.) Messages arrive on the thread that owns the mailbox.
"""

from __future__ import annotations

import contextlib
import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from queue import SimpleQueue
from typing import TypeVar

import numpy as np

from partita.engine.protocol.events import Received, Refuse, Send
from partita.engine.protocol.instruction_scheduler import (
    BeginStep,
    Completed,
    Compute,
    InstructionScheduler,
    Kind,
    Place,
    ScheduledInstruction,
    SchedulerEffect,
    StepOver,
    Transmit,
)
from partita.engine.protocol.messages import Message, Tensor
from partita.engine.runtime.buffers import Buffers
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.trace import Recorder
from partita.engine.transport.payload import Payload, PayloadLike
from partita.partitioner.ir.program import COMPUTES, Instruction, Op, Program

Sender = Callable[[str, Message, PayloadLike], None]
Waiting = TypeVar("Waiting")


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A step is over: its number, when it ended, and how long the kernel threads were busy in it."""

    step: int
    busy_s: float


class Player:
    """Plays one program on one machine.

    `begin`, `receive` and `poll` are for the thread that owns the mailbox; the player has kernel threads.
    """

    def __init__(
        self,
        program: Program,
        computations: Computations,
        buffers: Buffers,
        *,
        host_of: Callable[[int], str],
        send: Sender,
        wake: Callable[[], None],
        lanes: int = 1,
        recorder: Recorder | None = None,
        beside: Callable[[], None] | None = None,
    ) -> None:
        """Starts the kernel threads.

        Args:
            program: what to play.
            computations: its computations, as calls.
            buffers: where messages leave from and arrive.
            host_of: the host that plays a machine's part of this replica.
            send: sends a message; called by kernel threads too.
            wake: lets the mailbox's owner call `poll` soon.
            lanes: kernel threads, each running one computation at a time.
            recorder: writes down what is done when.
            beside: done after each computation, as a part of it.
        """
        self._instructions = program.instructions
        self._works = [_work(instruction, host_of, buffers) for instruction in program.instructions]
        self._computations, self._buffers = computations, buffers
        self._send, self._wake = send, wake
        self._lanes, self._recorder, self._beside = lanes, recorder, beside
        self._lock = threading.Lock()
        self._machine = InstructionScheduler(self._works, lanes=lanes)
        self._ready: SimpleQueue[int | None] = SimpleQueue()
        self._outgoing: deque[Transmit | Send] = deque()
        self._over: deque[PlayedStep] = deque()
        self._refused: deque[Refuse] = deque()
        self._error: BaseException | None = None
        self._busy_s = 0.0
        self._threads = [
            threading.Thread(target=self._lane, name=f"kernel {n}", daemon=True) for n in range(lanes)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, first_step: int) -> None:
        """Makes `first_step` the one that is played next. Messages may come in from now on."""
        with self._lock:
            self._machine = InstructionScheduler(self._works, lanes=self._lanes, first_step=first_step)

    def may_begin(self) -> bool:
        """Whether `begin` may be called."""
        with self._lock:
            return self._machine.may_begin()

    @property
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """The step, and (host, what) of every message that is missing while nothing is computed."""
        with self._lock:
            return self._machine.step, self._machine.stuck_on

    def begin(self, step: int) -> None:
        """Begins a step; `poll` says when it is over."""
        if self._recorder is not None:
            self._recorder.begin(step, time.perf_counter())
        self._computations.watch.begin()
        self._tell(BeginStep(step))

    def receive(self, event: Received) -> None:
        """Takes in a message from another part."""
        if self._recorder is not None and isinstance(event.message, Tensor):
            self._recorder.arrived(event.sender, event.message, time.perf_counter())
        self._tell(event)

    def poll(self) -> list[PlayedStep]:
        """The steps that are over; sends what is left to be sent.

        Raises:
            Exception: what a kernel raised.
        """
        self._send_all()
        if self._error is not None:
            raise self._error
        return list(_taken(self._over))

    def refused(self) -> list[Refuse]:
        """Messages that did not fit the program, since the last call."""
        return list(_taken(self._refused))

    def close(self) -> None:
        """Ends the kernel threads, after the computations that are going on."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()
        self._computations.close()

    def _tell(self, event: BeginStep | Completed | Received) -> None:
        with self._lock:
            self._carry_out(self._machine.receive(event, time.monotonic()))
        self._send_all()

    def _lane(self) -> None:
        with np.errstate(all="ignore"):  # who plays the steps looks at what has become of the numbers
            self._play()

    def _play(self) -> None:
        try:
            while (position := self._ready.get()) is not None:
                began = time.perf_counter()
                self._computations.run(position)
                if self._beside is not None:
                    self._beside()
                stopped = time.perf_counter()
                with self._lock:
                    self._record(position, began, stopped)
                    self._busy_s += stopped - began
                    self._carry_out(self._machine.receive(Completed(position), stopped))
                if self._buffers.device.works_in_calls:
                    self._send_all()
                elif self._outgoing:
                    self._wake()
        except BaseException as error:  # noqa: BLE001 - raised again by poll, where it can be said
            self._error = error
            self._wake()

    def _carry_out(self, effects: Iterable[SchedulerEffect]) -> None:
        for effect in effects:
            match effect:
                case Compute(position=position):
                    self._ready.put(position)
                case Place(position=position, payload=payload):
                    self._place(position, payload)
                case Transmit() | Send():
                    self._outgoing.append(effect)
                case StepOver(step=step):
                    if self._recorder is not None:
                        self._recorder.end(time.perf_counter())
                    self._over.append(PlayedStep(step, self._busy_s))
                    self._busy_s = 0.0
                    self._wake()
                case Refuse():
                    self._refused.append(effect)
                    self._wake()

    def _record(self, position: int, began: float, stopped: float) -> None:
        if self._recorder is not None:
            self._recorder.played(position, began, stopped)

    def _send_all(self) -> None:
        """Whoever has made something ready to be sent sends it, outside of the lock."""
        for effect in _taken(self._outgoing):
            if isinstance(effect, Send):
                self._send(effect.to, effect.message, None)
                continue
            began = time.perf_counter()
            operand = self._instructions[effect.position].target
            self._send(effect.to, effect.message, self._buffers[operand.buffer].download(operand.rows))
            self._record(effect.position, began, time.perf_counter())
            with self._lock:
                self._carry_out(self._machine.receive(Completed(effect.position), time.monotonic()))

    def _place(self, position: int, payload: object) -> None:
        began = time.perf_counter()
        operand = self._instructions[position].target
        window = self._buffers[operand.buffer]
        assert isinstance(payload, Payload), f"{operand} came without numbers"
        payload.copy_into(*window.arriving(operand.rows))
        payload.release()
        window.upload(operand.rows)
        self._computations.watch.done(position)
        self._record(position, began, time.perf_counter())


def _taken(waiting: deque[Waiting]) -> Iterator[Waiting]:
    """Takes out what waits, one by one: other threads may add and take meanwhile, and nothing may be lost."""
    with contextlib.suppress(IndexError):
        while True:
            yield waiting.popleft()


def _work(instruction: Instruction, host_of: Callable[[int], str], buffers: Buffers) -> ScheduledInstruction:
    if instruction.op in COMPUTES:
        return ScheduledInstruction(Kind.COMPUTE, instruction.after)
    assert instruction.peer is not None, f"{instruction} names no peer"
    kind = Kind.SEND if instruction.op is Op.SEND else Kind.RECEIVE
    operand = instruction.target
    n_bytes = sum(run.nbytes for run in buffers[operand.buffer].of(operand.rows))
    name = str(operand.buffer.sent)
    return ScheduledInstruction(
        kind, instruction.after, host_of(instruction.peer), name, operand.rows, n_bytes
    )
