"""Elastic averaging: replicas and the centre against NumPy in float64, bytes, resuming, and mistakes."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import EASGD, LAMB, SGD, InverseTime, Momentum, Optimizer, Session, evaluate, train
from partita.engine.parameters import Updater, VectorStore, initialise
from partita.engine.parameters.compression import Compressor, Int8, OneBit, TopK
from partita.engine.parameters.optimizers.schedule import rate_at
from partita.engine.parameters.optimizers.sgd import AVERAGE
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.events import Span
from partita.engine.runtime.buffers import Vectors
from partita.engine.runtime.elastic_updates import ElasticUpdates
from partita.engine.runtime.feed import Sampler
from partita.engine.testing import play
from partita.partitioner import Cluster, Plan, partition
from tests.draws import examples
from tests.drivers.conftest import Partita, WatchedThreads
from tests.faults import toy
from tests.properties.dense_compressor import DenseCompressor

N, BATCH, EPOCHS = 80, 16, 3
RATE = InverseTime(0.05, steps=7)
STEPS = EPOCHS * -(-N // BATCH)
Arrays = dict[str, np.ndarray[Any, Any]]


def plan_of(machines: int) -> Plan:
    cluster = Cluster.local(machines=machines)
    return partition(toy.network(), cluster, batch=BATCH, precision="float64", strategy="balanced")


def elastic(
    start: Arrays,
    optimizer: Optimizer,
    *,
    every: int,
    alpha: float,
    steps: range,
    compress: Compressor | None = None,
) -> Arrays:
    """Returns the centre that one replica leads from a start, by the formula."""
    senders = {
        name: DenseCompressor(compress or TopK(1.0, feedback=False), [slice(0, array.size)], array.size)
        for name, array in start.items()
    }
    x = {name: array.copy() for name, array in start.items()}
    centre = {name: array.copy() for name, array in start.items()}
    state = {name: np.zeros_like(array) for name, array in start.items()}
    data, sampler = toy.data(N), Sampler(examples=N, batch=BATCH, seed=0)
    with Session(plan_of(1), x, train=True, hosts="inline") as session:
        for step in steps:
            chosen = sampler.indices(step)
            batch = {name: array[chosen] for name, array in data.items()}
            session.load(x)
            gradients = session.step(batch, collect=("gradient",)).vectors["gradient"]
            for name, g in gradients.items():
                if isinstance(optimizer, Momentum):
                    state[name] = optimizer.momentum * state[name] + g
                    g = g + optimizer.momentum * state[name]  # Nesterov's
                x[name] = x[name] - rate_at(RATE, step) * g
            if (step + 1 - steps.start) % every == 0 or step == steps.stop - 1:
                moved = {name: alpha * (x[name] - centre[name]) for name in x}
                moved = {
                    name: senders[name].sent(one.ravel(), step).reshape(one.shape)
                    for name, one in moved.items()
                }
                x = {name: x[name] - moved[name] for name in x}
                centre = {name: centre[name] + moved[name] for name in x}
    return centre


@pytest.mark.parametrize(
    ("optimizer", "machines", "every"),
    [
        pytest.param(SGD(RATE), 1, 1, marks=pytest.mark.slow),
        (Momentum(RATE, nesterov=True), 2, 4),
        pytest.param(SGD(RATE), 2, 40, marks=pytest.mark.slow),
    ],
)
def test_one_replica_and_the_centre_follow_the_formula(
    on_threads: list[WatchedThreads], optimizer: Optimizer, machines: int, every: int
) -> None:
    driver = EASGD(shards=2, optimizer=optimizer, every=every, moving_rate=0.3)
    plan = plan_of(machines)
    start = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    run = train(plan, toy.data(N), driver=driver, epochs=EPOCHS, show="nothing")
    expected = elastic(start, optimizer, every=every, alpha=0.3, steps=range(STEPS))
    for name, array in expected.items():
        np.testing.assert_allclose(run.parameters[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    # 1 + ceil(K / tau) fetches, and ceil(K / tau) pushes, of all parameters.
    boxes, exchanges = on_threads[-1].boxes, -(-STEPS // every)
    size = 8 * sum(array.size for array in start.values())
    pushed = sum(boxes[f"part 0.{m}"].counters.sent_of("Push").payload_bytes for m in range(machines))
    fetched = sum(boxes[f"shard {k}"].counters.sent_of("Parameters").payload_bytes for k in range(2))
    assert (pushed, fetched) == (exchanges * size, (1 + exchanges) * size)


@pytest.mark.parametrize("compress", [TopK(0.05, feedback=False), Int8(feedback=False)], ids=repr)
def test_both_move_by_what_a_message_means(on_threads: list[WatchedThreads], compress: Compressor) -> None:
    """So what it lacks remains in their difference."""
    optimizer, plan = Momentum(RATE, nesterov=True), plan_of(1)
    driver = EASGD(optimizer=optimizer, every=4, moving_rate=0.3, compress=compress)
    start = initialise(plan.graph.parameters.values(), 0, dtype="float64")
    run = train(plan, toy.data(N), driver=driver, epochs=EPOCHS, show="nothing")
    expected = elastic(start, optimizer, every=4, alpha=0.3, steps=range(STEPS), compress=compress)
    for name, array in expected.items():
        np.testing.assert_allclose(run.parameters[name], array, rtol=1e-9, atol=1e-12, err_msg=name)
    items = compress.items([array.shape for array in start.values()], 8)
    pushes: Any = on_threads[-1].boxes["part 0.0"].counters.sent_of("Push")
    assert (pushes.messages, pushes.payload_bytes) == (-(-STEPS // 4), -(-STEPS // 4) * 8 * items)


PLAN = plan_of(1)


def test_a_run_that_is_resumed_begins_with_the_centre(
    on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    """The optimizer's state is the replica's, and in no checkpoint."""
    optimizer = Momentum(RATE, nesterov=True)
    driver, plan = EASGD(optimizer=optimizer, every=4, moving_rate=0.3), plan_of(1)
    first = train(plan, toy.data(N), driver=driver, epochs=1, checkpoints=tmp_path, show="nothing")
    last = train(
        plan, toy.data(N), driver=driver, epochs=2, checkpoints=tmp_path, resume=True, show="nothing"
    )
    assert (first.steps, last.steps) == ((5,), (10,))
    expected = elastic(dict(first.parameters), optimizer, every=4, alpha=0.3, steps=range(5, 10))
    for name, array in expected.items():
        np.testing.assert_allclose(last.parameters[name], array, rtol=1e-9, atol=1e-12, err_msg=name)


def test_replicas_that_move_towards_one_centre_learn(on_threads: list[WatchedThreads]) -> None:
    """Validations look at the centre, and change no replica; without attraction nothing is learnt."""
    data, held_out = toy.data(256), toy.data(40)
    found = {}
    for rate in (0.45, 1e-9):
        driver = EASGD(replicas=2, optimizer=SGD(0.3), every=4, moving_rate=rate)
        run = train(plan_of(1), data, driver=driver, epochs=12, validation=held_out, show="nothing")
        found[rate] = evaluate(run, data, show="nothing").accuracy
        assert sum(run.steps) == 192 and min(run.steps) > 0
        assert len(run.validations) == 12
        assert run.validations[-1].metrics["val_loss"] == evaluate(run, held_out, show="nothing").loss
    assert found[0.45] > 0.9 > 0.6 > found[1e-9]


@pytest.mark.parametrize(
    ("settings", "text"),
    [
        ({"moving_rate": 0.0}, "moving_rate is 0.0; give a number above 0 and at most 1"),
        ({"moving_rate": 1.5}, "moving_rate is 1.5; give a number above 0 and at most 1"),
        ({"every": 0}, "every"),
        ({"optimizer": 0.1}, "give an optimizer, for example"),
        ({"optimizer": LAMB(0.1)}, "needs norms of the parameters"),
        ({"tau": 3}, "every"),
        ({"compress": OneBit()}, "count twice what remains in the difference"),
    ],
)
def test_mistakes_are_said(settings: dict[str, Any], text: str) -> None:
    with pytest.raises((ValueError, TypeError), match=text):
        EASGD(**settings)


def test_the_simulator_plays_it_and_the_command_line_has_its_options(
    partita: Partita, on_threads: list[WatchedThreads]
) -> None:
    for seed in range(3):
        driver = EASGD(replicas=1 + seed % 3, shards=1 + seed % 2, every=1 + seed % 4)
        assert play(driver, seed).violation is None, (driver, seed)
    options = ("--driver", "easgd", "--replicas", "2", "--every", "3", "--moving-rate", "0.4")
    file = str(Path(toy.__file__))
    ended = partita("train", file, "--batch", "16", "--epochs", "1", "--optimizer", "sgd", *options)
    assert ended.code == 0 and "trained 16 steps in " in ended.out, ended.err


class Part:
    """A part's arrays, and NumPy's beside them; the test brings the messages."""

    def __init__(self, plan: Plan, alpha: float) -> None:
        self.vectors = Vectors(plan, 0, gradient=False)
        self.updates = ElasticUpdates(SGD(0.1), self.vectors, moves_by=alpha)
        self.whole = slice(0, self.vectors.parameters.size)
        self.gradient = np.zeros_like(self.vectors.parameters)
        self.apply = self.updates.bind(self.whole, self.gradient)
        self.x: np.ndarray[Any, Any] | None = None
        self.fetched: np.ndarray[Any, Any] | None = None
        self.in_flight: np.ndarray[Any, Any] | None = None

    def install(self, values: np.ndarray[Any, Any]) -> None:
        self.updates.keep(self.whole)
        self.vectors.arriving(self.whole)[:] = values
        self.vectors.changed(self.whole)
        self.updates.install(self.whole, ["in_flight"] * (self.in_flight is not None))
        self.fetched = values if self.in_flight is None else values - self.in_flight
        self.x = self.fetched if self.x is None else self.x

    def step(self, gradient: np.ndarray[Any, Any]) -> None:
        self.updates.advance()
        self.gradient[:] = gradient
        self.apply(1.0)
        assert self.x is not None
        self.x, self.fetched = self.x - 0.1 * gradient, None
        np.testing.assert_allclose(self.vectors.parameters, self.x, rtol=1e-12, atol=1e-12)


@given(data=st.data())
@settings(max_examples=examples(8), deadline=None)
def test_what_replicas_give_up_the_centre_gains_in_any_order(data: st.DataObject) -> None:
    """Fetches, steps and pushes of three parts in any order: each part's parameters, and the centre's."""
    alpha, random = data.draw(st.sampled_from([0.1, 0.3, 1.0])), np.random.default_rng(3)
    parts = [Part(PLAN, alpha) for _ in range(3)]
    size = parts[0].whole.stop
    centre = random.normal(size=size)
    store = VectorStore(centre.copy())
    shard, pushes, span = Updater(AVERAGE, store), 0, Span(POINT, 0, size)
    for part in parts:
        part.install(centre)
    for _ in range(data.draw(st.integers(5, 30))):
        part = data.draw(st.sampled_from(parts))
        action = data.draw(st.sampled_from(["fetch", "step", "step", "push", "arrives"]))
        if action == "fetch":
            part.install(store.read(span).copy())
        elif action == "step":
            part.step(random.normal(size=size))
        elif action == "push" and part.in_flight is None:
            part.updates.swap_buffers(part.whole)
            known = part.fetched is not None and part.x is not None
            part.in_flight = alpha * (part.fetched - part.x) if known else np.zeros(size)
            assert part.x is not None
            part.x = part.x + part.in_flight
            np.testing.assert_allclose(part.updates.in_flight, part.in_flight, rtol=1e-9, atol=1e-12)
        elif action == "arrives" and part.in_flight is not None:
            shard.apply(span, [part.updates.in_flight.copy()], pushes)
            centre, part.in_flight, pushes = centre - part.in_flight, None, pushes + 1
            np.testing.assert_allclose(store.read(span), centre, rtol=1e-9, atol=1e-12)
    for part in parts:
        part.step(np.zeros(size))
