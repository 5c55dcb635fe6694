"""Frames of a hostile member: no correct process of its role sends them.

Each kind is made from what the process has really sent, or drawn. None of them is a right message with wrong
numbers, against which nothing is promised. So whatever handles them, nothing may change but the sender's
conduct.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any, Final, get_args

import msgspec

from partita.engine.protocol import batch_messages as bm
from partita.engine.protocol import messages as m
from partita.engine.protocol import replica_messages as rm
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.events import Received
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.permissions import PERMISSIONS, HostKind, host_kind
from partita.engine.testing.corpus import drawn, mutated
from partita.engine.testing.host import Numbers, SimulatedHost

Sent = tuple[str, m.Message, Any]
"""A message that a process has sent: to whom, and its payload."""

_ALL: Final = sorted(get_args(m.Message), key=lambda kind: kind.__name__)


class Forged(Received, frozen=True):
    """A frame of a hostile member as it arrives. `must_refuse`: so that whoever handles it refuses it."""

    must_refuse: bool = False


@dataclass(frozen=True, slots=True)
class Frame:
    """A frame for a host; see `Forged`."""

    to: str
    data: bytes
    payload: object = None
    must_refuse: bool = False

    def arrived(self, sender: str, incarnation: int) -> Forged:
        """Returns the event of a frame, as a transport makes it."""
        message: m.Message | m.Malformed
        try:
            message = m.decode(self.data)
        except m.MalformedMessage as error:
            message = m.Malformed(str(error))
        return Forged(sender, incarnation, message, self.payload, self.must_refuse)


def malformed(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """Bytes that are no message."""
    data = mutated(drawn(_ALL, random), random)
    try:
        m.decode(data)
    except m.MalformedMessage:
        return Frame(to, data, must_refuse=True)
    return Frame(to, b"\xc1" + data, must_refuse=True)


def of_another_role(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """A message that the sender may not send to this host."""
    kinds = _forbidden(host_kind(host.name), host_kind(to))
    return Frame(to, drawn([random.choice(kinds)], random), must_refuse=True)


@cache
def _forbidden(sender: HostKind, receiver: HostKind) -> list[type]:
    allowed = PERMISSIONS.get((sender, receiver), frozenset())
    return [kind for kind in _ALL if kind not in allowed]


def resized(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """A message that comes next, with more or fewer numbers, or without any."""
    sent = [one for one in _sent(host) if isinstance(one[2], Numbers) and one[2]]
    if not sent:
        return None
    target, message, payload = random.choice(sent)
    values = random.choice((None, payload[:-1], (*payload, 7.0)))
    found = None if values is None else type(payload)(values)
    if found is not None and type(payload) is not Numbers:
        vars(found).update(vars(payload))
    return Frame(target, m.encode(_next(message, random)), found)


def misnumbered(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """A message that comes next, in the name of another process, or with units and counts that cannot be."""
    target, message, payload = random.choice(list(_sent(host)) or [(to, None, None)])
    message = _next(message, random)
    replace = msgspec.structs.replace
    match message:
        case m.Parameters() | m.PushAck():
            answer = replace(message, shard_incarnation=message.shard_incarnation + 1)
            return Frame(target, m.encode(answer), payload, must_refuse=True)
        case Saved():
            saved = replace(message, incarnation=message.incarnation + 1)
            return Frame(target, m.encode(saved), must_refuse=True)
        case m.Push() if random.random() < 0.5:
            return Frame(target, m.encode(replace(message, incarnation=message.incarnation + 1)), payload)
        case m.Push():
            return Frame(target, m.encode(replace(message, units=((5, 2),))), payload)
        case m.Fetch():
            earlier = (PushRecord(host.incarnation + random.randrange(3), 5, 9),)
            return Frame(target, m.encode(replace(message, earlier=earlier)))
    return None


def replayed(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """A message that the process has sent, once more."""
    sent = list(_sent(host))
    if not sent:
        return None
    target, message, payload = random.choice(sent)
    return Frame(target, m.encode(message), payload)


def accusing(host: SimulatedHost, to: str, random: Random) -> Frame | None:
    """A report to the coordinator that another host has misbehaved."""
    incarnation = host.machine.peers.get(to)
    if incarnation is None:
        return None
    report = m.Refused(to, "a message that it never sent", cut_off=True, incarnation=incarnation)
    return Frame(COORDINATOR, m.encode(report))


KINDS: Final[dict[str, Callable[[SimulatedHost, str, Random], Frame | None]]] = {
    "malformed": malformed,
    "of another role": of_another_role,
    "of a wrong size": resized,
    "with wrong numbers": misnumbered,
    "replayed": replayed,
    "false accusations": accusing,
}


def _sent(host: SimulatedHost) -> list[Sent]:
    return list(getattr(host, "sent", ()))


def _next(message: Any, random: Random) -> Any:
    """Returns a message, or what may follow it, which is taken for no repeat."""
    if random.random() < 0.5:
        return message
    replace = msgspec.structs.replace
    match message:
        case m.Push():
            return replace(message, sequence=message.sequence + 1)
        case m.Parameters():
            return replace(message, request=message.request + 1)
        case bm.Contribution():
            return replace(message, unit=message.unit + 1)
        case bm.Point():
            return replace(message, evaluation=message.evaluation + 1)
        case rm.PartialChunk() | rm.FinalChunk():
            return replace(message, number=message.number + 1)
    return message
