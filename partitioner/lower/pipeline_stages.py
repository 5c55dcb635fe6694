"""The place of each machine in a pipeline: its distance from the loss, counted in machines.

Machines that wait for one another, as those of a vertical cut do, are in one stage.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx

from partita.partitioner.lower.messages import Message


def pipeline_stages(machines: int, messages: Iterable[Message]) -> tuple[int, ...]:
    """Counts the machines between each machine and the last that depends on it, at most."""
    graph = networkx.DiGraph()
    graph.add_nodes_from(range(machines))
    for message in messages:
        ends = message.source, message.destination
        if message.is_of_weights:  # who lends and who borrows keep step
            graph.add_edges_from((ends, ends[::-1]))
        elif message.layer:
            graph.add_edge(*(ends if message.direction == "forward" else ends[::-1]))
    groups = networkx.condensation(graph)
    found: dict[int, int] = {}
    for group in reversed(list(networkx.topological_sort(groups))):
        found[group] = max((found[after] + 1 for after in groups.successors(group)), default=0)
    return tuple(found[groups.graph["mapping"][machine]] for machine in range(machines))
