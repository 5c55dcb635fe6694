"""A small network and its data, for runs in which something goes wrong. Also a file for the command line."""

from __future__ import annotations

from typing import Any

import numpy as np

from partita.layers import Dense, Network, OneToOne, SoftmaxCrossEntropy, node, per_node


def network(*, hidden: int = 12) -> Network:
    net = Network("toy")
    picture = net.input("picture", shape=(8,))
    middle = Dense(hidden, activation="tanh", name="hidden")(picture)
    scores = Dense(3, name="scores")(middle)
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return net


def data(examples: int = 256) -> dict[str, Any]:
    draw = np.random.default_rng(0)
    pictures = draw.normal(size=(examples, 8)).astype(np.float32)
    return {"picture": pictures, "digit": (pictures @ draw.normal(size=(8, 3))).argmax(axis=1)}


@node(OneToOne(), shift=per_node("zeros"))
def fussy(incoming, shift):  # type: ignore[no-untyped-def]
    total = incoming[0] + shift
    if total > 2.0:
        raise ValueError("this node bears no more")
    return total


@fussy.downward
def fussy_errors(incoming, shift, state, error):  # type: ignore[no-untyped-def]
    return incoming * 0 + error, error


@node(OneToOne())
def unknown_name(incoming):  # type: ignore[no-untyped-def]
    return incoming[0] + no_such_name  # type: ignore[name-defined]  # noqa: F821


def with_node(layer: Any) -> Network:
    """The network with a node of the user's between the picture and the scores."""
    net = Network("toy-with-a-node")
    scores = Dense(3, name="scores")(layer(name="odd")(net.input("picture", shape=(8,))))
    net.loss = SoftmaxCrossEntropy()(scores, net.target("digit"))
    return net
