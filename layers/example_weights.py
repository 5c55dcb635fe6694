"""Weights of examples for losses that were declared without: each takes one more target."""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import replace

from partita.layers.box import Shape
from partita.layers.graph import Graph, Grid
from partita.layers.layer import Placeholder
from partita.layers.logistic_losses import BinaryCrossEntropy
from partita.layers.losses import LabelLoss, Loss


def weights_of(loss: Loss, scores: Shape) -> Placeholder:
    """Returns the target with the weights of a loss: one for each example, or for each position."""
    return Placeholder((math.prod(loss.shape((scores,))),), "target")


def weights_name(loss: str) -> str:
    """The name of the target with the weights of a loss; no layer of a user can have it."""
    return f"{loss}.sample_weight"


def with_example_weights(graph: Graph, losses: Collection[str]) -> Graph:
    """Returns the network with weights of examples as one more target of some losses.

    Args:
        graph: the network.
        losses: names of losses that take a target, and no weights yet.
    """
    grids: list[Grid] = []
    for grid in graph.grids:
        if grid.name not in losses:
            grids.append(grid)
            continue
        assert isinstance(grid.layer, Loss) and len(grid.sources) == 2, grid
        layer = weights_of(grid.layer, graph[grid.sources[0]].shape)
        added = Grid(weights_name(grid.name), layer.given_shape, layer, (), (), 0.0)
        shapes: Sequence[Shape] = [*(graph[source].shape for source in grid.sources), added.shape]
        sources, wirings = (*grid.sources, added.name), grid.layer.wirings(tuple(shapes))
        grids += [added, replace(grid, sources=sources, wirings=wirings)]
    return replace(graph, grids=tuple(grids))


def weighable(graph: Graph) -> tuple[str, ...]:
    """The losses of a network that take a target. Raises ValueError where one takes weights already."""
    found = []
    for name in graph.losses:
        layer, sources = graph[name].layer, graph[name].sources
        assert isinstance(layer, Loss)
        if len(sources) > 2:
            raise ValueError(
                f"loss '{name}' takes its weights of examples from the target '{sources[2]}'; give them in "
                "the data, and leave out sample_weight and class_weight"
            )
        if layer.takes_target:
            found.append(name)
    if not found:
        raise ValueError(f"no loss of network '{graph.name}' takes a target; there is nothing to weigh")
    return tuple(found)


def label_loss(graph: Graph) -> str:
    """The one loss of a network whose target names a class. Raises ValueError where it is not one."""
    found = [name for name in weighable(graph) if _names_classes(graph, name)]
    if len(found) != 1:
        which = f"several: {', '.join(found)}" if found else "none"
        raise ValueError(
            f"class_weight is for the loss over labels, and network '{graph.name}' has {which}; weigh "
            "examples by a target of the loss: Loss()(scores, target, sample_weight=net.target(...))"
        )
    return found[0]


def n_classes(graph: Graph, loss: str) -> int:
    """The number of classes of a loss over labels."""
    target = graph[graph[loss].sources[1]].layer
    assert isinstance(target, Placeholder)
    return target.classes or 2


def _names_classes(graph: Graph, loss: str) -> bool:
    layer, target = graph[loss].layer, graph[graph[loss].sources[1]]
    return isinstance(layer, LabelLoss) or (isinstance(layer, BinaryCrossEntropy) and target.n_nodes == 1)
