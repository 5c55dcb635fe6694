"""Replicas under a program driver without hosts: the test acts as coordinator, and carries every message."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from partita.engine import Optimizer
from partita.engine.drivers import Driver
from partita.engine.files.sources import ArrayFile
from partita.engine.numerics import master
from partita.engine.parameters import initialise, scatter
from partita.engine.parameters.checkpoint import Checkpoints
from partita.engine.parameters.files import save_parameters
from partita.engine.parameters.manifest import Manifest
from partita.engine.protocol import Message
from partita.engine.protocol.actions import (
    AllGather,
    AllReduce,
    Apply,
    Compute,
    Norms,
    Program,
    ReduceScatter,
    SafePoint,
)
from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.events import Received, Refuse, Send, Span
from partita.engine.protocol.exchange import Tree
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.messages import Finished, Report
from partita.engine.protocol.names import COORDINATOR, part_indices, part_name
from partita.engine.protocol.replica_messages import Pause, StateCopy, View
from partita.engine.protocol.views import JoinedBatches, Member
from partita.engine.runtime.exchange_arrays import ExchangeArrays
from partita.engine.runtime.joined_hands import JoinedHands
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Counters, Payload, PayloadLike
from partita.partitioner import Plan

Arrays = Mapping[str, np.ndarray[Any, Any]]


def replicated(me: Member, *, by: Any, optimizer: Optimizer) -> Program:
    """A step of every replica, with the whole update on each."""
    for step in me.steps():
        yield Compute(step)
        yield AllReduce(by=by)
        if optimizer.needs_norms:
            yield Norms()
            yield AllReduce("norms", by=Tree())
        yield Apply(optimizer)
        yield SafePoint()


def sharded(me: Member, *, by: Any, optimizer: Optimizer) -> Program:
    """A step of every replica, each of which updates its own ranges."""
    for step in me.steps():
        yield Compute(step)
        yield ReduceScatter(by=by)
        if optimizer.needs_norms:
            yield Norms()
            yield AllReduce("norms", by=Tree())
        yield Apply(optimizer, own=True)
        yield AllGather(by=by)
        yield SafePoint()


class Members:
    """All parts of all replicas. Messages are delivered at once, or in an order that `pick` chooses."""

    def __init__(
        self,
        plan: Plan,
        data: Arrays,
        folder: Path,
        *,
        program: Callable[..., Program] = replicated,
        by: Any,
        optimizer: Optimizer,
        replicas: int,
        checkpoint: int | None = None,
        driver: Driver | None = None,
        pick: Callable[[int], int] = lambda n: 0,
    ) -> None:
        files = {}
        for name, array in data.items():
            files[name] = ArrayFile(folder / name, array.dtype.name, array.shape)
            files[name].write(array)
        self.plan, self.replicas, self._pick, self._folder = plan, replicas, pick, folder
        precision = master(plan.precision).name
        initial = folder / "initial.safetensors"
        save_parameters(initial, initialise(plan.graph.parameters.values(), 0, dtype=precision))
        self.examples = len(next(iter(data.values())))
        self.said: list[tuple[str, Message]] = []  # to the coordinator
        self.sent_bytes: dict[tuple[str, str], int] = {}  # payloads, by sender and kind of message
        self._post: SimpleQueue[tuple[str, str, Message, Payload | None] | str] = SimpleQueue()
        self._waiting: dict[tuple[str, str], deque[Received]] = {}  # by receiver and sender
        self.machines, self.bodies = {}, {}
        names = [part_name(r, m) for r in range(replicas) for m in range(len(plan.cluster))]
        for name in names:
            replica, machine = part_indices(name) or (0, 0)
            hands = JoinedHands(
                optimizer=optimizer,
                batches=JoinedBatches(self.examples, plan.batch, minibatch=plan.batch),
                run="test",
                folder=folder / "checkpoints",
                checkpoint=checkpoint,
                initial=initial,
                first_step=0,
                precision=precision,
                sharded=program is sharded,
                reshuffles=driver is None or driver.reshuffles,
                kept={} if driver is None else driver.kept_vectors,
                scratch=() if driver is None else driver.scratch_vectors,
                taught=0 if driver is None else driver.taught_minibatches,
            )
            task = PartTask(
                plan=plan,
                machine=machine,
                replica=replica,
                replicas=replicas,
                shards=0,
                program=partial(program, by=by, optimizer=optimizer) if driver is None else driver.replica,
                data=files,
                examples=self.examples,
                seed=0,
                instruction_timeout_s=60.0,
                hands=hands,
            )
            self.machines[name], body = task.role(self._context(name))
            assert isinstance(body.arrays, ExchangeArrays)
            self.bodies[name] = body
        for name in names:
            self.give(name, PeersChanged(1, dict.fromkeys(names, 0)))

    def _context(self, name: str) -> HostContext:
        return HostContext(
            name, 0, partial(self._send, name), partial(self._post.put, name), Counters(), self._refuse
        )

    def _send(self, name: str, to: str, message: Message, payload: PayloadLike) -> None:
        pieces = [payload] if isinstance(payload, np.ndarray) else payload
        assert pieces is None or isinstance(pieces, list)
        data = None if pieces is None else b"".join(np.ascontiguousarray(one).tobytes() for one in pieces)
        if data is not None:
            key = name, type(message).__name__
            self.sent_bytes[key] = self.sent_bytes.get(key, 0) + len(data)
        self._post.put((name, to, message, None if data is None else Payload([memoryview(data)])))

    @staticmethod
    def _refuse(sender: str, reason: str) -> None:
        raise AssertionError(f"{sender} sent {reason}")

    def give(self, name: str, event: Any) -> None:
        """Gives a part's machine an event, and has the body carry out the effects."""
        events = [event]
        for one in events:  # grows
            for effect in self.machines[name].receive(one, 0.0):
                match effect:
                    case Send(to=to, message=message, payload=span):
                        payload = None if span is None else self.bodies[name].payload(effect)
                        self._send(name, to, message, payload)
                    case Refuse(sender=sender, reason=reason):
                        self._refuse(sender, reason)
                    case _:
                        result = self.bodies[name].carry_out(effect, 0.0)
                        events += [] if result is None else [result]
            self.machines[name].validate()

    def publish(
        self,
        number: int,
        members: Sequence[int],
        *,
        until: int,
        step: int = 0,
        points: int = 0,
        position: int = 0,
        copies: Sequence[StateCopy] = (),
        anew: bool = False,
    ) -> None:
        """Publishes a view."""
        place = (step, position, until)
        view = View(number, tuple(members), 1, *place, tuple(copies), points=points, anew=anew)
        for name in self.machines:
            if (part_indices(name) or (-1, 0))[0] in members:
                self.give(name, Received(COORDINATOR, 0, Pause(number)))
                self.give(name, Received(COORDINATOR, 0, view))

    def run(self) -> None:
        """Delivers messages until every part has finished."""
        while len({name for name, message in self.said if isinstance(message, Finished)}) < len(
            self.machines
        ):
            self.deliver()

    def deliver(self) -> None:
        """Takes what has happened, and delivers one message."""
        while not self._post.empty() or not self._waiting:
            found = self._post.get(timeout=20)
            if isinstance(found, str):
                for result in self.bodies[found].poll(0.0):
                    self.give(found, result)
                if not self._waiting and self._post.empty():
                    return
                continue
            sender, to, message, payload = found
            if to == COORDINATOR:
                self.said.append((sender, message))
                return
            received = Received(sender, 0, message, payload)
            self._waiting.setdefault((to, sender), deque()).append(received)
        keys = sorted(self._waiting)
        key = keys[self._pick(len(keys))]
        event = self._waiting[key].popleft()
        if not self._waiting[key]:
            del self._waiting[key]
        self.give(key[0], event)

    def save(self, checkpoint: int, step: int, *, writers: Sequence[int]) -> None:
        """Asks the parts of some replicas for their files of a checkpoint, as soon as they have that step."""
        for name in self.machines:
            if (part_indices(name) or (-1, 0))[0] in writers:
                self.give(name, Received(COORDINATOR, 0, Save(checkpoint, step)))

    def commit(self, checkpoint: int, step: int, *, writers: Sequence[int]) -> Checkpoints:
        """Waits for the files, and writes the manifest."""
        n = len(writers) * len(self.plan.cluster)
        while len(saved := [(name, one) for name, one in self.said if isinstance(one, Saved)]) < n:
            self.deliver()
        store = Checkpoints(self._folder / "checkpoints", run="test")
        manifest = Manifest(
            checkpoint=checkpoint,
            run="test",
            shapes={name: p.shape for name, p in self.plan.graph.parameters.items()},
            dtype=master(self.plan.precision).name,
            optimizer="",
            steps=(step,) * self.replicas,
            units_per_epoch=1,
            entries=tuple(
                ShardFile(name, one.incarnation, one.version, one.file, one.sha256) for name, one in saved
            ),
        )
        store.commit(manifest)
        return store

    def parameters(self, replica: int) -> dict[str, np.ndarray[Any, Any]]:
        """The whole parameters of a replica."""
        dtype = master(self.plan.precision)
        found = {name: np.zeros(p.shape, dtype) for name, p in self.plan.graph.parameters.items()}
        for machine in range(len(self.plan.cluster)):
            arrays = self.bodies[part_name(replica, machine)].arrays
            assert isinstance(arrays, ExchangeArrays)
            vectors = arrays.vectors
            span = (Span("parameters", 0, vectors.size),)
            scatter(vectors.slots(span), vectors.snapshot(span).values, found)
        return found

    @property
    def counted(self) -> tuple[int, float, int]:
        """Examples, loss and right answers in all reports."""
        reports = [message for _, message in self.said if isinstance(message, Report)]
        return (
            sum(one.examples for one in reports),
            sum(one.loss for one in reports),
            sum(one.correct for one in reports),
        )

    def close(self) -> None:
        for body in self.bodies.values():
            body.close()
