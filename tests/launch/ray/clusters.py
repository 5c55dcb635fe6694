"""A Ray cluster of several nodes on this machine, with the real package."""

from __future__ import annotations

import logging
import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import psutil

STORE_BYTES = 80 << 20
"""Of each node: about the least that Ray takes."""


@contextmanager
def nodes(count: int, *, cpus: int = 2, connects: bool = True) -> Iterator[tuple[Any, list[Any]]]:
    """Starts a head without cores and so many nodes; yields the cluster and these nodes.

    This process is connected to it, unless that is left to the test.
    """
    os.environ["RAY_USAGE_STATS_ENABLED"] = "0"
    os.environ["RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO"] = "0"
    import ray
    from ray.cluster_utils import Cluster

    store = {"object_store_memory": STORE_BYTES}
    cluster = Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False, **store}
    )
    try:
        started = [cluster.add_node(num_cpus=cpus, **store) for _ in range(count)]
        if connects:
            ray.init(address=cluster.address, logging_level=logging.ERROR, log_to_driver=False)
        yield cluster, started
    finally:
        below = psutil.Process().children(recursive=True)
        ray.shutdown()
        cluster.shutdown()
        psutil.wait_procs(below, timeout=10.0)


def groups() -> list[dict[str, Any]]:
    """The placement groups that exist."""
    from ray.util import placement_group_table

    return [one for one in placement_group_table().values() if one["state"] != "REMOVED"]


def node_of(started: list[Any], bundle: int) -> Any:
    """The node that has a bundle of the only placement group."""
    [group] = groups()
    return next(node for node in started if node.node_id == group["bundles_to_node_id"][bundle])


def actors() -> list[psutil.Process]:
    """The processes of workers, below this one."""
    found = psutil.Process().children(recursive=True)
    return [process for process in found if "BundleWorker" in " ".join(_command(process))]


def _command(process: psutil.Process) -> list[str]:
    try:
        return process.cmdline()
    except psutil.Error:
        return []
