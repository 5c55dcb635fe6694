"""A shard with a log: what it acknowledged is there after any end of it, to the bit."""

from __future__ import annotations

import errno
import itertools
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import SGD, Adam, InverseTime, Log, Optimizer
from partita.engine.files.access import HostFiles
from partita.engine.parameters import Checkpoints, Layout, Manifest, Slot, Vector, save_parameters
from partita.engine.parameters.log import segments_of
from partita.engine.protocol.checkpoint_messages import (
    CheckpointCommitted,
    LogReport,
    LostPushes,
    Save,
    Saved,
)
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Fetch, Heartbeat, Parameters, Push, PushAck
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.staleness import AS_IT_IS, Compensated, Damped, Staleness
from partita.engine.runtime import shard_log
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_log import LogFailed
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.shard_recovery import LogPlace
from partita.engine.runtime.task import CannotGoOn
from tests.runtime.shard_alone import ShardAlone

SHAPES = {"weight": (6,)}
TWO = Layout(((Slot("weight", 0, 4),), (Slot("weight", 4, 6),)), SHAPES, shards=1)
SIZES = {"part 0.0": 4, "part 0.1": 2, "part 1.0": 4}
RUN = LogPlace("log-00000001-run", "log-00000001-run")


@dataclass
class Folder:
    """The folder of a run's checkpoints, and the shard's processes on it."""

    path: Path
    optimizer: Optimizer = field(default_factory=lambda: SGD(0.5))
    durability: Log = field(default_factory=Log)
    staleness: Staleness = AS_IT_IS
    made: list[ShardAlone] = field(default_factory=list)

    def shard(
        self,
        *,
        run: str = "run",
        place: LogPlace = RUN,
        checkpoint: int | None = None,
        known: dict[str, tuple[PushRecord, ...]] | None = None,
        layout: Layout = TWO,
        start: float = 0.0,
        files: HostFiles | None = None,
    ) -> ShardAlone:
        save_parameters(self.path / "initial", {"weight": np.full(layout.shapes["weight"], start)})
        task = ShardTask(
            shard=0,
            layout=layout,
            run=run,
            folder=self.path,
            checkpoint=checkpoint,
            initial=self.path / "initial",
            precision="float64",
            policy=ApplyPolicy(optimizer=self.optimizer, acknowledged=known or {}, staleness=self.staleness),
            durability=self.durability,
            logs=place,
        )
        shard = ShardAlone(task, incarnation=len(self.made), files=files)
        self.made.append(shard)
        shard.receive(COORDINATOR, Heartbeat(len(self.made) - 1, clock=0.0))
        return shard

    def close(self) -> None:
        for shard in self.made:
            shard.body.close()

    def copied(self, to: Path) -> Folder:
        """What the death of every process would leave."""
        shutil.copytree(self.path, to)
        return Folder(to, self.optimizer, self.durability, self.staleness)

    def commit(self, shard: ShardAlone, number: int, *, run: str = "run") -> None:
        shard.receive(COORDINATOR, Save(number))
        saved = awaited(shard, Saved, count=number)
        entry = ShardFile(shard.name, saved.incarnation, saved.version, saved.file, saved.sha256)
        counts: Any = {"shapes": SHAPES, "dtype": "float64", "optimizer": "", "steps": (1,)}
        manifest = Manifest(checkpoint=number, run=run, units_per_epoch=1, entries=(entry,), **counts)
        Checkpoints(self.path, run=run).commit(manifest)
        shard.receive(COORDINATOR, CheckpointCommitted(number))


@pytest.fixture
def folder(tmp_path: Path) -> Any:
    (tmp_path / "run").mkdir()
    found = Folder(tmp_path / "run")
    yield found
    found.close()


def awaited(shard: ShardAlone, kind: type[Any], *, count: int = 1) -> Any:
    """Polls until so many messages of a kind were sent; returns the last of them."""
    while True:
        shard.woken.clear()
        shard.poll()
        found = [message for _, message, _ in shard.sent if isinstance(message, kind)]
        if len(found) >= count:
            return found[-1]
        assert shard.woken.wait(60), f"no {kind.__name__}: {shard.sent}"


def gradient(part: str, sequence: int) -> Vector:
    return np.random.default_rng([sequence, *map(ord, part)]).normal(size=SIZES[part])


def push(shard: ShardAlone, part: str, sequence: int, *, incarnation: int = 0) -> None:
    """Pushes, and waits for the acknowledgement."""
    before = sum(isinstance(message, PushAck) for _, message, _ in shard.sent)
    shard.receive(
        part,
        Push(incarnation, sequence, shard.machine.incarnation, 0, sequence + 1),
        gradient(part, sequence),
    )
    ack = awaited(shard, PushAck, count=before + 1)
    assert (ack.incarnation, ack.sequence) == (incarnation, sequence)


def state(shard: ShardAlone) -> list[Any]:
    """Everything that a checkpoint would have."""
    store, counts = shard.body._store, shard.machine.policy.persist(0)
    vectors = {name: store.target(name).tobytes() for name in sorted(store.names())}
    seen = {part: mark for part, mark in counts.seen.items() if mark[1] >= 0}  # a fetch is no record
    stops = {part: stop for part, stop in counts.stops.items() if stop}
    return [vectors, counts.version, counts.updates_of, seen, stops]


@pytest.mark.parametrize(
    ("optimizer", "staleness"),
    [
        (SGD(InverseTime(1.0, 2)), AS_IT_IS),
        (Adam(0.1), AS_IT_IS),
        (SGD(0.1), Damped()),
        (SGD(0.1), Compensated(2.0, adaptive=True)),
    ],
    ids=str,
)
def test_a_shard_that_died_at_any_time_has_the_bits_of_one_that_never_did(
    folder: Folder, tmp_path: Path, optimizer: Optimizer, staleness: Staleness
) -> None:
    folder.optimizer, folder.staleness = optimizer, staleness
    shard = folder.shard()
    for part in SIZES:
        shard.receive(part, Fetch(0))  # its pushes are of gradients at these parameters
    copies = itertools.count()
    sequences = dict.fromkeys(SIZES, 0)

    def dies(checkpoint: int | None) -> None:
        left = folder.copied(tmp_path / f"copy {next(copies)}")
        again = left.shard(checkpoint=checkpoint)
        assert state(again) == state(shard)
        push(again, "part 0.0", sequences["part 0.0"])  # and it goes on
        after = left.shard(checkpoint=checkpoint)
        assert state(after) == state(again)
        left.close()

    committed = None
    for turn, part in enumerate(["part 0.0", "part 0.1", "part 0.0", "part 1.0", "part 0.0", "part 0.1"]):
        push(shard, part, sequences[part])
        sequences[part] += 1
        dies(committed)
        if turn == 2:
            folder.commit(shard, 1)
            committed = 1
            dies(committed)
    assert shard.machine.version == 6


def test_what_was_not_written_was_not_acknowledged(folder: Folder, monkeypatch: pytest.MonkeyPatch) -> None:
    """The disk is full: fetches are answered, no push is acknowledged, and then all of them are."""
    monkeypatch.setattr(shard_log, "RETRY_S", 0.01)
    shard, write, room = folder.shard(), os.write, [0]
    push(shard, "part 0.0", 0)

    def full(file: int, data: Any) -> int:
        if not room[0]:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    shard.sent.clear()
    shard.receive("part 0.0", Push(0, 1, 0, 0), gradient("part 0.0", 1))
    report = awaited(shard, LogReport)
    assert "No space left on device; it acknowledges nothing until there is room" in report.text
    assert report.wants_checkpoint
    shard.receive("part 0.1", Fetch(0))
    assert isinstance(shard.sent[-1][1], Parameters)
    assert not any(isinstance(message, PushAck) for _, message, _ in shard.sent)
    room[0] = 1
    assert awaited(shard, PushAck).sequence == 1


def test_a_disk_that_stays_full_ends_the_run_with_what_to_do(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "RETRY_S", 0.001)
    monkeypatch.setattr(shard_log, "GIVE_UP_S", 0.01)
    shard = folder.shard()
    push(shard, "part 0.0", 0)

    def full(file: int, data: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    shard.receive("part 0.0", Push(0, 1, 0, 0), gradient("part 0.0", 1))
    with pytest.raises(LogFailed, match=r"No space left on device, and not for .* then resume"):
        awaited(shard, PushAck, count=2)


def test_a_failed_sync_ends_the_run_and_acknowledges_nothing(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard = folder.shard()
    push(shard, "part 0.0", 0)

    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    monkeypatch.setattr(os, "fdatasync", fails)
    shard.receive("part 0.0", Push(0, 1, 0, 0), gradient("part 0.0", 1))
    with pytest.raises(LogFailed, match="Input/output error"):
        awaited(shard, PushAck, count=2)
    monkeypatch.undo()
    assert folder.shard().machine.version == 1


def test_a_checkpoint_that_holds_a_push_acknowledges_it_although_the_log_is_full(
    folder: Folder, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shard_log, "RETRY_S", 0.01)
    shard, write = folder.shard(), os.write
    push(shard, "part 0.0", 0)

    def full(file: int, data: Any) -> int:
        if os.readlink(f"/proc/self/fd/{file}").endswith(".log"):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data)

    monkeypatch.setattr(os, "write", full)
    shard.receive("part 0.0", Push(0, 1, 0, 0), gradient("part 0.0", 1))
    awaited(shard, LogReport)
    folder.commit(shard, 1)
    assert awaited(shard, PushAck, count=2).sequence == 1
    monkeypatch.undo()
    push(shard, "part 0.0", 2)
    again = folder.shard(checkpoint=1)
    assert state(again) == state(shard)


def test_a_log_is_removed_up_to_a_committed_checkpoint_and_asks_for_one_when_it_is_large(
    folder: Folder,
) -> None:
    folder.durability = Log(most_bytes=1000)
    shard = folder.shard()
    for sequence in range(6):
        push(shard, "part 0.0", sequence)
    assert awaited(shard, LogReport).wants_checkpoint
    folder.commit(shard, 1)
    for sequence in range(6, 8):
        push(shard, "part 0.0", sequence)
    assert [one.first for one in segments_of(folder.path, "shard 0")] == [1, 7]
    folder.commit(shard, 2)
    push(shard, "part 0.0", 8)
    assert [one.first for one in segments_of(folder.path, "shard 0")] == [7, 9]
    asked = [one for _, one, _ in shard.sent if isinstance(one, LogReport) and one.wants_checkpoint]
    assert len(asked) == 1
    assert state(folder.shard(checkpoint=2)) == state(shard)


@pytest.mark.parametrize("checkpoints", [1, 2, 3])
def test_a_damaged_checkpoint_costs_nothing_while_the_log_goes_back_to_the_one_before(
    folder: Folder, checkpoints: int
) -> None:
    folder.optimizer = Adam(0.1)
    shard = folder.shard()
    for sequence in range(2 * checkpoints):
        push(shard, "part 0.0", sequence)
        if sequence % 2:
            folder.commit(shard, sequence // 2 + 1)
    push(shard, "part 0.1", 0)
    (newest,) = folder.path.glob(f"{checkpoints:08d}-*/*.safetensors")
    newest.write_bytes(newest.read_bytes()[:-1])
    again = folder.shard(checkpoint=checkpoints)
    assert state(again) == state(shard)
    again.poll()
    texts = " ".join(message.text for _, message, _ in again.sent if isinstance(message, LogReport))
    before = f"checkpoint {checkpoints - 1}" if checkpoints > 1 else "the start"
    assert f"it begins from {before} and its log" in texts


def test_a_damaged_record_is_named_and_what_it_costs_is_counted_exactly(folder: Folder) -> None:
    shard = folder.shard()
    for sequence in range(5):
        push(shard, "part 0.0", sequence)
    shard.body.close()
    (segment,) = segments_of(folder.path, "shard 0")
    data = bytearray(segment.path.read_bytes())
    data[data.index(gradient("part 0.0", 2).tobytes())] ^= 1
    segment.path.write_bytes(data)
    again = folder.shard(known={"part 0.0": (PushRecord(0, 5, 5),)})
    assert again.machine.version == 2
    again.tick(0.0)
    assert awaited(again, LostPushes).pushes == 3
    again.poll()
    texts = [message.text for _, message, _ in again.sent if isinstance(message, LogReport)]
    assert texts[0].startswith("record 3 of shard 0 is damaged or missing in its log; 2 records behind it")
    push(again, "part 0.0", 5)
    after = folder.shard(known={"part 0.0": (PushRecord(0, 6, 6),)})
    assert (after.machine.version, after.machine.policy.lost) == (3, 3)


def test_a_run_that_was_killed_goes_on_from_the_logs_of_all_before_it(folder: Folder) -> None:
    """Its parts count their pushes from zero again; what was acknowledged to the earlier ones is there."""
    pushes, expected = 0, None
    for generation, run in enumerate(["first", "second", "third"], 1):
        place = LogPlace(f"log-{generation:08d}-{run}", "log-00000001-first")
        folder.made.clear()
        shard = folder.shard(run=run, place=place, checkpoint=1 if generation == 3 else None)
        assert shard.machine.version == pushes
        if pushes:
            assert state(shard)[0] == expected and state(shard)[3] == {}
        for sequence in range(3):
            push(shard, "part 0.0", sequence)
            push(shard, "part 0.1", sequence)
        if generation == 2:
            folder.commit(shard, 1, run=run)
            push(shard, "part 0.0", 3)
        pushes, expected = shard.machine.version, state(shard)[0]
        shard.body.close()
    assert pushes == 6 + 7 + 6


def test_a_log_of_another_start_or_layout_is_refused(folder: Folder) -> None:
    push(folder.shard(), "part 0.0", 0)
    with pytest.raises(CannotGoOn, match="begins with other parameters than this run"):
        folder.shard(start=1.0)
    one = Layout(((Slot("weight", 0, 6),),), SHAPES, shards=1)
    with pytest.raises(CannotGoOn, match="resume with the plan and the shards of that run"):
        folder.shard(layout=one)


class Elsewhere(HostFiles):
    """The files of a machine that does not have the folder of checkpoints."""

    def __init__(self, own: Path | None) -> None:
        self.own = own

    def log_folder(self, folder: Path) -> Path | None:
        return self.own


def test_a_log_on_a_machine_of_its_own_is_there_for_shards_of_that_machine(
    folder: Folder, tmp_path: Path
) -> None:
    here, there = Elsewhere(tmp_path / "here"), Elsewhere(tmp_path / "there")
    shard = folder.shard(files=here)
    for sequence in range(3):
        push(shard, "part 0.0", sequence)
    assert "is lost where the shard has to begin on another one" in awaited(shard, LogReport).text
    known = {"part 0.0": (PushRecord(0, 3, 3),)}
    again = folder.shard(files=here, known=known)
    assert (again.machine.version, again.machine.policy.lost) == (3, 0)
    moved = folder.shard(files=there, known=known)
    assert (moved.machine.version, moved.machine.policy.lost) == (0, 3)
    with pytest.raises(CannotGoOn, match=r"give the checkpoints as SharedFolder\(...\)"):
        folder.shard(files=Elsewhere(None))


def test_a_push_that_was_never_finite_does_not_end_every_process_after_it(folder: Folder) -> None:
    shard = folder.shard()
    push(shard, "part 0.0", 0)
    with pytest.raises(CannotGoOn, match="not finite"):
        shard.receive("part 0.0", Push(0, 1, 0, 0), np.full(4, np.nan))
    shard.body.close()
    again = folder.shard()
    assert again.machine.version == 1
    push(again, "part 0.0", 1)


def test_the_records_of_the_kernel_are_enough_without_syncs(
    folder: Folder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder.durability = Log(sync="process")
    synced: list[int] = []
    sync: Callable[[int], None] = os.fdatasync
    monkeypatch.setattr(shard_log, "PROCESS_SYNC_S", 60.0)
    shard = folder.shard()
    monkeypatch.setattr(os, "fdatasync", lambda file: (synced.append(file), sync(file))[1])
    for sequence in range(3):
        push(shard, "part 0.0", sequence)
    assert not synced
    left = folder.copied(tmp_path / "copy")
    assert state(left.shard()) == state(shard)
    left.close()
