"""Plays programs on a virtual clock: how long a step takes, who waits for what, and that none waits for ever.

The same programs that the engine runs. A machine computes one instruction at a time (its kernels use all of
its threads), sends one message at a time, and receives without cost; what is ready goes in the list's order.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from partita.partitioner.program import COMPUTES, Instruction, Op, Operand, Program


class Deadlock(RuntimeError):
    """Programs that wait for one another for ever, or for a message that nobody sends."""


@dataclass(frozen=True, slots=True)
class Bar:
    """An instruction on the timeline of a machine, in seconds from the start of the step."""

    machine: int
    position: int
    start_s: float
    stop_s: float


@dataclass(frozen=True)
class Playback:
    """A step on the virtual clock.

    Args:
        step_s: until the last machine is done.
        busy_s: for each machine, time in kernels.
        bars: every instruction that takes time, by start.
    """

    step_s: float
    busy_s: tuple[float, ...]
    bars: tuple[Bar, ...]


@dataclass
class _Player:
    """One machine: how many of each instruction's predecessors are missing, and what is ready."""

    program: Program
    missing: list[int] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    to_send: list[int] = field(default_factory=list)
    awaiting: dict[tuple[int, str], int] = field(default_factory=dict)
    arrived: set[tuple[int, str]] = field(default_factory=set)
    computing: bool = False
    sending: bool = False
    done: int = 0

    def __post_init__(self) -> None:
        self.missing = [len(instruction.after) for instruction in self.program.instructions]
        self.followers = [[] for _ in self.missing]
        for n, instruction in enumerate(self.program.instructions):
            for k in instruction.after:
                self.followers[k].append(n)


def message_key(peer: int, operand: Operand) -> tuple[int, str]:
    """What identifies a message at its receiver: who sent it, and which buffer it speaks of."""
    return peer, operand.buffer.partition("@")[0]


def play(
    programs: Sequence[Program],
    compute_s: Callable[[Instruction, int], float],
    send_s: Callable[[Operand, int, int], tuple[float, float]],
) -> Playback:
    """Plays one step.

    Args:
        programs: one for each machine.
        compute_s: seconds that an instruction takes on a machine.
        send_s: for a message and its two machines, seconds that it occupies the sender, and seconds from then
            until it arrives.

    Raises:
        Deadlock: instructions are left that nothing will ever start; it lists the first of each machine.
    """
    return _Stage(programs, compute_s, send_s).run()


class _Stage:
    def __init__(
        self,
        programs: Sequence[Program],
        compute_s: Callable[[Instruction, int], float],
        send_s: Callable[[Operand, int, int], tuple[float, float]],
    ) -> None:
        self.players = [_Player(program) for program in programs]
        self.compute_s, self.send_s = compute_s, send_s
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = 0
        self.now = 0.0
        self.bars: list[Bar] = []
        self.busy = [0.0] * len(programs)

    def run(self) -> Playback:
        for machine, player in enumerate(self.players):
            for n, missing in enumerate(player.missing):
                if not missing:
                    self._enable(machine, n)
        for machine in range(len(self.players)):
            self._start(machine)
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        if any(player.done < len(player.program) for player in self.players):
            raise Deadlock(self._stuck())
        self.bars.sort(key=lambda bar: (bar.start_s, bar.machine, bar.position))
        return Playback(self.now, tuple(self.busy), tuple(self.bars))

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self.counter += 1
        heapq.heappush(self.events, (time, self.counter, happen))

    def _enable(self, machine: int, n: int) -> None:
        player, instruction = self.players[machine], self.players[machine].program.instructions[n]
        if instruction.op in COMPUTES:
            heapq.heappush(player.ready, n)
        elif instruction.op is Op.SEND:
            heapq.heappush(player.to_send, n)
        else:
            operand, peer = _addressed(instruction)
            key = message_key(peer, operand)
            if key in player.arrived:
                self._at(self.now, lambda: self._finish(machine, n))
            else:
                player.awaiting[key] = n

    def _start(self, machine: int) -> None:
        player = self.players[machine]
        if player.ready and not player.computing:
            player.computing = True
            self._compute(machine, heapq.heappop(player.ready))
        if player.to_send and not player.sending:
            player.sending = True
            self._send(machine, heapq.heappop(player.to_send))

    def _compute(self, machine: int, n: int) -> None:
        stop = self.now + self.compute_s(self.players[machine].program.instructions[n], machine)
        self.bars.append(Bar(machine, n, self.now, stop))
        self.busy[machine] += stop - self.now
        self._at(stop, lambda: self._computed(machine, n))

    def _send(self, machine: int, n: int) -> None:
        operand, peer = _addressed(self.players[machine].program.instructions[n])
        occupied, latency = self.send_s(operand, machine, peer)
        stop = self.now + occupied
        self.bars.append(Bar(machine, n, self.now, stop))
        self._at(stop, lambda: self._sent(machine, n))
        self._at(stop + latency, lambda: self._arrive(peer, machine, operand))

    def _computed(self, machine: int, n: int) -> None:
        self.players[machine].computing = False
        self._finish(machine, n)

    def _sent(self, machine: int, n: int) -> None:
        self.players[machine].sending = False
        self._finish(machine, n)

    def _arrive(self, machine: int, sender: int, operand: Operand) -> None:
        player, key = self.players[machine], message_key(sender, operand)
        player.arrived.add(key)
        if key in player.awaiting:
            self._finish(machine, player.awaiting.pop(key))

    def _finish(self, machine: int, n: int) -> None:
        player = self.players[machine]
        player.done += 1
        for follower in player.followers[n]:
            player.missing[follower] -= 1
            if not player.missing[follower]:
                self._enable(machine, follower)
        self._start(machine)

    def _stuck(self) -> str:
        lines = ["these programs never end:"]
        for machine, player in enumerate(self.players):
            for (peer, buffer), n in list(player.awaiting.items())[:3]:
                waiting = player.program.instructions[n]
                lines.append(f"  machine {machine} waits for {buffer} from machine {peer}: {n} {waiting}")
        return "\n".join(lines)


def _addressed(instruction: Instruction) -> tuple[Operand, int]:
    assert instruction.peer is not None, f"{instruction} names no peer"
    return instruction.target, instruction.peer
