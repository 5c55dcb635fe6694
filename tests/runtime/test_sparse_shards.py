"""A shard that gets rows of a table: its log and its backup hold the same promise as with whole gradients."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from partita.engine import Adagrad, Log
from partita.engine.parameters import Layout, Slot, Vector, save_parameters
from partita.engine.parameters.row_payload import RowPiece, between, decode, encode, n_bytes
from partita.engine.parameters.slots import Table
from partita.engine.protocol.commands import POINT
from partita.engine.protocol.durability import fill
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Push, PushAck
from partita.engine.runtime.shard_body import SpoiltPush
from partita.engine.transport import Payload
from tests.runtime.backup_pair import Pair
from tests.runtime.test_shard_log import Folder, awaited

SPARSE = Layout(((Slot("weight", 0, 6),),), {"weight": (3, 2)}, shards=1, sparse=frozenset({"weight"}))
BOTH = Layout(
    ((Slot("table", 0, 6), Slot("bias", 0, 1)),),
    {"table": (3, 2), "bias": (1,)},
    shards=1,
    sparse=frozenset({"table"}),
)


def rows_of(sequence: int, dtype: str, *, bias: bool = False) -> bytes:
    """Rows 0 and 2, one row, or none, in turn."""
    draw = np.random.default_rng(sequence)
    rows = np.array([[0, 2], [1], []][sequence % 3], np.int64)
    numbers = [draw.normal(size=1).astype(dtype)] if bias else []
    return b"".join(map(bytes, encode(numbers, [(rows, draw.normal(size=(len(rows), 2)).astype(dtype))])))


def test_a_logs_records_of_rows_are_carried_out_again_to_the_bit(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = Folder(tmp_path / "run", Adagrad(0.1), Log())
    shard = folder.shard(layout=SPARSE)
    for sequence in range(7):
        payload = Payload([memoryview(bytearray(rows_of(sequence, "float64")))])
        shard.feed(Received("part 0.0", 0, Push(0, sequence, 0, sequence), payload))
    awaited(shard, PushAck, count=7)
    before = [shard.body._store.vector(name).tobytes() for name in (POINT, "sum")]
    died = folder.copied(tmp_path / "died")
    again = died.shard(layout=SPARSE)
    assert [again.body._store.vector(name).tobytes() for name in (POINT, "sum")] == before
    assert again.machine.policy.version == 7
    folder.close()
    died.close()


def test_a_backup_applies_rows_while_it_is_filled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """In chunks that cut a row of the table."""
    monkeypatch.setattr(fill, "CHUNK", 3)
    pair = _SparsePair(tmp_path)
    pair.fill_backup(8)


class _SparsePair(Pair):
    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        initial = {"table": np.linspace(-1, 1, 6).reshape(3, 2), "bias": np.ones(1)}
        save_parameters(self.task.initial, initial)
        self.task = replace(self.task, layout=BOTH)

    def push(self, machine: int, sequence: int) -> None:
        payload = Payload([memoryview(bytearray(rows_of(sequence, "float32", bias=True)))])
        self.give("shard 0", Received("part 0.0", 0, Push(0, sequence, 0, 0, sequence + 1), payload))


@pytest.mark.parametrize(
    "rows", [np.array([2, 0]), np.array([1, 1]), np.array([0, 3]), np.array([-1, 2])], ids=str
)
def test_rows_that_are_none_change_nothing(tmp_path: Path, rows: Vector) -> None:
    (tmp_path / "run").mkdir()
    folder = Folder(tmp_path / "run", Adagrad(0.1), Log())
    shard = folder.shard(layout=SPARSE)
    before = shard.body._store.vector(POINT).tobytes()
    data = b"".join(map(bytes, encode([], [(rows.astype(np.int64), np.ones((2, 2)))])))
    with pytest.raises(SpoiltPush, match=r"a push of part 0.0 cannot be read: not rows from 0 to 2"):
        shard.feed(Received("part 0.0", 0, Push(0, 0, 0, 0), Payload([memoryview(bytearray(data))])))
    assert shard.body._store.vector(POINT).tobytes() == before
    folder.close()


def test_a_push_of_a_wrong_size_is_refused(tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    folder = Folder(tmp_path / "run", Adagrad(0.1), Log())
    shard = folder.shard(layout=SPARSE)
    shard.receive("part 0.0", Push(0, 0, 0, 0), np.ones(11))
    assert shard.refused == ["a push of 'part 0.0' to shard 0 has 8 to 80 bytes, not 88"]
    folder.close()


def test_numbers_and_rows_are_read_back_and_cut() -> None:
    tables = (Table(12, 16, 2), Table(20, 29, 3))
    numbers = [np.arange(2.0), np.arange(4.0) + 10, np.arange(1.0) + 20]
    rows = [(np.array([0, 1]), np.ones((2, 2))), (np.array([2]), np.full((1, 3), 7.0))]
    data = np.frombuffer(bytearray(b"".join(map(bytes, encode(numbers, rows)))), np.uint8)
    least, most = n_bytes(10, 30, tables, 8)
    assert least == 8 * (2 + 7) and data.size == least + 2 * (8 + 16) + 8 + 24 and most == data.size + 2 * 32
    found = list(decode([data], 10, 30, tables, "float64"))
    assert [(start, list(part)) for start, part in found[:3]] == [
        (10, [0, 1]),
        (16, [10, 11, 12, 13]),
        (29, [20]),
    ]
    assert [type(piece) for piece in found[3:]] == [RowPiece, RowPiece]
    assert found[4].rows.tolist() == [2] and found[4].values.tolist() == [[7.0] * 3]
    cut = [one for piece in found for one in between(piece, 13, 27)]
    assert [one.rows.tolist() if isinstance(one, RowPiece) else (one[0], len(one[1])) for one in cut] == [
        (16, 4),
        [1],
        (13, 1),
        (26, 1),
    ]
    for wrong in (data[:-8], data[:8]):
        with pytest.raises(ValueError, match=r"are not .* rows|do not say"):
            list(decode([wrong], 10, 30, tables, "float64"))


def test_shards_cut_no_row() -> None:
    slots = (Slot("bias", 0, 3), Slot("table", 0, 20))
    shapes = {"bias": (3,), "table": (5, 4)}
    for shards in range(1, 30):
        layout = Layout((slots,), shapes, shards, sparse=frozenset({"table"}))
        starts = layout.shard_starts
        assert starts[0] == 0 and starts[-1] == 23 and list(starts) == sorted(starts)
        assert all(start <= 3 or (start - 3) % 4 == 0 for start in starts)
        rows = [table.n_rows for shard in range(shards) for table in layout.tables_on(shard)]
        assert sum(rows) == 5 and layout.tables_of(0) == (Table(3, 23, 4),)
