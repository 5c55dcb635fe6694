"""Options of commands that plan a network, and the plan that they ask for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final, Literal, TypeAlias

import typer

from partita.engine.profile.signature import signature
from partita.engine.profile.store import Store
from partita.engine.run.phases import Phases
from partita.layers.network import Network
from partita.layers.text import counted
from partita.partitioner.assign.cut_text import parse_cut
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.partition import partition
from partita.partitioner.plan import Plan

File: TypeAlias = Annotated[
    Path, typer.Argument(help="Python file with network() and, for training, data().")
]
Machines: TypeAlias = Annotated[int, typer.Option(help="Machines of one replica.")]
Forget: TypeAlias = Annotated[
    bool, typer.Option("--forget", help="Delete all that calibrations have measured.")
]

BATCH: Final = 32
"""Examples in a minibatch, if nothing is said."""


@dataclass(frozen=True)
class Share:
    """A machine's share of a step.

    Args:
        threads: kernel threads of each machine.
        precision: precision of activations and gradients.
    """

    _meant: ClassVar = {"batch_size": ("batch",), "num_threads": ("threads",)}

    threads: int = 1
    precision: Literal["float32", "float64", "bfloat16", "float16"] = "float32"


@dataclass(frozen=True)
class Step(Share):
    """A step that is measured.

    Args:
        batch: examples in a minibatch.
    """

    batch: int = BATCH


@dataclass(frozen=True)
class Planning(Share):
    """Options of commands that cut a network.

    Args:
        batch: examples in a minibatch; if not given 32, or those of the inputs of a module of PyTorch.
        cluster: TOML file that describes the machines, in the place of --machines and --threads.
        strategy: decides for layers that are not cut by hand.
        cut: a cut by hand, LAYER=MACHINE[,MACHINE...], for example hidden=0,1, hidden=0:3,1:5,
            pool=replicate:0,1, pool=halo:2:0,1, hidden=inputs:0,1, hidden=summed:0,1 or
            conv=tiles:2x2:0,1,2,3; may be given several times.
        micro_batches: micro-batches into which a minibatch is divided; if not given, those of the automatic
            strategy, or else 1.
    """

    batch: int | None = None
    cluster: Path | None = None
    strategy: Literal["automatic", "balanced", "layers"] = "automatic"
    cut: list[str] = field(default_factory=list)
    micro_batches: int | None = None

    def arguments(self) -> dict[str, Any]:
        """Returns the arguments of `partition`, besides network and cluster.

        Raises:
            ValueError: a cut cannot be read.
        """
        return {
            "batch": BATCH if self.batch is None else self.batch,
            "cuts": dict(map(parse_cut, self.cut)),
            "strategy": self.strategy,
            "micro_batches": self.micro_batches,
            "precision": self.precision,
        }

    def plan(self, network: Network, machines: int) -> Plan:
        """Plans a network for the described cluster, or for processes of this machine.

        Raises:
            ValueError: a cut cannot be read, the network cannot be cut so, or the cluster has a mistake.
            OSError: the cluster file cannot be read.
        """
        if self.cluster is None:
            cluster = Cluster.local(machines, threads=self.threads)
        else:
            cluster = Cluster.read(self.cluster)
        with Phases() as on_phase:
            on_phase(f"planning {network.name} for {counted(len(cluster), 'machine')}")
            return partition(network, cluster, **self.arguments())


def open_store(*, forget: bool) -> Store | None:
    """Opens what calibrations have measured, and prints of which machine; or forgets it all (None)."""
    store = Store()
    if forget:
        print("forgotten" if store.forget() else "nothing was remembered")
        return None
    if (trouble := store.trouble()) is not None:
        print(trouble)
    print(signature())
    return store
