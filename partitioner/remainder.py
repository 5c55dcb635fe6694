"""The remainder of a plan where machines are lost: what the others can still compute, for predictions.

A layer with a row on a lost machine is lost, and so is a layer that reads a lost one; but `Maximum` and
`Average` go on over the inputs that are left, and `Concatenate` with zeros in the places of lost inputs.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from dataclasses import replace

from partita.layers.graph import Graph, Grid
from partita.layers.layer import Placeholder
from partita.layers.merge import Average, Maximum
from partita.layers.parts import Concatenate
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.plan import Plan


def restricted(plan: Plan, ends: Iterable[str]) -> Plan:
    """Returns the part of a plan that computes some layers.

    Args:
        plan: without losses, see `Plan.for_prediction`.
        ends: the layers; those that they depend on are kept.
    """
    return _with_grids(plan, _needed(plan.graph.grids, ends))


def remainder(plan: Plan, machine: int, ends: Collection[str]) -> tuple[Plan, tuple[str, ...]]:
    """Returns the part of a plan that does not need a machine, on the others.

    Args:
        plan: without losses.
        machine: the lost machine.
        ends: layers that are wanted.

    Returns:
        The plan, and those of the layers that it computes. Inputs of the plan that are no inputs of the
        network have the names of lost layers: they are to be fed with zeros.

    Raises:
        ValueError: none of the layers is left, or a lost layer has weights that others use.
    """
    lost = {piece.layer for piece in plan.pieces if piece.machine == machine}
    grids, kept = _surviving(plan.graph, lost)
    left = tuple(end for end in ends if end in kept)
    name = plan.cluster.machines[machine].name
    if not left:
        raise ValueError(
            f"without machine '{name}' nothing is left: {', '.join(ends)} need its layers; join "
            "what several machines compute by Maximum, Average or Concatenate, so that others can go on"
        )
    found = _needed(grids, left)
    for grid in found:
        for parameter in grid.parameters:
            if parameter.layer in lost:
                raise ValueError(
                    f"layer '{grid.name}' uses {parameter.name}, which machine '{name}' had; give layers "
                    "that are to survive it parameters of their own"
                )
    return _with_grids(plan, found, lost=machine), left


def _surviving(graph: Graph, lost: Collection[str]) -> tuple[list[Grid], set[str]]:
    """The layers that can be computed, with inputs of zeros where a concatenation has lost one."""
    found: dict[str, Grid] = {}
    alive: set[str] = set()
    for grid in graph.grids:
        left = [k for k, source in enumerate(grid.sources) if source in alive]
        if grid.name in lost or (grid.sources and not left):
            continue
        if len(left) == len(grid.sources):
            found[grid.name] = grid
        elif isinstance(grid.layer, Maximum | Average):
            sources = tuple(grid.sources[k] for k in left)
            found[grid.name] = replace(grid, sources=sources, wirings=tuple(grid.wirings[k] for k in left))
        elif isinstance(grid.layer, Concatenate):
            for source in dict.fromkeys(source for source in grid.sources if source not in alive):
                shape = graph[source].shape
                found[source] = Grid(source, shape, Placeholder(shape, "input"), (), (), 0.0)
            found[grid.name] = grid
        else:
            continue
        alive.add(grid.name)
    return list(found.values()), alive


def _needed(grids: Iterable[Grid], ends: Iterable[str]) -> tuple[Grid, ...]:
    wanted, found = set(ends), []
    for grid in reversed(tuple(grids)):
        if grid.name in wanted:
            wanted.update(grid.sources)
            found.append(grid)
    return tuple(reversed(found))


def _with_grids(plan: Plan, grids: tuple[Grid, ...], *, lost: int | None = None) -> Plan:
    """The plan of some layers; without a lost machine, whose successors have numbers one lower."""
    graph = replace(plan.graph, grids=grids)
    names = {grid.name for grid in graph.computed}
    cluster = plan.cluster if lost is None else _without(plan.cluster, lost)
    pieces = tuple(
        piece if lost is None or piece.machine < lost else replace(piece, machine=piece.machine - 1)
        for piece in plan.pieces
        if piece.layer in names
    )
    ownership = replace(plan.ownership, graph=graph, machines=len(cluster), pieces=pieces)
    return replace(plan, graph=graph, cluster=cluster, ownership=ownership)


def _without(cluster: Cluster, lost: int) -> Cluster:
    machines = tuple(one for n, one in enumerate(cluster.machines) if n != lost)
    known = {name for one in machines for name in (one.site, one.kind)}
    between = tuple(link for link in cluster.between if link.one in known and link.other in known)
    return replace(cluster, machines=machines, between=between)
