"""Every decoder of frames, against what follows the protocol and against anything else."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec
import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from partita.engine.protocol import encode
from partita.engine.protocol.messages import Fetch, Malformed, Peer, Tensor
from partita.engine.transport import Counters, Payload
from partita.engine.transport.authenticator import admission, parse_request
from partita.engine.transport.inbound import InboundConnections
from partita.engine.transport.payload import chunks
from partita.engine.transport.reassembly import Reassembly
from partita.engine.transport.sockets import ZAP_DOMAIN
from partita.engine.transport.wire import (
    CHUNK_BYTES,
    INLINE_BYTES,
    STREAM_BITS,
    Ack,
    Continuation,
    LinkOffer,
    MalformedFrames,
    MessageStart,
    SendWindow,
    chunk_size,
    decode_envelope,
    frames,
)

MAX_PAYLOAD = 3 * CHUNK_BYTES
CHUNK = bytes(CHUNK_BYTES)

small = st.integers(0, 4)
numbers = small | st.sampled_from([1 << STREAM_BITS, 2**62, 2**64 - 1])
envelopes = st.one_of(
    st.builds(
        MessageStart,
        numbers,
        st.none()
        | st.sampled_from([0, 1, 5, CHUNK_BYTES, CHUNK_BYTES + 1, MAX_PAYLOAD, MAX_PAYLOAD + 1, 2**63 - 1]),
        st.sampled_from([encode(Fetch(1)), encode(Tensor(0, "h1", (((0, 3),),))), b"", b"\xc1"])
        | st.binary(max_size=20),
        st.none() | st.sampled_from([0, 64, 2**63 - 1]),
        st.none() | st.sampled_from([b"", b"x", bytes(5), bytes(INLINE_BYTES + 1)]),
    ),
    st.builds(Continuation, small, small),
    st.builds(LinkOffer, st.binary(max_size=17), st.sampled_from([0, 4096, 2**63 - 1]), numbers),
    st.builds(Ack, numbers, st.booleans()),
    st.builds(SendWindow, numbers, st.none() | numbers),
).map(msgspec.msgpack.encode)
mutilated = st.builds(
    lambda data, at, byte: data[:at] + byte + data[at + 1 :],
    envelopes,
    st.integers(0, 30),
    st.binary(max_size=2),
)
chunk_frames = st.sampled_from([b"", b"x", b"xxxxx", CHUNK, CHUNK[1:]])
groups = st.lists(envelopes | mutilated | chunk_frames | st.binary(max_size=40), max_size=4)


def views(group: Sequence[bytes | memoryview]) -> list[memoryview]:
    return [memoryview(frame) for frame in group]


@given(st.binary(max_size=200) | envelopes | mutilated)
def test_an_envelope_is_decoded_or_refused(data: bytes) -> None:
    try:
        envelope = decode_envelope(data)
    except MalformedFrames:
        return
    assert decode_envelope(msgspec.msgpack.encode(envelope)) == envelope


@given(st.lists(groups, max_size=12))
def test_reassembly_never_raises_and_is_bounded(all_groups: list[list[bytes]]) -> None:
    reassembly = Reassembly(max_payload=MAX_PAYLOAD)
    for group in all_groups:
        for _, payload in reassembly.add(views(group)):
            assert payload is None or payload.n_bytes <= MAX_PAYLOAD
        unfinished = reassembly._unfinished
        assert unfinished is None or unfinished.taken < unfinished.n_bytes <= MAX_PAYLOAD
    good = reassembly.malformed
    assume(reassembly.following < 2**62)  # a member may give its own stream any number, the last one, too
    following = max(9, reassembly.following)
    for envelope, chunk in frames(following, Fetch(3), [memoryview(CHUNK), memoryview(b"tail")]):
        assert chunk is not None
        complete = reassembly.add([memoryview(envelope), memoryview(chunk)])
    assert [message for message, _ in complete] == [Fetch(3)]
    assert reassembly.malformed <= good + 1  # whatever broke off before


@given(st.integers(0, 2 * INLINE_BYTES))
def test_a_small_payload_is_in_its_envelope(n_bytes: int) -> None:
    payload = bytes(n % 251 for n in range(n_bytes))
    ((envelope, chunk),) = frames(0, Fetch(3), [memoryview(payload)])
    assert (chunk is None) == (n_bytes <= INLINE_BYTES)
    group = [memoryview(envelope), *([] if chunk is None else [memoryview(chunk)])]
    ((message, found),) = Reassembly(max_payload=MAX_PAYLOAD).add(group)
    assert message == Fetch(3)
    assert found is not None and found.to_bytes() == payload


@pytest.mark.parametrize(
    ("n_bytes", "place", "payload", "chunk"),
    [
        (5, None, b"four", None),
        (0, None, b"", None),
        (5, 64, b"fives", None),
        (5, None, b"fives", b"fives"),
        (5, None, None, b"fives"),
        (INLINE_BYTES + 1, None, bytes(INLINE_BYTES + 1), None),
        (None, None, b"fives", None),
    ],
)
def test_a_payload_in_an_envelope_is_checked(
    n_bytes: int | None, place: int | None, payload: bytes | None, chunk: bytes | None
) -> None:
    reassembly = Reassembly(max_payload=MAX_PAYLOAD)
    start = msgspec.msgpack.encode(MessageStart(0, n_bytes, encode(Fetch(3)), place, payload))
    ((found, _),) = reassembly.add(views([start, *([] if chunk is None else [chunk])]))
    assert isinstance(found, Malformed) and "payload" in found.reason
    assert reassembly.malformed == 1
    assert reassembly.following == 1


@given(st.none() | st.text(max_size=3), st.lists(groups, max_size=5))
def test_senders_never_raise(key: str | None, all_groups: list[list[bytes]]) -> None:
    counters = Counters()
    inbound = InboundConnections(counters, max_payload=MAX_PAYLOAD)
    inbound.replace([Peer("left", 0, "", "a")])
    for group in all_groups:
        received = inbound.accept(key, views(group))
        assert not received or key == "a"
    assert key == "a" or counters.refused_messages == len(all_groups)


zap_frames = st.sampled_from(
    [b"", b"1.0", b"id", ZAP_DOMAIN, b"127.0.0.1", b"CURVE", b"NULL", b"PLAIN", bytes(32)]
)


@given(st.lists(zap_frames | st.binary(max_size=40), max_size=10))
def test_an_authenticator_never_raises(request_frames: list[bytes]) -> None:
    asked = parse_request(request_frames)
    assert asked is None or request_frames[6:] == [b"CURVE", request_frames[7]]


def test_only_curve_in_our_domain_asks_for_a_key() -> None:
    request = [b"", b"1.0", b"id", ZAP_DOMAIN, b"127.0.0.1", b"", b"CURVE", bytes(32)]
    assert parse_request(request) == (b"id", "0" * 40)
    assert admission(b"id", "0" * 40) == [b"", b"1.0", b"id", b"200", b"OK", b"0" * 40, b""]
    wrong = {0: [b"x"], 1: [b"1.1"], 3: [b"", b"*", b"global"], 6: [b"NULL", b"PLAIN"], 7: [b"", bytes(31)]}
    for at, frames_there in wrong.items():
        for frame in frames_there:
            assert parse_request([*request[:at], frame, *request[at + 1 :]]) is None
    assert parse_request([*request, b"more"]) is None


@given(st.integers(0, 3), st.integers(0, 2), st.integers(-1, 1))
def test_chunk_sizes_add_up(full: int, index: int, odd: int) -> None:
    n_bytes = max(0, full * CHUNK_BYTES + odd)
    sizes = [chunk_size(n_bytes, at) for at in range(6)]
    assert sum(sizes) == n_bytes
    assert sorted(sizes, reverse=True) == sizes


@given(st.lists(st.binary(max_size=30), max_size=8), st.integers(1, 16))
def test_chunks_keep_every_byte_and_are_full(buffers: list[bytes], chunk_bytes: int) -> None:
    pieces = [bytes(piece) for piece in chunks(views(buffers), chunk_bytes=chunk_bytes)]
    assert b"".join(pieces) == b"".join(buffers)
    assert all(len(piece) == chunk_bytes for piece in pieces[:-1])
    assert all(0 < len(piece) <= chunk_bytes for piece in pieces)


@given(st.lists(st.binary(max_size=12), max_size=6), st.data())
def test_a_payload_lands_in_any_split_of_its_size(pieces: list[bytes], data: st.DataObject) -> None:
    payload = Payload(views(pieces))
    cuts = sorted(data.draw(st.lists(st.integers(0, payload.n_bytes), max_size=4)))
    targets = [
        np.empty(stop - start, np.uint8)
        for start, stop in zip([0, *cuts], [*cuts, payload.n_bytes], strict=True)
    ]
    payload.copy_into(*targets)
    assert b"".join(target.tobytes() for target in targets) == b"".join(pieces) == payload.to_bytes()


@given(st.lists(st.floats(width=32), max_size=12), st.data())
def test_a_payload_in_any_pieces_is_added_where_it_lies(values: list[float], data: st.DataObject) -> None:
    given_, before = np.array(values, np.float32), np.arange(len(values), dtype=np.float32)
    cuts = sorted(data.draw(st.lists(st.integers(0, given_.nbytes), max_size=4)))
    flat = given_.tobytes()
    pieces = [flat[start:stop] for start, stop in zip([0, *cuts], [*cuts, len(flat)], strict=True)]
    payload, target = Payload(views(pieces)), before.copy()
    with np.errstate(all="ignore"):
        payload.add_into(target)
        np.testing.assert_array_equal(target, before + given_)
    with pytest.raises(ValueError, match="exactly its size"):
        payload.add_into(np.zeros(len(values) + 1, np.float32))
    payload.release()
    with pytest.raises(ValueError, match="released"):
        payload.add_into(target)


@pytest.mark.parametrize(
    ("index", "number"),
    [(2, 0), (0, 0), (1, 1)],
    ids=["one is missing", "one is repeated", "of another message"],
)
def test_a_chunk_out_of_order_drops_its_message(index: int, number: int) -> None:
    reassembly = Reassembly(max_payload=MAX_PAYLOAD)
    (opening, first), *_ = frames(0, Fetch(1), [memoryview(bytes(MAX_PAYLOAD))])
    assert first is not None
    reassembly.add([memoryview(opening), memoryview(first)])
    assert reassembly.add(views([msgspec.msgpack.encode(Continuation(number, index)), CHUNK])) == []
    assert reassembly.add(views([msgspec.msgpack.encode(Continuation(0, 1)), CHUNK])) == []
    assert reassembly.malformed == 2


@pytest.mark.parametrize(
    "chunk", [b"", CHUNK[1:], CHUNK + b"x", None], ids=["empty", "short", "long", "missing"]
)
def test_a_chunk_of_another_size_drops_its_message(chunk: bytes | None) -> None:
    reassembly = Reassembly(max_payload=MAX_PAYLOAD)
    (opening, first), (following, second), *_ = frames(0, Fetch(1), [memoryview(bytes(MAX_PAYLOAD))])
    assert first is not None
    assert second is not None
    reassembly.add([memoryview(opening), memoryview(first)])
    ((found, _),) = reassembly.add(views([following] if chunk is None else [following, chunk]))
    assert isinstance(found, Malformed) and "it must have" in found.reason
    assert reassembly.malformed == 1
    assert reassembly.add([memoryview(following), memoryview(second)]) == []
    assert reassembly.malformed == 2


def test_a_dtype_that_memoryview_does_not_know_can_be_sent() -> None:
    from partita.engine.transport.payload import views as flat

    numbers = np.zeros((2, 3), dtype="datetime64[ns]")
    found, n_bytes = flat(numbers, max_payload=100)
    assert (n_bytes, found and found[0].nbytes) == (48, 48)


@pytest.mark.parametrize("dtype", [np.float32, np.float64, np.int32, np.uint16, np.bool_])
@pytest.mark.parametrize("shape", [(), (1,), (5,), (2, 3), (70_000,), (0,)])
def test_short_and_long_payloads_fill_arrays_alike(dtype: type, shape: tuple[int, ...]) -> None:
    values = (np.arange(np.prod(shape, dtype=int)) % 2).astype(dtype).reshape(shape)
    data = b"?" + values.tobytes()  # from an odd address
    target = np.zeros(shape, dtype)
    Payload((memoryview(data)[1:],)).copy_into(target)
    assert (target == values).all()
    if dtype is not np.bool_ and values.size:
        Payload((memoryview(data)[1:],)).add_into(target)
        assert (target == 2 * values).all()


@pytest.mark.parametrize("size", [5, 70_000])
def test_arrays_that_cannot_be_filled_are_refused(size: int) -> None:
    payload = Payload((memoryview(bytes(4 * size)),))
    fixed = np.ones(size, np.float32)
    fixed.flags.writeable = False
    for target in (fixed, np.ones(2 * size, np.float32)[::2], np.ones(size + 1, np.float32)):
        for fill in (payload.copy_into, payload.add_into):
            with pytest.raises(ValueError, match=r"contiguous|give a"):
                fill(target)
        assert (target == 1).all()
    payload.release()
    for fill in (payload.copy_into, payload.add_into):
        with pytest.raises(ValueError, match="was released"):
            fill(np.ones(size, np.float32))
