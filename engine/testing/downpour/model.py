"""The reference model: the values that every shard should hold, and the acknowledgements that parts rely on.

The model keeps each push ever made, and for each life of a shard the set of those that are in its values, so
that I1 to I4 are questions about sets. It sees what crosses the surface of a machine and nothing inside.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Fetch
from partita.engine.protocol.messages import Push as PushMessage
from partita.engine.protocol.names import host_and_fragment, machine_of, stream_name
from partita.engine.protocol.shard_effects import ApplyGradient
from partita.engine.protocol.staleness import AS_IT_IS, Staleness
from partita.engine.testing.downpour.lineage import Lineage, Push, push_of
from partita.engine.testing.host import Numbers
from partita.engine.testing.invariants import ProcessId, Writers, require


class ReferenceModel:
    """The reference of one run: of a coordinator, and of the hosts that it has launched."""

    def __init__(
        self,
        start: Mapping[str, Lineage],
        writers: Writers,
        *,
        twice: Callable[[int], bool],
        keeps: bool = False,
        waits: bool = False,
        staleness: Staleness = AS_IT_IS,
        compresses: bool = False,
        alone: bool = False,
        machines: int = 1,
    ) -> None:
        """A model of these shards.

        Args:
            start: the values with which the run begins.
            writers: the processes that may act.
            twice: says that a unit may be done by two replicas, since one has left.
            waits: acknowledgements wait for somebody.
            keeps: somebody keeps the shards' records, so that no failure may cost one that was acknowledged.
            staleness: what is done about stale gradients.
            compresses: pushes have a part of what is to be sent, and the rest is kept.
            alone: there is one replica, whose parameters are those of its shards from each push on.
            machines: of a replica.
        """
        self._machines = machines
        self._compresses, self._alone = compresses, alone
        self._unsent: dict[ProcessId, list[float]] = {}  # that pushes lacked so far
        self._after: dict[tuple[str, Push], tuple[float, ...]] = {}  # what they lacked after each push
        self._initial = start
        self._twice, self._staleness = twice, staleness
        self.keeps, self.waits = keeps, waits or keeps
        self._promised: dict[str, set[Push]] = {name: set() for name in start}  # acknowledged pushes
        self.lineages: dict[ProcessId, Lineage] = {}
        self._writers = writers
        self._newest: dict[str, tuple[int, int]] = {}  # (incarnation, version) of each shard
        self._payloads: dict[tuple[str, Push], tuple[float, ...]] = {}  # by (shard, push)
        self._units: dict[tuple[str, Push], tuple[int, ...]] = {}  # of the gradients in it
        self._undone: dict[ProcessId, dict[int, list[int]]] = {}  # units that have accumulated, by number
        self._acknowledged: dict[tuple[ProcessId, str], int] = {}  # pushes, before the process was replaced
        self._late: dict[tuple[ProcessId, str], int] = {}  # likewise, after that: lost if a shard is told
        self._newest_part: dict[str, int] = {}
        self._made: dict[tuple[ProcessId, str], int] = {}
        self._accumulated: dict[ProcessId, list[float]] = {}
        self._scaled: dict[ProcessId, list[float]] = {}  # likewise, each times its factor of the rate
        self._scales: dict[tuple[str, Push], float] = {}  # of pushes
        self._bases: dict[tuple[str, Push], tuple[int, int]] = {}  # (incarnation, version) they come from
        self._factors: dict[tuple[str, Push], float] = {}  # with which they were applied last
        self._settled: dict[tuple[ProcessId, str], int] = {}
        self._installed: dict[tuple[ProcessId, str], tuple[int, int]] = {}
        self._parameters: dict[ProcessId, list[float]] = {}  # that a part should have
        self._versions: dict[tuple[ProcessId, int], frozenset[Push]] = {}  # pushes in each of a shard's life
        self._computed: dict[str, int] = {}
        self._merged: dict[ProcessId, list[tuple[Push, float]]] = {}  # pushes of a merge, and their weights

    # Parts.

    def part_is_born(self, part: ProcessId, *, size: int) -> None:
        """Adds a part's process with nothing accumulated; answers to an older one count no more."""
        self._accumulated[part] = [0] * size
        self._scaled[part] = [0] * size
        self._unsent[part] = [0] * size
        self._parameters[part] = [0] * size
        self._undone[part] = {number: [] for number in range(size)}
        self._newest_part[part[0]] = part[1]

    def begins(self, part: ProcessId, step: int, *, resumed: int) -> None:
        """Requires that an earlier process has computed the steps that this one skips."""
        done = max(self._computed.get(part[0], 0), resumed)
        require(step <= done, "I8", part, "begins at", step, "but has only done", done)

    def computes(self, part: ProcessId, step: int, parameters: list[float]) -> None:
        """Requires that a step begins with a version of each shard, and over it all that it lacks of the
        part's own gradients (I14).
        """
        expected = self._parameters[part]
        require(parameters == expected, "I14", part, "has", parameters, "in step", step, "not", expected)

    def computed(self, part: ProcessId, step: int, unit: int, gradient: list[float], *, scale: float) -> None:
        """Adds a step's gradient to what has accumulated."""
        self._computed[part[0]] = max(self._computed.get(part[0], 0), step + 1)
        accumulated = self._accumulated[part]
        for i, number in enumerate(gradient):
            accumulated[i] += number
            self._scaled[part][i] += scale * number
            self._parameters[part][i] += scale * number
            self._undone[part][i].append(unit)

    def discards(self, part: ProcessId, *, start: int, stop: int) -> None:
        """Clears gradients of steps that were done again, and that a shard has already."""
        for i in range(start, stop):
            self._parameters[part][i] -= self._scaled[part][i]
        self._clears(part, start, stop)

    def _clears(self, part: ProcessId, start: int, stop: int) -> None:
        for i in range(start, stop):
            self._accumulated[part][i] = self._scaled[part][i] = 0
            self._undone[part][i] = []

    def pushes(
        self,
        part: ProcessId,
        stream: str,
        message: PushMessage,
        payload: tuple[float, ...],
        *,
        start: int,
        stop: int,
        unsent: list[float],
    ) -> None:
        """Requires that a new push holds just what has accumulated, and a repeat the same as before.

        If pushes are compressed, a push and what the part keeps, `unsent`, are all that was to be sent (C1).
        `stream` is named as the part names it.
        """
        sequence, (own, shard) = message.sequence, _ends(part, stream)
        push = (*own, sequence)
        known = self._payloads.get((shard, push))
        if known is not None:
            require(payload == known, "I1", push, "to", shard, "is sent again as", payload, "and was", known)
            return
        made = self._made.get((own, shard), 0)
        require(sequence == made, "I1", push, "to", shard, "comes after", made, "pushes")
        expected = self._accumulated[part][start:stop]
        if self._compresses:
            self._sends_some(part, push, payload, start, unsent, message.scale)
            self._after[shard, push] = tuple(unsent)
        else:
            require(payload == tuple(expected), "I1", push, "holds", payload, "of", expected)
        scaled, scale = self._scaled[part][start:stop], message.scale
        same = [scale * number for number in expected] == scaled
        require(same, "L1", push, "holds", expected, "times", scale, "and not", scaled)
        self._scales[shard, push] = scale
        self._bases[shard, push] = message.shard_incarnation, message.version
        units = tuple(self._undone[part][start])
        named = [unit for one in message.units for unit in range(*one)]
        require(named == sorted(units), "I15", push, "to", shard, "names", named, "of", units)
        self._units[shard, push] = units
        self._clears(part, start, stop)
        self._made[own, shard] = made + 1
        self._payloads[shard, push] = payload

    def _sends_some(
        self,
        part: ProcessId,
        push: Push,
        payload: tuple[float, ...],
        start: int,
        unsent: list[float],
        scale: float,
    ) -> None:
        """Requires that what was to be sent is in a push, or kept by its part (C1)."""
        kept, accumulated = self._unsent[part], self._accumulated[part]
        places = range(start, start + len(payload))
        wanted = [kept[i] + accumulated[i] for i in places]
        found = [a + b for a, b in zip(payload, unsent, strict=True)]
        require(found == wanted, "C1", push, "sends", payload, "and keeps", unsent, "of", wanted)
        for i, sent, left in zip(places, payload, unsent, strict=True):
            if self._alone:
                self._parameters[part][i] += scale * (sent - accumulated[i])
            kept[i] = left

    def lacked(self, shard: str, push: Push, unsent: tuple[float, ...]) -> None:
        """Requires that a file has what a part had kept after its last push in the file (C2)."""
        wanted = self._after.get((shard, push), (0.0,) * len(unsent))
        require(unsent == wanted, "C2", shard, "writes", unsent, "after", push, "which lacked", wanted)

    def settles(self, part: ProcessId, stream: str, sequence: int) -> None:
        """Requires that a part takes each push for acknowledged once, in order."""
        own, shard = _ends(part, stream)
        settled = self._settled.get((own, shard), 0)
        require(sequence == settled, "I1", part, "settles", sequence, "after", settled, "with", stream)
        self._settled[own, shard] = sequence + 1
        in_time = self._newest_part[part[0]] == part[1]
        (self._acknowledged if in_time else self._late)[own, shard] = sequence + 1

    def inherits(self, part: str, stream: str, settled: PushRecord) -> None:
        """Counts an earlier process's pushes as acknowledged: the shard has reported to have them."""
        process, shard = _ends((part, settled.incarnation), stream)
        push = (*process, settled.pushes - 1)
        require((shard, push) in self._payloads, "I2", part, "inherits", settled, "which was never pushed")
        known = self._acknowledged.get((process, shard), 0)
        self._acknowledged[process, shard] = max(known, settled.pushes)

    def installs(
        self, part: ProcessId, stream: str, version: tuple[int, int], *, start: int, values: list[float]
    ) -> None:
        """Requires that what a part fetches never goes back (I3); its own gradients belong over it."""
        before, (own, shard) = self._installed.get((part, stream), (-1, -1)), _ends(part, stream)
        require(version >= before, "I3", part, "goes back from", before, "to", version, "of", stream)
        self._installed[part, stream] = version
        expected = values
        for push in self._unheld(own, (shard, version[0]), version[1]):
            scale, payload = self._scales[shard, push], self._payloads[shard, push]
            expected = [a + scale * b for a, b in zip(expected, payload, strict=True)]
        expected = [a + b for a, b in zip(expected, self._scaled[part][start:], strict=False)]
        self._parameters[part][start : start + len(values)] = expected

    def _unheld(self, own: ProcessId, shard: ProcessId, version: int) -> Iterable[Push]:
        """The pushes of a stream that a version of a shard does not hold, and that are not lost."""
        held, now = self._versions[shard, version], self.lineages[shard].applied
        settled = self._settled.get((own, shard[0]), 0)
        for sequence in range(self._made.get((own, shard[0]), 0)):
            push = (*own, sequence)
            if push not in held and (push in now or sequence >= settled):
                yield push

    def drained(self, part: ProcessId, streams: Iterable[str]) -> None:
        """Requires that all gradients of a part were pushed, and every push is settled."""
        left = self._accumulated[part]
        require(not any(left), "I2", part, "drained, but", left, "was not pushed")
        for ends in (_ends(part, stream) for stream in streams):
            made, settled = self._made.get(ends, 0), self._settled.get(ends, 0)
            require(made == settled, "I2", part, "drained with", settled, "of", made, "settled by", ends)

    # Shards.

    def shard_is_born(self, shard: ProcessId, file: Lineage | None) -> Lineage:
        """Begins a life from a committed file, or from the start."""
        self.lineages[shard] = lineage = (file or self._initial[shard[0]]).copy()
        return lineage

    def copies(self, life: ProcessId, source: Lineage) -> Lineage:
        """Gives a copy of a shard all that another one has sent."""
        self.lineages[life] = found = source.copy()
        return found

    def begins_work(
        self,
        shard: ProcessId,
        noted: Mapping[str, Sequence[PushRecord]],
        *,
        from_backup: bool = False,
    ) -> None:
        """Ends the recovery of a shard, after what parts have noted: what it has promised is there (D1)."""
        lineage = self.lineages[shard]
        if from_backup:
            gone = self._promised[shard[0]] - lineage.applied
            require(not gone, "D1", shard, "begins from a backup without", sorted(gone))
        if not self.keeps:
            self._promised[shard[0]] &= lineage.applied  # the others are counted
        for part, records in noted.items():
            for record in records:
                lineage.learns(part, record)
        if self.keeps:
            gone = self._promised[shard[0]] - lineage.applied
            require(not gone, "D1", shard, "begins without what was acknowledged:", sorted(gone))
            require(not lineage.lost, "D2", shard, "counts as lost", sorted(lineage.lost))
        lineage.parted_at = lineage.version
        if self._writers.is_current(shard):  # one that was replaced before it was ready gets no lease
            self._moves(shard, lineage)

    def applies(self, shard: ProcessId, effect: ApplyGradient, values: list[float]) -> None:
        """Requires that a push enters the values of a shard once, in order, by the one writer (I1, I4), with
        the rate in force when it was made, times what its staleness makes of it (L1).
        """
        push = push_of(effect)
        self._writers.require_current(shard, "applies", push)
        made = self._scales.get((shard[0], push), 1.0)  # one that was never made breaks I1
        self._factors[shard[0], push] = made * self._staleness.scale(self._overtaken(shard, push))
        self.enters(shard, effect, values)
        if effect.weight is not None:
            self._merges(shard, push, effect.weight, more=effect.more)
        self._moves(shard, self.lineages[shard])

    def _merges(self, shard: ProcessId, push: Push, weight: float, *, more: bool) -> None:
        """Requires that a merge is the mean of pushes of several replicas, weighted by their units (I16)."""
        merged = self._merged.setdefault(shard, [])
        merged.append((push, weight))
        if more:
            return
        del self._merged[shard]
        parts = [one for (one, _, _), _ in merged]
        require(len({*parts}) == len(parts), "I16", shard, "merges", parts)
        require(len({self._number_of(one) for one in parts}) == 1, "I16", shard, "merges", parts)
        sizes = [len(self._units[shard[0], one]) for one, _ in merged]
        expected, found = [size / sum(sizes) for size in sizes], [weight for _, weight in merged]
        require(found == expected, "I16", shard, "merges", merged, "with the weights", found, "not", expected)

    def _overtaken(self, shard: ProcessId, push: Push) -> int:
        """The pushes of other replicas to the same numbers that a gradient lacks, of those of a shard's life.

        One that comes from values of an earlier life has those up to where this life's work began, at most.
        """
        lineage = self.lineages[shard]
        incarnation, base = self._bases.get((shard[0], push), (shard[1], lineage.version))
        if incarnation != shard[1]:
            base = min(base, lineage.parted_at)
        number = self._number_of(push[0])
        later = (stream for version, (stream, _, _) in lineage.own if version > base and stream != push[0])
        return sum(self._number_of(stream) == number for stream in later)

    def _number_of(self, stream: str) -> int:
        """The number of the range that a stream is of, see `ShardRanges`."""
        part, fragment = host_and_fragment(stream)
        return fragment * self._machines + machine_of(part)

    def enters(self, shard: ProcessId, effect: ApplyGradient, values: list[float]) -> None:
        """Requires that a push enters the values once, when it is applied or replayed (I1), with the factor
        with which it was applied (L1).
        """
        push, payload, start = push_of(effect), effect.payload, effect.span.start
        assert isinstance(payload, Numbers)
        self.requires_factor(shard[0], effect)
        lineage = self.lineages[shard]
        require(push not in lineage.applied, "I1", shard, "applies", push, "a second time")
        require(payload == self._payloads.get((shard[0], push)), "I1", push, "arrived as", payload)
        lineage.applied.add(push)
        lineage.learns(push[0], PushRecord(*push[1:]))
        for place in self.units_of(shard[0], push):
            once = place not in lineage.units or self._twice(place[1])
            require(once, "I1", shard, "applies unit", place[1], "in", push, "a second time")
            lineage.units.add(place)
        lineage.version += 1
        lineage.own.append((lineage.version, push))
        for i, number in enumerate(payload):
            lineage.values[start + i] += effect.factor * number
        require(values == lineage.values, "I1", shard, "holds", values, "instead of", lineage.values)

    def learns(self, shard: ProcessId, own: ProcessId, fetch: Fetch) -> None:
        """Notes what a part reports about its pushes of a stream, and about those of the processes before it;
        a report about any other process is refused.
        """
        if any(record.incarnation >= own[1] for record in fetch.earlier):
            return
        for record in (*fetch.earlier, PushRecord(own[1], fetch.acknowledged)):
            self.lineages[shard].learns(own[0], record)

    def acknowledges(self, shard: ProcessId, push: Push, version: int, *, promises: bool = True) -> None:
        """Requires that an acknowledged push is in the values or settled (I2), at the one writer (I4).

        `promises`: by a correct process; nobody can keep what a hostile one promises.
        """
        lineage = self.lineages[shard]
        self._writers.require_current(shard, "acknowledges", push)
        there = push in lineage.applied or push[2] < self._settled.get((push[:2], shard[0]), 0)
        require(there, "I2", shard, "acknowledges", push, "and does not hold it")
        late = version < lineage.version and self.waits  # it waited for the keepers
        require(version == lineage.version or late, "I3", shard, "says", version, "at", lineage.version)
        if promises:
            self._promised[shard[0]].add(push)

    def requires_factor(self, shard: str, effect: ApplyGradient) -> None:
        """Requires that a push has the factor with which it was applied, also when it is replayed (L1)."""
        push, scale = push_of(effect), effect.scale
        wanted = self._factors.get((shard, push))
        require(scale == wanted, "L1", push, "to", shard, "is applied with the factor", scale, "not", wanted)

    def requires_payload(self, shard: str, push: Push, payload: object) -> None:
        """Requires that a record has the numbers that were pushed (I1)."""
        pushed = self._payloads.get((shard, push))
        require(payload == pushed, "I1", push, "is kept as", payload, "and was", pushed)

    def requires_promises(self, shard: str, kept: set[Push]) -> None:
        """Requires that these pushes, which a failure would leave, are all that were acknowledged (D1)."""
        gone = self._promised[shard] - kept
        require(not gone, "D1", shard, "has acknowledged", sorted(gone), "which a power loss would take")

    def answers(self, shard: ProcessId, incarnation: int, version: int) -> None:
        """Requires that a shard sends parameters of the version that it has (I3), as the one writer (I4)."""
        self._writers.require_current(shard, "answers a fetch", "")
        expected = (shard[1], self.lineages[shard].version)
        require(
            (incarnation, version) == expected,
            "I3",
            shard,
            "says",
            (incarnation, version),
            "and is",
            expected,
        )

    def _moves(self, shard: ProcessId, lineage: Lineage) -> None:
        now, before = (shard[1], lineage.version), self._newest.get(shard[0], (-1, -1))
        self._versions[shard, lineage.version] = frozenset(lineage.applied)
        require(now >= before, "I3", shard[0], "goes back from", before, "to", now)
        self._newest[shard[0]] = now

    # Files.

    def require_lost(self, files: Mapping[str, Lineage], lost: int) -> None:
        """Requires that just the acknowledged pushes that are in none of these files are counted (I2).

        An acknowledgement that only a replaced process received counts as soon as a shard is told of it, by
        the records on disk or by a later process. If its part's next process asks first, that does the steps
        again, and nothing is lost.
        """
        counted = self._counted(files)
        wrong = counted - self._lacking(files, self._acknowledged) - self._lacking(files, self._late)
        require(not wrong, "I2", "count as lost, and were not acknowledged, or are there:", sorted(wrong))
        require(not (self.keeps and counted), "D2", "count as lost:", sorted(counted))
        require(lost == len(counted), "I2", "the run says", lost, "lost, and these are:", sorted(counted))

    def require_complete(self, files: Mapping[str, Lineage]) -> None:
        """Requires that acknowledged pushes are in these files or count as lost (I2), but for late ones."""
        missed = self._lacking(files, self._acknowledged) - self._counted(files)
        require(not missed, "I2", "are lost, and no shard counts them:", sorted(missed))

    @staticmethod
    def _counted(files: Mapping[str, Lineage]) -> set[tuple[str, Push]]:
        return {(shard, push) for shard, lineage in files.items() for push in lineage.lost}

    @staticmethod
    def _lacking(
        files: Mapping[str, Lineage], acknowledged: Mapping[tuple[ProcessId, str], int]
    ) -> set[tuple[str, Push]]:
        """The acknowledged pushes that are in none of these files, by shard."""
        pushes = {
            (shard, (*part, sequence))
            for (part, shard), count in acknowledged.items()
            for sequence in range(count)
        }
        return {(shard, push) for shard, push in pushes if push not in files[shard].applied}

    def units_of(self, shard: str, push: Push) -> set[tuple[int, int]]:
        """Returns (range, unit) of what is in a push."""
        return {(self._number_of(push[0]), unit) for unit in self._units[shard, push]}

    def gone(self, shard: str, lineage: Lineage) -> set[tuple[int, int]]:
        """Returns (range, unit) of what is in the lost pushes to a shard, of this run and earlier ones."""
        return set[tuple[int, int]](lineage.gone).union(
            *(self.units_of(shard, push) for push in lineage.lost)
        )

    def holds(self, files: Mapping[str, Lineage], units: Iterable[tuple[int, str, int]]) -> None:
        """Requires that units (range, shard, unit) are in the files, or in a push that counts as lost."""
        gone = {shard: self.gone(shard, lineage) for shard, lineage in files.items()}
        for shard, lineage in files.items():
            again = [
                unit for _, unit in lineage.units & (gone[shard] - lineage.gone) if not self._twice(unit)
            ]
            require(not again, "I2", "units", again, "are in the file of", shard, "and lost")
        for number, shard, unit in units:
            there = (number, unit) in files[shard].units | gone[shard]
            require(there, "I2", "unit", unit, "of range", number, "is neither in", shard, "nor lost")


def _ends(part: ProcessId, stream: str) -> tuple[ProcessId, str]:
    """Returns a stream's process as its shard names it, and the shard."""
    shard, fragment = host_and_fragment(stream)
    return (stream_name(part[0], fragment), part[1]), shard
