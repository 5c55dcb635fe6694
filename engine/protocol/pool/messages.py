"""Messages of a pool: states that are repeated, never events.

Their fields have names on the wire and unknown ones are ignored, unlike in the messages of a run: workers of
another version have to understand that they are refused, and why.
"""

from __future__ import annotations

from typing import TypeAlias

import msgspec

from partita.engine.protocol.messages import MalformedMessage
from partita.engine.protocol.pool.resources import Resources


class _Message(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The base of every kind of message."""


class Need(msgspec.Struct, frozen=True, kw_only=True):
    """Need of one host of a run.

    `group`: hosts with the same one go to one machine if they fit ("": anywhere); `spread`: hosts with it go
    to as many machines as there are. `workers`: names of workers, the preferred one first; with `strict`, the
    host's first place is at that one or nowhere.
    """

    host: str
    resources: Resources
    group: str = ""
    spread: bool = False
    workers: tuple[str, ...] = ()
    strict: bool = False


class Seat(msgspec.Struct, frozen=True, kw_only=True):
    """The worker, by its session, at which a host of a run has its place."""

    host: str
    worker: str


class Contact(msgspec.Struct, frozen=True, kw_only=True):
    """How to reach a worker: its session is the public key of its door. `machine` as in `Peer`."""

    session: str
    name: str
    endpoint: str
    machine: str


class Client(msgspec.Struct, frozen=True, kw_only=True):
    """A run whose client may start hosts at a worker; `key` is the client's, made for this run alone.

    `owner` is the member by whose key the run asks for places. Runs of the same owner in `earlier` are over:
    they were processes of this run, which have died.
    """

    run: str
    key: str
    title: str
    owner: str = ""
    earlier: tuple[str, ...] = ()


class Join(_Message, frozen=True):
    """Worker to registry: it is there. Repeated; `number` grows by one.

    `runs` are those whose clients may start hosts there, `owners` theirs. `registry` and `orders` name the
    newest `Orders` that the worker has obeyed: older ones that it receives later have no effect.
    """

    session: str
    endpoint: str
    name: str
    machine: str
    versions: dict[str, str]
    resources: Resources
    runs: tuple[str, ...] = ()
    owners: tuple[str, ...] = ()
    draining: bool = False
    number: int = 0
    registry: str = ""
    orders: int = 0


class Orders(_Message, frozen=True):
    """Registry to worker, answers `Join`: its name in the pool, and the clients whose hosts it starts.

    `registry` identifies the registry's process, and `number` grows with every message of that process.
    """

    name: str
    clients: tuple[Client, ...] = ()
    draining: bool = False
    registry: str = ""
    number: int = 0


class Leave(_Message, frozen=True):
    """Worker or client to registry: it ends. `session` is of the worker, `run` of the client."""

    session: str = ""
    run: str = ""


class Rejection(_Message, frozen=True):
    """Registry to anybody, the reason why it takes no part in the pool. `final`: asking again is useless."""

    reason: str
    final: bool = True


class Ask(_Message, frozen=True):
    """Client to registry: what a run needs. Repeated; `number` grows by one.

    `seats` are those that the run uses, by an earlier answer of this registry or of one before it.
    `workers`: the run begins when so many have joined. `avoid`: sessions of workers that did not answer the
    client; hosts go there only if they fit nowhere else. `earlier`: ids under which dead processes of the
    same run have asked; this one takes over their places.
    """

    run: str
    key: str
    title: str
    versions: dict[str, str]
    needs: tuple[Need, ...]
    seats: tuple[Seat, ...] = ()
    workers: int = 1
    number: int = 0
    avoid: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()


class Grant(_Message, frozen=True):
    """Registry to client, answers `Ask`: who has a place where.

    `waits_for`: what is missing for hosts without a place; "" if all have one. `impossible`: it cannot be met
    by the workers that there are, even if no other run were there. `joined`: the names of the workers.

    `number` is that of the question. `taken`: seats in the question that other runs have; the client gives
    them up. `gone`: workers in the question that this registry, of the identity `registry`, has removed.
    """

    run: str
    seats: tuple[Seat, ...]
    workers: tuple[Contact, ...]
    waits_for: str = ""
    impossible: bool = False
    joined: tuple[str, ...] = ()
    number: int = 0
    registry: str = ""
    taken: tuple[Seat, ...] = ()
    gone: tuple[str, ...] = ()


class Wanted(msgspec.Struct, frozen=True, kw_only=True):
    """A host that is to run. `bootstrap` holds a secret, and is left out once the worker has it."""

    name: str
    incarnation: int
    bootstrap: bytes = b""

    def __repr__(self) -> str:
        return f"Wanted({self.name}, {self.incarnation})"


class Hosts(_Message, frozen=True):
    """Client to worker: all hosts of the run that are to run there; others of the run are ended. Repeated.

    `reach` are the endpoints, with names, that the worker has to reach before it starts the first host, and
    `files` those that it has to find, in folders of the machine that trains, with their texts. A
    message with a lower `number` than an earlier one is late, and ignored.
    """

    run: str
    number: int
    hosts: tuple[Wanted, ...]
    reach: tuple[tuple[str, str], ...] = ()
    files: tuple[tuple[str, str], ...] = ()
    ends: bool = False


class HostState(msgspec.Struct, frozen=True, kw_only=True):
    """A host at a worker: `pid` 0 while it does not run yet; `ended` says why it has, "" if it has not."""

    name: str
    incarnation: int
    pid: int = 0
    ended: str = ""


class HostStates(_Message, frozen=True):
    """Worker to client, answers `Hosts`. `trouble`: why none of the run's hosts can be started there.

    `number` as in `Hosts`; each side counts its own.
    """

    run: str
    number: int
    hosts: tuple[HostState, ...] = ()
    trouble: str = ""


class Inspect(_Message, frozen=True):
    """Client to registry: asks for `Status`; with `drain`, these workers get no further runs ("": all)."""

    drain: tuple[str, ...] | None = None


class WorkerStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One worker of a pool. `note`: why it gets no host at the moment, in a few words; "" if it may."""

    name: str
    endpoint: str
    resources: Resources
    free: Resources
    runs: tuple[str, ...]
    draining: bool
    note: str = ""


class Status(_Message, frozen=True):
    """Registry to client, answers `Inspect`. `runs` has title and number of hosts of each."""

    workers: tuple[WorkerStatus, ...]
    runs: tuple[tuple[str, int], ...]


PoolMessage: TypeAlias = (
    Join | Orders | Leave | Rejection | Ask | Grant | Hosts | HostStates | Inspect | Status
)

_encoder = msgspec.msgpack.Encoder()
_decoder: msgspec.msgpack.Decoder[PoolMessage] = msgspec.msgpack.Decoder(PoolMessage)


def encode(message: PoolMessage) -> bytes:
    """Returns the bytes of a message. Safe from several threads."""
    return _encoder.encode(message)


def decode(data: bytes) -> PoolMessage:
    """Returns the message in these bytes.

    Raises:
        MalformedMessage: they are none of a pool.
    """
    try:
        return _decoder.decode(data)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise MalformedMessage(f"{len(data)} bytes are not a message of a pool: {error}") from error
