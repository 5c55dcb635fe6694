"""Parts and shards that exchange rows of a table have the bits of those that exchange all of it."""

from __future__ import annotations

import tempfile
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import SGD, Adagrad, Downpour
from partita.engine.numerics import RowGradient
from partita.engine.parameters import initialise, save_parameters
from partita.engine.protocol import ParameterLinks, Part
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.messages import Begin, Finished, Heartbeat, Lease, Parameters, Push
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.buffers import Vectors, layout_of
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import HostContext
from partita.engine.runtime.updates import GradientAccumulation
from partita.engine.transport import Counters, Payload
from partita.engine.transport.payload import views
from partita.layers import Dense, Embedding, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition
from tests.draws import examples

CLASSES, WIDTH = 12, 2


def plan_of(*, sparse: bool) -> Any:
    net = Network("words")
    words = net.input("words", shape=2, classes=CLASSES)
    table = Embedding(CLASSES, WIDTH, sparse=sparse, name="table")(words)
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(table), net.target("label"))
    return partition(net, Cluster.local(), batch=1)


PLANS = {sparse: plan_of(sparse=sparse) for sparse in (False, True)}
FIRST = initialise(PLANS[True].graph.parameters.values(), 5)


class Replica:
    """A part: its real machine and arrays."""

    def __init__(self, number: int, driver: Downpour, *, sparse: bool) -> None:
        self.vectors = Vectors(PLANS[sparse], 0, gradient=False)
        alone = driver.replicas == 1
        self.updates = updates = GradientAccumulation(
            driver.optimizer, self.vectors, follows_shard=alone and driver.merges, replicas=driver.replicas
        )
        self.arrays = LinkArrays(self.vectors, updates, log=self)
        task: Any = object.__new__(PartTask)
        vars(task).update(plan=PLANS[sparse], machine=0, shards=driver.shards)
        stateful = bool(driver.optimizer.state_names)
        links = ParameterLinks(incarnation=0, streams=task.streams, alone=alone, stateful=stateful)
        links.take_rows(task.rows_bytes)
        self.machine = Part(driver.replica, LeasedWork(links))
        start, stop = self.vectors.span("table").start, self.vectors.span("table").stop
        self.span, self.others = slice(start, stop), slice(stop, len(self.vectors.parameters))
        self.rows = RowGradient(WIDTH, self.vectors.dtype)
        self.table = np.zeros(stop - start, self.vectors.dtype)
        self.dense = np.zeros(self.others.stop - stop, self.vectors.dtype)
        table = updates.bind_rows(self.span, self.rows) if sparse else updates.bind(self.span, self.table)
        self.applies = [table, updates.bind(self.others, self.dense)]
        self.unit: tuple[int, int] | None = None
        self.finished = False

    def note(self, shard: str, record: Any) -> None: ...

    def close(self) -> None: ...

    def compute(self, unit: int) -> None:
        """The gradient of a few rows, of every sign and size, and that of the other numbers."""
        rows = np.unique(np.random.default_rng(unit).integers(0, CLASSES, unit % 4))
        values = self.vectors.parameters[self.span].reshape(-1, WIDTH)[rows]
        self.rows.clear()
        self.rows.add(rows, (np.sin(3 * values + unit) / (1 + unit % 3)).astype(values.dtype))
        self.table[:] = 0
        self.table.reshape(-1, WIDTH)[rows] = self.rows.values
        self.dense[:] = np.sin(self.vectors.parameters[self.others] + unit)
        for apply in self.applies:
            assert apply(1.0)


class World:
    """Replicas and shards, and a network that keeps no order."""

    def __init__(self, driver: Downpour, units: int, *, sparse: bool, folder: Path) -> None:
        self.under_way: list[tuple[str, str, Any, bytes | None]] = []
        self.n_bytes: list[tuple[type[Any], int]] = []
        self.shards: dict[str, Any] = {}
        self.now = 0.0
        for shard in range(driver.shards):
            task = ShardTask(
                shard=shard,
                layout=layout_of(PLANS[sparse], shards=driver.shards),
                run="run",
                folder=folder,
                checkpoint=None,
                initial=folder / "initial",
                precision="float32",
                policy=ApplyPolicy(optimizer=driver.optimizer),
            )
            name = f"shard {shard}"
            host = HostContext(name, 0, self._never, lambda: None, Counters(), self._never)
            self.shards[name] = task.role(host)
            self.give(name, Received(COORDINATOR, 0, Heartbeat(0, clock=0.0)))
        self.replicas = {f"part {n}.0": Replica(n, driver, sparse=sparse) for n in range(driver.replicas)}
        cuts = [units * n // driver.replicas for n in range(driver.replicas + 1)]
        for name, (start, stop) in zip(self.replicas, pairwise(cuts), strict=True):
            self.give(name, PeersChanged(1, dict.fromkeys(self.shards, 0)))
            begin = Begin(0, stop - start, (Lease(0, start, stop),) if start < stop else ())
            self.give(name, Received(COORDINATOR, 0, begin))

    def _never(self, *what: Any) -> None:
        raise AssertionError(what)

    def give(self, name: str, event: Any) -> None:
        is_shard = name in self.shards
        machine, body = self.shards[name] if is_shard else (self.replicas[name].machine, None)
        for effect in machine.receive(event, 0.0 if is_shard else self.now):
            if isinstance(effect, Send):
                self._send(name, effect)
            elif isinstance(effect, Refuse):
                raise AssertionError(effect)
            elif is_shard:
                assert body.carry_out(effect, 0.0) is None
            elif isinstance(effect, RunUnit):
                self.replicas[name].unit = effect.number, effect.unit
                self.replicas[name].updates.advance(effect.updates)
            elif not isinstance(effect, LookForWaits):
                self.replicas[name].arrays.carry_out(effect)
        machine.validate()

    def _send(self, name: str, effect: Send) -> None:
        data = None
        if effect.payload is not None:
            is_shard = name in self.shards
            given = (
                self.shards[name][1].payload(effect)
                if is_shard
                else self.replicas[name].arrays.payload(effect.payload)
            )
            found, size = views(given, max_payload=1 << 20)
            data = b"".join(found or ())
            self.n_bytes.append((type(effect.message), size))
        if effect.to in self.shards or effect.to in self.replicas:
            self.under_way.append((name, effect.to, effect.message, data))
        elif isinstance(effect.message, Finished):
            self.replicas[name].finished = True

    def deliver(self, place: int, *, again: bool = False) -> None:
        sender, to, message, data = self.under_way[place]
        if not again:
            del self.under_way[place]
        payload = None if data is None else Payload([memoryview(bytearray(data))])
        self.give(to, Received(sender, 0, message, payload))

    def compute(self, name: str) -> None:
        replica = self.replicas[name]
        assert replica.unit is not None
        (number, unit), replica.unit = replica.unit, None
        replica.compute(unit)
        self.give(name, StepDone(number))

    def tick(self) -> None:
        self.now += 20.0
        for name in self.replicas:
            self.give(name, Tick())

    def go_on(self) -> None:
        """All that can happen."""
        for name in self.busy:
            self.compute(name)
        while self.under_way:
            self.deliver(0)
        self.tick()

    @property
    def busy(self) -> list[str]:
        """The replicas that compute."""
        return [name for name, replica in self.replicas.items() if replica.unit is not None]

    @property
    def is_over(self) -> bool:
        return all(replica.finished for replica in self.replicas.values())

    @property
    def bits(self) -> list[bytes]:
        """Of every part's parameters and state, and every shard's vectors."""
        replicas = self.replicas.values()
        found = [one.vectors.parameters.tobytes() for one in replicas]
        found += [vector.tobytes() for one in replicas for vector in one.updates._state.values()]
        stores = [body._store for _, body in self.shards.values()]
        values = [store.vector(name) for name in stores[0].names() for store in stores]
        return [*found, np.concatenate(values).tobytes()]


@given(data=st.data())
@settings(max_examples=examples(10), deadline=None)
def test_rows_have_the_bits_of_whole_tables(data: st.DataObject) -> None:
    """Delays, drops, repeats, any order, tables that shards cut; after every event, in every process."""
    counts, replicas = st.integers(1, 3), data.draw(st.sampled_from([2, 1]))
    driver = Downpour(
        replicas=replicas,
        shards=data.draw(st.sampled_from([1, 2, 11])),
        optimizer=data.draw(st.sampled_from([Adagrad(0.1), SGD(0.1)])),
        push_every=data.draw(counts),
        fetch_every=data.draw(counts),
    )
    units = data.draw(st.integers(replicas, 10))
    with tempfile.TemporaryDirectory() as folder:
        save_parameters(Path(folder) / "initial", FIRST)
        worlds = [World(driver, units, sparse=sparse, folder=Path(folder)) for sparse in (False, True)]
        for n in range(200):
            _happens(worlds, data.draw)
            assert worlds[0].bits == worlds[1].bits, n
            if worlds[0].is_over:
                break
        for n in range(200):  # the network is fair again
            for world in worlds:
                world.go_on()
            assert worlds[0].bits == worlds[1].bits, n
            if worlds[0].is_over:
                break
        assert [world.is_over for world in worlds] == [True, True]


def _happens(worlds: list[World], draw: Any) -> None:
    """One event in each world, the same."""
    one = worlds[0]
    action = draw(st.sampled_from(("compute", "compute", "deliver", "deliver", "drop", "tick")))
    if action == "tick":
        for world in worlds:
            world.tick()
    elif action == "compute" and one.busy:
        name = draw(st.sampled_from(one.busy))
        for world in worlds:
            world.compute(name)
    elif action != "compute" and one.under_way:
        place, again = draw(st.integers(0, len(one.under_way) - 1)), draw(st.booleans())
        for world in worlds:
            if action == "deliver":
                world.deliver(place, again=again)
            else:
                del world.under_way[place]


def test_bytes_of_pushes_and_later_fetches_are_of_the_rows(tmp_path: Path) -> None:
    save_parameters(tmp_path / "initial", FIRST)
    world = World(Downpour(replicas=2, optimizer=Adagrad(0.1)), 20, sparse=True, folder=tmp_path)
    while not world.is_over:
        world.go_on()
    others = 4 * (layout_of(PLANS[True], shards=1).size - CLASSES * WIDTH)
    pushed = [size for kind, size in world.n_bytes if kind is Push]
    fetched = [size for kind, size in world.n_bytes if kind is Parameters]
    row = 8 + 4 * WIDTH
    assert len(pushed) == 20 and max(pushed) <= others + 8 + 3 * row, "a step has 3 rows at most"
    assert fetched.count(others + 4 * CLASSES * WIDTH) == 2, "the first values of each part are whole"
    assert max(fetched[2:]) <= others + 8 + 12 * row and min(fetched[2:]) < others + 8 + 7 * row
