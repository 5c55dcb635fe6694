"""A network whose parameters say how often each example has counted. Also a file for the command line.

Each example has a feature of its own, and a node passes 1 back instead of the loss's error: so each weight is
what it was at the start, less the learning rate for each time that
its example has counted, whatever the parameters were and in whatever order.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from partita.engine.parameters import Checkpoints
from partita.engine.parameters.initial_values import initialise
from partita.layers import Dense, HalfSquaredError, Network, OneToOne, node

EXAMPLES: Final = 64
ROWS: Final = 6
WEIGHT: Final = "sums.weight"


@node(OneToOne())
def one(incoming):  # type: ignore[no-untyped-def]
    return incoming[0]


@one.downward
def one_errors(incoming, state, error):  # type: ignore[no-untyped-def]
    return (incoming * 0 + 1.0,)


def network() -> Network:
    net = Network("counting")
    sums = Dense(ROWS, name="sums")(net.input("features", shape=(EXAMPLES,)))
    net.loss = HalfSquaredError()(one(name="one")(sums), net.target("nothing"))
    return net


def data() -> dict[str, Any]:
    return {"features": np.eye(EXAMPLES, dtype=np.float32), "nothing": np.zeros((EXAMPLES, ROWS), np.float32)}


def counts(folder: Path, *, rate: float) -> np.ndarray:
    """How often the newest checkpoint holds each example, `[row, example]`, by weights of one sum each.

    `rate`: the learning rate.
    """
    parameters = network().graph().parameters
    shapes = {name: parameter.shape for name, parameter in parameters.items()}
    newest = Checkpoints(folder).latest(shapes)
    assert newest is not None
    start = initialise(parameters.values(), 0)[WEIGHT]
    return (start - newest.parameters()[WEIGHT].astype(np.float64)) / rate
