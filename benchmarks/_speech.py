"""The 42M speech network (DistBelief, section 5): 440 -> 4 x 2560 sigmoid -> softmax over 8192; random data.

Parameters and data follow from a seed alone, so every process makes the same ones by itself.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.initialise import initialise
from partita.layers import Dense, Network, SoftmaxCrossEntropy
from partita.layers.graph import Graph

Array = npt.NDArray[Any]

INPUTS, HIDDEN, LAYERS, STATES = 440, 2560, 4, 8192
BATCH, RATE = 128, 0.1


def speech() -> Graph:
    """The network; 41,777,152 parameters."""
    net = Network("speech")
    states = net.input("frames", shape=INPUTS)
    for number in range(1, LAYERS + 1):
        states = Dense(HIDDEN, activation="sigmoid", name=f"hidden{number}")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(STATES, name="scores")(states), net.target("state"))
    return net.graph()


def parameters(graph: Graph) -> dict[str, Array]:
    """The first values of each parameter."""
    return initialise(graph.parameters.values(), 0)


def batch() -> dict[str, Array]:
    """Frames `[example, input]` and labels `[example]`, random."""
    draw = np.random.default_rng(1)
    frames = draw.standard_normal((BATCH, INPUTS), dtype=np.float32)
    return {"frames": frames, "state": draw.integers(0, STATES, BATCH)}


def gemm_flops() -> float:
    """Of the products of a training step: three for each layer, but no errors of the first one's inputs."""
    edges = [INPUTS * HIDDEN, *[HIDDEN * HIDDEN] * (LAYERS - 1), HIDDEN * STATES]
    return 2.0 * BATCH * (3 * sum(edges) - edges[0])
