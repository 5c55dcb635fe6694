"""A ring of shared memory, its two ends in one process; what its two ends must not believe each other."""

from __future__ import annotations

import fcntl
import os
from collections import deque
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.transport.ring_buffer import (
    MAX_RING_BYTES,
    PAGE_BYTES,
    InvalidMemory,
    RingReader,
    RingSlice,
    RingWriter,
)

SIZE = 1 << 16


def ring(n_bytes: int = SIZE) -> tuple[RingWriter, RingReader]:
    writer = RingWriter(n_bytes)
    assert not writer.is_accepted
    reader = RingReader(writer.descriptor, n_bytes)
    writer.close_descriptor()
    assert writer.is_accepted
    return writer, reader


def place(writer: RingWriter, data: bytes) -> int | None:
    return writer.place([memoryview(data)], len(data))


@given(st.lists(st.tuples(st.integers(1, SIZE + 1), st.integers(0, 3)), max_size=40), st.randoms())
def test_what_is_placed_is_read_in_any_order_of_giving_back(
    steps: list[tuple[int, int]], random: object
) -> None:
    """Nothing that was not given back is ever written over; with everything given back, anything has room."""
    writer, reader = ring()
    live: list[tuple[bytes, RingSlice]] = []
    for number, (n_bytes, releases) in enumerate(steps):
        data = bytes([number % 251 + 1]) * n_bytes
        start = place(writer, data)
        if start is not None:
            live.append((data, reader.slice_at(start, n_bytes)))
        else:
            assert live or n_bytes > SIZE, "an empty ring takes whatever fits into it"
        assert sum(len(data) for data, _ in live) <= SIZE
        for data, slice_at in live:
            assert slice_at.view == data
        for _ in range(min(releases, len(live))):
            live.pop(random.randrange(len(live)))[1].release()  # type: ignore[attr-defined]
    for _, slice_at in live:
        slice_at.release()
        slice_at.release()
    assert place(writer, bytes(SIZE)) is not None


def test_an_empty_ring_starts_at_its_front() -> None:
    writer, reader = ring()
    for _ in range(10):
        start = place(writer, bytes(1000))
        assert start is not None
        assert start % SIZE == 0
        reader.slice_at(start, 1000).release()


def test_an_empty_ring_has_all_of_its_space() -> None:
    """Several payloads fit in after a pause, however small the one before it was."""
    writer, reader = ring()
    for size in (64, SIZE // 4, 64):
        start = place(writer, bytes(size))
        assert start is not None
        reader.slice_at(start, size).release()
        quarters = [place(writer, bytes([n]) * (SIZE // 4)) for n in range(4)]
        assert None not in quarters
        assert place(writer, b"more") is None
        slices = [reader.slice_at(quarter, SIZE // 4) for quarter in quarters if quarter is not None]
        assert [one.view[0] for one in slices] == [0, 1, 2, 3]
        for one in slices:
            one.release()


def test_an_unannounced_payload_is_freed_with_the_next() -> None:
    writer, reader = ring()
    assert place(writer, bytes(SIZE // 2)) == 0  # its header was lost with a connection
    second = place(writer, bytes(SIZE // 4))
    assert second is not None
    reader.slice_at(second, SIZE // 4).release()
    assert place(writer, bytes(SIZE)) is not None


@pytest.mark.parametrize(
    ("start", "n_bytes"),
    [(0, SIZE + 1), (64, SIZE), (SIZE - 64, 65), (1, 10), (0, 0), (2**63 - 64, 64 * 1024), (0, 2**62)],
)
def test_a_place_outside_is_refused(start: int, n_bytes: int) -> None:
    _, reader = ring()
    with pytest.raises(InvalidMemory, match="no payload of"):
        reader.slice_at(start, n_bytes)


@given(st.integers(0, 2**64), st.integers(0, 2**64))
def test_no_place_reads_beyond_the_ring(start: int, n_bytes: int) -> None:
    _, reader = ring(PAGE_BYTES)
    try:
        slice_at = reader.slice_at(start, n_bytes)
    except InvalidMemory:
        return
    assert bytes(slice_at.view) == bytes(n_bytes)
    assert n_bytes <= PAGE_BYTES


def test_a_place_that_goes_back_or_lies_upon_another_is_refused() -> None:
    _, reader = ring()
    held = reader.slice_at(64, 64)
    with pytest.raises(InvalidMemory):
        reader.slice_at(0, 64)
    with pytest.raises(InvalidMemory, match="overlap one"):
        reader.slice_at(SIZE + 64, 64)
    held.release()
    reader.slice_at(SIZE + 64, 64)


@pytest.mark.parametrize("counter", [1, 2**64 - 1])
def test_an_impossible_counter_ends_the_ring(counter: int) -> None:
    writer, reader = ring()
    assert place(writer, bytes(64)) == 0
    reader._counters[1] = 2**63 + counter if counter == 1 else counter
    assert place(writer, bytes(64)) is None
    assert writer.is_broken
    reader._counters[1] = 64
    assert place(writer, bytes(64)) is None


def memory(n_bytes: int = PAGE_BYTES + SIZE, *, seals: int | None = None) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, n_bytes)
    all_seals = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, all_seals if seals is None else seals)
    return descriptor


@pytest.mark.parametrize(
    "make",
    [
        pytest.param(lambda _: memory(seals=0), id="unsealed: it could shrink while it is read"),
        pytest.param(lambda _: memory(seals=fcntl.F_SEAL_GROW), id="it could shrink"),
        pytest.param(lambda _: memory(SIZE), id="smaller than it says"),
        pytest.param(lambda _: memory(PAGE_BYTES + 2 * SIZE), id="larger than it says"),
        pytest.param(lambda _: os.eventfd(0), id="no memory"),
        pytest.param(lambda _: os.open("/dev/zero", os.O_RDWR), id="a device"),
        pytest.param(lambda folder: os.open(folder, os.O_RDONLY), id="a folder"),
    ],
)
def test_what_is_no_sealed_memory_is_refused(make: Callable[[Path], int], tmp_path: Path) -> None:
    descriptor = make(tmp_path)
    try:
        with pytest.raises(InvalidMemory):
            RingReader(descriptor, SIZE)
    finally:
        os.close(descriptor)


def test_a_file_of_a_disk_is_refused(tmp_path: Path) -> None:
    with (tmp_path / "file").open("w+b") as file:
        file.truncate(PAGE_BYTES + SIZE)
        with pytest.raises(InvalidMemory, match="not sealed"):
            RingReader(file.fileno(), SIZE)


@pytest.mark.parametrize("n_bytes", [0, -PAGE_BYTES, PAGE_BYTES + 1, MAX_RING_BYTES + PAGE_BYTES, 2**63])
def test_a_size_that_no_ring_has_is_refused(n_bytes: int) -> None:
    descriptor = memory()
    try:
        with pytest.raises(InvalidMemory, match="whole pages"):
            RingReader(descriptor, n_bytes)
    finally:
        os.close(descriptor)


def test_memory_that_was_offered_cannot_shrink() -> None:
    writer, reader = ring()
    again = RingWriter(SIZE)
    try:
        with pytest.raises(PermissionError):
            os.ftruncate(again.descriptor, 0)
    finally:
        again.close_descriptor()
    assert reader.slice_at(0, 64).view == bytes(64)
    assert not writer.is_broken


def test_what_was_read_outlives_both_ends() -> None:
    writer, reader = ring()
    start = place(writer, b"kept")
    assert start is not None
    kept = deque([reader.slice_at(start, 4)])
    reader.close()
    assert not writer.is_accepted
    del writer, reader
    assert kept[0].view == b"kept"
    kept.pop().release()
