"""The file of a stream: followed while it grows, read with a torn end, and thinned when it is large."""

from __future__ import annotations

import tempfile
from functools import lru_cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.watch.file import (
    StreamReader,
    StreamWriter,
    newest_path,
    next_path,
    read_stream,
    thinned,
)
from partita.engine.watch.records import (
    Event,
    MalformedRecord,
    Record,
    RunBegan,
    RunEnded,
    SampledStep,
    decode,
    encode,
)
from partita.engine.watch.state import State
from tests.watch.invented import Invented, digits_plan, stream


@lru_cache
def _records() -> tuple[Record, ...]:
    return tuple(stream(digits_plan(), Invented(seconds=120.0)))


def _state(records: list[Record] | tuple[Record, ...]) -> State:
    state = State()
    for record in records:
        state.add(record)
    return state


def test_a_file_is_followed_while_it_is_written(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    writer = StreamWriter(path)
    reader = StreamReader(path)
    assert reader.read() == []
    first, *others = _records()
    writer.write(lambda: [first])  # made by the thread that writes
    for record in others:
        writer.write(record)
    seen: list[Record] = []
    while not reader.state.is_over:
        seen += reader.read()
    writer.close()
    reader.close()
    assert writer.error is None
    assert tuple(seen) == _records() == tuple(read_stream(path))
    assert reader.state == _state(seen)


@given(st.integers(0, 1 << 20))
def test_a_torn_end_is_no_error_and_is_read_when_it_is_whole(cut: int) -> None:
    data = b"".join(map(encode, _records()[:40]))
    cut %= len(data) + 1
    path = Path(tempfile.mkdtemp()) / "torn.jsonl"
    path.write_bytes(data[:cut])
    reader = StreamReader(path)
    before = reader.read()
    with path.open("ab") as file:
        file.write(data[cut:])
    assert tuple(before + reader.read()) == _records()[:40]
    reader.close()
    path.unlink()
    path.parent.rmdir()


def test_a_large_file_is_thinned_and_its_readers_begin_anew(tmp_path: Path) -> None:
    path = tmp_path / "records.jsonl"
    whole = b"".join(map(encode, _records()))
    writer = StreamWriter(path, most_bytes=len(whole) * 4 // 5)
    reader = StreamReader(path)
    writer.write(_records()[0])
    while not reader.read():
        pass
    assert reader.state.run == _records()[0]
    for record in _records()[1:]:
        writer.write(record)
    writer.close()
    assert writer.error is None
    assert path.stat().st_size < len(whole)
    records = reader.read()
    reader.close()
    assert isinstance(records[0], RunBegan) and isinstance(records[-1], RunEnded)
    assert reader.state == _state(records)
    full, left = _state(_records()), reader.state
    assert left.hosts == full.hosts and left.progress == full.progress and left.traffic == full.traffic
    assert left.newest_sample() == full.newest_sample()


def test_sampled_steps_are_thinned_first_and_never_the_newest() -> None:
    lines = [encode(record) for record in _records()]
    size = sum(map(len, lines))
    kept = thinned(lines, size - 1000)
    lost = {type(decode(line)).__name__ for line in lines} if kept == lines else set()
    lost |= {type(decode(line)).__name__ for line in set(lines) - set(kept)}
    assert lost == {SampledStep.__name__}
    nothing = thinned(lines, 0)
    kinds = [type(decode(line)).__name__ for line in nothing]
    assert kinds[0] == "RunBegan" and kinds[-1] == "RunEnded"
    assert [line for line in lines if b'"SampledStep"' in line][-40:] == [
        line for line in nothing if b'"SampledStep"' in line
    ][-40:]
    assert nothing == [line for line in lines if line in set(nothing)], "the order stays"


def test_an_error_of_the_disk_is_kept_and_the_run_goes_on(tmp_path: Path) -> None:
    writer = StreamWriter(tmp_path / "records.jsonl")
    writer._file.close()  # as a disk that fails
    for n in range(3):
        writer.write(Event(at_s=float(n), kind="note", text="written to a closed file"))
    writer.close()
    assert "closed file" in str(writer.error)


def test_files_of_a_folder_are_numbered_and_the_newest_is_found(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="no records of a run"):
        newest_path(tmp_path)
    for _ in range(11):
        StreamWriter(next_path(tmp_path)).close()
    assert (
        newest_path(tmp_path) == tmp_path / "records-11.jsonl" == newest_path(tmp_path / "records-11.jsonl")
    )
    other = tmp_path / "other.jsonl"
    other.write_text("no record\n")
    with pytest.raises(MalformedRecord, match="is no record of a run"):
        read_stream(other)
