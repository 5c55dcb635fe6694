"""What is dropped does not depend on the cut, also of nodes that are dropped together."""

from __future__ import annotations

import numpy as np
import pytest

from partita.engine import Session
from partita.engine.parameters import initialise
from partita.layers import Conv2D, Dropout, HalfSquaredError, Network
from partita.partitioner import Cluster, RowSplit, Tiles, partition
from partita.partitioner.assign.cuts import Cut

HEIGHT, WIDTH, CHANNELS, BATCH = 4, 3, 2, 5


def network(noise_shape: tuple[int, ...] | None) -> Network:
    net = Network("dropped")
    picture = net.input("picture", shape=(HEIGHT, WIDTH, 1))
    filtered = Conv2D(CHANNELS, 1, name="filtered")(picture)
    dropped = Dropout(0.5, noise_shape=noise_shape, name="dropped")(filtered)
    net.loss = HalfSquaredError(name="loss")(dropped, net.target("wanted"))
    return net


def dropped(noise_shape: tuple[int, ...] | None, cut: Cut | None) -> np.ndarray:
    graph = network(noise_shape).graph()
    cuts = {} if cut is None else {"filtered": cut, "dropped": cut}
    machines = 1 if cut is None else 3
    plan = partition(graph, Cluster.local(machines), batch=BATCH, cuts=cuts, strategy="balanced")
    parameters = initialise(graph.parameters.values(), seed=0)
    batch = {
        "picture": np.ones((BATCH, HEIGHT, WIDTH, 1)),
        "wanted": np.zeros((BATCH, HEIGHT, WIDTH, CHANNELS)),
    }
    with Session(plan, parameters, train=True) as session:
        return session.step(batch, collect=("dropped",)).collected["dropped"]


@pytest.mark.parametrize("noise_shape", [None, (4, 3, 2), (1, 1, 2), (4, 1, 1), (1, 3, 1), (1, 1, 1)])
@pytest.mark.parametrize("cut", [RowSplit(3), Tiles(3, (1, 3))], ids=["rows", "tiles of one column"])
def test_the_mask_is_that_of_the_whole(noise_shape: tuple[int, ...] | None, cut: Cut) -> None:
    whole = dropped(noise_shape, None)
    assert 0 < (whole == 0).mean() < 1
    np.testing.assert_array_equal(dropped(noise_shape, cut), whole)
