"""The machines of file transfers, over a network that delays, drops, repeats and reorders, with deaths."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.protocol import file_client as fc
from partita.engine.protocol import file_messages as fm
from partita.engine.protocol import file_server as fs
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.messages import decode, encode
from tests.draws import examples

WRITER, FILE, CHUNK = "shard 0", b"0123456789abcdefghijklmnopqrstuv" * 8, 16


def content(number: int, size: int) -> bytes:
    return bytes((number * 7 + n) % 256 for n in range(size))


@dataclass
class Body:
    """The server's disk: unfinished files by key, and stored ones, each with every write that made it."""

    open: dict[fs.WriteKey, bytes] = field(default_factory=dict)
    stored: list[tuple[fs.WriteKey, str, bytes]] = field(default_factory=list)
    fails: frozenset[str] = frozenset()

    def carry_out(self, effect: Any) -> Any:
        match effect:
            case fs.Find(to=to, request=request, name=name):
                missing = name != "data/x"
                return fs.Found(to, request, None if missing else len(FILE), "there is none" * missing)
            case fs.SendChunk(to=to, request=request, start=start, stop=stop):
                return Send(to, fm.FileChunk(request)), FILE[start:stop]
            case fs.Append(key=key, name=name, payload=bytes(payload)):
                if name in self.fails:
                    return fs.Appended(key, None, "the disk is full")
                self.open[key] = self.open.get(key, b"") + payload
                return fs.Appended(key, len(self.open[key]))
            case fs.Store(key=key, name=name, sha256=sha256):
                data = self.open.pop(key, None)
                if data is None or hashlib.sha256(data).hexdigest() != sha256:
                    return fs.Stored(key, "damaged")
                self.stored.append((key, name, data))
                return fs.Stored(key)
            case fs.Drop(key=key):
                self.open.pop(key, None)
        return None


class World:
    """One server and one process of a host after another, and messages under way between them."""

    def __init__(self, fails: frozenset[str] = frozenset()) -> None:
        self.server = fs.FileServer(most_bytes=10_000)
        self.body = Body(fails=fails)
        self.now, self.incarnation = 0.0, 0
        self.flying: list[tuple[str, Received]] = []
        self.orders: list[tuple[str, bytes]] = []
        self.read: dict[tuple[str, int], bytes] = {}
        self.sizes: dict[str, int] = {}
        self.failed: list[str] = []
        self.ended: list[str] = []
        self.begin()

    def begin(self) -> None:
        """A new process of the host; the earlier one is dead."""
        self.incarnation += 1
        self.flying = [(to, event) for to, event in self.flying if to == "files"]  # its connection ended
        self.client = fc.FileClient(WRITER, "tcp://127.0.0.1:1", window_bytes=64)
        self.orders, self.ended = [], []
        self.server_got(fs.Admitted({WRITER: self.incarnation}))

    def server_got(self, event: Any) -> None:
        for effect in self.server.receive(event, self.now):
            if isinstance(effect, Send):
                self.fly(effect.to, "files", 0, effect.message, None)
            elif not isinstance(effect, Refuse | fs.Connect):
                self.result(self.body.carry_out(effect))
        self.server.validate()

    def result(self, found: Any) -> None:
        if isinstance(found, tuple):
            send, payload = found
            self.fly(send.to, "files", 0, send.message, payload)
        elif found is not None:
            self.server_got(found)

    def client_got(self, event: Any) -> None:
        for effect in self.client.receive(event, self.now):
            match effect:
                case Send(message=message):
                    self.fly("files", WRITER, self.incarnation, message, None)
                case fc.SendPiece(number=number, name=name, start=start, stop=stop):
                    data = self.orders[len(self.ended)][1][start:stop]
                    self.fly("files", WRITER, self.incarnation, fm.WriteFile(number, name, start), data)
                case fc.Arrived(name=name, start=start, payload=bytes(payload)):
                    assert (name, start) not in self.read, "a chunk comes once"
                    self.read[name, start] = payload
                case fc.SizeKnown(name=name, n_bytes=n_bytes):
                    self.sizes[name] = n_bytes
                case fc.ReadFailed(name=name):
                    self.failed.append(name)
                case fc.WriteEnded(reason=reason):
                    self.ended.append(reason)
        self.client.validate()

    def fly(self, to: str, sender: str, incarnation: int, message: Any, payload: Any) -> None:
        self.flying.append((to, Received(sender, incarnation, decode(encode(message)), payload)))

    def deliver(self, index: int, *, keep: bool = False) -> None:
        to, event = self.flying[index] if keep else self.flying.pop(index)
        (self.server_got if to == "files" else self.client_got)(event)

    def tick(self, seconds: float) -> None:
        self.now += seconds
        self.client_got(Tick())

    def write(self, name: str, data: bytes) -> None:
        self.orders.append((name, data))
        self.client_got(fc.StartWrite(name, len(data), hashlib.sha256(data).hexdigest()))

    def settle(self) -> None:
        """A fair network from now on."""
        for _ in range(400):
            while self.flying:
                self.deliver(0)
            if self.client.idle:
                return
            self.tick(0.5)
        raise AssertionError("the transfers do not end")


steps = st.lists(
    st.one_of(
        st.tuples(st.just("deliver"), st.integers(0, 99)),
        st.tuples(st.just("repeat"), st.integers(0, 99)),
        st.tuples(st.just("drop"), st.integers(0, 99)),
        st.tuples(st.just("tick"), st.sampled_from([0.1, 1.0, 3.0])),
        st.tuples(st.just("die"), st.just(0)),
        st.tuples(st.just("write"), st.integers(1, 300)),
        st.tuples(st.just("read"), st.integers(0, len(FILE) // CHUNK - 1)),
        st.tuples(st.just("ahead"), st.integers(0, len(FILE) // CHUNK - 1)),
    ),
    max_size=60,
)


@settings(max_examples=examples(60), deadline=None)
@given(steps=steps)
def test_every_file_is_stored_once_and_whole_and_a_dead_writer_leaves_nothing(steps: list[Any]) -> None:
    world = World()
    wanted: set[int] = set()
    for what, number in steps:
        match what:
            case "deliver" | "repeat" | "drop" if world.flying:
                at = number % len(world.flying)
                if what == "drop":
                    world.flying.pop(at)
                else:
                    world.deliver(at, keep=what == "repeat")
            case "tick":
                world.tick(number)
            case "die":
                world.begin()
                wanted.clear()
                world.read.clear()
            case "write":
                world.write(f"checkpoint/{len(world.orders)}/x", content(number, number))
            case "read" | "ahead" if (number * CHUNK) not in wanted:
                start = number * CHUNK
                wanted.add(start)
                world.client_got(fc.WantBytes("data/x", start, start + CHUNK, what == "ahead"))
    world.settle()
    assert {start: FILE[start : start + CHUNK] for start in wanted} == {
        start: data for (_, start), data in world.read.items()
    }
    assert world.ended == [""] * len(world.orders) and not world.failed
    assert world.body.open == {}, "nothing is left of dead writers"
    keys = [key for key, _, _ in world.body.stored]
    assert len(set(keys)) == len(keys), "each is stored once"
    own = [(name, data) for key, name, data in world.body.stored if key[1] == world.incarnation]
    assert own == world.orders


def test_a_full_disk_is_reported_and_the_next_file_goes_on() -> None:
    world = World(fails=frozenset({"checkpoint/1/x"}))
    world.write("checkpoint/1/x", content(1, 200))
    world.write("checkpoint/2/x", content(2, 200))
    world.settle()
    assert world.ended == ["the disk is full", ""]
    assert [name for _, name, _ in world.body.stored] == ["checkpoint/2/x"] and not world.body.open


def test_a_file_beyond_the_bound_is_refused_and_dropped() -> None:
    world = World()
    world.write("checkpoint/1/x", bytes(10_001))
    world.settle()
    assert world.ended == ["it has more than 10000 bytes"] and not world.body.open


def test_what_is_not_there_is_an_answer_too() -> None:
    world = World()
    world.client_got(fc.WantSize("data/y"))
    world.client_got(fc.WantSize("data/x"))
    world.settle()
    assert world.failed == ["data/y"] and world.sizes == {"data/x": len(FILE)}


def test_a_silent_server_fails_what_is_open_and_what_waits() -> None:
    world = World()
    world.client_got(fc.WantSize("data/x"))
    world.client_got(fc.WantBytes("data/x", 0, CHUNK, ahead=True))
    world.write("checkpoint/1/x", b"numbers")
    world.flying.clear()
    for _ in range(int(fc.PATIENCE_S) + 1):
        world.tick(1.0)
        world.flying.clear()
    assert world.failed == ["data/x", "data/x"] and world.ended[0].startswith("the coordinator's machine has")


def test_what_is_wanted_now_overtakes_what_is_fetched_ahead() -> None:
    world = World()
    world.settle()
    for number in range(8):
        world.client_got(fc.WantBytes("data/x", number * CHUNK, (number + 1) * CHUNK, ahead=True))
    world.client_got(fc.WantBytes("data/x", 7 * CHUNK, 8 * CHUNK))
    world.deliver(0)  # hello
    world.deliver(0)  # welcome: the window opens
    asked = [event.message.start for to, event in world.flying if isinstance(event.message, fm.ReadFile)]
    assert asked == [7 * CHUNK, 0, CHUNK, 2 * CHUNK], "and no more than the window"
    world.settle()
    assert len(world.read) == 8


@pytest.mark.parametrize(
    "message",
    [
        fm.ReadFile(1, "data/x", 0, fs.CHUNK_BYTES + 1),
        fm.ReadFile(1, "data/x", 5, 5),
        fm.WriteFile(1, "checkpoint/1/x", 0),
        fm.SavePushes("shard 0", fm.PushRecord(9, 1)),
    ],
)
def test_requests_out_of_bounds_are_refused(message: Any) -> None:
    server = fs.FileServer(most_bytes=100)
    server.receive(fs.Admitted({"part 0.0": 3}), 0.0)
    (found,) = server.receive(Received("part 0.0", 3, message), 0.0)
    assert isinstance(found, Refuse)


def test_only_admitted_processes_of_the_run_are_served() -> None:
    server = fs.FileServer(most_bytes=100)
    server.receive(fs.Admitted({"part 0.0": 3}), 0.0)
    for sender, incarnation in (("part 0.0", 2), ("part 1.0", 3), ("coordinator", 0), ("files", 0)):
        (found,) = server.receive(Received(sender, incarnation, fm.FindFile(1, "data/x")), 0.0)
        assert isinstance(found, Refuse), sender
    (found,) = server.receive(Received("part 0.0", 3, fm.FindFile(1, "data/x")), 0.0)
    assert found == fs.Find("part 0.0", 1, "data/x")
