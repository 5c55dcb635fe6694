"""The layout of the global vector: nearly equal ranges for the shards, and others for the fragments."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import product

from partita.engine.protocol.names import Topology, stream_name


class Layout:
    """The ranges of machines and shards, of each fragment.

    Attributes:
        sizes: the count of numbers of each shard, in the order of the shards.
        of_machine: for each machine, (stream, start, stop) in the machine's own vector.
        of_shard: for each shard, and the number of each range (see `ShardRanges`), (start, stop) in the
            shard's own vector.
        places: for each machine, the shard and the number of each range, in the order of `of_machine`.
    """

    def __init__(self, machines: Sequence[int], topology: Topology, *, fragments: int = 1) -> None:
        """Cuts the joined vectors of the machines, whose sizes are `machines`."""
        size, shards = sum(machines), topology.shards
        cuts = [shard * size // shards for shard in range(shards + 1)]
        parts = [fragment * size // fragments for fragment in range(fragments + 1)]
        self.sizes = {name: cuts[k + 1] - cuts[k] for k, name in enumerate(topology.shard_names)}
        self.of_machine: list[tuple[tuple[str, int, int], ...]] = []
        self.of_shard: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in self.sizes}
        self.places: list[tuple[tuple[str, int], ...]] = []
        first = 0
        for machine, n in enumerate(machines):
            spans, places = [], []
            for k, fragment in product(range(shards), range(fragments)):
                start = max(first, cuts[k], parts[fragment])
                stop = min(first + n, cuts[k + 1], parts[fragment + 1])
                if start < stop:
                    name, number = topology.shard_names[k], fragment * len(machines) + machine
                    spans.append((stream_name(name, fragment), start - first, stop - first))
                    places.append((name, number))
                    self.of_shard[name][number] = (start - cuts[k], stop - cuts[k])
            self.of_machine.append(tuple(spans))
            self.places.append(tuple(places))
            first += n
