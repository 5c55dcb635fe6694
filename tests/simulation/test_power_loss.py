"""The real writers of checkpoints and journals on a disk that loses power: what was promised is read back.

After each call that changes the disk the power fails a few times, and the real readers look at what is left.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import ClassVar

import msgspec
import numpy as np
import pytest

from partita.engine.parameters import CheckpointError, Checkpoints, Journal, reader
from partita.engine.parameters.log import LogWriter, read_log, segments_of, sync_segments
from partita.engine.parameters.log_format import LoggedRequest
from partita.engine.testing.filesystem import FileSystem
from tests.parameters.test_log import HEADER as HEADER_OF_A_LOG
from tests.parameters.written import HEADER, SHAPES, whole, write
from tests.simulation.planted_writers import FAULTS, PlantedWriter
from tests.simulation.recorded import Recorder, written

EACH = 2
"""Power losses after each change."""

Reads = Callable[[Path], None]


class Disk:
    """A folder below which each change may be the last one before a power loss."""

    ignored: ClassVar[frozenset[str]] = frozenset()

    def __init__(self, folder: Path, reads: Reads, *, seed: int = 0, files: FileSystem | None = None) -> None:
        """`reads` looks at each folder that may be left; `files`: what is there already."""
        folder.mkdir(exist_ok=True)
        self.recorder = Recorder(folder / "run", files)
        self.recorder.ignored = self.ignored
        self.recorder.changed = self._changed
        self._folder, self._reads, self.random = folder, reads, Random(seed)
        self.losses = 0

    def _changed(self) -> None:
        for _ in range(EACH):
            self.look(self.recorder.files.after_power_loss(self.random))

    def look(self, left: FileSystem) -> None:
        self.losses += 1
        copy = written(left, self._folder / f"left {self.losses}")
        self._reads(copy)
        shutil.rmtree(copy)


# Checkpoints.


class Training:
    """Writes checkpoints of two runs, of which the newest two are kept."""

    def __init__(self) -> None:
        self.committed = self.begun = 0

    def reads(self, folder: Path) -> None:
        """The newest checkpoint that can be used is committed, or was just being written; all is in it."""
        newest = Checkpoints(folder).latest(SHAPES)
        number = 0 if newest is None else newest.manifest.checkpoint
        assert self.committed <= number <= self.begun, f"{number} is the newest, and was {self.committed}"
        if newest is not None:
            self.check(newest)

    @staticmethod
    def check(newest: reader.Checkpoint) -> None:
        number = newest.manifest.checkpoint
        expected = whole(1000.0 * number)
        sums = newest.parameters("state.sum")
        for name, values in newest.parameters().items():
            assert np.array_equal(values, expected[name]), f"{name} of checkpoint {number}"
            assert np.array_equal(sums[name], expected[name] * expected[name]), (
                f"state of checkpoint {number}"
            )

    def run(self, disk: Disk) -> None:
        with disk.recorder.installed():
            for number in range(1, 5):
                store = Checkpoints(disk.recorder.root, keep=2, run="one" if number < 3 else "two")
                self.begun = number
                write(store, number, base=1000.0 * number, run="one")
                self.committed = number
                store.prune()


def test_the_simulated_disk_holds_what_the_real_one_holds(tmp_path: Path) -> None:
    disk = Disk(tmp_path, lambda folder: None)
    Training().run(disk)
    real = {str(p.relative_to(disk.recorder.root)): p for p in disk.recorder.root.rglob("*")}
    simulated = dict(disk.recorder.files.walk())
    assert {path: None if p.is_dir() else p.read_bytes() for path, p in real.items()} == simulated
    assert len(simulated) > 8


def test_a_committed_checkpoint_is_there_after_each_power_loss(tmp_path: Path) -> None:
    training = Training()
    disk = Disk(tmp_path, training.reads)
    training.run(disk)
    assert disk.losses > 200


def damage(folder: Path, training: Training, *, times: int = 30, seed: int = 1) -> None:
    """Any bit of any file of the newest checkpoint is another: an older one is used, and it is named."""
    random = Random(seed)
    disk = Disk(folder, lambda folder: None)
    training.run(disk)
    left = disk.recorder.files.after_power_loss(random)
    for n in range(times):
        path = random.choice([path for path, data in left.walk() if data and path.startswith("00000004")])
        damaged = left.after_power_loss(random)
        damaged.flip(path, random)
        newest = Checkpoints(written(damaged, folder / f"flipped {n}")).latest(SHAPES)
        assert newest is not None and newest.manifest.checkpoint >= 3, path
        assert newest.manifest.checkpoint == 4 or "00000004" in newest.skipped[0], path
        training.check(newest)


def test_a_damaged_checkpoint_is_named_and_an_older_one_is_used(tmp_path: Path) -> None:
    damage(tmp_path, Training())


# The journal.


class Journaling:
    """Appends entries, syncs now and then, and goes on from what one power loss has left to the next one."""

    def __init__(self) -> None:
        self.expected: list[tuple[float, ...]] = []
        self.synced = 0
        self.created = False

    def reads(self, folder: Path) -> None:
        found = Journal.read(folder / "journal")
        assert found is not None or not self.created, "there is no journal"
        entries = [] if found is None else [entry.scalars for entry in found.entries]
        assert entries == self.expected[: len(entries)], f"{entries} were never written like this"
        assert self.synced <= len(entries), f"{len(entries)} are left of {self.synced}"

    def run(self, folder: Path, seed: int) -> None:
        left, random = FileSystem(), Random(seed)
        for life in range(3):
            disk = Disk(folder / f"life {life}", self.reads, seed=seed + life, files=left)
            with disk.recorder.installed():
                self._live(disk.recorder.root / "journal", life, random)
            left = disk.recorder.files.after_power_loss(random)

    def _live(self, path: Path, life: int, random: Random) -> None:
        journal = Journal.read(path) or Journal.create(path, HEADER)
        self.created = True
        self.expected = [entry.scalars for entry in journal.entries]
        self.synced = len(self.expected)
        for _ in range(6):
            self.expected.append((float(life), random.random()))
            journal.append(len(self.expected) - 1, 7, self.expected[-1])
            if random.random() < 0.3:
                journal.sync()
                self.synced = len(self.expected)
        journal.close()


@pytest.mark.parametrize("seed", range(4))
def test_entries_of_a_journal_that_were_synced_are_there_after_each_power_loss(
    tmp_path: Path, seed: int
) -> None:
    Journaling().run(tmp_path, 10 * seed)


# The log of a shard.


class Logging:
    """Appends records, syncs now and then, begins and removes segments, and recovers after power losses."""

    def __init__(self) -> None:
        self.expected: dict[int, bytes] = {}
        self.promised = self.removed = 0

    def found(self, folder: Path) -> dict[int, bytes]:
        content = read_log(folder, "shard 0", after=self.removed)
        return {one.number: one.message for _, one in content.records}

    def reads(self, folder: Path) -> None:
        found = self.found(folder)
        assert found == {n: self.expected.get(n) for n in found}, "a record is not as it was written"
        last = max(found, default=self.removed)
        assert last >= self.promised, f"{last} is the last record, and {self.promised} was acknowledged"

    def run(self, folder: Path, seed: int) -> None:
        left, random = FileSystem(), Random(seed)
        for life in range(3):
            disk = Disk(folder / f"life {life}", self.reads, seed=seed + life, files=left)
            with disk.recorder.installed():
                self._live(disk.recorder.root, life, random)
            files = disk.recorder.files  # after the end of a process alone, all is there
            left = files if random.random() < 0.5 else files.after_power_loss(random)

    def _live(self, root: Path, life: int, random: Random) -> None:
        found = self.found(root)
        last = max(found, default=self.removed)
        assert last >= self.promised, f"{last} is the last record, and {self.promised} was acknowledged"
        self.expected = {n: one for n, one in self.expected.items() if n <= last}
        sync_segments(segments_of(root, "shard 0"))
        self.promised = last  # a push that comes again is acknowledged
        older = segments_of(root, "shard 0")
        header = msgspec.structs.replace(HEADER_OF_A_LOG, incarnation=life, first=last + 1)
        writer = LogWriter(root / "log-00000001-run", header, older=older)
        for number in range(last + 1, last + 7):
            self.expected[number] = f"{life} {random.random()}".encode()
            writer.append([LoggedRequest(number, "part 0.0", 0, self.expected[number], None)])
            if random.random() < 0.4:
                writer.sync()
                self.promised = number
            if random.random() < 0.2:
                writer.begin_segment()
            if random.random() < 0.1:
                self.removed = self.promised
                writer.remove(self.removed)
        writer.close()


@pytest.mark.parametrize("seed", range(4))
def test_records_that_were_acknowledged_are_there_after_each_power_loss(tmp_path: Path, seed: int) -> None:
    Logging().run(tmp_path, 10 * seed)


# Planted faults.


def play(name: str, folder: Path, seed: int) -> None:
    folder.mkdir()
    if name == "journal":
        Journaling().run(folder, 10 * seed)
    elif name == "log":
        Logging().run(folder, 10 * seed)
    elif name == "damage":
        damage(folder, Training(), seed=seed)
    else:
        training = Training()
        training.run(Disk(folder, training.reads, seed=seed))


def play_many(name: str, folder: Path, seeds: int) -> None:
    for seed in range(seeds):
        play(name, folder / str(seed), seed)


@pytest.mark.parametrize("planted", FAULTS, ids=lambda planted: planted.name.replace(" ", "-"))
def test_it_bites(planted: PlantedWriter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Disk, "ignored", planted.ignored)
    planted.plant(monkeypatch)
    with pytest.raises((AssertionError, CheckpointError), match=planted.reported):
        play_many(planted.play, tmp_path, planted.seeds)
