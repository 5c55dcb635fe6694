"""A replica without others is sequential gradient descent to the bit, whatever its shards' answers take."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import SGD, Adagrad, Adam, Downpour, InverseTime, Momentum, Optimizer, Session, train
from partita.engine.parameters import UpdateContext, Updater, VectorStore, initialise
from partita.engine.protocol import ApplyOnArrival, Message, ParameterLinks, Part, Shard, ShardRanges
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Received, Send, Span, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leased_work import LeasedWork, RunUnit
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Begin, Finished, Heartbeat, Lease
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.parameter_links import SavePushRecord
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import StepDone
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.feed import Sampler
from partita.engine.runtime.updates import GradientAccumulation
from partita.partitioner import Cluster, Whole, partition
from tests.draws import examples
from tests.faults import toy

Array = np.ndarray[Any, Any]
PART = "part 0.0"
PLAN = partition(toy.network(), Cluster.local(machines=1), batch=4, strategy="balanced")
OPTIMIZERS = [SGD(0.1), SGD(InverseTime(0.3, 2)), Momentum(0.1), Adagrad(0.1), Adam(InverseTime(0.1, 3))]


def gradient_at(parameters: Array, step: int) -> Array:
    """The gradient of a step, of every sign and size, so that every rounding shows."""
    return np.sin(3 * parameters + step).astype(parameters.dtype) / parameters.dtype.type(1 + step % 3)


def plain_loop(
    start: Array, optimizer: Optimizer, *, steps: int, push_every: int
) -> tuple[Array, list[Array]]:
    """Gradient descent in one place: the last parameters, and those of every step.

    Each step updates a copy; every `push_every` steps the sum of the gradients updates what was copied.
    """
    values, seen, optimizer = start.copy(), [], optimizer.on_shard()
    state = optimizer.state(start.size, start.dtype)
    for updates, first in enumerate(range(0, steps, push_every)):
        own, total = values.copy(), np.zeros_like(values)
        own_state = {name: vector.copy() for name, vector in state.items()}
        for n, step in enumerate(range(first, min(first + push_every, steps))):
            seen.append(own.copy())
            gradient = gradient_at(own, step)
            optimizer.bind(own, gradient, own_state)(UpdateContext(updates, age=updates + n))
            total += gradient
        optimizer.bind(values, total, state)(UpdateContext(updates))
    return values, seen


class Server:
    """A shard: the real machine over the real store."""

    def __init__(self, name: str, optimizer: Optimizer, values: Array) -> None:
        self.updater = Updater(optimizer, VectorStore(values.copy()))
        own = ShardRanges(name, incarnation=0, ranges={0: (0, values.size)})
        self.machine = Shard(own, ApplyOnArrival(own))
        self.machine.receive(Received(COORDINATOR, 0, Heartbeat(0, clock=0.0)), 0.0)

    def answer(self, message: Message, payload: Array | None) -> list[tuple[Message, Array | None]]:
        answers: list[tuple[Message, Array | None]] = []
        numbers = None if payload is None else Numbers(payload)
        for effect in self.machine.receive(Received(PART, 0, message, numbers), 0.0):
            if isinstance(effect, ApplyGradient):
                assert payload is not None
                self.updater.apply(effect.span, [payload], effect.updates)
            elif isinstance(effect, Send):
                assert effect.to == PART, effect
                read = None if effect.payload is None else self.updater.store.read(effect.payload).copy()
                answers.append((effect.message, read))
        return answers


class Bench:
    """A part without others: its real machine and arrays, its shards, and a network that keeps no order."""

    def __init__(self, driver: Downpour, shards: int, steps: int) -> None:
        self.vectors = Vectors(PLAN, 0, gradient=False)
        n = self.vectors.parameters.size
        self.start = np.random.default_rng(5).standard_normal(n).astype(self.vectors.dtype)
        cuts = [n * k // shards for k in range(shards + 1)]
        spans = tuple((f"shard {k}", cuts[k], cuts[k + 1]) for k in range(shards))
        self.servers = {name: Server(name, driver.optimizer, self.start[a:b]) for name, a, b in spans}
        self.updates = GradientAccumulation(
            driver.optimizer, self.vectors, follows_shard=driver.push_every > 1
        )
        self.gradient = np.zeros_like(self.start)
        self.apply = self.updates.bind(slice(0, n), self.gradient)
        self.links = links = ParameterLinks(
            incarnation=0, streams=spans, alone=True, stateful=bool(driver.optimizer.state_names)
        )
        self.machine = Part(driver.replica, LeasedWork(links))
        self.staged: dict[int, Array] = {}
        self.seen: list[Array] = []
        self.letters: list[tuple[str, Message, Array | None]] = []
        self.answers: list[tuple[str, Message, Array | None]] = []
        self.step: int | None = None
        self.number = -1
        self.finished, self.now = False, 0.0
        self.give(PeersChanged(1, dict.fromkeys(self.servers, 0)))
        self.give(Received(COORDINATOR, 0, Begin(0, steps, (Lease(0, 0, steps),))))

    def give(self, event: Any) -> None:
        for effect in self.machine.receive(event, self.now):
            match effect:
                case Send(to=to, message=message, payload=span) if to in self.servers:
                    numbers = None if span is None else self.updates.in_flight[span.start : span.stop].copy()
                    self.letters.append((to, message, numbers))
                case Send(message=message):
                    self.finished |= isinstance(message, Finished)
                case RunUnit(number=number, step=step, updates=updates):
                    self.number, self.step = number, step
                    self.updates.advance(updates)
                case Stage(span=span, payload=payload):
                    self.staged[span.start] = payload.array
                case Install(span=Span(start=start, stop=stop)):
                    self.vectors.arriving(slice(start, stop))[:] = self.staged[start]
                    self.vectors.changed(slice(start, stop))
                    self.updates.install(slice(start, stop), effect.unheld, effect.updates, effect.scales)
                case SwapBuffers(span=span):
                    self.updates.swap_buffers(slice(span.start, span.stop))
                case SavePushRecord() | LookForWaits():
                    pass
                case _:
                    raise AssertionError(effect)
        self.machine.validate()

    def compute(self) -> None:
        """Ends the step under way."""
        assert self.step is not None
        self.seen.append(self.vectors.parameters.copy())
        self.gradient[:] = gradient_at(self.vectors.parameters, self.step)
        self.apply(1.0)
        self.step = None
        self.give(StepDone(self.number))

    def deliver(self, letter: tuple[str, Message, Array | None]) -> None:
        name, message, numbers = letter
        self.answers += [(name, *answer) for answer in self.servers[name].answer(message, numbers)]

    def take(self, answer: tuple[str, Message, Array | None]) -> None:
        name, message, numbers = answer
        self.give(Received(name, 0, message, None if numbers is None else Numbers(numbers)))

    def tick(self) -> None:
        self.now += 20.0
        self.give(Tick())

    @property
    def values(self) -> Array:
        return np.concatenate([server.updater.store.vector(POINT) for server in self.servers.values()])


@dataclass(frozen=True)
class Numbers:
    """A payload."""

    array: Array

    @property
    def n_bytes(self) -> int:
        return self.array.nbytes


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=repr)
@given(data=st.data())
@settings(max_examples=examples(25), deadline=None)
def test_a_replica_alone_is_the_plain_loop_to_the_bit(optimizer: Optimizer, data: st.DataObject) -> None:
    """Delays, drops, repeats, any order; every shard's values, and the parameters of every step."""
    push_every, fetch_every = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    shards, steps = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 12))
    driver = Downpour(optimizer=optimizer, push_every=push_every, fetch_every=fetch_every)
    bench = Bench(driver, shards, steps)
    for _ in range(400):
        if bench.finished:
            break
        action = data.draw(st.sampled_from(("compute", "compute", "deliver", "take", "drop", "tick")))
        if action == "compute" and bench.step is not None:
            bench.compute()
        elif action in ("deliver", "drop") and bench.letters:
            place = data.draw(st.integers(0, len(bench.letters) - 1))
            letter = bench.letters[place] if data.draw(st.booleans()) else bench.letters.pop(place)
            if action == "deliver":
                bench.deliver(letter)
        elif action == "take" and bench.answers:
            bench.take(bench.answers.pop(data.draw(st.integers(0, len(bench.answers) - 1))))
        elif action == "tick":
            bench.tick()
    while not bench.finished:  # the network is fair again
        if bench.step is not None:
            bench.compute()
        for letter in [bench.letters.pop(0) for _ in range(len(bench.letters))]:
            bench.deliver(letter)
        for answer in [bench.answers.pop(0) for _ in range(len(bench.answers))]:
            bench.take(answer)
        bench.tick()
    values, seen = plain_loop(bench.start, optimizer, steps=steps, push_every=push_every)
    for step, (found, expected) in enumerate(zip(bench.seen, seen, strict=True)):
        assert found.tobytes() == expected.tobytes(), step
    assert bench.values.tobytes() == values.tobytes()
    assert bench.links.staleness == 0


@pytest.mark.parametrize(
    ("optimizer", "machines", "shards"),
    [
        pytest.param(SGD(0.1), 1, 1, marks=pytest.mark.slow),
        pytest.param(SGD(InverseTime(0.2, 10)), 2, 2, marks=pytest.mark.slow),
        (Adagrad(0.1), 1, 2),
        pytest.param(Adam(0.01), 2, 1, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_in_processes_one_replica_has_the_bits_of_a_session_that_trains(
    optimizer: Optimizer, machines: int, shards: int
) -> None:
    """A session updates its parameters step after step, and knows no shard."""
    plan = partition(toy.network(), Cluster.local(machines=machines), batch=16, strategy="balanced")
    driver = Downpour(shards=shards, optimizer=optimizer)
    first = initialise(plan.graph.parameters.values(), 0)
    run = train(plan, toy.data(), driver=driver, epochs=3, show="nothing")
    data = toy.data()
    sampler = Sampler(examples=256, batch=16, seed=0)
    with Session(plan, first, train=True, optimizer=optimizer, hosts="threads") as session:
        for step in range(48):
            chosen = sampler.indices(step)
            found = session.step(
                {name: array[chosen] for name, array in data.items()}, collect=("parameters",)
            )
    assert all(moment.staleness == 0 for moment in run.history)
    for name, expected in found.vectors["parameters"].items():
        assert run.parameters[name].tobytes() == expected.tobytes(), name


@pytest.mark.slow
@pytest.mark.parametrize(
    ("push_every", "overlap"),
    [
        pytest.param(3, 1, id="sums"),
        pytest.param(1, 2, id="overlapped"),
        pytest.param(2, 2, id="sums of overlapped"),
    ],
)
def test_in_processes_the_bits_of_one_replica_do_not_depend_on_time(push_every: int, overlap: int) -> None:
    """A push holds several gradients, so that the shard's update and the part's own ones differ."""
    cuts = {"hidden": Whole(0), "scores": Whole(1), "softmax_cross_entropy": Whole(1)}
    plan = partition(toy.network(), Cluster.local(2), batch=16, cuts=cuts)
    driver = Downpour(shards=2, optimizer=Adagrad(0.1), push_every=push_every, overlap=overlap)
    runs = [train(plan, toy.data(), driver=driver, epochs=4, show="nothing").parameters for _ in range(2)]
    for name, expected in runs[0].items():
        assert runs[1][name].tobytes() == expected.tobytes(), name
