"""What would gain most: a plan changed in one thing and played again on the virtual clock.

Each change is compared with the plan as it is, both predicted. A change is tried alone; two of them together
may gain more or less than their product.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from partita.layers.graph import Grid
from partita.layers.losses import Loss
from partita.partitioner.cluster import Cluster, Link
from partita.partitioner.cuts import Cuts, Pieces, Tiles, Whole, cut_layer
from partita.partitioner.piece import Piece
from partita.partitioner.plan import Plan

GIGABITS: Final = (1, 10, 25, 100)
"""Links that people buy, in Gbit/s."""
GIGABIT: Final = 1e9 / 8
"""A Gbit/s, in bytes a second."""
WORTH_SAYING: Final = 1.02
"""Smaller gains are below what a prediction can tell."""
MICRO_BATCHES: Final = (2, 4, 8, 16)
NEARLY: Final = 0.98
"""A cheaper change of a family is preferred if it reaches this share of the best one's gain."""
MOST_LAYERS: Final = 12
"""Layers that are tried at other places, those with the most operations: each trial costs a simulation."""
MOST_MACHINES: Final = 4
"""Machines to which a layer is moved for a trial, those that are least busy."""
TOLD: Final = 3

Planner = Callable[[Cluster], Plan]


@dataclass(frozen=True)
class Change:
    """A change and what it would gain.

    Args:
        what: in words.
        gain: by which factor the predicted step is shorter.
        step_s: the predicted step with it.
    """

    what: str
    gain: float
    step_s: float

    def __str__(self) -> str:
        return f"{self.what}: {self.gain:.1f}x" if self.gain >= 1.1 else f"{self.what}: {self.gain:.2f}x"


@dataclass(frozen=True)
class Trial:
    """A changed plan. Of one family, the earlier ones are the cheaper ones."""

    family: str
    what: str
    plan: Plan


def best_changes(plan: Plan, again: Planner | None = None, *, most: int = TOLD) -> tuple[Change, ...]:
    """The changes that would gain most, the best first; of each family at most one.

    Those that would gain less than 2%, or whose parts would not fit into memory, are left out.

    Args:
        plan: as it is.
        again: plans the same network for another cluster. Where machines or links change, the plan as it is
            and a new one are tried. None tries no new ones.
        most: how many are told.
    """
    before = plan.predicted_step_s
    found: dict[str, list[Change]] = {}
    for trial in trials(plan, again):
        if _fits(trial.plan):
            step_s = trial.plan.predicted_step_s
            found.setdefault(trial.family, []).append(Change(trial.what, before / step_s, step_s))
    chosen = [_chosen(changes) for changes in found.values()]
    worth = [change for change in chosen if change.gain >= WORTH_SAYING]
    return tuple(sorted(worth, key=lambda change: -change.gain)[:most])


def _chosen(changes: list[Change]) -> Change:
    best = max(change.gain for change in changes)
    return next(change for change in changes if change.gain >= NEARLY * best)


def trials(plan: Plan, again: Planner | None = None) -> Iterator[Trial]:
    """Every change that is tried; see `best_changes`."""
    for family, what, cluster in _clusters(plan):
        if len(cluster) == len(plan.cluster):
            yield Trial(family, what, plan.on(cluster))
        if again is not None and (anew := again(cluster)).pieces != plan.pieces:
            yield Trial(family, what, anew)
    yield from _places(plan)
    yield from _tiles(plan)
    for count in MICRO_BATCHES if len(plan.cluster) > 1 else ():
        if plan.batch % count == 0 and count > plan.micro_batches:
            yield Trial("micro-batches", f"{count} micro-batches", plan.with_micro_batches(count))
    if plan.precision == "float32":
        yield Trial("precision", "bfloat16", replace(plan, precision="bfloat16"))


def _clusters(plan: Plan) -> Iterator[tuple[str, str, Cluster]]:
    """Faster links of the same latency; the busiest machine twice as fast; one machine more."""
    cluster, busy = plan.cluster, plan.playback.busy_s
    pairs = {(message.source, message.destination) for message in plan.messages}
    site = [machine.site for machine in cluster.machines]
    links = [cluster.link_between(a, b) for a, b in sorted(pairs) if site[a] != site[b]]
    for gigabits in GIGABITS:
        if any(link.bytes_per_s < gigabits * GIGABIT for link in links):
            yield "link", f"a link of {gigabits} Gbit/s", _linked(cluster, gigabits * GIGABIT)
    busiest = max(range(len(busy)), key=lambda m: (busy[m], -m))
    machines = list(cluster.machines)
    machines[busiest] = replace(machines[busiest], speed=2 * machines[busiest].speed)
    yield "machine", f"machine {busiest} twice as fast", replace(cluster, machines=tuple(machines))
    last = cluster.machines[-1]
    another = replace(last, name=f"{last.name}+")
    with suppress(ValueError):  # nothing may link it to the others
        yield "more", "one machine more", replace(cluster, machines=(*cluster.machines, another))


def _linked(cluster: Cluster, bytes_per_s: float) -> Cluster:
    """With no link between hosts slower than this."""

    def faster(link: Link) -> Link:
        return replace(link, bytes_per_s=max(link.bytes_per_s, bytes_per_s))

    between = tuple(replace(pair, link=faster(pair.link)) for pair in cluster.between)
    return replace(cluster, link=None if cluster.link is None else faster(cluster.link), between=between)


def _places(plan: Plan) -> Iterator[Trial]:
    """Layers, and rows of layers, on other machines."""
    machines = len(plan.cluster)
    if machines == 1:
        return
    busy = plan.playback.busy_s
    idlest = sorted(range(machines), key=lambda m: (busy[m], m))
    busiest = idlest[-1]
    for grid in _heaviest(plan):
        owners = {piece.machine for piece in plan.ownership.of(grid.name)}
        for machine in idlest[:MOST_MACHINES]:
            if owners != {machine}:
                what = f"moving {grid.name} to machine {machine}"
                yield Trial("place", what, _with_cuts(plan, {grid.name: Whole(machine)}))
        count = min(machines, grid.n_rows)
        if len(owners) < count and grid.layer.cuttable:
            cut = Pieces(tuple(sorted(idlest[:count])))
            yield Trial(
                "place", f"cutting {grid.name} over {count} machines", _with_cuts(plan, {grid.name: cut})
            )
        yield from _shifts(plan, grid, busiest, idlest[0])


def _tiles(plan: Plan) -> Iterator[Trial]:
    """All pictures that bear it cut into tiles, over all machines."""
    machines = len(plan.cluster)
    grids = [grid for grid in plan.graph.computed if grid.is_picture and grid.why_no_tiles() is None]
    for down in range(2, machines // 2 + 1):
        if not grids or machines % down:
            continue
        cut = Tiles(machines, across=(down, machines // down))
        with suppress(ValueError):  # a picture may be too small
            what = f"cutting pictures into {down} by {machines // down} tiles"
            yield Trial("place", what, _with_cuts(plan, {grid.name: cut for grid in grids}))


def _shifts(plan: Plan, grid: Grid, source: int, destination: int) -> Iterator[Trial]:
    """A quarter and a half of what one machine has of a layer, to another that has some of it too."""
    owned = plan.ownership
    rows = {piece.machine: piece.stop - piece.start for piece in owned.of(grid.name)}
    by_rows = not owned.by_inputs(grid.name) and grid.name not in owned.copied | owned.narrow
    if source == destination or not {source, destination} <= rows.keys() or not by_rows:
        return
    for share in (4, 2):
        moved = rows[source] // share
        if moved:
            sizes = {**rows, source: rows[source] - moved, destination: rows[destination] + moved}
            cut = Pieces(tuple(sizes), tuple(sizes.values()))
            what = f"moving {moved} rows of {grid.name} from machine {source} to machine {destination}"
            yield Trial("place", what, _with_cuts(plan, {grid.name: cut}))


def _heaviest(plan: Plan) -> list[Grid]:
    """The layers with the most operations, losses aside: those lie where their scores are."""
    grids = [grid for grid in plan.graph.computed if not isinstance(grid.layer, Loss)]
    cost = {grid.name: grid.flops_per_node * grid.nodes_per_row * grid.n_rows for grid in grids}
    return sorted(grids, key=lambda grid: -cost[grid.name])[:MOST_LAYERS]


def _with_cuts(plan: Plan, cuts: Cuts) -> Plan:
    """The plan with other cuts of some layers; a loss that lies where its scores do follows them."""
    graph, owned = plan.graph, plan.ownership
    pieces = {name: cut_layer(graph[name], cut, machines=len(plan.cluster)) for name, cut in cuts.items()}
    for loss in graph.computed:
        scores = loss.sources[0]
        if isinstance(loss.layer, Loss) and scores in pieces:
            together = {p.machine for p in owned.of(loss.name)} == {p.machine for p in owned.of(scores)}
            if together and (loss.layer.splits_scores or len(pieces[scores]) == 1):
                pieces[loss.name] = tuple(Piece(loss.name, 0, 1, p.machine) for p in pieces[scores])
    others = (piece for piece in plan.pieces if piece.layer not in pieces)
    changed = (piece for found in pieces.values() for piece in found)
    return replace(plan, ownership=replace(owned, pieces=(*others, *changed)))


def _fits(plan: Plan) -> bool:
    limits = [machine.memory_bytes for machine in plan.cluster.machines]
    return all(limit is None or plan.memory_bytes(m) <= limit for m, limit in enumerate(limits))
