"""An oracle of acknowledgements: parts and shards write down what happens, where it happens.

Hosts are other processes, which are killed; so each line is one call to the kernel. It must not use what the
engine itself keeps for its counts.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Self

from partita.engine.drivers.leased_trainer import LeasedTrainer
from partita.engine.parameters import Checkpoints
from partita.engine.protocol.apply_on_arrival import ApplyOnArrival, RestoredState
from partita.engine.protocol.durability import Record
from partita.engine.protocol.events import Persist, Received
from partita.engine.protocol.messages import Parameters, PushAck
from partita.engine.protocol.part import Part
from partita.engine.protocol.shard import Shard
from partita.engine.protocol.shard_effects import ApplyGradient, ShardEffect
from partita.engine.runtime.part_body import PartBody
from partita.engine.runtime.part_task import PartTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_body import ShardBody
from partita.engine.runtime.shard_recovery import Recovery
from partita.engine.runtime.task import HostContext

Push = tuple[str, str, int, int, int]
"""(shard, part, incarnation, sequence, life of the run's own process)"""


class _Log:
    def __init__(self, folder: Path, link: HostContext) -> None:
        name = folder / f"{link.name}#{link.incarnation}"
        self._file = os.open(name, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def write(self, *words: object) -> None:
        os.write(self._file, ("|".join(map(str, words)) + "\n").encode())


@dataclass(frozen=True)
class WatchedPart(PartTask):
    log: Path = Path()

    def role(self, link: HostContext) -> tuple[Part, PartBody]:
        (machine, body), log = super().role(link), _Log(self.log, link)
        assert isinstance(machine, Part)
        links: Any = machine.work.others[0]
        _log_units(machine.work, links, log, link)
        receive = links.receive

        def watched(event: Any, now: float) -> Any:
            settled = links.pushes
            if isinstance(event, Received) and isinstance(event.message, Parameters) and not links.informed:
                earlier = event.message.earlier  # acknowledgements that its earlier processes did not receive
                for sequence in range(earlier.pushes if earlier else 0):
                    log.write("acknowledged", event.sender, link.name, earlier.incarnation, sequence)
            effects = receive(event, now)
            if links.pushes > settled:
                assert isinstance(event.message, PushAck)
                log.write("acknowledged", event.sender, link.name, link.incarnation, event.message.sequence)
            return effects

        links.receive = watched
        return machine, body


@dataclass(frozen=True)
class WatchedShard(ShardTask):
    log: Path = Path()

    def role(self, link: HostContext) -> tuple[Shard, ShardBody]:
        with _replayed() as replayed:
            role, log = super().role(link), _Log(self.log, link)
        log.write("from", self.checkpoint)
        machine: Any = role[0]
        (self.log / f"run {self.run}").touch()
        for run, push in replayed:
            if run == self.run:
                log.write("applied", link.name, *push)
            else:
                log.write("inherited", link.name, *push, _life_of(run, self.log))
        receive, has_applied = machine.receive, False

        def watched(event: Any, now: float) -> Any:
            nonlocal has_applied
            effects = receive(event, now)
            for effect in effects:
                if isinstance(effect, ApplyGradient):
                    if not has_applied:
                        has_applied = True
                        log.write("at work", time.monotonic())
                    push = effect.part, effect.incarnation, effect.sequence
                    log.write("applied", link.name, *push)
                elif isinstance(effect, Persist):
                    log.write("persisted", effect.checkpoint)
            return effects

        machine.receive = watched
        return role


@contextmanager
def _replayed() -> Iterator[list[tuple[str, tuple[str, int, int]]]]:
    """Yields the pushes that a shard carries out again from its log, each with the id of its run."""
    found: list[tuple[str, tuple[str, int, int]]] = []
    replay, before, runs = ApplyOnArrival.replay, Recovery.before, iter(())

    def begun(recovery: Recovery, *given: Any) -> RestoredState:
        nonlocal runs
        runs = iter([header.run for header, _ in recovery.content.records])  # type: ignore[assignment]
        return before(recovery, *given)

    def watched(policy: ApplyOnArrival, record: Record) -> list[ShardEffect]:
        effects, run = replay(policy, record), next(runs)
        for effect in effects:
            assert isinstance(effect, ApplyGradient)
            found.append((run, (effect.part, effect.incarnation, effect.sequence)))
        return effects

    ApplyOnArrival.replay, Recovery.before = watched, begun  # type: ignore[method-assign]
    try:
        yield found
    finally:
        ApplyOnArrival.replay, Recovery.before = replay, before  # type: ignore[method-assign]


def _life_of(run: str, folder: Path) -> int:
    """Returns the life of a run's own process with this id; each has a folder that ends with its number."""
    (found,) = folder.parent.glob(f"*/run {run}")
    return int(found.parent.name.replace("-", " ").rpartition(" ")[2])


def _log_units(work: Any, links: Any, log: _Log, link: HostContext) -> None:
    """Logs the units whose gradients are in each push that a part sends."""
    begin, computed, push = work.begin, links.computed, links._push
    units: dict[int, int] = {}  # of the steps under way
    waiting: dict[str, list[int]] = {shard: [] for shard in links.shards}

    def begun(action: Any, now: float) -> Iterator[Any]:
        for effect in begin(action, now):
            units[effect.step] = effect.unit
            yield effect

    def counted(step: int, unit: int, now: float) -> Iterator[Any]:
        yield from computed(step, unit, now)
        unit = units.pop(step)
        for one in links._links.values():
            if step >= one.held and unit not in one.has:
                waiting[one.shard].append(unit)

    def pushed(one: Any, now: float) -> Iterator[Any]:
        log.write("pushed", one.shard, link.name, link.incarnation, one.sequences, *waiting[one.shard])
        waiting[one.shard].clear()
        yield from push(one, now)

    work.begin, links.computed, links._push = begun, counted, pushed


class Oracle:
    """Reads the logs of one life of a run's own process."""

    def __init__(self, folder: Path, *, life: int = 0) -> None:
        self.folder, self.life = folder, life

    @classmethod
    def watching(cls, folder: Path, setattr: Callable[[Any, str, Any], object] = setattr) -> Self:
        """Every part and shard of the runs that follow writes its log here.

        Args:
            folder: of the logs.
            setattr: replaces a method of a class; a test's is undone at its end.
        """
        for method, kind in (("part", WatchedPart), ("shard", WatchedShard)):
            setattr(LeasedTrainer, method, _watched(method, kind, folder))
        return cls(folder)

    @property
    def acknowledged(self) -> set[Push]:
        """The pushes that were acknowledged to parts."""
        return {
            self._push(words) for path in self.folder.glob("part *") for words in _lines(path, "acknowledged")
        }

    def held(self, checkpoints: Path) -> set[Push]:
        """Pushes that are in the newest checkpoint."""
        (newest, *_) = Checkpoints(checkpoints).complete()
        return {push for shard in self.shards for push in self.files(shard)[newest]}

    @property
    def shards(self) -> set[str]:
        """The shards that have written a log."""
        return {path.name.partition("#")[0] for path in self.folder.glob("shard *")}

    @property
    def units(self) -> dict[Push, tuple[int, ...]]:
        """The units of each push that a part has sent."""
        found = (words for path in self.folder.glob("part *") for words in _lines(path, "pushed"))
        return {self._push(words): tuple(map(int, words[5:])) for words in found}

    def files(self, shard: str, earlier: Mapping[int, set[Push]] | None = None) -> dict[int, set[Push]]:
        """Content of each file of a shard, with those of earlier lives."""
        files: dict[int, set[Push]] = dict(earlier or {})
        for path in sorted(self.folder.glob(f"{shard}#*"), key=lambda path: int(path.name.partition("#")[2])):
            (start,) = _lines(path, "from")
            has = set() if start[1] == "None" else set(files[int(start[1])])
            for words in _lines(path):
                if words[0] == "applied":
                    has.add(self._push(words))
                elif words[0] == "inherited":
                    has.add((*self._push(words)[:4], int(words[5])))
                elif words[0] == "persisted":
                    files[int(words[1])] = set(has)
        return files

    def _push(self, words: list[str]) -> Push:
        return words[1], words[2], int(words[3]), int(words[4]), self.life


def _watched(method: str, kind: Any, folder: Path) -> Any:
    original = getattr(LeasedTrainer, method)

    def task(trainer: LeasedTrainer, *given: Any, **named: Any) -> Any:
        plain = original(trainer, *given, **named)
        return kind(**{field.name: getattr(plain, field.name) for field in fields(plain)}, log=folder)

    return task


def _lines(path: Path, what: str = "") -> Iterator[list[str]]:
    for line in path.read_text().splitlines():
        words = line.split("|")
        if words[0] == what or not what:
            yield words
