"""A shard that gets compressed pushes: its log and its backup have the same bits; what it refuses."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import Adagrad, Log
from partita.engine.parameters import Layout, Slot, Vector, save_parameters
from partita.engine.parameters.compression import Compressor, Int8, OneBit, PowerSGD, TopK
from partita.engine.parameters.row_payload import encode
from partita.engine.parameters.slots import tables_in
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.durability import fill
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Push, PushAck
from partita.engine.runtime.push_messages import PushMessages, form_of
from partita.engine.runtime.shard_body import SpoiltPush
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import CannotGoOn
from partita.engine.transport import Payload
from tests.runtime.backup_pair import Pair
from tests.runtime.test_shard_log import Folder, awaited

LAYOUT = Layout(
    ((Slot("table", 0, 6), Slot("weight", 0, 20), Slot("bias", 0, 3)),),
    {"table": (3, 2), "weight": (5, 4), "bias": (3,)},
    shards=1,
    sparse=frozenset({"table"}),
)
ALL = (TopK(0.2), TopK(0.1, 0.9, warm_up=3), OneBit(), Int8(), PowerSGD(1))


class HostArrays:
    """A device whose arrays are the host's."""

    given = staticmethod(lambda array: array)
    taken = staticmethod(np.copy)
    copy = staticmethod(np.copyto)


class Part:
    """Pushes of a part, with rows of a table beside the messages."""

    def __init__(self, compress: Compressor, dtype: str) -> None:
        (shared,) = LAYOUT.shared_ranges
        form = form_of(compress, LAYOUT, shared, np.dtype(dtype).itemsize)
        tables: Any = tables_in(LAYOUT.machines[0], {"table": 2})
        self.dtype, device = dtype, HostArrays()
        self.messages = PushMessages({0: form}, tables, device)  # type: ignore[arg-type]

    def push(self, sequence: int) -> tuple[Push, bytes]:
        draw = np.random.default_rng(sequence)
        gradient = draw.normal(size=LAYOUT.size).astype(self.dtype)
        self.messages.compress(slice(0, LAYOUT.size), sequence, gradient)
        rows = np.array([[0, 2], [1], []][sequence % 3], np.int64)
        numbers = [self.messages.message(slice(0, LAYOUT.size))]
        buffers = encode(numbers, [(rows, draw.normal(size=(len(rows), 2)).astype(self.dtype))])
        return Push(0, sequence, 0, sequence, sequence + 1), b"".join(map(bytes, buffers))


def received(push: Push, data: bytes) -> Received:
    return Received("part 0.0", 0, push, Payload([memoryview(bytearray(data))]))


@pytest.mark.parametrize("compress", ALL, ids=repr)
def test_a_logs_records_are_carried_out_again_to_the_bit(
    compress: Compressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of messages whose bytes, read as numbers, are not finite."""
    folder = folder_of(compress, tmp_path / "run", monkeypatch)
    shard, part = folder.shard(layout=LAYOUT), Part(compress, "float64")
    for sequence in range(7):
        shard.feed(received(*part.push(sequence)))
    awaited(shard, PushAck, count=7)
    before = [shard.body._store.vector(name).tobytes() for name in (POINT, "sum")]
    died = folder.copied(tmp_path / "died")
    again = died.shard(layout=LAYOUT)
    assert [again.body._store.vector(name).tobytes() for name in (POINT, "sum")] == before
    assert again.machine.policy.version == 7
    again.body.close()
    other = folder_of(Int8(feedback=False), tmp_path / "died", monkeypatch)
    with pytest.raises(CannotGoOn, match=r"compress=Int8\(feedback=False\) cannot read; resume with"):
        other.shard(layout=LAYOUT)
    folder.close()


def folder_of(compress: Compressor, path: Path, monkeypatch: pytest.MonkeyPatch) -> Folder:
    """The folder of a run whose pushes are compressed."""
    path.mkdir(exist_ok=True)
    save_parameters(path / "initial", initial())
    monkeypatch.setattr(
        "tests.runtime.test_shard_log.ApplyPolicy", lambda **given: ApplyPolicy(**given, compress=compress)
    )
    monkeypatch.setattr("tests.runtime.test_shard_log.save_parameters", lambda *given: None)
    return Folder(path, Adagrad(0.1), Log())


def initial() -> dict[str, Vector]:
    return {"table": np.ones((3, 2)), "weight": np.linspace(-1, 1, 20).reshape(5, 4), "bias": np.zeros(3)}


class CompressedPair(Pair):
    """A shard and its backup."""

    def __init__(self, folder: Path, compress: Compressor) -> None:
        super().__init__(folder)
        save_parameters(self.task.initial, initial())
        policy = ApplyPolicy(optimizer=Adagrad(0.1), compress=compress)
        self.task = replace(self.task, layout=LAYOUT, policy=policy)
        self.part = Part(compress, "float32")

    def push(self, machine: int, sequence: int) -> None:
        self.give("shard 0", received(*self.part.push(sequence)))


@pytest.mark.parametrize("compress", [TopK(0.2, 0.5, warm_up=4), Int8()], ids=repr)
def test_a_backup_applies_messages_while_it_is_filled(
    compress: Compressor, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In chunks that cut tensors."""
    monkeypatch.setattr(fill, "CHUNK", 5)
    pair = CompressedPair(tmp_path, compress)
    pair.fill_backup(14)


def test_a_push_of_another_size_is_refused_and_one_that_means_nothing_changes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    compress = TopK(0.1, warm_up=4)
    folder = folder_of(compress, tmp_path / "run", monkeypatch)
    shard, (_, data) = folder.shard(layout=LAYOUT), Part(compress, "float64").push(2)
    before = shard.body._store.vector(POINT).tobytes()
    shard.feed(received(Push(0, 0, 0, 0, 1), data))  # of step 0, in which more numbers are sent
    (reason,) = shard.refused
    assert reason.startswith("a push of 'part 0.0' to shard 0 has 80 to 152 bytes, not ")
    places = np.frombuffer(data, np.uint8).copy()
    message = places[8 : 8 + compress.n_bytes(((5, 4), (3,)), 8, step=2)]
    message[3 * 8 :].view(np.uint32)[:] = 99
    with pytest.raises(SpoiltPush, match=r"a push of part 0.0 cannot be read: .* are not ascending"):
        shard.feed(received(Push(0, 0, 0, 0, 3), places.tobytes()))
    assert shard.body._store.vector(POINT).tobytes() == before
    folder.close()
