"""Federated averaging against the algorithm in NumPy; bits, bytes, resuming, and mistakes in settings."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest

from partita.engine import SGD, Adagrad, FedAvg, Run, train
from partita.engine.parameters.compression import OneBit, PowerSGD, TopK
from partita.engine.protocol.names import part_name
from partita.engine.runtime.buffers import layout_of
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy
from tests.properties.dense_compressor import DenseCompressor

BATCH, EXAMPLES, SEED = 8, 90, 3
PLAIN = FedAvg(rounds=3, clients=6, fraction=0.7, local_epochs=2, labels=2, spread=0.7, optimizer=SGD(0.2))
KINDS = {
    "plain": PLAIN,
    "all clients, equal weights": replace(PLAIN, fraction=1.0, weighted=False, local_epochs=1, labels=0),
    "FedSGD": replace(PLAIN, whole_batch=True, local_epochs=1),
    "proximal, momentum, dropout": replace(PLAIN, proximal=0.5, server_momentum=0.6, dropout=0.4),
    "top-k, momentum": replace(PLAIN, compress=TopK(0.2, warm_up=2, feedback=False), server_momentum=0.6),
    "1 bit": replace(PLAIN, compress=OneBit(feedback=False)),
}
Array = npt.NDArray[np.float64]


def plan_of(machines: int = 1) -> Plan:
    net = Network("softmax")
    scores = Dense(3, name="scores")(net.input("picture", shape=(8,)))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    cluster = Cluster.local(machines=machines)
    return partition(net, cluster, batch=BATCH, precision="float64", strategy="balanced")


def trained(driver: FedAvg, machines: int = 1, **given: Any) -> Run:
    return train(plan_of(machines), toy.data(EXAMPLES), driver=driver, seed=SEED, show="nothing", **given)


def reference(driver: FedAvg, start: dict[str, Array]) -> dict[str, Array]:
    """McMahan and others, algorithm 1, in one loop, with the proximal term and the server's momentum."""
    data = toy.data(EXAMPLES)
    pictures, digits = data["picture"].astype(np.float64), data["digit"]
    division = driver.division.divided(EXAMPLES, SEED, digits)
    names, rate = sorted(start), driver.optimizer.learning_rate
    w, velocity = dict(start), {name: np.zeros_like(start[name]) for name in start}
    for number in range(driver.rounds):
        clients = driver.in_round(number, SEED)
        if not clients:
            continue
        found = []
        for client in clients:
            own = dict(w)
            n = len(division.of(client))
            for visit in range(driver.local_epochs):
                size = n if driver.whole_batch else BATCH
                for first in range(0, n, size):
                    chosen = division.at(number, client, visit, first, min(first + size, n))
                    gradient = gradient_of(own, pictures[chosen], digits[chosen])
                    for name in names:
                        pull = driver.proximal * (own[name] - w[name])
                        own[name] = own[name] - rate * (gradient[name] + pull)
            own = {name: w[name] + sent(driver, own[name] - w[name], number) for name in names}
            found.append((n if driver.weighted else 1.0, own))
        total = sum(weight for weight, _ in found)
        for name in names:
            mean = sum(weight / total * own[name] for weight, own in found)
            velocity[name] = driver.server_momentum * velocity[name] + mean - w[name]
            w[name] = w[name] + velocity[name]
    return w


def sent(driver: FedAvg, change: Array, number: int) -> Array:
    """Returns what a client's message means: that of one that keeps nothing."""
    if driver.compress is None:
        return change
    one = DenseCompressor(driver.compress, [slice(0, change.size)], change.size)
    return one.sent(change.ravel(), number).reshape(change.shape)


def gradient_of(parameters: dict[str, Array], pictures: Array, digits: Any) -> dict[str, Array]:
    weights, biases = parameters["scores.weight"], parameters["scores.bias"]
    scores = pictures @ weights.T + biases
    shares = np.exp(scores - scores.max(axis=1, keepdims=True))
    shares /= shares.sum(axis=1, keepdims=True)
    shares[np.arange(len(digits)), digits] -= 1
    shares /= len(digits)
    return {"scores.weight": shares.T @ pictures, "scores.bias": shares.sum(axis=0)}


@pytest.fixture
def start() -> dict[str, Array]:
    draw = np.random.default_rng(1)
    return {"scores.weight": draw.normal(size=(3, 8)), "scores.bias": draw.normal(size=3)}


@pytest.mark.parametrize("kind", KINDS, ids=str)
def test_it_is_the_algorithm_with_the_same_bits_by_any_number_of_replicas(
    kind: str, start: dict[str, Array], on_threads: object
) -> None:
    wanted = reference(KINDS[kind], start)
    runs = [trained(replace(KINDS[kind], replicas=replicas), initial=start) for replicas in (1, 2, 3)]
    for name, numbers in wanted.items():
        np.testing.assert_allclose(runs[0].parameters[name], numbers, rtol=1e-10, atol=1e-12, err_msg=name)
        for run in runs[1:]:
            np.testing.assert_array_equal(run.parameters[name], runs[0].parameters[name], err_msg=name)


def test_a_replica_of_two_machines_does_the_same(start: dict[str, Array], on_threads: object) -> None:
    driver = replace(KINDS["proximal, momentum, dropout"], replicas=2)
    run, wanted = trained(driver, machines=2, initial=start), reference(driver, start)
    for name, numbers in wanted.items():
        np.testing.assert_allclose(run.parameters[name], numbers, rtol=1e-10, atol=1e-12, err_msg=name)


def test_bytes_are_those_of_the_clients_and_no_more(on_threads: list[WatchedThreads]) -> None:
    """Each client's parameters go to every other replica once: (R - 1) S bytes for each."""
    driver = replace(KINDS["proximal, momentum, dropout"], replicas=3)
    trained(driver)
    counters = [on_threads[0].boxes[part_name(replica, 0)].counters for replica in range(3)]
    counts = [len(driver.in_round(number, SEED)) for number in range(driver.rounds)]
    assert min(counts) < driver.clients * driver.fraction  # somebody dropped out
    size = 8 * layout_of(plan_of(), shards=1).size
    assert sum(one.sent_of("FinalChunk").payload_bytes for one in counters) == 2 * size * sum(counts)
    assert sum(one.sent_of("PartialChunk").payload_bytes for one in counters) == 0


def test_messages_of_clients_have_the_bytes_of_the_formula(on_threads: list[WatchedThreads]) -> None:
    """Each client's message goes to every other replica once."""
    driver = replace(PLAIN, compress=TopK(0.1, feedback=False), replicas=3)
    trained(driver)
    counters = [on_threads[0].boxes[part_name(replica, 0)].counters for replica in range(3)]
    clients = sum(len(driver.in_round(number, SEED)) for number in range(driver.rounds))
    message = driver.compress.n_bytes([(3, 8), (3,)], 8)  # type: ignore[union-attr]
    assert message == (3 + 1) * 12
    sent = sum(one.sent_of("FinalChunk").payload_bytes for one in counters)
    assert sent == 2 * message * clients


def test_a_run_that_is_resumed_by_other_replicas_has_the_same_bits(
    tmp_path: Path, on_threads: object
) -> None:
    driver = replace(KINDS["proximal, momentum, dropout"], rounds=4)
    whole = trained(driver)
    trained(replace(driver, rounds=2, replicas=3), checkpoints=tmp_path)
    run = trained(replace(driver, replicas=2), checkpoints=tmp_path, resume=True)
    assert run.steps == (4, 4)
    for name, numbers in whole.parameters.items():
        np.testing.assert_array_equal(run.parameters[name], numbers, err_msg=name)


def test_rounds_in_which_all_drop_out_change_nothing(start: dict[str, Array], on_threads: object) -> None:
    driver = FedAvg(rounds=3, clients=2, fraction=0.5, dropout=0.999, optimizer=SGD(0.2), replicas=2)
    assert not any(driver.in_round(number, SEED) for number in range(3))
    run = trained(driver, initial=start)
    for name, numbers in start.items():
        np.testing.assert_array_equal(run.parameters[name], numbers, err_msg=name)


@pytest.mark.parametrize(
    ("given", "sentence"),
    [
        ({"optimizer": Adagrad(0.1)}, "give one without a state"),
        ({"compress": TopK(0.1)}, "keeps residual from one message to the next, and a client keeps nothing"),
        ({"compress": PowerSGD(1, feedback=False)}, "keeps warm_start"),
        ({"fraction": 0.0}, "above 0 and at most 1"),
        ({"fraction": 1.5}, "above 0 and at most 1"),
        ({"fraction": "a"}, "above 0 and at most 1"),
        ({"server_momentum": 1.0}, "server_momentum is 1"),
        ({"clients": 0}, "FedAvg's clients is 0"),
        ({"E": 5}, "local_epochs"),
    ],
)
def test_a_setting_that_makes_no_sense_is_one_sentence(given: dict[str, Any], sentence: str) -> None:
    with pytest.raises((ValueError, TypeError), match=sentence):
        FedAvg(**given)


def test_too_few_examples_and_epochs_are_one_sentence(on_threads: object) -> None:
    with pytest.raises(ValueError, match="it has 90 examples; use fewer clients"):
        trained(FedAvg(clients=50, labels=2))
    with pytest.raises(ValueError, match="it has rounds"):
        trained(FedAvg(), epochs=3)
