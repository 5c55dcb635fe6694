"""What a storm trains: a network whose parameters tell which gradients were applied, and one for bits.

In the counting network every gradient is the sum of its examples' features, whatever the parameters are: its
node passes 1 back instead of the loss's error. The features are integers, so sums of them are exact in
float32, in any order, and a row of the weights is the sum over all examples that were applied.
"""

from __future__ import annotations

from typing import Any, Final

import numpy as np

from partita.engine.parameters.initial_values import initialise
from partita.layers import Dense, HalfSquaredError, Network, OneToOne, SoftmaxCrossEntropy, node
from partita.partitioner.plan import Plan

FEATURES: Final = 64
ROWS: Final = 8
LARGEST: Final = 256
"""Of the features that are drawn: random signs keep sums of a hundred thousand far below 2^24."""


@node(OneToOne())
def counted(incoming):  # type: ignore[no-untyped-def]
    return incoming[0]


@counted.downward
def counted_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    return (incoming * 0 + 1.0,)


def counting_network() -> Network:
    net = Network("counting")
    sums = Dense(ROWS, name="sums")(net.input("features", shape=(FEATURES,)))
    net.loss = HalfSquaredError()(counted(name="one")(sums), net.target("nothing"))
    return net


def counting_data(examples: int, seed: int) -> dict[str, Any]:
    """Features that identify a set of examples by their sum; the first one counts examples."""
    features = np.random.default_rng(seed).integers(-LARGEST, LARGEST + 1, size=(examples, FEATURES))
    features[:, 0] = 1
    return {"features": features.astype(np.float32), "nothing": np.zeros((examples, ROWS), np.float32)}


def counting_start() -> dict[str, Any]:
    return {"sums.weight": np.zeros((ROWS, FEATURES), np.float32), "sums.bias": np.zeros(ROWS, np.float32)}


def digits_network() -> Network:
    net = Network("storm-digits")
    hidden = Dense(24, activation="tanh", name="hidden")(net.input("picture", shape=(16,)))
    net.loss = SoftmaxCrossEntropy()(Dense(4, name="scores")(hidden), net.target("digit"))
    return net


def digits_start(plan: Plan, seed: int) -> dict[str, Any]:
    return initialise(plan.graph.parameters.values(), seed, dtype="float32")


def digits_data(examples: int, seed: int) -> dict[str, Any]:
    draw = np.random.default_rng(seed)
    pictures = draw.normal(size=(examples, 16)).astype(np.float32)
    return {
        "picture": pictures,
        "digit": draw.integers(0, 4, size=examples),
    }  # chance: no method is done soon
