"""The naive reference: what every shard should hold, and what every part has a right to.

It keeps each push ever made, and for each life of a shard the set of those that are in its values, so that
I1 to I4 are questions about sets. It sees what crosses the surface of a machine and nothing inside.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from partita.engine.protocol.messages import PushRecord
from partita.engine.runtime.simulation.judgement import Life, Writers, demand

Push: TypeAlias = tuple[str, int, int]
"""A push to a given shard: (part, incarnation, sequence)."""


@dataclass(slots=True)
class Lineage:
    """What one life of a shard should be: inherited from a file, then one push at a time."""

    values: list[float]
    version: int = 0
    applied: set[Push] = field(default_factory=set)
    steps: set[tuple[str, int]] = field(default_factory=set)  # (part, step) whose gradients they hold

    def copy(self) -> Lineage:
        """What a file holds."""
        return Lineage(list(self.values), self.version, set(self.applied), set(self.steps))


class Ledger:
    """The reference of one schedule."""

    def __init__(self, shards: Iterable[tuple[str, int]], writers: Writers) -> None:
        """For these shards (name, numbers each holds), all zero."""
        self._initial = {name: Lineage([0] * size) for name, size in shards}
        self.lineages: dict[Life, Lineage] = {}
        self._writers = writers
        self._newest: dict[str, tuple[int, int]] = {}  # (epoch, version) of each shard
        self._payloads: dict[tuple[str, Push], tuple[float, ...]] = {}  # by (shard, push)
        self._steps: dict[tuple[str, Push], tuple[int, ...]] = {}  # of the gradients in it
        self._undone: dict[Life, dict[int, list[int]]] = {}  # steps that have accumulated, by number
        self._acknowledged: dict[tuple[Life, str], int] = {}  # pushes, before the process was replaced
        self._newest_part: dict[str, int] = {}
        self._made: dict[tuple[Life, str], int] = {}
        self._accumulated: dict[Life, list[float]] = {}
        self._settled: dict[tuple[Life, str], int] = {}
        self._installed: dict[tuple[Life, str], tuple[int, int]] = {}
        self._computed: dict[str, int] = {}

    # Parts.

    def part_is_born(self, part: Life, *, size: int) -> None:
        """A part's process begins with nothing accumulated. What an older one is told counts no more."""
        self._accumulated[part] = [0] * size
        self._undone[part] = {number: [] for number in range(size)}
        self._newest_part[part[0]] = part[1]

    def begins(self, part: Life, step: int, *, resumed: int) -> None:
        """Nothing is skipped: an earlier process has computed what this one does not."""
        done = max(self._computed.get(part[0], 0), resumed)
        demand(step <= done, "I8", part, "begins at", step, "but has only done", done)

    def computed(self, part: Life, step: int, gradient: list[float]) -> None:
        """A step's gradient has accumulated."""
        self._computed[part[0]] = max(self._computed.get(part[0], 0), step + 1)
        accumulated = self._accumulated[part]
        for i, number in enumerate(gradient):
            accumulated[i] += number
            self._undone[part][i].append(step)

    def discards(self, part: Life, *, start: int, stop: int) -> None:
        """A part has done steps once more whose gradients a shard has already."""
        for i in range(start, stop):
            self._accumulated[part][i] = 0
            self._undone[part][i] = []

    def pushes(
        self, part: Life, shard: str, sequence: int, payload: tuple[float, ...], *, start: int, stop: int
    ) -> None:
        """A push leaves: a new one holds just what has accumulated, a repeat the same as before."""
        push = (*part, sequence)
        known = self._payloads.get((shard, push))
        if known is not None:
            demand(payload == known, "I1", push, "to", shard, "is sent again as", payload, "and was", known)
            return
        made = self._made.get((part, shard), 0)
        demand(sequence == made, "I1", push, "to", shard, "comes after", made, "pushes")
        accumulated = self._accumulated[part]
        demand(
            payload == tuple(accumulated[start:stop]),
            "I1",
            push,
            "holds",
            payload,
            "of",
            accumulated[start:stop],
        )
        self._steps[shard, push] = tuple(self._undone[part][start])
        self.discards(part, start=start, stop=stop)
        self._made[part, shard] = made + 1
        self._payloads[shard, push] = payload

    def settles(self, part: Life, shard: str, sequence: int) -> None:
        """A part takes a push for acknowledged; each once, in order."""
        settled = self._settled.get((part, shard), 0)
        demand(sequence == settled, "I1", part, "settles", sequence, "after", settled, "with", shard)
        self._settled[part, shard] = sequence + 1
        if self._newest_part[part[0]] == part[1]:
            self._acknowledged[part, shard] = sequence + 1

    def inherits(self, part: str, shard: str, settled: PushRecord) -> None:
        """A shard has told a part which pushes of an earlier process it has: that acknowledges them."""
        push = (part, settled.incarnation, settled.pushes - 1)
        demand((shard, push) in self._payloads, "I2", part, "inherits", settled, "which was never pushed")
        life = (part, settled.incarnation)
        known = self._acknowledged.get((life, shard), 0)
        self._acknowledged[life, shard] = max(known, settled.pushes)

    def settled(self, part: Life, shard: str) -> int:
        """How many pushes a part takes for acknowledged."""
        return self._settled.get((part, shard), 0)

    def installs(self, part: Life, shard: str, version: tuple[int, int]) -> None:
        """A part's parameters never go back (I3)."""
        before = self._installed.get((part, shard), (-1, -1))
        demand(version >= before, "I3", part, "goes back from", before, "to", version, "of", shard)
        self._installed[part, shard] = version

    def drained(self, part: Life, shards: Iterable[str]) -> None:
        """A part has nothing left: all that it computed was pushed, and every push is settled."""
        demand(
            not any(self._accumulated[part]),
            "I2",
            part,
            "drained, but",
            self._accumulated[part],
            "was not pushed",
        )
        for shard in shards:
            made, settled = self._made.get((part, shard), 0), self.settled(part, shard)
            demand(
                made == settled, "I2", part, "drained with", settled, "of", made, "pushes settled by", shard
            )

    # Shards.

    def shard_is_born(self, shard: Life, file: Lineage | None) -> Lineage:
        """A life begins from a committed file, or from the start."""
        lineage = (file or self._initial[shard[0]]).copy()
        self.lineages[shard] = lineage
        self._moves(shard, lineage.version)
        return lineage

    def applies(
        self, shard: Life, push: Push, payload: tuple[float, ...], *, start: int, values: list[float]
    ) -> None:
        """A push enters the values of a shard: once, in order, by the one writer (I1, I4)."""
        lineage = self.lineages[shard]
        self._writers.demand_writer(shard, "applies", push)
        demand(push not in lineage.applied, "I1", shard, "applies", push, "a second time")
        demand(payload == self._payloads.get((shard[0], push)), "I1", push, "arrived as", payload)
        lineage.applied.add(push)
        for step in self._steps[shard[0], push]:
            twice = (push[0], step) in lineage.steps
            demand(not twice, "I1", shard, "applies step", step, "of", push, "a second time")
            lineage.steps.add((push[0], step))
        lineage.version += 1
        for i, number in enumerate(payload):
            lineage.values[start + i] += number
        demand(values == lineage.values, "I1", shard, "holds", values, "instead of", lineage.values)
        self._moves(shard, lineage.version)

    def acknowledges(self, shard: Life, push: Push, version: int) -> None:
        """Acknowledged is in the values, or was settled before (I2); never by a replaced one (I4)."""
        lineage = self.lineages[shard]
        self._writers.demand_writer(shard, "acknowledges", push)
        there = push in lineage.applied or push[2] < self.settled(push[:2], shard[0])
        demand(there, "I2", shard, "acknowledges", push, "and does not hold it")
        demand(version == lineage.version, "I3", shard, "says version", version, "at", lineage.version)

    def answers(self, shard: Life, epoch: int, version: int) -> None:
        """A shard hands out parameters of the version that it has (I3), while it is the one (I4)."""
        self._writers.demand_writer(shard, "answers a fetch", "")
        expected = (shard[1], self.lineages[shard].version)
        demand((epoch, version) == expected, "I3", shard, "says", (epoch, version), "and is", expected)

    def _moves(self, shard: Life, version: int) -> None:
        now, before = (shard[1], version), self._newest.get(shard[0], (-1, -1))
        demand(now >= before, "I3", shard[0], "goes back from", before, "to", now)
        self._newest[shard[0]] = now

    # The end.

    def lost(self, files: Mapping[str, Lineage]) -> int:
        """Pushes that were acknowledged and are in none of these files (I2)."""
        return sum(len(self._lacking(files[shard], part, shard)) for part, shard in self._acknowledged)

    def _lacking(self, file: Lineage, part: Life, shard: str) -> list[Push]:
        pushes = ((*part, sequence) for sequence in range(self._acknowledged[part, shard]))
        return [push for push in pushes if push not in file.applied]

    def complete(
        self, files: Mapping[str, Lineage], *, first: Mapping[tuple[str, str], int], steps: int, lost: int
    ) -> None:
        """At the end of a run, each acknowledged push and each step is in the files, or counted as lost."""
        missing = self.lost(files)
        demand(lost == missing, "I2", "the run says", lost, "pushes lost, and", missing, "are")
        gone: set[tuple[str, str, int]] = set()
        for part, shard in self._acknowledged:
            for push in self._lacking(files[shard], part, shard):
                gone |= {(part[0], shard, step) for step in self._steps[shard, push]}
        for (name, shard), began in first.items():
            for step in range(began, steps):
                there = (name, step) in files[shard].steps or (name, shard, step) in gone
                demand(there, "I2", "step", step, "of", name, "is neither in the file of", shard, "nor lost")
