"""Plans with other cuts of some layers: other machines, other rows, tiles, inputs, copies.

The layouts are those among which the search for plans chooses, over all machines. Here each is tried alone,
so that its gain can be reported.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeAlias

from partita.layers.graph import Grid
from partita.layers.losses import Loss
from partita.layers.text import counted
from partita.partitioner.assign.cuts import (
    Cut,
    Cuts,
    InputSplit,
    Replicated,
    RowSplit,
    Tiles,
    Whole,
)
from partita.partitioner.assign.piece import Piece
from partita.partitioner.plan import Plan
from partita.partitioner.search.layouts import Choice, choices
from partita.partitioner.search.moves import with_cuts
from partita.partitioner.search.task import Task

MOST_LAYERS: Final = 12
"""Number of layers that are cut otherwise, those with the most operations: each trial costs a simulation."""
MOST_MACHINES: Final = 4
"""Number of machines to which a layer is moved for a trial, those that are least busy."""

Recut: TypeAlias = tuple[str, Plan]
"""Description of the change, and the changed plan."""


def places(plan: Plan) -> Iterator[Recut]:
    """Moves layers, and rows of layers, to other machines."""
    machines = len(plan.cluster)
    if machines == 1:
        return
    busy = plan.simulated_step.busy_s
    idlest = sorted(range(machines), key=lambda m: (busy[m], m))
    busiest = idlest[-1]
    for grid in _heaviest(plan):
        owners = {piece.machine for piece in plan.ownership.of(grid.name)}
        for machine in idlest[:MOST_MACHINES]:
            if owners != {machine}:
                yield from _recut(
                    plan, f"moving {grid.name} to machine {machine}", {grid.name: Whole(machine)}
                )
        count = min(machines, grid.n_rows)
        if len(owners) < count and grid.layer.cuttable:
            cut = RowSplit(tuple(sorted(idlest[:count])))
            yield from _recut(plan, f"cutting {grid.name} over {counted(count, 'machine')}", {grid.name: cut})
        yield from _shifts(plan, grid, busiest, idlest[0])


def tiles(plan: Plan) -> Iterator[Recut]:
    """Cuts all pictures that allow it into tiles, over all machines."""
    found: dict[tuple[int, int], dict[str, Cut]] = {}
    for layer, some in _layouts(plan).items():
        for cut in some:
            if isinstance(cut, Tiles):
                found.setdefault(cut.across, {})[layer] = cut
    for (down, right), cuts in found.items():
        yield from _recut(plan, f"cutting pictures into {down} by {right} tiles", cuts)


def inputs(plan: Plan) -> Iterator[Recut]:
    """Cuts dense layers by their inputs where the layer before them is, or becomes, cut by its rows.

    The second of two such layers needs one exchange only. Each pair is tried, and all pairs of a stack.
    """
    layouts, names = _layouts(plan), {grid.name for grid in _heaviest(plan)}
    for repeated in (False, True):
        pairs: dict[str, dict[str, Cut]] = {}
        for grid in plan.graph.computed:
            for cut in layouts[grid.name] if grid.name in names else ():
                if isinstance(cut, InputSplit) and cut.replicated == repeated and grid.name not in pairs:
                    pairs[grid.name] = {**_by_rows_below(plan, grid, layouts), grid.name: cut}
                    yield from _recut(plan, _by_inputs([grid.name], repeated), pairs[grid.name])
        stack = _every_second(plan, pairs)
        if len(stack) > 1:
            cuts = {layer: cut for name in stack for layer, cut in pairs[name].items()}
            yield from _recut(plan, _by_inputs(stack, repeated), cuts)


def copies(plan: Plan) -> Iterator[Recut]:
    """Replicates layers without parameters on every machine, those with the most traffic first."""
    n_bytes: Counter[str] = Counter()
    for message in plan.messages:
        n_bytes[message.layer] += message.n_bytes
    repeated = {
        layer: cut
        for layer, some in _layouts(plan).items()
        for cut in some
        if isinstance(cut, Replicated) and n_bytes[layer]
    }
    for layer in sorted(repeated, key=lambda layer: -n_bytes[layer])[:MOST_LAYERS]:
        yield from _recut(plan, f"repeating {layer} on every machine", {layer: repeated[layer]})


def _layouts(plan: Plan) -> dict[str, tuple[Choice, ...]]:
    """Layouts of each layer that the search would try over all machines; by rows first."""
    machines = len(plan.cluster)
    if machines == 1:
        return {grid.name: () for grid in plan.graph.computed}
    task = Task(plan.graph, plan.cluster, plan.batch, plan.precision, {}, plan.micro_batches)
    return choices(task, [tuple(range(machines))])


def _by_rows_below(plan: Plan, grid: Grid, layouts: Mapping[str, Sequence[Choice]]) -> dict[str, Cut]:
    """A cut by rows of the layer's input, unless its pieces are cut so over the same machines already."""
    source, owned = grid.sources[0], plan.ownership
    if plan.graph[source].is_placeholder:
        return {}
    by_rows = not owned.is_input_split(source) and source not in owned.replicated | owned.tiled
    if by_rows and _machines(owned.of(source)) == set(range(len(plan.cluster))):
        return {}
    rows = next((cut for cut in layouts[source] if isinstance(cut, RowSplit)), None)
    return {} if rows is None else {source: rows}


def _every_second(plan: Plan, layers: Iterable[str]) -> list[str]:
    """Layers in the order of the network whose input is neither chosen before nor an input of the network."""
    found: list[str] = []
    for layer in layers:
        source = plan.graph[plan.graph[layer].sources[0]]
        if source.name not in found and not source.is_placeholder:
            found.append(layer)
    return found


def _by_inputs(names: Sequence[str], repeated: bool) -> str:
    """`cutting h2 and h4 by their inputs, their activations on every machine`."""
    several = len(names) > 1
    layers = f"{', '.join(names[:-1])} and {names[-1]}" if several else names[0]
    whose = "their" if several else "its"
    return f"cutting {layers} by {whose} inputs" + f", {whose} activations on every machine" * repeated


def _shifts(plan: Plan, grid: Grid, source: int, destination: int) -> Iterator[Recut]:
    """Moves a quarter and a half of a machine's rows of a layer to another one that has some of it too."""
    owned = plan.ownership
    rows = {piece.machine: piece.stop - piece.start for piece in owned.of(grid.name)}
    by_rows = not owned.is_input_split(grid.name) and grid.name not in owned.replicated | owned.tiled
    if source == destination or not {source, destination} <= rows.keys() or not by_rows:
        return
    for share in (4, 2):
        moved = rows[source] // share
        if moved:
            sizes = {**rows, source: rows[source] - moved, destination: rows[destination] + moved}
            cut = RowSplit(tuple(sizes), tuple(sizes.values()))
            rows_moved = f"moving {counted(moved, 'row')} of {grid.name}"
            what = f"{rows_moved} from machine {source} to machine {destination}"
            yield from _recut(plan, what, {grid.name: cut})


def _heaviest(plan: Plan) -> list[Grid]:
    """Layers with the most operations, without losses: those lie where their scores are."""
    grids = [grid for grid in plan.graph.computed if not isinstance(grid.layer, Loss)]
    cost = {grid.name: grid.flops_per_node * grid.nodes_per_row * grid.n_rows for grid in grids}
    return sorted(grids, key=lambda grid: -cost[grid.name])[:MOST_LAYERS]


def _recut(plan: Plan, what: str, cuts: Cuts) -> Iterator[Recut]:
    """The plan with other cuts of some layers, if it is possible and differs."""
    try:
        found = with_cuts(plan, cuts)
    except ValueError:  # a picture may be too small, a cut may not go with that of another layer
        return
    if set(found.pieces) != set(plan.pieces):
        yield what, found


def _machines(pieces: Sequence[Piece]) -> set[int]:
    return {piece.machine for piece in pieces}
