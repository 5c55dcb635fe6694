"""The plans whose steps are predicted and measured: five networks on one and two parts, in several places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from benchmarks._networks import first, perceptron, speech, three_stages
from benchmarks._places import HERE, PLACES, Place
from partita.layers import (
    Conv2D,
    Dense,
    MaxPool2D,
    Network,
    SoftmaxCrossEntropy,
)
from partita.layers.text import counted
from partita.partitioner import Cluster, Plan, RowSplit, Whole, partition
from partita.partitioner.assign.cuts import Cuts


def stages() -> Network:
    """The three stages of the image network, small: 36 x 36 pictures, patches of 5 x 5."""
    return three_stages("stages", 36, patch=5, last_pool=4, classes=2000)


def pictures() -> Network:
    """A small convolutional network."""
    net = Network("pictures")
    states = net.input("picture", shape=(32, 32, 3))
    for number, filters in enumerate((32, 64)):
        states = Conv2D(filters, 5, padding="same", activation="relu", name=f"conv{number}")(states)
        states = MaxPool2D(2, stride=2, name=f"pool{number}")(states)
    states = Dense(1024, activation="relu", name="wide")(states)
    net.loss = SoftmaxCrossEntropy()(Dense(100, name="scores")(states), net.target("label"))
    return net


@dataclass(frozen=True)
class Case:
    """A plan that is predicted and played.

    Args:
        network: declares what is cut.
        batch: examples in a minibatch.
        machines: number of machines.
        cut: name of the cut.
        cuts: of the layers that are named.
        place: name of the place.
    """

    network: Callable[[], Network]
    batch: int
    machines: int
    cut: str
    cuts: Cuts
    place: Place = HERE

    @property
    def name(self) -> str:
        """`speech 128, 2 parts, uneven`."""
        where = "" if self.place is HERE else f", {self.place.name}"
        parts = f"{counted(self.machines, 'part')}"
        return f"{self.network.__name__} {self.batch}, {parts}, {self.cut}{where}"

    def plan(self, cluster: Cluster) -> Plan:
        """The plan over a cluster."""
        return partition(self.network(), cluster, batch=self.batch, cuts=self.cuts, strategy="balanced")


def uneven(network: Callable[[], Network], share: float) -> Cuts:
    """Every layer that can be cut, with so much of its rows on machine 0."""
    graph = network().graph()
    cuts = {}
    for grid in graph.computed:
        if grid.layer.cuttable:
            rows = min(max(round(share * grid.n_rows), 1), grid.n_rows - 1)
            cuts[grid.name] = RowSplit(2, (rows, grid.n_rows - rows))
    return cuts


def horizontal(network: Callable[[], Network], below: int) -> Cuts:
    """The first layers on machine 0, the others on machine 1."""
    layers = network().graph().computed
    return {grid.name: Whole(0 if n < below else 1) for n, grid in enumerate(layers)}


def cases() -> list[Case]:
    """Returns the plans of all networks and places."""
    found = []
    for network, batch in ((speech, 128), (first, 32), (stages, 16), (pictures, 16), (perceptron, 32)):
        found += [Case(network, batch, 1, "whole", {}), Case(network, batch, 2, "equal", {})]
        found.append(Case(network, batch, 2, "uneven", uneven(network, 0.7)))
    found += [
        Case(speech, 32, 2, "equal", {}),
        Case(speech, 128, 2, "horizontal", horizontal(speech, 4)),
        Case(speech, 128, 2, "mixed", {"hidden1": Whole(0), "hidden2": Whole(1)}),
        Case(first, 32, 2, "mixed", {"scores": Whole(1), "softmax_cross_entropy": Whole(1)}),
        Case(stages, 16, 2, "horizontal", horizontal(stages, 4)),
        Case(pictures, 16, 2, "horizontal", horizontal(pictures, 2)),
        Case(pictures, 64, 2, "mixed", {"wide": Whole(0), "scores": Whole(1)}),
        Case(perceptron, 32, 2, "horizontal", horizontal(perceptron, 1)),
    ]
    for place in PLACES:
        found += [
            Case(speech, 128, 2, "equal", {}, place),
            Case(speech, 128, 2, "horizontal", horizontal(speech, 4), place),
            Case(first, 32, 2, "equal", {}, place),
            Case(stages, 16, 2, "uneven", uneven(stages, 0.7), place),
            Case(pictures, 64, 2, "mixed", {"wide": Whole(0), "scores": Whole(1)}, place),
        ]
    return found
