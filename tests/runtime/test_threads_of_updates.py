"""Updates whose blocks several threads compute: the parameters of one thread."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import SGD, Session
from partita.layers import L2, Dense, Network, SoftmaxCrossEntropy
from partita.partitioner import Cluster, partition

CLASSES, INPUTS, BATCH = 640, 640, 64
"""A gradient of 52 MFLOP in two blocks: enough for two threads."""


def network(regularised: bool) -> Network:
    net = Network("wide")
    scores = Dense(CLASSES, regulariser=L2(0.1) if regularised else None, name="scores")
    net.loss = SoftmaxCrossEntropy()(scores(net.input("x", shape=INPUTS)), net.target("label"))
    return net


def losses(threads: int, *, regularised: bool) -> list[float]:
    """Of three steps: the second and the third show the updates before them."""
    draw = np.random.default_rng(5)
    data = {
        "x": draw.standard_normal((BATCH, INPUTS), dtype=np.float32),
        "label": draw.integers(0, CLASSES, BATCH),
    }
    plan = partition(network(regularised), Cluster.local(machines=1, threads=threads), batch=BATCH)
    with Session(plan, 3, train=True, optimizer=SGD(0.1), hosts="inline") as session:
        return [session.step(data).loss for _ in range(3)]


@pytest.mark.parametrize("regularised", [False, True])
def test_a_network_learns_as_on_one_thread(regularised: bool) -> None:
    one, two = (losses(threads, regularised=regularised) for threads in (1, 2))
    assert one[0] > one[1] > one[2]
    np.testing.assert_allclose(two, one, rtol=1e-5)
