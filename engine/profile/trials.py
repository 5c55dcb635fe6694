"""Trials that may shorten a plan's step: other clusters, other cuts, other micro-batches.

A trial is a plan with one thing changed. `changes` finds out whether it gains something.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Final

from partita.engine.profile.recuts import copies, inputs, places, tiles
from partita.partitioner.cluster.cluster import Cluster
from partita.partitioner.plan import Plan
from partita.partitioner.search.strategies import MICRO_BATCHES

GIGABITS: Final = (1, 10, 25, 100)
"""Rates of common links, in Gbit/s."""
GIGABIT: Final = 1e9 / 8
"""Bytes a second of a Gbit/s."""

Planner = Callable[[Cluster], Plan]


@dataclass(frozen=True)
class Trial:
    """A changed plan. Earlier trials of a family are the cheaper ones."""

    family: str
    what: str
    plan: Plan


def trials(plan: Plan, again: Planner | None = None) -> Iterator[Trial]:
    """Yields every trial; see `best_changes`."""
    for family, what, cluster in _clusters(plan):
        if len(cluster) == len(plan.cluster):
            yield Trial(family, what, plan.on(cluster))
        if again is not None and (anew := again(cluster)).pieces != plan.pieces:
            yield Trial(family, what, anew)
    for family, recuts in (("place", places), ("place", tiles), ("inputs", inputs), ("copies", copies)):
        for what, changed in recuts(plan):
            yield Trial(family, what, changed)
    for count in MICRO_BATCHES if len(plan.cluster) > 1 else ():
        if plan.batch % count == 0 and count > plan.micro_batches:
            yield Trial("micro-batches", f"{count} micro-batches", plan.with_micro_batches(count))
    if plan.precision == "float32":
        yield Trial("precision", "bfloat16", replace(plan, precision="bfloat16"))


def _clusters(plan: Plan) -> Iterator[tuple[str, str, Cluster]]:
    """Faster links of the same latency; the busiest machine twice as fast; one machine more."""
    cluster, busy = plan.cluster, plan.simulated_step.busy_s
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
    """The cluster with all links between hosts at least this fast."""
    between = tuple(replace(pair, link=pair.link.at_least(bytes_per_s)) for pair in cluster.between)
    link = None if cluster.link is None else cluster.link.at_least(bytes_per_s)
    return replace(cluster, link=link, between=between)
