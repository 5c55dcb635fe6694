"""The log of a shard on the disk: torn anywhere, flipped anywhere, by several processes, on a full disk."""

from __future__ import annotations

import errno
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters.log import (
    LogContent,
    LogFull,
    LogWriter,
    log_folders,
    next_log,
    read_log,
    remove_logs,
    segments_of,
)
from partita.engine.parameters.log_format import (
    LoggedRequest,
    SegmentHeader,
    decode_header,
    decode_records,
    encode_header,
    frame_of,
)

HEADER = SegmentHeader(
    run="5f3a9c20d1",
    shard="shard 0",
    shards=1,
    incarnation=0,
    first=1,
    base=7,
    ranges={0: (0, 3)},
    precision="float32",
    units_per_epoch=9,
)


def record(number: int, n_bytes: int | None = 12, text: bytes = b"") -> LoggedRequest:
    payload = None if n_bytes is None else (memoryview(bytes(number % 251 for _ in range(n_bytes))),)
    return LoggedRequest(number, "part 0.0", number // 3, text or b"push %d" % number, payload)


def plain(one: LoggedRequest) -> tuple[Any, ...]:
    payload = None if one.payload is None else b"".join(one.payload)
    return one.number, one.sender, one.incarnation, one.message, payload


def segment(records: list[LoggedRequest], header: SegmentHeader = HEADER) -> bytes:
    return encode_header(header) + b"".join(bytes(chunk) for one in records for chunk in frame_of(one))


def written(folder: Path, data: bytes, *, incarnation: int = 0, first: int = 1) -> Path:
    own = folder / "log-00000001-5f3a9c20"
    own.mkdir(exist_ok=True)
    path = own / f"shard-0.incarnation-{incarnation}.from-{first:012d}.log"
    path.write_bytes(data)
    return path


def numbers(found: LogContent) -> list[int]:
    return [one.number for _, one in found.records]


@given(st.lists(st.tuples(st.none() | st.integers(0, 300), st.binary(max_size=90)), max_size=8))
def test_what_is_written_is_read_and_numbers_lie_aligned(some: list[tuple[int | None, bytes]]) -> None:
    records = [record(n, n_bytes, text) for n, (n_bytes, text) in enumerate(some, HEADER.first)]
    data = segment(records)
    header, start = decode_header(data)
    found = decode_records(memoryview(data), start)
    assert header == HEADER and found.rest == 0
    assert [plain(one) for one in found.records] == list(map(plain, records))
    places = [data.index(b"".join(one.payload)) % 64 for one in records if one.payload and one.n_bytes > 200]
    assert not any(places)


def test_a_segment_that_is_torn_at_any_byte_has_the_records_before_it(tmp_path: Path) -> None:
    whole = [segment([record(n) for n in range(1, last + 1)]) for last in range(5)]
    header = decode_header(whole[0])[1]
    for cut in range(header, len(whole[-1])):
        content = decode_records(memoryview(whole[-1][:cut]), header)
        assert [plain(one) for one in content.records] == [
            plain(record(n + 1)) for n in range(len(content.records))
        ]
        assert len(content.records) + 1 >= sum(len(data) <= cut for data in whole)
    for cut in range(0, len(whole[-1]), 23):
        written(tmp_path, whole[-1][:cut])
        found = read_log(tmp_path, "shard 0", after=0)
        # Zeros that fill a frame are no loss: it is whole without them.
        least = sum(len(data) <= cut for data in whole[1:])
        assert numbers(found) in (list(range(1, least + 1)), list(range(1, least + 2))), cut
        assert [plain(one) for _, one in found.records] == [plain(record(n)) for n in numbers(found)]
        assert found.unused == 0
        torn = cut < header or cut not in map(len, whole)
        assert bool(found.notes) == (torn and len(whole[len(found.records)]) != cut), (cut, found.notes)


def test_a_flipped_bit_anywhere_is_found_and_the_records_that_it_costs_are_counted(tmp_path: Path) -> None:
    whole = [record(n) for n in range(1, 5)]
    data = segment(whole)
    start, costs = decode_header(data)[1], set()
    for at in range(len(data)):
        flipped = data[:at] + bytes([data[at] ^ (1 << at % 8)]) + data[at + 1 :]
        if at >= start:
            content = decode_records(memoryview(flipped), start)
            left = [plain(one) for one in content.records]
            assert len(left) >= 3 and [one for one in map(plain, whole) if one in left] == left, at
        if at % 13:
            continue
        written(tmp_path, flipped)
        found = read_log(tmp_path, "shard 0", after=0)
        used = len(found.records)
        assert [plain(one) for _, one in found.records] == [plain(record(n)) for n in range(1, used + 1)], at
        if at < start:
            continue
        costs.add((used, found.unused))
        if 0 < used < 3:
            assert f"record {used + 1} of shard 0 is damaged or missing" in found.notes[0]
    assert costs == {(0, 4), (1, 3), (2, 2), (3, 0), (4, 0)}, "the last one may never have been whole"


def test_a_damaged_record_that_a_checkpoint_holds_costs_nothing(tmp_path: Path) -> None:
    data = bytearray(segment([record(n) for n in range(1, 7)]))
    data[data.index(b"push 2")] ^= 1
    written(tmp_path, bytes(data))
    found = read_log(tmp_path, "shard 0", after=3)
    assert (numbers(found), found.notes, found.unused) == ([4, 5, 6], [], 0)
    assert read_log(tmp_path, "shard 0", after=1).unused == 5


def test_segments_follow_one_another_and_a_gap_ends_them(tmp_path: Path) -> None:
    for first, last in ((1, 3), (4, 6), (8, 9)):
        header = msgspec.structs.replace(HEADER, first=first)
        written(tmp_path, segment([record(n) for n in range(first, last + 1)], header), first=first)
    found = read_log(tmp_path, "shard 0", after=1)
    assert (numbers(found), found.unused) == ([2, 3, 4, 5, 6], 3)
    assert found.notes == [
        "record 7 of shard 0 is damaged or missing in its log; 2 records behind it cannot be used"
    ]
    assert numbers(read_log(tmp_path, "shard 0", after=7)) == [8, 9]
    assert numbers(read_log(tmp_path, "shard 1", after=0)) == []


@given(st.data())
def test_a_process_that_outlives_its_replacement_changes_nothing(data: st.DataObject) -> None:
    """Processes of a shard write in any order; each begins behind what it has read."""
    import tempfile

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        writers, kept = [], []
        for incarnation in range(data.draw(st.integers(1, 4))):
            found = read_log(folder, "shard 0", after=0)
            assert [plain(one) for _, one in found.records] == kept
            kept = kept[: data.draw(st.integers(0, len(kept)))]  # it may not have been able to read all
            header = msgspec.structs.replace(HEADER, incarnation=incarnation, first=len(kept) + 1)
            own = next_log(folder, "run") if data.draw(st.booleans()) else folder / "log-00000001-run"
            own = max([own, *(path for _, path in log_folders(folder))])
            writers.append(LogWriter(own, header, synced=False))
            for turn in range(data.draw(st.integers(0, 4))):
                which = data.draw(st.integers(0, incarnation))
                one = record(writers[which].next, 5, b"%d by %d" % (turn, which))
                writers[which].append([one])
                if which == incarnation:
                    kept.append(plain(one))
                if data.draw(st.booleans()):
                    writers[which].begin_segment()
        for writer in writers:
            writer.close()
        assert [plain(one) for _, one in read_log(folder, "shard 0", after=0).records] == kept


def test_segments_below_a_checkpoint_are_removed(tmp_path: Path) -> None:
    folder = next_log(tmp_path, "run")
    writer = LogWriter(folder, HEADER)
    for first in (1, 4, 7):
        writer.append([record(n) for n in range(first, first + 3)])
        writer.begin_segment()
    before = writer.n_bytes
    writer.remove(5)
    assert [one.first for one in segments_of(tmp_path, "shard 0")] == [4, 7, 10]
    writer.remove(9)
    assert [one.first for one in segments_of(tmp_path, "shard 0")] == [10]
    assert writer.n_bytes == sum(one.path.stat().st_size for one in segments_of(tmp_path, "shard 0")) < before
    writer.close()
    later = next_log(tmp_path, "later")
    writer = LogWriter(later, HEADER, older=segments_of(tmp_path, "shard 0"))
    (folder / "notes.txt").write_text("of the user's")
    remove_logs(tmp_path, before=later)
    assert [path for _, path in log_folders(tmp_path)] == [folder, later] and os.listdir(folder) == [
        "notes.txt"
    ]
    writer.close()


def test_a_full_disk_leaves_nothing_of_a_record_and_it_is_written_later(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(next_log(tmp_path, "run"), HEADER)
    writer.append([record(1)])
    room, write = 100, os.write

    def full(file: int, data: Any) -> int:
        nonlocal room
        n_bytes = min(room, len(data))
        room -= n_bytes
        if not n_bytes:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return write(file, data[:n_bytes])

    with monkeypatch.context() as patch:
        patch.setattr(os, "write", full)
        with pytest.raises(LogFull, match=r"from-000000000001\.log cannot be written: No space left"):
            writer.append([record(2), record(3, 1 << 17)])
    assert numbers(read_log(tmp_path, "shard 0", after=0)) == [1]
    writer.append([record(2), record(3, 1 << 17)])
    writer.close()
    found = read_log(tmp_path, "shard 0", after=0)
    assert numbers(found) == [1, 2, 3] and not found.notes


def test_a_log_leaves_room_for_the_checkpoint_that_shortens_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer, free, stat = (
        LogWriter(next_log(tmp_path, "run"), HEADER, reserve=1000),
        5000,
        os.statvfs(tmp_path),
    )
    fields = {name: getattr(stat, name) for name in dir(stat) if name.startswith("f_")}
    monkeypatch.setattr(
        os, "statvfs", lambda path: SimpleNamespace(**{**fields, "f_frsize": 1, "f_bavail": free})
    )
    writer.append([record(1, 4000)])
    with pytest.raises(LogFull, match="a checkpoint needs what is left"):
        writer.append([record(2, 4001)])
    free = 5001
    writer.append([record(2, 4001)])
    writer.close()
    assert numbers(read_log(tmp_path, "shard 0", after=0)) == [1, 2]


def test_a_failed_sync_is_final_and_what_was_not_synced_is_cut_off(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    writer = LogWriter(next_log(tmp_path, "run"), HEADER)
    writer.append([record(1)])
    writer.sync()
    writer.append([record(2)])

    def fails(file: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fdatasync", fails)
        with pytest.raises(OSError, match="Input/output"):
            writer.sync()
    writer.close()
    assert numbers(read_log(tmp_path, "shard 0", after=0)) == [1]


def test_a_newer_format_and_a_renamed_file_are_not_used(tmp_path: Path) -> None:
    written(tmp_path, segment([record(5)]), first=5)
    assert "is a copy of another file" in read_log(tmp_path, "shard 0", after=4).notes[0]
    newer = msgspec.structs.replace(HEADER, format=9)
    written(tmp_path, segment([record(1)], newer))
    with pytest.raises(ValueError, match="format 9"):
        read_log(tmp_path, "shard 0", after=0)
