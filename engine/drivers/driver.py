"""The base of the settings of drivers."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from partita.layers.arguments import Arguments


class Driver(Arguments):
    """Settings of a driver, for `train`."""

    replicas: int
    shards: int

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "optimiser": ("optimizer", "method"),
        "rule": ("optimizer", "method"),
        "workers": ("replicas",),
        "num_workers": ("replicas",),
        "num_replicas": ("replicas",),
        "num_shards": ("shards",),
        "servers": ("shards",),
        "parameter_servers": ("shards",),
        "n_fetch": ("fetch_every",),
        "n_push": ("push_every",),
        "staleness": ("run_ahead",),
        "epochs": "it is an argument of train(plan, data, driver=..., epochs=...)",
        "seed": "it is an argument of train(plan, data, driver=..., seed=...)",
        "checkpoints": "it is an argument of train(plan, data, driver=..., checkpoints=...)",
        "batch": "the batch is that of partition(net, cluster, batch=...)",
        "batch_size": "the batch is that of partition(net, cluster, batch=...)",
    }
    """Names of the settings in other libraries and in the paper."""
