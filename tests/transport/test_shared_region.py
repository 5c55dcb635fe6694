"""Regions: payloads that peers of one machine read where they lie, and checks of what a member claims."""

from __future__ import annotations

import mmap
import os

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import encode
from partita.engine.protocol.messages import Credit, Fetch, Malformed
from partita.engine.transport import Mailbox, Reading, Steady, Versioned
from partita.engine.transport.payload import Payload
from partita.engine.transport.reassembly import Reassembly
from partita.engine.transport.ring_buffer import PAGE_BYTES, InvalidMemory, PeerState, RingReader, RingWriter
from partita.engine.transport.shared_region import FIRST_PLACE, MAX_REGIONS, REGION_BITS, Region, RegionReader
from partita.engine.transport.wire import INLINE_BYTES, Ack, RegionOffer, encode_control, encode_shared
from tests.transport.helpers import MIB, Hosts, collect, serve_until


def taken(left: Mailbox, right: Mailbox) -> np.ndarray:
    """Memory of the left host that the right one reads."""
    memory = left.memory(2 * MIB)
    assert memory is not None and not memory.any()
    for request in range(2):  # the offer of a link, and that of the region
        left.send("right", Fetch(request), Steady(memory))
        collect(right, 1, others=[left])
    link = left._outbound["right"].link
    serve_until(lambda: bool(link.taken), [left, right], "the region")
    return memory


def test_a_steady_payload_is_read_where_it_lies(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory = taken(left, right)
    memory[:] = np.arange(memory.size) % 251
    end = left._outbound["right"].link._ring._end
    part = memory[MIB + 64 :]
    left.send("right", Credit(1), Steady(part))
    (got,) = collect(right, 1, others=[left])
    assert isinstance(got.payload, Payload) and got.payload.is_shared
    assert got.payload.to_bytes() == part.tobytes()
    (numbers,) = got.payload.numbers(np.uint8)
    part[0] = 99
    assert numbers[0] == 99, "it was not copied"
    assert left._outbound["right"].link._ring._end == end, "nor into the ring"
    near.close()


def test_a_versioned_payload_is_read_until_it_is_released(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory = taken(left, right)
    memory[:] = 5
    readings: list[Reading] = []
    for step in range(3):
        left.send("right", Credit(step), Versioned(memory[: MIB + step], readings))
        assert len(readings) == step + 1, "it was not copied"
    payloads = [one.payload for one in collect(right, 3, others=[left])]
    assert [one.is_over for one in readings] == [False] * 3
    payloads[1].release()
    assert [one.is_over for one in readings] == [False] * 3, "the first is still read"
    for n in (0, 0, 2):
        payloads[n].release()
        assert [one.is_over for one in readings] == [True, True, n == 2], n
    copied = np.ones(MIB, np.uint8)
    left.send("right", Credit(1), Versioned(copied, readings))
    assert len(readings) == 3, "a copy is read by nobody else"
    near.close()


def test_what_a_peer_reads_that_is_authorised_no_more_may_change(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory, readings = taken(left, right), list[Reading]()
    left.send("right", Credit(1), Versioned(memory, readings))
    (got,) = collect(right, 1, others=[left])
    left.reconnect("right")
    assert not readings[0].is_over, "the same process reads it"
    left.allow([])
    assert readings[0].is_over
    got.payload.release()
    near.close()


def test_a_peer_that_is_authorised_again_gets_copies(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory, readings = taken(left, right), list[Reading]()
    memory[:] = 3
    peer = left._outbound["right"].peer
    left.allow([])
    left.allow([peer])
    left.send("right", Credit(1), Versioned(memory[:MIB], readings))
    memory[:] = 4
    (got,) = collect(right, 1, others=[left])
    assert got.payload.to_bytes() == b"\3" * MIB and not readings
    near.close()


def test_a_versioned_payload_that_finds_the_link_full_is_copied(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory, readings = taken(left, right), list[Reading]()
    memory[:] = 3
    sent = 0
    while len(readings) == sent:  # nobody receives
        sent += 1
        left.send("right", Credit(sent), Versioned(memory[:MIB], readings))
    memory[:] = 4  # the last one was copied; the others are read as they are
    got = collect(right, sent, others=[left])
    assert [one.message for one in got] == [Credit(step) for step in range(1, sent + 1)]
    assert got[-1].payload.to_bytes() == b"\3" * MIB
    assert not any(one.is_over for one in readings)
    for one in got:
        one.payload.release()
    assert all(one.is_over for one in readings)
    assert right.counters.malformed == 0
    near.close()


@given(st.lists(st.integers(0, 6), max_size=12))
def test_the_sender_learns_of_payloads_that_are_released_in_order(order: list[int]) -> None:
    writer = RingWriter(PAGE_BYTES)
    reader = RingReader(writer.descriptor, PAGE_BYTES)
    state = PeerState()
    readings = [writer.begin_reading(state) for _ in range(5)]
    released = set[int]()
    for number in order:
        if number >= len(readings):  # of no message: nothing of this sender is over too early
            with pytest.raises(InvalidMemory):
                reader.check_reading(number + (1 << 20))
            continue
        reader.end_reading(number)
        released.add(number)
        first = next(n for n in range(6) if n not in released)
        assert [one.is_over for one in readings] == [n < first for n in range(5)]
    writer.close_descriptor()


def test_a_number_of_a_reading_is_accepted_on_the_link_alone() -> None:
    region = Region(2 * PAGE_BYTES)
    reassembly = Reassembly(
        max_payload=PAGE_BYTES, accept_region=lambda offer: RegionReader(region.descriptor, offer.n_bytes)
    )
    reassembly.add([memoryview(encode_control(RegionOffer(bytes(16), region.n_bytes, 0)))])
    ((found, _),) = reassembly.add([memoryview(encode_shared(0, Credit(1), 8, FIRST_PLACE, 0))])
    assert isinstance(found, Malformed)
    assert reassembly.malformed == 1
    with pytest.raises(InvalidMemory, match="release"):
        RegionReader(region.descriptor, region.n_bytes).slice_at(0, 8, reading=0)
    region.close()


@pytest.mark.parametrize("size", [1, INLINE_BYTES, INLINE_BYTES + 1, 2 * MIB])
def test_every_size_of_a_steady_payload_arrives(hosts: Hosts, size: int) -> None:
    left, right = hosts.pair()
    memory = left.memory(size)
    numbers = np.zeros(size, np.uint8) if memory is None else memory
    assert (memory is not None) == (hosts.kind == "shared memory")
    for step in range(5):
        numbers[:] = step + 1
        left.send("right", Credit(step), Steady(numbers))
        (got,) = collect(right, 1, others=[left])
        assert got.payload.to_bytes() == bytes([step + 1]) * size


def test_memory_elsewhere_is_copied(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, right = near.pair()
    memory = taken(left, right)
    across = np.lib.stride_tricks.as_strided(memory, (memory.size,), (1,))
    for payload in (np.ones(MIB, np.uint8), across[: MIB // 2]):
        left.send("right", Credit(1), Steady(payload))
        (got,) = collect(right, 1, others=[left])
        assert got.payload.to_bytes() == payload.tobytes()
    near.close()


def test_there_are_at_most_so_many_regions(nothing_left: None) -> None:
    near = Hosts("shared memory")
    left, _ = near.pair()
    assert [left.memory(PAGE_BYTES) is not None for _ in range(MAX_REGIONS + 1)] == [True] * MAX_REGIONS + [
        False
    ]
    assert near.open("third")[0].memory(1 << 40) is None
    near.close()


def test_only_the_owner_can_write(nothing_left: None) -> None:
    region = Region(3 * PAGE_BYTES)
    with pytest.raises(PermissionError):
        mmap.mmap(region.descriptor, 4 * PAGE_BYTES)
    region.memory[:] = 7
    reader = RegionReader(region.descriptor, region.n_bytes)
    assert bytes(reader.slice_at(5, 3).view) == b"\7\7\7"
    assert reader.slice_at(0, 1).view.readonly
    with pytest.raises(OSError):  # noqa: PT011 - the kernel's words
        os.ftruncate(region.descriptor, PAGE_BYTES)
    region.close()


def test_memory_that_is_not_sealed_is_refused(nothing_left: None) -> None:
    descriptor = os.memfd_create("x", os.MFD_CLOEXEC)
    os.ftruncate(descriptor, 2 * PAGE_BYTES)
    for n_bytes in (PAGE_BYTES, 2 * PAGE_BYTES, PAGE_BYTES - 1, 0, 1 << 40):
        with pytest.raises(InvalidMemory):
            RegionReader(descriptor, n_bytes)
    os.close(descriptor)


@given(st.integers(0, 2**62), st.integers(0, 2**62), st.booleans())
def test_no_place_that_a_member_claims_is_read_beyond_the_region(
    place: int, n_bytes: int, in_region: bool
) -> None:
    region = Region(2 * PAGE_BYTES)
    region.memory[:] = 1
    answers: list[Ack] = []

    def answer(ack: Ack) -> bool:
        answers.append(ack)
        return True

    reassembly = Reassembly(
        max_payload=4 * PAGE_BYTES,
        accept_region=lambda offer: RegionReader(region.descriptor, offer.n_bytes),
        send_ack=answer,
    )
    offer = encode_control(RegionOffer(bytes(16), region.n_bytes, 0))
    assert reassembly.add([memoryview(offer)]) == []
    assert answers == [Ack(0, region=0)]
    reassembly.add([memoryview(offer)])
    assert reassembly.malformed == 1, "twice"
    where = FIRST_PLACE + place % (4 * PAGE_BYTES) if in_region else place
    n_bytes = n_bytes % (4 * PAGE_BYTES) if in_region else n_bytes
    found = reassembly.add([memoryview(encode_shared(0, Credit(1), n_bytes, where))])
    taken = [payload for message, payload in found if not isinstance(message, Malformed)]
    for payload in taken:
        assert in_region or FIRST_PLACE <= place < FIRST_PLACE + (1 << REGION_BITS)
        assert payload is not None and payload.to_bytes() == b"\1" * n_bytes
    assert reassembly.malformed == 2 - len(taken)
    reassembly.close()
    lost = reassembly.add([memoryview(encode_shared(1, Credit(1), 8, FIRST_PLACE))])
    assert lost == [], "a removed sender's region is forgotten"
    region.close()
    assert encode(Credit(1))
