"""Plans for a caller who has the gradients of the outputs: each has a loss whose target is its gradient.

An input whose gradient is asked for has a layer `InputGradient` before each layer that reads it, on the
machines of that layer. The cut of all other layers stays as it is.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from partita.engine.runtime.two_phases import GivenGradient, InputGradient
from partita.layers.connectivity import Full
from partita.layers.graph import Graph, Grid
from partita.layers.layer import Placeholder
from partita.partitioner.assign.ownership import Ownership
from partita.partitioner.assign.piece import Piece
from partita.partitioner.ir.buffer import Edge
from partita.partitioner.plan import Plan


@dataclass(frozen=True)
class GradientPlan:
    """A plan with ends for gradients.

    Args:
        plan: the plan.
        outputs: names of the layers whose gradients are given.
        targets: for each output, the name of the target that takes its gradient.
        entries: for each input whose gradient is asked for, the buffers whose sum it is.
    """

    plan: Plan
    outputs: tuple[str, ...]
    targets: dict[str, str]
    entries: dict[str, tuple[str, ...]]


def up_to(plan: Plan, outputs: Sequence[str]) -> Plan:
    """The same cut of the layers that these outputs need, without losses, in one micro-batch."""
    graph, needed = plan.graph, set(outputs)
    for grid in reversed(graph.grids):
        if grid.name in needed:
            needed |= set(grid.sources)
    grids = tuple(grid for grid in graph.grids if grid.name in needed)
    kept = replace(graph, grids=grids, losses=())
    pieces = tuple(piece for piece in plan.pieces if piece.layer in kept)
    return _of(plan, kept, pieces)


def with_gradients(plan: Plan, outputs: Sequence[str], inputs: Collection[str]) -> GradientPlan:
    """Adds what gives gradients of outputs, and asks for those of inputs.

    Args:
        plan: of layers without losses, see `up_to`.
        outputs: names of layers.
        inputs: names of inputs.

    Raises:
        ValueError: a gradient of an input is asked for where pictures are cut into tiles.
    """
    if inputs and plan.ownership.tiled:
        raise ValueError(
            f"input '{min(inputs)}' requires a gradient, and '{min(plan.ownership.tiled)}' is cut into "
            "tiles, so that no machine has the whole input; cut it by rows, or detach the input"
        )
    grids, pieces = list[Grid](), list(plan.pieces)
    entries: dict[str, tuple[str, ...]] = dict.fromkeys(inputs, ())
    for grid in plan.graph.grids:
        sources = list(grid.sources)
        for k, source in enumerate(grid.sources):
            if source in entries:
                entry = _entry(plan.graph[source], f"{source}__{grid.name}_{k}")
                sources[k], owners = entry.name, [piece.machine for piece in plan.ownership.of(grid.name)]
                grids.append(entry)
                pieces += [Piece(entry.name, 0, entry.n_rows, machine) for machine in owners]
                entries[source] = (*entries[source], str(Edge(entry.name, grid.name, k).buffer))
        grids.append(replace(grid, sources=tuple(sources)))
    targets = {name: f"{name}__gradient" for name in outputs}
    for name, target in targets.items():
        loss = f"{name}__given"
        grids += _end(plan.graph[name], target, loss)
        scored = (piece.machine for piece in plan.ownership.of(name))
        owners = [machine for machine in scored if plan.ownership.primary_rows(name, machine)]
        pieces += [Piece(loss, 0, 1, machine) for machine in owners]
    losses = tuple(f"{name}__given" for name in outputs)
    graph = replace(plan.graph, grids=tuple(grids), losses=losses)
    return GradientPlan(_of(plan, graph, tuple(pieces)), tuple(outputs), targets, entries)


def _of(plan: Plan, graph: Graph, pieces: tuple[Piece, ...]) -> Plan:
    ownership = Ownership(graph, plan.ownership.machines, pieces)
    return replace(plan, graph=graph, ownership=ownership, micro_batches=1, lowered=None)


def _entry(source: Grid, name: str) -> Grid:
    layer = InputGradient(name)
    wirings = layer.wirings((source.shape,))
    return Grid(name, source.shape, layer, (source.name,), (), 1.0, wirings)


def _end(output: Grid, target: str, loss: str) -> tuple[Grid, Grid]:
    """The target and the loss of an output."""
    layer, wirings = GivenGradient(name=loss), (Full(), Full())
    given = Grid(target, output.shape, Placeholder(output.shape, "target"), (), (), 0.0)
    flops = layer.flops_per_node((output.shape, output.shape))
    return given, Grid(loss, (1,), layer, (output.name, target), (), flops, wirings)
