"""A partitioned module whose parts are hosts of a pool."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch

from partita.engine import Pool, as_module
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.launch.pool.helpers import new_keys, pool_of


@pytest.mark.slow
def test_outputs_and_gradients_are_those_of_one_process(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    inputs = [grid.name for grid in toy.network().graph().inputs]
    x = [torch.as_tensor(toy.data()[name][:8]) for name in inputs]
    found = []
    with pool_of(keys, 2) as (address, *_):
        for machines, hosts in ((1, None), (2, Pool(address, keys=keys, workers=2))):
            plan = partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")
            with as_module(plan, hosts=hosts, seed=3) as parts:
                scores = parts(*x)
                scores.square().sum().backward()
                found.append([scores.detach(), *(one.grad for one in parts.parameters())])
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-4, atol=1e-5)
