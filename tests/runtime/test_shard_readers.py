"""Parameters that parts read where a shard has them: every answer keeps its version, whatever is pushed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from random import Random

import numpy as np
import pytest

from partita.engine import SGD
from partita.engine.parameters import Layout, Slot, save_parameters
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Fetch, Heartbeat, Parameters, Peer, Push, PushAck
from partita.engine.protocol.names import COORDINATOR, part_name, shard_name
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Mailbox, Payload, Steady
from tests.runtime.roles import PlayedRole
from tests.transport.helpers import Hosts, collect

SIZE = 1 << 15
PART, SHARD = part_name(0, 0), shard_name(0)


class Pair:
    """A shard and a part, each with a mailbox."""

    def __init__(self, kind: str, folder: Path) -> None:
        self.hosts = Hosts(kind)
        (self.shard, shard), (self.part, part) = (self.hosts.open(name) for name in (SHARD, PART))
        for box, peer in ((self.shard, part), (self.part, shard)):
            box.allow([peer])
            box.connect(peer)
        self._peer: Peer = part
        save_parameters(folder / "initial", {"w": np.zeros(SIZE, np.float32)})
        task = ShardTask(
            shard=0,
            layout=Layout(((Slot("w", 0, SIZE),),), {"w": (SIZE,)}, shards=1),
            run="run",
            folder=folder,
            checkpoint=None,
            initial=folder / "initial",
            precision="float32",
            policy=ApplyPolicy(optimizer=SGD(1.0)),
        )
        box = self.shard
        context = HostContext(
            SHARD, 0, box.send, box.wake, box.counters, lambda sender, reason: None, box.memory
        )
        self.role = PlayedRole(task.role(context), context)
        self.role.receive(Received(COORDINATOR, 0, Heartbeat(0, clock=0.0), None))
        shared = self.part.memory(4 * SIZE)
        self.gradient = np.empty(SIZE, np.float32) if shared is None else shared.view(np.float32)
        self.gradient.fill(1.0)
        self.pushes = self.requests = 0

    def _answer(self) -> Received:
        (asked,) = collect(self.shard, 1, others=[self.part])
        self.role.receive(asked)
        (answer,) = collect(self.part, 1, others=[self.shard])
        return answer

    def push(self) -> None:
        message = Push(0, self.pushes, 0, self.pushes, self.pushes + 1)
        self.part.send(SHARD, message, Steady(self.gradient))
        assert isinstance(self._answer().message, PushAck)
        self.pushes += 1

    def fetch(self) -> Payload:
        self.part.send(SHARD, Fetch(self.requests, self.pushes))
        self.requests += 1
        answer = self._answer()
        assert isinstance(answer.message, Parameters) and answer.message.updates == self.pushes
        assert isinstance(answer.payload, Payload)
        return answer.payload

    def close(self) -> None:
        self.role.close()
        self.hosts.close()
        vars(self).clear()  # the fixture would keep the memory


@pytest.fixture(params=["shared memory", "zeromq"])
def pair(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Pair]:
    made = Pair(request.param, tmp_path)
    yield made
    made.close()


def ends(payload: Payload) -> set[float]:
    """The first and the last number of a payload, where it lies."""
    return {float(numbers[at]) for numbers in payload.numbers(np.float32) for at in (0, -1)}


@pytest.mark.parametrize("seed", range(3))
def test_every_answer_keeps_its_version_until_it_is_released(pair: Pair, seed: int) -> None:
    random = Random(seed)
    held: list[tuple[Payload, int]] = []
    for step in range(60):
        act = random.choice("ppfffr")
        if act == "p":
            pair.push()
        elif act == "f" and len(held) < 6:
            held.append((pair.fetch(), pair.pushes))
        elif held:
            held.pop(random.randrange(len(held)))[0].release()
        for payload, version in held:
            assert ends(payload) == {float(-version)}, (seed, step)


def test_a_part_that_installs_before_it_pushes_costs_no_copy(pair: Pair) -> None:
    boxes: tuple[Mailbox, ...] = (pair.shard, pair.part)
    for _ in range(4):  # the links open
        pair.push()
        pair.fetch().release()
        for box in boxes:
            box.receive(0.01)
    store = pair.role.body._store  # type: ignore[attr-defined]
    before, end = store.vector("x"), _end_of_ring(pair.shard)
    for _ in range(5):
        pair.push()
        pair.fetch().release()
        collect(pair.shard, 0, others=[pair.part])
    if pair.hosts.kind == "shared memory":
        assert store.vector("x") is before, "it was updated in place"
        assert _end_of_ring(pair.shard) == end, "nothing was copied into the ring"


def _end_of_ring(box: Mailbox) -> int | None:
    link = box._outbound[PART].link
    return None if link is None else link._ring._end
