"""Large products in several processes while every core is busy: the plan says what computes them."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any

import numpy as np
import pytest

from partita.engine import LBFGS, SGD, Downpour, Run, Sandblaster, Session, train
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, Plan, Products, partition
from partita.partitioner.cluster.processor import processor
from partita.partitioner.cluster.products import LARGE, RULES, Rule, products_for
from tests.faults.helpers import Witness, hosts_of

BATCH = 32
STEPS = 8
"""The driver of the run, Downpour."""
INPUTS, HIDDEN, CLASSES = 300, 400, 8
BUSY = "while True: pass"


def network() -> Network:
    net = Network("large")
    below = Dense(HIDDEN, activation="tanh", name="below")(net.input("x", shape=INPUTS))
    above = Dense(HIDDEN, activation="tanh", name="above")(below)
    net.loss = SoftmaxCrossEntropy()(Dense(CLASSES, name="scores")(above), net.target("y"))
    return net


def data(examples: int) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    x = draw.normal(size=(examples, INPUTS)).astype(np.float32)
    return {"x": x, "y": (x @ draw.normal(size=(INPUTS, CLASSES))).argmax(axis=1)}


def plan_of(machines: int = 2, *, rule: Rule, threads: int = 1) -> Plan:
    """Cut so that every part has products that are large enough for a choice."""
    plan = partition(network(), Cluster.local(machines, threads=threads), batch=BATCH, strategy="balanced")
    assert 2.0 * HIDDEN / machines * INPUTS * BATCH >= LARGE
    return plan.multiplying_by(Products(rule))


@contextmanager
def load() -> Iterator[None]:
    """A process on every core that only computes."""
    with ExitStack() as stack:
        for _ in range(os.cpu_count() or 1):
            process = stack.enter_context(subprocess.Popen([sys.executable, "-c", BUSY]))
            stack.callback(process.kill)
        yield


def same_bits(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    assert a.keys() == b.keys()
    return all(np.array_equal(a[name].view("u4"), values.view("u4")) for name, values in b.items())


@pytest.mark.parametrize(
    ("rule", "threads"),
    [
        pytest.param("torch", 2, marks=pytest.mark.slow),
        pytest.param("torch", 1, marks=pytest.mark.slow),
        pytest.param("tiles", 1, marks=pytest.mark.slow),
        pytest.param("tiles", 2, marks=pytest.mark.slow),
    ],
)
def test_steps_have_the_same_bits_in_any_process_busy_or_not(rule: Rule, threads: int) -> None:
    plan, examples = plan_of(rule=rule, threads=threads), data(BATCH)

    def stepped(hosts: str) -> dict[str, Any]:
        with Session(plan, 0, train=True, optimizer=SGD(0.1), hosts=hosts) as session:  # type: ignore[arg-type]
            for _ in range(3):
                session.step(examples)
            return session.step(examples, collect=("parameters",)).vectors["parameters"]

    quiet = stepped("threads")
    with load():
        assert same_bits(stepped("processes"), quiet)


def downpour(plan: Plan) -> Run:
    """One replica fetches before its first step and pushes after its last: nothing is left to chance."""
    driver = Downpour(replicas=1, shards=2, optimizer=SGD(0.1), fetch_every=STEPS, push_every=STEPS)
    return train(plan, data(STEPS // 2 * BATCH), driver=driver, epochs=2, show="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_downpour_with_one_replica_takes_the_same_steps_busy_or_not(rule: Rule) -> None:
    quiet = downpour(plan_of(rule=rule))
    with load():
        assert same_bits(downpour(plan_of(rule=rule)).parameters, quiet.parameters)


def sandblaster(plan: Plan, *, replicas: int) -> Run:
    driver = Sandblaster(LBFGS(max_iterations=6, ftol=0, gtol=0), replicas=replicas, shards=2, push_every=1)
    return train(plan, data(8 * BATCH), driver=driver, show="nothing")


@pytest.mark.slow
@pytest.mark.parametrize("rule", RULES)
def test_sandblaster_has_the_same_bits_with_any_number_of_replicas_busy_or_not(
    rule: Rule, witness: Witness
) -> None:
    plan = plan_of(rule=rule)
    expected = sandblaster(plan, replicas=1)
    with load():
        assert same_bits(sandblaster(plan, replicas=2).parameters, expected.parameters)
        for iteration, name in ((1, "part 1.0"), (2, "shard 1"), (4, "part 3.1"), (5, "part 0.0")):
            witness.when_done(iteration, lambda name=name: hosts_of(os.getpid())[name].kill())  # type: ignore[misc]
        assert same_bits(sandblaster(plan, replicas=4).parameters, expected.parameters)


def test_the_rule_of_this_machine_is_one_of_those_tested() -> None:
    assert products_for(processor()).rule in RULES
