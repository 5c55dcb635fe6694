"""A host that acts outside its role: refused, counted, reported, cut off; the others go on working."""

from __future__ import annotations

import pickle
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import get_args

import numpy as np
import pytest

from partita.engine import SGD
from partita.engine.drivers.session import Steps
from partita.engine.parameters import gather, save_parameters
from partita.engine.protocol import Message
from partita.engine.protocol.batch_messages import EvaluationSum
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.conduct import MOST_REFUSED
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import (
    Begin,
    Credit,
    Directory,
    DirectoryAck,
    Fetch,
    Heartbeat,
    Hello,
    Parameters,
    Peer,
    Push,
    PushAck,
    Ready,
    Refused,
    SetUp,
    Stop,
    Tensor,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.permissions import PERMISSIONS, rejection_reason
from partita.engine.protocol.session_messages import Load, Play, Played
from partita.engine.runtime.buffers import layout_of
from partita.engine.runtime.host import Host
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import pack_task
from partita.engine.transport import KeyPair, Payload, ZmqMailbox
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.faults.helpers import DEADLINE_S


class Bomb:
    """Unpickling it leaves a file behind."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self) -> tuple[object, ...]:
        return Path.touch, (self.path,)


class Members:
    """A host on a thread, and the mailboxes of those that talk to it, over ZeroMQ."""

    def __init__(self, name: str) -> None:
        names = (COORDINATOR, "part 0.1", "part 1.0", "shard 0")
        self.name = name
        self.boxes = {name: ZmqMailbox(KeyPair.generate()) for name in names}
        self.box = ZmqMailbox(KeyPair.generate())
        self.peers = {name: Peer(name, 0, b.endpoint, b.public_key) for name, b in self.boxes.items()}
        me = Peer(name, 0, self.box.endpoint, self.box.public_key)
        for box in self.boxes.values():
            box.allow([me])
            box.connect(me)
        self.arrived: list[Received] = []
        self.host = Host(self.box, name, 0, self.peers[COORDINATOR])
        self.thread = threading.Thread(target=self.host.run, name="host")
        self.thread.start()

    def receive(self, sender: str, message: Message, payload: object = None) -> None:
        self.boxes[sender].send(self.name, message, payload)  # type: ignore[arg-type]

    def answer(self, kind: type[Message]) -> Received:
        """The next message of this kind to anybody."""
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for n, event in enumerate(self.arrived):
                if isinstance(event.message, kind):
                    del self.arrived[: n + 1]
                    return event
            for name, box in self.boxes.items():  # all of them, for only so they send
                self.arrived += box.receive(0.02 if name == COORDINATOR else 0.0)
        raise AssertionError(f"no {kind.__name__} in {DEADLINE_S:.0f} s")

    def close(self) -> None:
        self.host.stop()
        self.thread.join()
        for box in (self.box, *self.boxes.values()):
            box.close()


@pytest.fixture
def members(request: pytest.FixtureRequest) -> Iterator[Members]:
    made = Members(request.param)
    yield made
    made.close()


def check_that_it_plays(members: Members) -> None:
    """The host is set up with a session, and plays a step of it."""
    plan = partition(toy.network(), Cluster.local(machines=1), batch=4, strategy="balanced")
    parameters = {name: np.zeros(p.shape, np.float32) for name, p in plan.graph.parameters.items()}
    members.receive(COORDINATOR, SetUp("ours"), pack_task(Steps().tasks(plan)[0]))
    members.answer(Ready)
    members.receive(COORDINATOR, Load(), gather(layout_of(plan, shards=1).machines[0], parameters))
    members.answer(Ready)
    batch = toy.data(4)
    inputs = [np.ascontiguousarray(batch["picture"].T), batch["digit"].astype(np.int64)]
    members.receive(COORDINATOR, Play(0, 4), inputs)
    played = members.answer(Played).message
    assert isinstance(played, Played) and played.loss == pytest.approx(4 * np.log(3))


@pytest.mark.parametrize("members", ["part 0.0"], indirect=True)
def test_only_the_coordinator_is_obeyed(members: Members, tmp_path: Path) -> None:
    members.answer(Hello)
    members.receive(
        COORDINATOR, Directory(tuple(members.peers[n] for n in members.boxes if n != COORDINATOR), 1)
    )
    orders: list[tuple[Message, object]] = [
        (SetUp("theirs"), pickle.dumps(Bomb(tmp_path / "unpickled"))),
        (Directory((), 7), None),
        (Heartbeat(99), None),
        (Load(), np.ones(8, np.float32)),
        (Play(0, 4), None),
        (Begin(0, 5), None),
        (Save(1), None),
        (Stop(), None),
    ]
    for sender in ("part 0.1", "shard 0"):
        for message, payload in orders:
            members.receive(sender, message, payload)
    # They are cut off by now.
    members.receive("part 0.1", Parameters(0, 0, 0), np.ones(8, np.float32))
    members.receive("shard 0", Tensor(0, "hidden", (((0, 1),),)), np.ones(4, np.float32))
    members.receive("part 1.0", Credit(0))

    refused = [members.answer(Refused).message for _ in range(5)]
    assert sorted((r.by, r.cut_off) for r in refused if isinstance(r, Refused)) == [
        ("part 0.1", False),
        ("part 0.1", True),
        ("part 1.0", False),
        ("shard 0", False),
        ("shard 0", True),
    ]
    check_that_it_plays(members)
    assert members.box.counters.refused_messages >= 2 * MOST_REFUSED + 1
    assert not (tmp_path / "unpickled").exists()
    members.receive(COORDINATOR, Stop())
    members.thread.join(DEADLINE_S)
    assert not members.thread.is_alive()


@pytest.mark.parametrize("members", ["shard 1"], indirect=True)
def test_a_shard_refuses_what_does_not_fit_and_serves_on(members: Members, tmp_path: Path) -> None:
    size = set_up_shard(members, tmp_path)
    members.receive("part 0.1", Push(0, 0, 0, 0), np.ones(size + 1, np.float32))
    members.receive("part 0.1", Push(7, 0, 0, 0), np.ones(size, np.float32))
    members.receive("part 0.1", Save(1))
    members.receive("shard 0", Push(0, 0, 0, 0), np.ones(size, np.float32))
    members.receive("part 1.0", Stop())
    refused = [members.answer(Refused).message for _ in range(3)]
    assert {r.by for r in refused if isinstance(r, Refused)} == {"part 0.1", "part 1.0", "shard 0"}
    members.receive("part 0.1", Push(0, 0, 0, 0), np.full(size, 0.5, np.float32))
    assert members.answer(PushAck).message == PushAck(0, 0, 0, 1, 0)
    members.receive("part 0.1", Fetch(0))
    got = members.answer(Parameters)
    assert got.message == Parameters(0, 0, 1, updates=1, pushes=1) and isinstance(got.payload, Payload)
    assert np.frombuffer(got.payload.to_bytes(), np.float32) == pytest.approx(np.full(size, 0.75))
    assert members.box.counters.refused_messages == 5


def set_up_shard(members: Members, tmp_path: Path) -> int:
    """The host is shard 1, with a lease; returns how many numbers part 0.1 has there."""
    plan = partition(toy.network(), Cluster.local(machines=2), batch=4, strategy="balanced")
    layout = layout_of(plan, shards=2)
    parameters = {name: np.ones(shape, np.float32) for name, shape in layout.shapes.items()}
    save_parameters(tmp_path / "initial", parameters)
    task = ShardTask(
        shard=1,
        layout=layout,
        run="run",
        folder=tmp_path,
        checkpoint=None,
        initial=tmp_path / "initial",
        precision="float32",
        policy=ApplyPolicy(optimizer=SGD(0.5)),
    )
    members.answer(Hello)
    members.receive(COORDINATOR, SetUp("run"), pack_task(task))
    peers = tuple(members.peers[n] for n in members.boxes if n != COORDINATOR)
    members.receive(COORDINATOR, Directory(peers, 1))
    members.answer(Ready)
    beat = members.answer(Heartbeat).message
    assert isinstance(beat, Heartbeat)
    members.receive(COORDINATOR, Heartbeat(0, beat.clock))  # its lease
    members.receive(COORDINATOR, Directory(peers, 2))
    while members.answer(DirectoryAck).message != DirectoryAck(2):  # then it has its lease, too
        pass

    (own,) = [overlap for overlap in layout.machines_of(1) if overlap.machine == 1]
    return own.shard_stop - own.shard_start


def test_every_kind_of_message_is_for_somebody_to_say() -> None:
    said = frozenset().union(*PERMISSIONS.values())
    assert said | {EvaluationSum} == set(get_args(Message)), "a record of a sum is in logs and copies alone"


def test_the_table_knows_roles_and_replicas() -> None:
    tensor, pushed = Tensor(0, "h", ()), PushAck(0, 0, 0, 0, 0)
    assert rejection_reason(tensor, sender="part 0.1", receiver="part 0.0") is None
    assert rejection_reason(tensor, sender="part 1.1", receiver="part 0.0") == "a Tensor of another replica"
    assert rejection_reason(pushed, sender="shard 3", receiver="part 0.0") is None
    for sender, receiver in (("shard 0", "shard 1"), ("part 0.0", "nobody"), ("somebody", COORDINATOR)):
        assert rejection_reason(pushed, sender=sender, receiver=receiver) is not None
