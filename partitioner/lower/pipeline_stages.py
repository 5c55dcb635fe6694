"""How far each machine stands before the loss, counted in machines: from this follows its place in a
pipeline.

Machines that wait for one another in turn stand side by side, as those of a vertical cut do.
"""

from __future__ import annotations

from collections.abc import Iterable

import networkx

from partita.partitioner.lower.messages import Message


def pipeline_stages(machines: int, messages: Iterable[Message]) -> tuple[int, ...]:
    """How many machines lie between each machine and the last that it tells something, at most.

    Args:
        machines: how many there are.
        messages: of a whole step.
    """
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
