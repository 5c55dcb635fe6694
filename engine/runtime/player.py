"""The interpreter of a part: carries out the scheduler's effects on kernel threads, step after step.

A kernel thread that finishes a computation asks the scheduler for the next one itself, and sends the messages
that waited for it: so a message leaves while its numbers are in the cache, and a program without messages
never changes threads. (On a GPU it would wait for the numbers, so there the owner of the mailbox sends.)
Messages arrive on the thread that owns the mailbox.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
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
from partita.engine.runtime.recorded_steps import StepSampler
from partita.engine.runtime.trace import Recorder
from partita.engine.transport.payload import Payload, PayloadLike
from partita.partitioner.ir.buffer import parse_buffer
from partita.partitioner.ir.program import COMPUTES, Instruction, Op

Sender = Callable[[str, Message, PayloadLike], None]
Waiting = TypeVar("Waiting")


@dataclass(frozen=True, slots=True)
class PlayedStep:
    """A step that is over: its number, and the seconds for which the kernel threads were busy in it."""

    step: int
    busy_s: float


class Player:
    """Plays one program on one machine.

    `begin`, `receive` and `poll` are for the thread that owns the mailbox; the player has kernel threads.

    Attributes:
        sampler: see below.
    """

    def __init__(
        self,
        computations: Computations,
        *,
        host_of: Callable[[int], str],
        send: Sender,
        wake: Callable[[], None],
        lanes: int = 1,
        recorder: Recorder | None = None,
        after_each: Callable[[], None] | None = None,
        phases: Sequence[Sequence[int]] = (),
        sampler: StepSampler | None = None,
    ) -> None:
        """Starts the kernel threads.

        Args:
            computations: the calls of the program; messages leave from their buffers, and arrive there.
            host_of: finds the host that plays a machine's part of this replica.
            send: sends a message; called by kernel threads too.
            wake: makes the mailbox's owner call `poll` soon.
            lanes: kernel threads, each running one computation at a time.
            recorder: writes down the times of the instructions.
            after_each: called after each computation, as a part of it.
            phases: of the program, see `InstructionScheduler`.
            sampler: decides which steps are recorded by the recorder, for those who watch.
        """
        self._computations, self._buffers = computations, computations.buffers
        self._instructions = self._buffers.program.instructions
        self._works = [_work(instruction, host_of, self._buffers) for instruction in self._instructions]
        self._send, self._wake = send, wake
        self._lanes, self._recorder, self._after_each = lanes, recorder, after_each
        self._lock = threading.Lock()
        self._phases = phases
        self.sampler = sampler
        self._machine = InstructionScheduler(self._works, lanes=lanes, phases=phases)
        self._start = 0  # how often `start` was called: what an earlier start began counts for nothing
        self._ready: SimpleQueue[tuple[int, int] | None] = SimpleQueue()  # start, position
        self._begun = self._stale = 0  # computations that are not done, of this start and of earlier ones
        self._outgoing: deque[tuple[int, Transmit | Send]] = deque()
        self._finished: deque[PlayedStep] = deque()
        self._refused: deque[Refuse] = deque()
        self._error: BaseException | None = None
        self._busy_s = 0.0
        self._threads = [
            threading.Thread(target=self._lane, name=f"kernel {n}", daemon=True) for n in range(lanes)
        ]
        for thread in self._threads:
            thread.start()

    def start(self, first_step: int) -> None:
        """Makes `first_step` the next one, and drops a step under way. Messages may arrive from now on.

        A computation of the dropped step may still go on; `may_begin` waits for its end.
        """
        with self._lock:
            self._start += 1
            self._stale, self._begun = self._stale + self._begun, 0
            self._outgoing.clear()
            self._finished.clear()
            self._machine = InstructionScheduler(
                self._works, lanes=self._lanes, first_step=first_step, phases=self._phases
            )

    def may_begin(self) -> bool:
        """Returns whether `begin` may be called."""
        with self._lock:
            return not self._stale and self._machine.may_begin()

    @property
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """The step, and (host, what) of every message that is missing while nothing is computed, in words."""
        with self._lock:
            step, missing, plays = self._machine.step, self._machine.stuck_on, self._machine.playing
        if plays:
            missing = tuple((host, parse_buffer(buffer).description) for host, buffer in missing)
        return step, missing

    def begin(self, step: int, phase: int = 0) -> None:
        """Begins a step, of a phase of the program; `poll` reports its end."""
        if self._recorder is not None:
            self._recorder.begin(step, time.perf_counter())
        self._computations.watch.begin()
        self._handle(BeginStep(step, phase))

    def receive(self, event: Received) -> None:
        """Handles a message from another part."""
        if self._recorder is not None and isinstance(event.message, Tensor):
            self._recorder.arrived(event.sender, event.message, time.perf_counter())
        self._handle(event)

    def poll(self) -> list[PlayedStep]:
        """Returns the steps that are over, and sends what is left to be sent.

        Raises:
            Exception: the one that a kernel raised.
        """
        if self._outgoing:
            self._send_all()
        if self._error is not None:
            raise self._error
        return list(_taken(self._finished)) if self._finished else []

    def refused(self) -> list[Refuse]:
        """The messages since the last call that did not fit the program."""
        return list(_taken(self._refused)) if self._refused else []

    def close(self) -> None:
        """Ends the kernel threads, after the computations that are going on."""
        for _ in self._threads:
            self._ready.put(None)
        for thread in self._threads:
            thread.join()
        self._computations.close()

    def _handle(self, event: BeginStep | Completed | Received) -> None:
        with self._lock:
            self._carry_out(self._machine.receive(event, time.monotonic()))
        self._send_all()

    def _lane(self) -> None:
        with np.errstate(all="ignore"):  # the role of the part checks the numbers
            self._play()

    def _play(self) -> None:
        works_in_calls = self._buffers.device.works_in_calls
        try:
            while (found := self._ready.get()) is not None:
                start, position = found
                if start != self._start:
                    self._dropped()
                    continue
                began = time.perf_counter()
                self._computations.run(position)
                if self._after_each is not None:
                    self._after_each()
                stopped = time.perf_counter()
                with self._lock:
                    if self._recorder is not None and self._recorder.on:
                        self._recorder.played(position, began, stopped)
                    self._busy_s += stopped - began
                    self._completed(start, position, stopped)
                if self._outgoing and works_in_calls:
                    self._send_all()
                elif self._outgoing:
                    self._wake()
        except BaseException as error:  # noqa: BLE001 - raised again by poll, on the host's thread
            self._error = error
            self._wake()

    def _completed(self, start: int, position: int, now: float) -> None:
        """Counts a computation as done. Under the lock."""
        if start == self._start:
            self._begun -= 1
            self._carry_out(self._machine.receive(Completed(position), now))
        else:
            self._stale -= 1
            self._wake()

    def _dropped(self) -> None:
        """Counts a computation of an earlier start that did not begin."""
        with self._lock:
            self._stale -= 1
        self._wake()

    def _carry_out(self, effects: Iterable[SchedulerEffect]) -> None:
        for effect in effects:
            match effect:
                case Compute(position=position):
                    self._begun += 1
                    self._ready.put((self._start, position))
                case Place(position=position, payload=payload):
                    self._place(position, payload)
                case Transmit() | Send():
                    self._outgoing.append((self._start, effect))
                case StepOver(step=step):
                    if self._recorder is not None:
                        self._recorder.end(time.perf_counter())
                    self._finished.append(PlayedStep(step, self._busy_s))
                    self._busy_s = 0.0
                    self._wake()
                case Refuse():
                    self._refused.append(effect)
                    self._wake()

    def _record(self, position: int, began: float, stopped: float) -> None:
        if self._recorder is not None:
            self._recorder.played(position, began, stopped)

    def _send_all(self) -> None:
        """Sends what is ready, outside of the lock; called by any thread that has made something ready."""
        for start, effect in _taken(self._outgoing):
            if isinstance(effect, Send):
                self._send(effect.to, effect.message, None)
                continue
            began = time.perf_counter()
            operand = self._instructions[effect.position].target
            self._send(effect.to, effect.message, self._buffers[operand.buffer].download(operand.rows))
            self._record(effect.position, began, time.perf_counter())
            with self._lock:
                if start == self._start:
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
    """Takes out the waiting items one by one: other threads may add and take meanwhile."""
    while waiting:
        try:
            item = waiting.popleft()
        except IndexError:  # another thread has taken it
            return
        yield item


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
