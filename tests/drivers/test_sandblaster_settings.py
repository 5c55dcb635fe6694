"""Settings of `Sandblaster`, and how it cuts the data: each mistake gets one sentence."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import LBFGS, Downpour, Method, NonlinearCG, Objective, Sandblaster, train
from partita.engine.protocol.commands import Portions, Steps
from partita.partitioner import Cluster, partition
from tests.faults import toy


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"method": LBFGS}, r"Sandblaster's method is <class .*; give a method, for example LBFGS\(\)"),
        ({"method": "lbfgs"}, "Sandblaster's method is 'lbfgs'; give a method"),
        ({"replicas": 0}, "Sandblaster's replicas is 0; write a whole number of at least 1"),
        ({"shards": 1.5}, "Sandblaster's shards is 1.5; write a whole number"),
        ({"portion": 0}, "Sandblaster's portion is 0; write a whole number of at least 1"),
        ({"push_every": "2"}, "Sandblaster's push_every is '2'; write a whole number"),
        ({"batch": -1}, "Sandblaster's batch is -1; write a whole number of at least 1"),
        ({"overlap": 0}, "Sandblaster's overlap is 0; give a number above 0 and at most 0.5"),
        ({"overlap": 0.75}, "Sandblaster's overlap is 0.75; give a number above 0 and at most 0.5"),
        ({"overlap": "0.5"}, "Sandblaster's overlap is '0.5'; give a number above 0 and at most 0.5"),
        ({"l2": -1}, "Sandblaster's l2 is -1; give 0 or a number above"),
        ({"l2": float("nan")}, "Sandblaster's l2 is nan; give 0 or a number above"),
        ({"backups": "yes"}, "Sandblaster's backups is 'yes'; write True or False"),
        ({"warm_start": True}, "Sandblaster's warm_start is True; give a Downpour, or leave it out"),
        ({"warm_epochs": 0}, "Sandblaster's warm_epochs is 0; write a whole number of at least 1"),
    ],
)
def test_mistakes_in_a_driver_are_named(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Sandblaster(**change)


def test_fewer_examples_than_a_minibatch_are_one_portion() -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=16, strategy="balanced")
    few = {name: array[:7] for name, array in toy.data().items()}
    driver = Sandblaster(method=LBFGS(max_iterations=3))
    assert driver.objective(plan_batch=16, examples=7).portions.size == 7
    run = train(plan, few, driver=driver, show="nothing")
    assert run.iterations == 3


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"batch": 257},
            "a batch of 257 examples is more than the data has, 256; use a smaller one, or leave",
        ),
        (
            {"portion": 300},
            "a portion of 300 examples is more than the data has, 256; use portions of at most 256",
        ),
        (
            {"portion": 64, "batch": 32},
            "a portion of 64 examples is more than a batch has, 32; use portions of",
        ),
        ({"batch": 100}, "a batch of 100 examples is no whole number of portions of 16; use 96 or 112, or"),
        (
            {"batch": 16},
            "batches of 1 portion cannot share 1 with the next one, because at least half of a batch",
        ),
        ({"batch": 48, "overlap": 0.5}, "batches of 3 portions cannot share 2 with the next one"),
    ],
)
def test_what_does_not_fit_the_data_is_named(settings: dict[str, Any], sentence: str) -> None:
    driver = Sandblaster(**settings)
    with pytest.raises(ValueError, match=sentence):
        driver.objective(plan_batch=16, examples=256)
    plan = partition(toy.network(), Cluster.local(machines=1), batch=16, strategy="balanced")
    with pytest.raises(ValueError, match=sentence):
        train(plan, toy.data(), driver=driver, show="nothing")


def test_epochs_are_downpours() -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=16, strategy="balanced")
    with pytest.raises(ValueError, match="epochs is 3, and Sandblaster has none; leave it out"):
        train(plan, toy.data(), driver=Sandblaster(), epochs=3)
    with pytest.raises(ValueError, match="epochs is None; write a whole number of at least 1"):
        train(plan, toy.data(), driver=Downpour())


def test_what_a_batch_is() -> None:
    portions = Portions(250, 16)
    whole = Sandblaster(l2=0.5).objective(plan_batch=16, examples=250)
    assert whole == Objective(portions, l2=0.5)
    assert Sandblaster(batch=250).objective(plan_batch=16, examples=250) == Objective(portions)
    sampled = Sandblaster(batch=96).objective(plan_batch=16, examples=250)
    assert sampled == Objective(portions, batch=6, overlap=2)
    other = Sandblaster(batch=96, portion=8, overlap=0.01).objective(plan_batch=16, examples=250)
    assert other == Objective(Portions(250, 8), batch=12, overlap=1)


@given(
    examples=st.integers(1, 10_000),
    portion=st.integers(1, 200),
    share=st.integers(1, 100),
    replicas=st.integers(1, 64),
)
def test_the_work_unit_follows_from_the_cut_alone(
    examples: int, portion: int, share: int, replicas: int
) -> None:
    """There are at least 16 work units, where there are as many portions."""
    driver = Sandblaster(portion=portion, batch=min(portion * share, examples), replicas=replicas)
    try:
        objective = driver.objective(plan_batch=1, examples=examples)
    except ValueError:
        return
    n = objective.batch or objective.portions.per_epoch
    unit_size = driver.unit_size(objective)
    assert 1 <= unit_size <= 4 and n / unit_size >= min(n, 16)
    assert unit_size == dataclasses.replace(driver, replicas=1, shards=3).unit_size(objective)
    assert dataclasses.replace(driver, push_every=7).unit_size(objective) == 7


@dataclasses.dataclass(frozen=True)
class Own(Method):
    rate: float = 0.5
    max_iterations: int = 7

    def steps(self, objective: Objective) -> Steps:
        raise NotImplementedError


class Plain(Method):
    def steps(self, objective: Objective) -> Steps:
        raise NotImplementedError


def test_a_method_is_known_without_its_limits() -> None:
    def text(method: Method) -> str:
        return Sandblaster(method).method_text

    assert text(LBFGS()) == text(LBFGS(gtol=1e-9, ftol=0, max_iterations=2))
    assert "history=5" in text(LBFGS(history=5))
    assert len({text(method) for method in (LBFGS(), LBFGS(history=5), LBFGS(c2=0.5), NonlinearCG())}) == 4
    assert (text(Own()), text(Plain())) == ("Own(rate=0.5)", "Plain")
