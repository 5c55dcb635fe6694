"""Checks of the layers that Boltzmann machines are made of."""

from __future__ import annotations

import numpy as np
import torch

from partita.engine import Run, predict
from partita.layers import Bernoulli, Bias, DenseTransposed, Network
from partita.partitioner import Cluster, partition
from tests.kernels.cases import case, play
from tests.truth.differences.rows import row


@row("input of `Bernoulli`")
def _() -> bool:
    net = Network("drawn")
    Bernoulli()(net.input("x", shape=2))
    given = np.tile([40.0, -40.0], (8, 1))
    found = predict(Run(partition(net, Cluster.local(), batch=8), {}), {"x": given}, show="nothing")
    np.testing.assert_array_equal(found, np.tile([1.0, 0.0], (8, 1)))
    theirs = torch.bernoulli(torch.tensor([1.0, 0.0]).repeat(8, 1))
    return bool((theirs.numpy() == found).all()) and bool(torch.bernoulli(torch.tensor(0.0)) == 0.5)


@row("weight of `DenseTransposed`")
def _() -> bool:
    given_case = case(DenseTransposed(4), (3,), batch=2)
    x, weight = (torch.from_numpy(one) for one in (given_case.inputs[0], given_case.parameters[0]))
    theirs = torch.nn.functional.linear(x.T, weight.T).T.numpy()
    return bool(np.allclose(play(given_case).state, theirs, rtol=1e-12, atol=1e-14))


@row("`Bias`, one for each node")
def _() -> bool:
    given_case = case(Bias(), (3,), batch=2)
    theirs = given_case.inputs[0] + given_case.parameters[0][:, None]
    return bool(np.allclose(play(given_case).state, theirs, rtol=1e-12, atol=1e-14))
