"""Plays programs on a virtual clock: how long a step takes, who waits for what, and that none waits for ever.

The same programs that the engine runs. A machine computes one instruction at a time (its kernels use all of
its threads); what is ready goes in the list's order. One thread, its messenger, sends and receives, one
message after another. Between hosts, a message occupies the way out of one and the way into the other.
"""

from __future__ import annotations

import heapq
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from partita.partitioner.cluster import Cluster
from partita.partitioner.cost import MessageCost
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


class Prices(Protocol):
    """What things cost: `Costs`, or what a test gives."""

    cluster: Cluster

    def compute_s(self, instruction: Instruction, machine: int) -> float:
        """Seconds that an instruction takes on a machine."""

    def step_s(self, machine: int) -> float:
        """Seconds that a machine needs to begin a step and to tell its end."""

    def message(self, n_bytes: int, source: int, destination: int) -> MessageCost:
        """What a message costs."""


class Bytes(Protocol):
    """How large messages are: `Sizes`, or what a test gives."""

    def n_bytes(self, operand: Operand) -> int:
        """Of these rows of a buffer."""


@dataclass
class _Player:
    """One machine: how many of each instruction's predecessors are missing, and what is ready."""

    program: Program
    missing: list[int] = field(default_factory=list)
    followers: list[list[int]] = field(default_factory=list)
    ready: list[int] = field(default_factory=list)
    messenger: deque[tuple[float, Callable[[float], None]]] = field(default_factory=deque)
    awaiting: dict[tuple[int, str], int] = field(default_factory=dict)
    arrived: set[tuple[int, str]] = field(default_factory=set)
    computing: bool = False
    at_messages: bool = False
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


def play(programs: Sequence[Program], costs: Prices, sizes: Bytes) -> Playback:
    """Plays one step.

    Args:
        programs: one for each machine.
        costs: of instructions and messages.
        sizes: of messages.

    Raises:
        Deadlock: instructions are left that nothing will ever start; it lists the first of each machine.
    """
    return _Stage(programs, costs, sizes).run()


class _Stage:
    def __init__(self, programs: Sequence[Program], costs: Prices, sizes: Bytes) -> None:
        self.players = [_Player(program) for program in programs]
        self.costs, self.sizes = costs, sizes
        self.free_at: dict[tuple[str, str], float] = {}  # of each way between hosts
        self.events: list[tuple[float, int, Callable[[], None]]] = []
        self.counter = 0
        self.now = 0.0
        self.bars: list[Bar] = []
        self.busy = [0.0] * len(programs)

    def run(self) -> Playback:
        for machine in range(len(self.players)):
            self._at(self.costs.step_s(machine), lambda machine=machine: self._begin(machine))  # type: ignore[misc]
        while self.events:
            self.now, _, happen = heapq.heappop(self.events)
            happen()
        if any(player.done < len(player.program) for player in self.players):
            raise Deadlock(self._stuck())
        self.bars.sort(key=lambda bar: (bar.start_s, bar.machine, bar.position))
        return Playback(self.now, tuple(self.busy), tuple(self.bars))

    def _begin(self, machine: int) -> None:
        for n, missing in enumerate(self.players[machine].missing):
            if not missing:
                self._enable(machine, n)
        self._start(machine)

    def _at(self, time: float, happen: Callable[[], None]) -> None:
        self.counter += 1
        heapq.heappush(self.events, (time, self.counter, happen))

    def _enable(self, machine: int, n: int) -> None:
        player, instruction = self.players[machine], self.players[machine].program.instructions[n]
        if instruction.op in COMPUTES:
            heapq.heappush(player.ready, n)
        elif instruction.op is Op.SEND:
            self._send(machine, n)
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

    def _compute(self, machine: int, n: int) -> None:
        stop = self.now + self.costs.compute_s(self.players[machine].program.instructions[n], machine)
        self.bars.append(Bar(machine, n, self.now, stop))
        self.busy[machine] += stop - self.now
        self._at(stop, lambda: self._computed(machine, n))

    def _computed(self, machine: int, n: int) -> None:
        self.players[machine].computing = False
        self._finish(machine, n)

    def _by_messenger(self, machine: int, took: float, then: Callable[[float], None]) -> None:
        """Lets a machine's messenger do something, after all that it was given before; `then` hears when."""
        player = self.players[machine]
        player.messenger.append((took, then))
        if not player.at_messages:
            self._next_message(machine)

    def _next_message(self, machine: int) -> None:
        player = self.players[machine]
        player.at_messages = bool(player.messenger)
        if player.messenger:
            took, then = player.messenger.popleft()
            began = self.now
            self._at(began + took, lambda: self._done_with(machine, began, then))

    def _done_with(self, machine: int, began: float, then: Callable[[float], None]) -> None:
        then(began)
        self._next_message(machine)

    def _send(self, machine: int, n: int) -> None:
        operand, peer = _addressed(self.players[machine].program.instructions[n])
        cost = self.costs.message(self.sizes.n_bytes(operand), machine, peer)
        self._by_messenger(machine, cost.send_s, lambda began: self._sent(machine, n, began, cost))

    def _sent(self, machine: int, n: int, began: float, cost: MessageCost) -> None:
        operand, peer = _addressed(self.players[machine].program.instructions[n])
        self.bars.append(Bar(machine, n, began, self.now))
        ways = self._ways(machine, peer)
        stop = max([self.now, *(self.free_at.get(way, 0.0) for way in ways)]) + cost.wire_s
        self.free_at |= dict.fromkeys(ways, stop)

        def arrive(began: float) -> None:
            self._arrive(peer, machine, operand)

        self._at(stop + cost.latency_s, lambda: self._by_messenger(peer, cost.receive_s, arrive))
        self._finish(machine, n)

    def _ways(self, source: int, destination: int) -> tuple[tuple[str, str], ...]:
        """What a message occupies on its way."""
        cluster = self.costs.cluster
        one, other = cluster.machines[source], cluster.machines[destination]
        if one.site == other.site:
            return ((one.name, other.name),)
        both_ways = cluster.link_between(source, destination).both_ways
        return ("out" if both_ways else "both", one.site), ("in" if both_ways else "both", other.site)

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
