"""The layout of the global vector: nearly equal ranges, one for each shard."""

from __future__ import annotations

from collections.abc import Sequence

from partita.engine.protocol.names import Topology


class Layout:
    """The ranges of machines and shards.

    Attributes:
        sizes: the count of numbers of each shard, in the order of the shards.
        of_machine: for each machine, (shard, start, stop) in the machine's own vector.
        of_shard: for each shard and machine, (start, stop) in the shard's own vector.
    """

    def __init__(self, machines: Sequence[int], topology: Topology) -> None:
        """Cuts the joined vectors of the machines, whose sizes are `machines`."""
        size, shards = sum(machines), topology.shards
        cuts = [shard * size // shards for shard in range(shards + 1)]
        self.sizes = {name: cuts[k + 1] - cuts[k] for k, name in enumerate(topology.shard_names)}
        self.of_machine: list[tuple[tuple[str, int, int], ...]] = []
        self.of_shard: dict[str, dict[int, tuple[int, int]]] = {name: {} for name in self.sizes}
        first = 0
        for machine, n in enumerate(machines):
            spans = []
            for k, name in enumerate(topology.shard_names):
                start, stop = max(first, cuts[k]), min(first + n, cuts[k + 1])
                if start < stop:
                    spans.append((name, start - first, stop - first))
                    self.of_shard[name][machine] = (start - cuts[k], stop - cuts[k])
            self.of_machine.append(tuple(spans))
            first += n
