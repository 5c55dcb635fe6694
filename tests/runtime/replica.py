"""A replica under Sandblaster without hosts: the test acts as coordinator and shards."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import numpy as np

from partita.engine import Sandblaster, Session
from partita.engine.files.sources import ArrayFile
from partita.engine.numerics import master
from partita.engine.parameters import gather, initialise, scatter
from partita.engine.protocol import Message
from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    Point,
)
from partita.engine.protocol.events import Received
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.names import COORDINATOR, part_indices, part_name, shard_index, shard_name
from partita.engine.runtime.assigned_hands import AssignedHands
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Counters, Payload, PayloadLike, Steady
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.runtime.roles import PlayedRole

EXAMPLES, BATCH, SHARDS = 21, 8, 2
ALL = 3  # portions in an epoch
Arrays = dict[str, np.ndarray[Any, Any]]


class Replica:
    """All parts of a replica. The test answers for shards; parts receive each other's messages at once."""

    def __init__(self, plan: Plan, data: Arrays, folder: Path, *, shuffled: bool = False) -> None:
        files = {}
        for name, array in data.items():
            files[name] = ArrayFile(folder / name, array.dtype.name, array.shape)
            files[name].write(array)
        self.plan = plan
        self.post: SimpleQueue[tuple[str, str, Message, Payload | None] | None] = SimpleQueue()
        self.evaluation, self.point = 0, {}
        self.asked: dict[tuple[str, str], int] = {}
        self.taken: dict[tuple[int, int], dict[tuple[str, str], bytes]] = defaultdict(dict)
        self.computed: dict[int, dict[str, AssignmentResult]] = defaultdict(dict)
        self.silent = False  # shards take no gradient
        self.tasks = tasks = [
            PartTask(
                plan=plan,
                machine=m,
                replica=0,
                replicas=1,
                data=files,
                examples=len(data["picture"]),
                seed=5,
                shards=SHARDS,
                instruction_timeout_s=60.0,
                program=Sandblaster().replica,
                hands=AssignedHands(shuffled=shuffled),
            )
            for m in range(len(plan.cluster))
        ]
        self.layout = tasks[0].layout
        links = {part_name(0, m): self._link(part_name(0, m)) for m in range(len(tasks))}
        played = zip(links.items(), tasks, strict=True)
        self.roles = {name: PlayedRole(task.role(link), link) for (name, link), task in played}
        everybody = [*self.roles, *(shard_name(n) for n in range(SHARDS))]
        for role in self.roles.values():
            role.receive(PeersChanged(1, dict.fromkeys(everybody, 0)))

    def _link(self, name: str) -> HostContext:
        def send(to: str, message: Message, payload: PayloadLike) -> None:
            if isinstance(payload, Steady):
                payload = payload.numbers
            assert payload is None or isinstance(payload, (np.ndarray, list))
            pieces = [payload] if isinstance(payload, np.ndarray) else payload
            data = None if pieces is None else b"".join(np.ascontiguousarray(one).tobytes() for one in pieces)
            self.post.put((name, to, message, None if data is None else Payload([memoryview(data)])))

        def refuse(sender: str, reason: str) -> None:
            raise AssertionError(f"{name} refuses what {sender} said: {reason}")

        return HostContext(name, 0, send, lambda: self.post.put(None), Counters(), refuse)

    def begin(self, evaluation: int, parameters: Mapping[str, Any]) -> None:
        """Gives the shards a new point."""
        dtype = master(self.plan.precision)
        self.evaluation = evaluation
        self.point = {m: gather(s, parameters, dtype) for m, s in enumerate(self.layout.machines)}
        for (part, shard), after in list(self.asked.items()):
            self._answer(part, shard, after)

    def schedule(self, assignment: int, first: int, count: int, *, to: str | None = None) -> None:
        message = Assignment(self.evaluation, assignment, first, first, count)
        for name in self.roles if to is None else (to,):
            self.receive(name, COORDINATOR, message)

    def receive(self, name: str, sender: str, message: Message, payload: Payload | None = None) -> None:
        self.roles[name].receive(Received(sender, 0, message, payload), 0.0)
        self.roles[name].poll(0.0)

    def until(self, assignment: int) -> list[AssignmentResult]:
        """Reports of every part on an assignment, after its gradient was sent."""
        while len(self.computed[assignment]) < len(self.roles):
            self.deliver()
        return [self.computed[assignment][name] for name in self.roles]

    def deliver(self) -> None:
        """Delivers one message, or wakes the roles once."""
        found = self.post.get(timeout=60)
        if found is None:
            for role in self.roles.values():
                role.poll(0.0)
            return
        sender, to, message, payload = found
        match message:
            case FetchPoint(after=after):
                self.asked[sender, to] = after
                self._answer(sender, to, after)
            case Contribution(evaluation=evaluation, unit=unit):
                assert payload is not None
                self.taken[evaluation, unit][sender, to] = payload.to_bytes()
                if not self.silent:
                    self.receive(sender, to, ContributionAck(evaluation, unit))
            case AssignmentResult(sequence=assignment):
                self.computed[assignment][sender] = message
            case _:
                self.receive(to, sender, message, payload)

    def _answer(self, part: str, shard: str, after: int) -> None:
        if self.evaluation > after:
            del self.asked[part, shard]
            start, stop = self._range(part, shard)
            numbers = self.point[self._machine(part)][start:stop]
            self.receive(part, shard, Point(self.evaluation), Payload([memoryview(numbers.tobytes())]))

    def _machine(self, part: str) -> int:
        indices = part_indices(part)
        assert indices is not None
        return indices[1]

    def _range(self, part: str, shard: str) -> tuple[int, int]:
        overlaps = self.layout.shards_of(self._machine(part))
        return next((o.machine_start, o.machine_stop) for o in overlaps if o.shard == shard_index(shard))

    def gradient(self, evaluation: int, unit: int) -> Arrays:
        """Gradient of all parameters, joined from what every part sent to every shard."""
        dtype = master(self.plan.precision)
        found: Arrays = {name: np.zeros(p.shape, dtype) for name, p in self.plan.graph.parameters.items()}
        for m, slots in enumerate(self.layout.machines):
            vector = np.full(self.layout.machine_size(m), np.nan, dtype)
            for (part, shard), numbers in self.taken[evaluation, unit].items():
                if self._machine(part) == m:
                    start, stop = self._range(part, shard)
                    vector[start:stop] = np.frombuffer(numbers, dtype)
            scatter(slots, vector, found)
        return found

    def close(self) -> None:
        for role in self.roles.values():
            role.close()


def toy_data(precision: str = "float64") -> Arrays:
    data = toy.data(EXAMPLES)
    return {"picture": data["picture"].astype(master(precision)), "digit": data["digit"].astype(np.int64)}


def parameters_of(plan: Plan, seed: int = 1) -> Arrays:
    return initialise(plan.graph.parameters.values(), seed, dtype=str(master(plan.precision)))


def truth(plan: Plan, parameters: Arrays, data: Arrays) -> tuple[float, Arrays]:
    """Sums of the losses and the gradients of these examples, on one machine, with nothing to fill up."""
    n = len(data["picture"])
    whole = partition(plan.graph, Cluster.local(), batch=n, precision="float64")
    with Session(whole, parameters, train=True, hosts="inline") as session:
        step = session.step(data, collect=("gradient",))
    return step.loss * n, {name: g.astype(np.float64) * n for name, g in step.vectors["gradient"].items()}


def assert_same(found: Arrays, expected: Arrays, *, times: float, tolerance: float = 1e-11) -> None:
    for name, gradient in expected.items():
        scale = float(np.abs(gradient).max())
        assert scale > 0, name
        np.testing.assert_allclose(
            times * found[name], gradient, rtol=0, atol=tolerance * scale, err_msg=name
        )
