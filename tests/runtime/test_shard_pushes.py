"""A shard's role on disk: counts go on where they were, and what is not finite never becomes a checkpoint."""

from __future__ import annotations

import threading
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Adagrad, Adam, InverseTime, Optimizer
from partita.engine.parameters import Checkpoints, Layout, Manifest, Slot, Updater, Vector, save_parameters
from partita.engine.protocol.checkpoint_messages import Save, Saved
from partita.engine.protocol.coordinator_effects import ShardFile
from partita.engine.protocol.messages import Fetch, Heartbeat, Parameters, Push, PushAck
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_body import SpoiltPush
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.state_files import NotWritten
from tests.runtime.shard_alone import ShardAlone

SHAPES = {"weight": (6,)}
TWO = ((Slot("weight", 0, 4),), (Slot("weight", 4, 6),))  # on two machines
ONE = ((Slot("weight", 0, 6),),)


class Shard(ShardAlone):
    """A shard that applies pushes."""

    def __init__(
        self,
        layout: Layout,
        optimizer: Optimizer,
        folder: Path,
        *,
        shard: int = 0,
        checkpoint: int | None = None,
    ) -> None:
        initial = folder / "initial"
        save_parameters(initial, {"weight": np.zeros(6)})
        task = ShardTask(
            shard=shard,
            layout=layout,
            run="run",
            folder=folder,
            checkpoint=checkpoint,
            initial=initial,
            precision="float64",
            policy=ApplyPolicy(optimizer=optimizer),
        )
        super().__init__(task)
        self.receive(COORDINATOR, Heartbeat(0, clock=0.0))

    def values(self, part: str = "part 0.0") -> tuple[int, Vector]:
        """Updates so far, and values."""
        self.receive(part, Fetch(0))
        _, message, numbers = self.sent.pop()
        assert isinstance(message, Parameters) and isinstance(numbers, np.ndarray)
        return message.updates, numbers

    def save(self, number: int) -> ShardFile:
        """Writes the shard's file, and waits for it."""
        self.receive(COORDINATOR, Save(number))
        assert self.woken.wait(60)
        self.poll()
        saved = self.sent.pop()[1]
        assert isinstance(saved, Saved)
        return ShardFile(self.name, 0, saved.version, saved.file, saved.sha256)


def commit(folder: Path, number: int, entries: list[ShardFile]) -> None:
    manifest = Manifest(
        checkpoint=number,
        run="run",
        shapes=SHAPES,
        dtype="float64",
        optimizer="",
        steps=(1,),
        units_per_epoch=1,
        entries=tuple(entries),
    )
    Checkpoints(folder, run="run").commit(manifest)


def test_a_schedule_goes_on_where_a_checkpoint_was_in_any_other_cut(tmp_path: Path) -> None:
    optimizer = SGD(InverseTime(1.0, 1))  # 1, 1/2, 1/3 ...
    layout = Layout(TWO, SHAPES, shards=2)  # shard 0 holds [0:3] of machine 0, shard 1 the rest of both
    shards = [Shard(layout, optimizer, tmp_path, shard=n) for n in (0, 1)]
    for sequence in range(3):
        shards[0].receive("part 0.0", Push(0, sequence, 0, 0), np.ones(3))
    shards[1].receive("part 0.0", Push(0, 0, 0, 0), np.ones(1))
    shards[1].receive("part 0.1", Push(0, 0, 0, 0), np.ones(2))
    assert shards[0].values() == (3, pytest.approx([-11 / 6] * 3))
    assert shards[1].values("part 0.1") == (1, pytest.approx([-1.0] * 2))
    commit(tmp_path, 1, [shard.save(1) for shard in shards])

    whole = Shard(Layout(ONE, SHAPES, shards=1), optimizer, tmp_path, checkpoint=1)
    whole.receive("part 0.0", Push(0, 3, 0, 0), np.ones(6))  # the one after those in the checkpoint
    updates, values = whole.values()
    assert updates == 4
    assert values == pytest.approx([-11 / 6 - 1 / 4] * 3 + [-1 - 1 / 4] * 3), "the most that any had counts"
    again = Shard(layout, optimizer, tmp_path, shard=1, checkpoint=1)
    assert again.values("part 0.1")[0] == 1
    for shard in shards:
        shard.body.close()


def test_a_push_that_is_not_finite_ends_the_shard(tmp_path: Path) -> None:
    shard = Shard(Layout(ONE, SHAPES, shards=1), Adam(0.1), tmp_path)
    shard.receive("part 0.0", Push(0, 0, 0, 0), np.ones(6))
    shard.sent.clear()
    with pytest.raises(SpoiltPush, match=r"^a push to its values \[0:6\] is not finite; lower"):
        shard.receive("part 0.0", Push(0, 1, 0, 0), np.array([1.0, np.nan, 1, 1, 1, 1]))
    assert not shard.sent, "nothing was acknowledged"


def test_values_that_have_run_away_are_not_written(tmp_path: Path) -> None:
    shard = Shard(Layout(ONE, SHAPES, shards=1), SGD(1e300), tmp_path)
    shard.receive("part 0.0", Push(0, 0, 0, 0), np.full(6, 1e300))
    with pytest.raises(NotWritten, match=r"^checkpoint 1 was not written: its parameters are not finite"):
        shard.save(1)
    shard.body.close()
    assert not (tmp_path / "00000001").exists()


def test_a_shard_that_was_replaced_in_an_update_does_not_acknowledge_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The process is stopped in it for longer than its lease: meanwhile it is taken for dead."""
    shard = Shard(Layout(ONE, SHAPES, shards=1), SGD(0.5), tmp_path)
    apply = Updater.apply

    def stopped(*given: object) -> None:
        apply(*given)  # type: ignore[arg-type]
        shard.now += 3.5

    shard.receive("part 0.0", Push(0, 0, 0, 0), np.ones(6))
    assert isinstance(shard.sent.pop()[1], PushAck)
    monkeypatch.setattr(Updater, "apply", stopped)
    shard.receive("part 0.0", Push(0, 1, 0, 0), np.ones(6))
    assert shard.sent == []


def test_pushes_go_on_while_a_file_is_written_and_the_file_does_not_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shard, go = Shard(Layout(ONE, SHAPES, shards=1), Adagrad(0.5), tmp_path), threading.Event()
    written = Checkpoints.write_shard
    monkeypatch.setattr(
        Checkpoints, "write_shard", lambda *call, **how: go.wait(60) and written(*call, **how)
    )
    shard.receive("part 0.0", Push(0, 0, 0, 0), np.ones(6))
    shard.receive(COORDINATOR, Save(1))
    shard.receive("part 0.0", Push(0, 1, 0, 0), np.ones(6))
    _, later = shard.values()
    go.set()
    shard.sent.clear()
    shard.body.close()
    shard.poll()
    (saved,) = (message for _, message, _ in shard.sent)
    assert isinstance(saved, Saved)
    commit(tmp_path, 1, [ShardFile("shard 0", 0, saved.version, saved.file, saved.sha256)])
    again = Shard(Layout(ONE, SHAPES, shards=1), Adagrad(0.5), tmp_path, checkpoint=1)
    assert again.values() == (1, pytest.approx([-0.5] * 6))
    again.receive("part 0.0", Push(0, 1, 0, 0), np.ones(6))
    assert again.values()[1].tobytes() == later.tobytes()
