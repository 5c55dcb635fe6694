"""Decoupled DiLoCo against NumPy: real machines and arrays of replicas and shards, step by step."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import SGD, DecoupledDiLoCo
from partita.engine.parameters import Layout, save_parameters
from partita.engine.parameters.compression import Compressor, Int8, OneBit, TopK
from partita.engine.protocol import Message, ParameterLinks, Part
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.merging import UnitSizes
from partita.engine.protocol.messages import Begin, Finished, Heartbeat, Lease
from partita.engine.protocol.names import COORDINATOR, stream_name
from partita.engine.protocol.parameter_links import SavePushRecord
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.buffers import Vectors, layout_of
from partita.engine.runtime.changes import ChangeAccumulation
from partita.engine.runtime.link_arrays import LinkArrays
from partita.engine.runtime.push_messages import PushMessages, form_of
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.transport import Payload
from partita.engine.transport.payload import Steady
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition
from tests.properties.dense_compressor import DenseCompressor
from tests.runtime.shard_alone import ShardAlone

Array = np.ndarray[Any, np.dtype[np.float64]]
RATE, BATCH = 0.1, 4


def network() -> Network:
    net = Network("linear")
    scores = Dense(3, name="scores")(net.input("x", shape=(5,)))
    net.loss = HalfSquaredError()(scores, net.target("y"))
    return net


PLAN = partition(network(), Cluster.local(machines=1), batch=BATCH, precision="float64")
SIZES = {name: parameter.shape for name, parameter in PLAN.graph.parameters.items()}
N = sum(int(np.prod(shape)) for shape in SIZES.values())


def layout_of_driver(driver: DecoupledDiLoCo) -> Layout:
    return layout_of(PLAN, shards=driver.shards, fragments=driver.n_fragments)


def gradient_at(parameters: Array, replica: int, step: int) -> Array:
    return np.sin(3 * parameters + step) / (1.0 + replica)


def messages(driver: DecoupledDiLoCo, layout: Layout, vectors: Vectors) -> PushMessages | None:
    if driver.compress is None:
        return None
    cuts = layout.shards_of(0)
    forms = {one.machine_start: form_of(driver.compress, layout, one, 8) for one in cuts}
    return PushMessages(forms, (), vectors.device)


def compressors(driver: DecoupledDiLoCo) -> list[tuple[int, slice, DenseCompressor]]:
    """What a replica sends of each fragment to each shard, and of which numbers, in float64."""
    layout, found = layout_of_driver(driver), []
    for one in layout.shards_of(0):
        ends = [0]
        for shape in layout.tensors(0, one.machine_start, one.machine_stop):
            ends.append(ends[-1] + int(np.prod(shape)))
        tensors = [slice(a, b) for a, b in pairwise(ends)]
        compressor = DenseCompressor(driver.compress or TopK(1.0), tensors, ends[-1])
        found.append((one.fragment, slice(one.machine_start, one.machine_stop), compressor))
    return found


class Replica:
    """A part's real machine, links and arrays; its gradients are a formula's."""

    def __init__(self, index: int, driver: DecoupledDiLoCo, steps: int, layout: Layout) -> None:
        self.index, self.name = index, f"part {index}.0"
        self.vectors = Vectors(PLAN, 0, gradient=False)
        self.updates = ChangeAccumulation(
            driver.optimizer, self.vectors, messages=messages(driver, layout, self.vectors)
        )
        self.gradient = np.zeros(N)
        self.apply = self.updates.bind(slice(0, N), self.gradient)
        streams = tuple(
            (stream_name(f"shard {one.shard}", one.fragment), one.machine_start, one.machine_stop)
            for one in layout.shards_of(0)
        )
        self.links = ParameterLinks(incarnation=0, streams=streams, item_bytes=8)
        self.arrays = LinkArrays(self.vectors, self.updates)
        self.machine = Part(driver.replica, LeasedWork(self.links))
        self.letters: list[tuple[str, Message, Array | None]] = []
        self.step: RunUnit | None = None
        self.finished = False
        self.give(PeersChanged(1, dict.fromkeys(self.links.shards, 0)))
        first = index * steps
        self.give(Received(COORDINATOR, 0, Begin(0, steps, (Lease(0, first, first + steps),), is_last=True)))

    def give(self, event: Any) -> None:
        for effect in self.machine.receive(event, 0.0):
            match effect:
                case Send(to=to, message=message, payload=span) if to.startswith("shard"):
                    numbers = None
                    if span is not None:
                        found = self.arrays.payload(span)
                        assert isinstance(found, Steady)
                        numbers = np.array(found.numbers)
                    self.letters.append((to, message, numbers))
                case Send(message=message):
                    self.finished |= isinstance(message, Finished)
                case RunUnit():
                    self.step = effect
                case SavePushRecord():
                    pass
                case _:
                    self.arrays.carry_out(effect)
        self.machine.validate()

    def compute(self) -> None:
        step = self.step
        assert step is not None
        self.updates.advance(step.step)
        self.gradient[:] = gradient_at(self.vectors.parameters, self.index, step.step)
        self.apply(1.0)
        self.step = None
        self.give(StepDone(step.number))


class Bench:
    """Replicas in step, shards, and a network that delivers everything before the next step ends."""

    def __init__(self, driver: DecoupledDiLoCo, steps: int, start: Array, folder: Path) -> None:
        layout, initial = layout_of_driver(driver), folder / "initial"
        values, begin = {}, 0
        for slot in layout.machines[0]:  # whole parameters, one after another
            shape = SIZES[slot.parameter]
            values[slot.parameter] = start[begin : begin + slot.size].reshape(shape)
            begin += slot.size
        save_parameters(initial, values)
        sizes = UnitSizes(driver.replicas * steps * BATCH - 3, BATCH)
        policy = ApplyPolicy(
            optimizer=driver.optimizer_of_shards,
            merging=driver.merging,
            sizes=sizes,
            compress=driver.compress,
        )
        self.shards = [
            ShardAlone(
                ShardTask(
                    shard=k,
                    layout=layout,
                    run="run",
                    folder=folder,
                    checkpoint=None,
                    initial=initial,
                    precision="float64",
                    policy=policy,
                )
            )
            for k in range(driver.shards)
        ]
        for shard in self.shards:
            shard.receive(COORDINATOR, Heartbeat(0, clock=0.0))
        self.replicas = [Replica(n, driver, steps, layout) for n in range(driver.replicas)]
        self.deliver()

    def deliver(self) -> None:
        while any(one.letters for one in self.replicas):
            for replica in self.replicas:
                letters, replica.letters = replica.letters, []
                for to, message, numbers in letters:
                    shard = self.shards[int(to.split()[1])]
                    shard.receive(replica.name, message, numbers)
            for shard in self.shards:
                answers, shard.sent[:] = list(shard.sent), []
                for to, message, numbers in answers:
                    if to != COORDINATOR:
                        payload = None if numbers is None else Payload([memoryview(numbers).cast("B")])
                        self.replicas[int(to[5])].give(Received(shard.name, 0, message, payload))

    def values(self) -> Array:
        return np.concatenate([shard.body._store.vector("x") for shard in self.shards])  # type: ignore[attr-defined]


def reference(driver: DecoupledDiLoCo, steps: int, start: Array) -> tuple[Array, list[list[Array]]]:
    """The shards' values at the end, and each replica's parameters in every step."""
    replicas = range(driver.replicas)
    n = driver.n_fragments
    cuts = [N * k // n for k in range(n + 1)]
    x, since = [start.copy() for _ in replicas], [start.copy() for _ in replicas]
    anchor, velocity, seen = start.copy(), np.zeros(N), [[] for _ in replicas]  # type: ignore[var-annotated]
    pushed = dict.fromkeys(range(n), 0)
    senders = [compressors(driver) for _ in replicas]

    def merge(fragment: int, done: int) -> slice:
        span = slice(cuts[fragment], cuts[fragment + 1])
        counts = [float((done - pushed[fragment]) * BATCH) for _ in replicas]
        counts[-1] -= 3 * (done == steps)  # the run's last unit is short
        pushed[fragment] = done
        sent = [since[r] - x[r] for r in replicas]
        for change, compressed in zip(sent, senders, strict=True):
            for of, own, compressor in compressed:
                if of == fragment:
                    change[own] = compressor.sent(change[own], done - 1)
        mean = sum(c * change[span] for c, change in zip(counts, sent, strict=True)) / sum(counts)
        for r in replicas:
            since[r][span] = x[r][span]
        velocity[span] = driver.outer_momentum * velocity[span] + mean
        direction = mean + driver.outer_momentum * velocity[span] if driver.nesterov else velocity[span]
        anchor[span] -= driver.outer_learning_rate * direction
        return span

    arrived: list[tuple[slice, Array]] = []
    for step in range(steps):
        for r in replicas:
            seen[r].append(x[r].copy())
            x[r] -= RATE * gradient_at(x[r], r, step)
        due = [merge(fragment, step + 1) for fragment in driver.due(step)]
        for span, values in arrived:  # that were merged a step ago: the changes since are made over them
            for r in replicas:
                own = since[r][span] - x[r][span]
                in_flight = 0.0
                since[r][span] = values - in_flight
                x[r][span] = since[r][span] - own
        arrived = [(span, anchor[span].copy()) for span in due]
    for fragment in range(n):
        if pushed[fragment] < steps:
            merge(fragment, steps)
    return anchor, seen


@pytest.mark.parametrize(
    ("replicas", "shards", "fragments", "every", "nesterov", "compress"),
    [
        (1, 1, None, 3, True, None),
        (3, 2, None, 4, True, None),
        (2, 3, None, 6, False, None),
        (2, 1, 5, 7, True, None),
        (3, 4, 1, 3, True, None),
        (2, 3, 2, 4, False, None),
        (3, 2, None, 4, True, TopK(0.3, 0.5, warm_up=8)),
        (2, 2, 5, 3, True, TopK(0.3, 0.5, warm_up=8)),
        (2, 3, None, 6, True, OneBit()),
        (2, 1, None, 3, True, Int8(feedback=False)),
    ],
)
def test_replicas_in_step_are_diloco_fragment_by_fragment(
    replicas: int,
    shards: int,
    fragments: int | None,
    every: int,
    nesterov: bool,
    compress: Compressor | None,
    tmp_path: Path,
) -> None:
    driver = DecoupledDiLoCo(
        replicas=replicas,
        shards=shards,
        fragments=fragments,
        every=every,
        optimizer=SGD(RATE),
        quorum=replicas,
        nesterov=nesterov,
        compress=compress,
    )
    steps, start = 3 * every + 2, np.random.default_rng(3).standard_normal(N)
    bench = Bench(driver, steps, start, tmp_path)
    seen: list[list[Array]] = [[] for _ in range(replicas)]
    for _ in range(steps):
        for replica in bench.replicas:
            seen[replica.index].append(replica.vectors.parameters.copy())
            replica.compute()
        bench.deliver()
    assert all(replica.finished for replica in bench.replicas)
    values, expected = reference(driver, steps, start)
    for replica in range(replicas):
        np.testing.assert_allclose(seen[replica], expected[replica], rtol=1e-12, atol=1e-12)
    np.testing.assert_allclose(bench.values(), values, rtol=1e-12, atol=1e-12)
    for shard in bench.shards:
        shard.body.close()
