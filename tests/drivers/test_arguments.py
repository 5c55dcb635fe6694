"""Arguments of `train`, `Downpour` and `Session`: each mistake gets one sentence before anything starts."""

from __future__ import annotations

import inspect
from typing import Any

import numpy as np
import pytest

from partita.engine import SGD, Downpour, Session, train
from partita.engine.run.session import Hosts
from partita.partitioner import Cluster, Plan, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy


@pytest.fixture(scope="module")
def plan() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=16, strategy="balanced")


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"epochs": 1.5}, "epochs is 1.5; write a whole number of at least 1"),
        ({"epochs": "2"}, "epochs is '2'; write a whole number"),
        ({"epochs": True}, "epochs is True; write a whole number"),
        ({"epochs": 2**53}, r"epochs is 9007199254740992; write a whole number below 2\*\*53"),
        ({"epochs": 2**53 - 1}, r"the number of steps is \d+; write a whole number below 2\*\*53"),
        ({"seed": -1}, "seed is -1; write a whole number of at least 0"),
        ({"seed": 0.0}, "seed is 0.0; write a whole number"),
        ({"plan": toy.network()}, "the plan is a Network; partition the network first"),
        ({"driver": Downpour}, "the driver is <class .*; give one with its settings, for example Downpour"),
        ({"driver": "downpour"}, "the driver is 'downpour'; give one"),
        ({"initial": 7}, "initial is a int; give a dictionary of parameters by name, or the path of a file"),
        ({"show": "line"}, "show is 'line'; give one of 'auto', 'live', 'lines', 'nothing'"),
        ({"checkpoint_every_s": "1"}, "checkpoint_every_s is '1'; give seconds above 0"),
        ({"checkpoint_every_s": float("nan")}, "checkpoint_every_s is nan; give seconds above 0"),
    ],
)
def test_mistakes_are_named(plan: Plan, change: dict[str, Any], sentence: str) -> None:
    arguments: dict[str, Any] = {"plan": plan, "data": toy.data(), "driver": Downpour(), "epochs": 1} | change
    with pytest.raises(ValueError, match=sentence):
        train(**arguments)


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"replicas": 0}, "Downpour's replicas is 0; write a whole number of at least 1"),
        ({"shards": 2.0}, "Downpour's shards is 2.0; write a whole number"),
        ({"fetch_every": "1"}, "Downpour's fetch_every is '1'; write a whole number"),
        ({"run_ahead": 1 << 64}, r"Downpour's run_ahead is 18446744073709551616; .* below 2\*\*53"),
        (
            {"optimizer": SGD},
            r"Downpour's optimizer is <class .*; give an optimizer, for example SGD\(0\.05\)",
        ),
        ({"optimizer": 0.1}, "Downpour's optimizer is 0.1; give an optimizer"),
        ({"overlap": 0}, "Downpour's overlap is 0; write a whole number of at least 1"),
        ({"elastic": 3}, r"Downpour's elastic is 3; give the least and the most replicas, for example"),
        ({"elastic": (3, 2)}, r"Downpour's elastic is \(3, 2\); give the least and the most"),
        ({"elastic": (0, 2)}, r"Downpour's elastic is \(0, 2\); give the least and the most"),
        (
            {"elastic": (1, 2), "replicas": 3},
            r"Downpour has 3 replicas, and elastic=\(1, 2\) has at most 2; leave replicas out",
        ),
    ],
)
def test_mistakes_in_a_driver_are_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Downpour(**change)


def test_an_elastic_run_has_the_most_replicas() -> None:
    driver = Downpour(elastic=(2, 4))
    assert (driver.replicas, driver.least) == (4, 2)
    assert Downpour(replicas=4).least is None


def test_a_wrong_name_of_an_argument_is_answered(plan: Plan) -> None:
    with pytest.raises(TypeError, match=r"^train has no argument 'lr'; write driver=Downpour\("):
        train(plan, toy.data(), lr=0.1)  # type: ignore[call-arg]
    with pytest.raises(TypeError, match=r"^train\(\) missing 1 required keyword-only argument: 'driver'"):
        train(plan, toy.data())  # type: ignore[call-arg]
    assert inspect.signature(train).parameters["seed"].default == 0
    assert "checkpoint_every_s: seconds from" in (train.__doc__ or "")


@pytest.mark.parametrize("hosts", ["inline", "threads"])
def test_an_optimizer_without_training_is_refused(hosts: Hosts) -> None:
    whole = partition(toy.network(), Cluster.local(1), batch=16, strategy="balanced")
    with pytest.raises(ValueError, match=r"an optimizer is given, but .*; give train=True, or leave"):
        Session(whole, 0, optimizer=SGD(0.1), hosts=hosts)


def test_numbers_of_numpy_are_numbers(on_threads: list[WatchedThreads], plan: Plan) -> None:
    driver = Downpour(replicas=np.int64(2), push_every=np.int32(1))  # type: ignore[arg-type]
    assert (type(driver.replicas), type(driver.push_every)) == (int, int)
    epochs, seed = np.int64(1), np.uint8(3)
    run = train(plan, toy.data(), driver=driver, epochs=epochs, seed=seed, show="nothing")  # type: ignore[arg-type]
    assert sum(run.steps) == 16


def test_what_no_message_can_carry_is_refused_before_anything_starts(
    on_threads: list[WatchedThreads], plan: Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("partita.engine.drivers.job.MAX_PAYLOAD", 4 * 40)
    with pytest.raises(ValueError, match=r"one message carries 40; use at least 4 shards"):
        train(plan, toy.data(), driver=Downpour(), epochs=1, show="nothing")
    assert not on_threads
    assert train(plan, toy.data(), driver=Downpour(shards=4), epochs=1, show="nothing").steps == (16,)
