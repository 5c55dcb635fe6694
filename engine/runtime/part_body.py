"""The common work of the bodies of parts: arrays, and parameters that arrive."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any, Generic, Protocol, TypeVar

from typing_extensions import override

from partita.engine.parameters.layout import Layout
from partita.engine.parameters.vector import Vector
from partita.engine.protocol.events import Refuse, Send
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.names import part_name, shard_name
from partita.engine.runtime.buffers import Buffers, Vectors, layout_of
from partita.engine.runtime.compute import Computations
from partita.engine.runtime.feed import ArrayFile, Feed
from partita.engine.runtime.fused_update import Updates
from partita.engine.runtime.player import Player
from partita.engine.runtime.task import Body, HostContext
from partita.engine.transport.payload import Payload, PayloadLike
from partita.partitioner.ir.program import Program
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class PartTask:
    """One machine's part of one replica. A driver's task adds its own settings, and makes the role.

    Args:
        plan, machine, replica, replicas: identify the part.
        data: a file for each input and target, `[example, *shape]`.
        examples: the number of examples in them.
        seed: of the order of the examples.
        shards: the number of shards that hold the parameters; 0: the parts keep them.
        instruction_timeout_s: seconds that one computation may take.
    """

    plan: Plan
    machine: int
    replica: int
    replicas: int
    data: Mapping[str, ArrayFile]
    examples: int
    seed: int
    shards: int
    instruction_timeout_s: float

    @property
    def threads(self) -> int:
        """See the protocol `HostTask`."""
        return self.plan.cluster.machines[self.machine].threads

    @property
    def rank(self) -> tuple[int, int]:
        """See the protocol `HostTask`."""
        return self.replica * len(self.plan.cluster) + self.machine, self.replicas * len(self.plan.cluster)

    @cached_property
    def layout(self) -> Layout:
        """The places of all parameters on machines and shards; without shards, as on one."""
        return layout_of(self.plan, shards=max(self.shards, 1))

    @property
    def shard_spans(self) -> tuple[tuple[str, int, int], ...]:
        """(shard, start, stop): the ranges of the machine's vector that shards hold."""
        overlaps = self.layout.shards_of(self.machine)
        return tuple((shard_name(o.shard), o.machine_start, o.machine_stop) for o in overlaps)

    @property
    def other_parts(self) -> list[str]:
        """The names of the replica's other parts."""
        machines = range(len(self.plan.cluster))
        return [part_name(self.replica, machine) for machine in machines if machine != self.machine]


class GradientUpdates(Updates, Protocol):
    """Updates that collect gradients for the shards."""

    @property
    def in_flight(self) -> Vector:
        """The gradient that is being sent, `[n]`."""

    def swap_buffers(self, span: slice) -> None:
        """Makes the collected gradient the one in flight."""


UpdatesT = TypeVar("UpdatesT", bound=GradientUpdates)


class PartBody(Body, Generic[UpdatesT]):
    """The arrays of a part that computes gradients, and exchanges them for parameters with the shards."""

    def __init__(
        self,
        task: PartTask,
        host: HostContext,
        program: Program,
        *,
        feed: Feed,
        updates: Callable[[Vectors], UpdatesT],
    ) -> None:
        """Allocates all arrays, and prepares all computations.

        Args:
            task: the part's.
            host: the context of the host.
            program: the instructions of a step.
            feed: fills inputs and targets.
            updates: makes the use of gradients, for the part's parameters.
        """
        plan, machine = task.plan, task.machine
        self._host, self._lanes, self._timeout_s = host, task.threads, task.instruction_timeout_s
        self._host_of = partial(part_name, task.replica)
        self._vectors = Vectors(plan, machine, gradient=program.kind.gradients == "whole")
        self._updates = updates(self._vectors)
        buffers = Buffers(plan, machine, program, self._vectors, keep=plan.kept)
        self._computations = Computations(buffers, feed, self._updates)
        self._staged: dict[int, Payload] = {}

    def _start_player(self) -> Player:
        return Player(
            self._computations,
            host_of=self._host_of,
            send=self._host.send,
            wake=self._host.wake,
            lanes=self._lanes,
        )

    @property
    def item_bytes(self) -> int:
        """Bytes of one parameter."""
        return self._vectors.parameters.itemsize

    @override
    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case Stage(span=span, payload=payload):
                assert isinstance(payload, Payload)
                if span.start in self._staged:
                    self._staged[span.start].release()
                self._staged[span.start] = payload
            case Install(span=span):
                own = slice(span.start, span.stop)
                payload = self._staged.pop(span.start)
                payload.copy_into(self._vectors.arriving(own))
                payload.release()
                self._vectors.changed(own)
            case SwapBuffers(span=span):
                self._updates.swap_buffers(slice(span.start, span.stop))
            case _:
                raise AssertionError(effect)

    @override
    def payload(self, send: Send) -> PayloadLike:
        assert send.payload is not None, send
        in_flight = self._updates.in_flight[send.payload.start : send.payload.stop]
        return self._vectors.device.given(in_flight)

    @override
    def tick(self, now: float) -> None:
        self._computations.watchdog.check(now, self._timeout_s)

    def _refuse_all(self, refused: Iterable[Refuse]) -> None:
        for one in refused:
            self._host.refuse(one.sender, one.reason)
