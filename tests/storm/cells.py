"""What a storm goes over: drivers, durabilities and places. A new mode is one entry here."""

from __future__ import annotations

from typing import Any, Final, Literal, TypeAlias

import msgspec

from partita.engine import LBFGS, SGD, AllReduce, Downpour, Sandblaster
from partita.engine.drivers import Driver
from partita.partitioner import Cluster, partition
from partita.partitioner.plan import Plan
from tests.storm import networks

Place: TypeAlias = Literal["here", "pool"]
"""Hosts are processes of the run's own machine, or start at the workers of a pool."""


class Spec(msgspec.Struct, frozen=True):
    """One run, as its own process reads it.

    Args:
        driver, durability, place: the cell.
        machines, shards: of the run, with two replicas.
        length: steps, or iterations.
        seed: of the data.
        checkpoint_every_s: from one checkpoint to the next.
        pool, keys: address and keys of the pool.
    """

    driver: str
    durability: str
    place: Place
    machines: int
    shards: int
    length: int
    seed: int
    checkpoint_every_s: float = 0.7
    pool: str = ""
    keys: str = ""

    @property
    def counts(self) -> bool:
        """Whether the parameters tell which pushes were applied; else the bits of a calm run are compared."""
        return self.driver == "downpour"

    @property
    def cell(self) -> tuple[str, str, str]:
        """Names of driver, durability and place."""
        return self.driver, self.durability, self.place

    @property
    def result(self) -> str:
        """The file whose bits are those of a calm run."""
        return "evaluations" if self.driver == "evaluate" else "result.safetensors"

    @property
    def roles(self) -> tuple[str, ...]:
        """The roles of its processes that are struck."""
        found = ["coordinator", "part", "several", "two"]
        found += ["shard"] if self.driver not in ("all-reduce", "evaluate") else []
        found += ["pool"] if self.place == "pool" else []
        if self.durability == "replicated":
            return (*found, "backup")  # a shard and its backup would end with their template or worker
        return (*found, "template", *(["worker"] if self.place == "pool" else []))

    def loses(self) -> bool:
        """Whether a shard's death may cost acknowledged pushes."""
        return self.durability == "checkpoint"


class Result(msgspec.Struct, frozen=True):
    """What a run says of itself.

    Args:
        lost: acknowledged updates that failures have cost, in all lives.
        steps: of all replicas, or iterations.
    """

    lost: int
    steps: int


CELLS: Final[tuple[tuple[str, str], ...]] = (
    ("downpour", "checkpoint"),
    ("downpour", "log"),
    ("downpour", "replicated"),
    ("sandblaster", "checkpoint"),
    ("sandblaster", "log"),
    ("sandblaster", "replicated"),
    ("all-reduce", "replicas"),
    ("evaluate", "replicas"),
)
"""Drivers with their durabilities."""

LENGTHS: Final = {"downpour": 24_000, "sandblaster": 200, "all-reduce": 6_000, "evaluate": 6}
"""Steps, iterations or evaluations, about ten seconds without faults."""

EXAMPLES: Final = 1024
BATCH: Final = {"downpour": 2, "sandblaster": 8, "all-reduce": 8, "evaluate": 8}


def driver_of(spec: Spec) -> Driver:
    """Makes the driver of a run."""
    settings: dict[str, Any] = {"replicas": 2}
    if spec.durability not in ("checkpoint", "replicas"):
        settings["durability"] = spec.durability
    match spec.driver:
        case "downpour":
            return Downpour(shards=spec.shards, optimizer=SGD(1.0), **settings)
        case "sandblaster":
            method = LBFGS(max_iterations=spec.length, ftol=0.0, gtol=0.0)
            return Sandblaster(method, shards=spec.shards, l2=1e-3, inline="none", **settings)
        case "all-reduce":
            return AllReduce(optimizer=SGD(0.05), **settings)
    raise ValueError(f"no driver of the storm is called {spec.driver!r}; there are {sorted(LENGTHS)}")


def data_of(spec: Spec) -> dict[str, Any]:
    """Draws the data of a run."""
    if spec.counts:
        return networks.counting_data(spec.length * BATCH[spec.driver], spec.seed)
    return networks.digits_data(EXAMPLES, spec.seed)


def plan_of(spec: Spec) -> Plan:
    """Plans a replica."""
    net = networks.counting_network() if spec.counts else networks.digits_network()
    cluster = Cluster.local(machines=spec.machines)
    return partition(net, cluster, batch=BATCH[spec.driver], strategy="balanced")


def epochs_of(spec: Spec) -> int | None:
    """Returns the passes over the data; None for a batch method."""
    match spec.driver:
        case "downpour":
            return 1
        case "all-reduce":
            return spec.length * BATCH["all-reduce"] * 2 // EXAMPLES
    return None
