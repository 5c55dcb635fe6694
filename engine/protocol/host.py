"""The machine of every host: hello, its task, the directory of the others, heartbeats, errors and the end.

The work of a host is its role: a machine that plugs in here when the task has been read, and a body that
carries out the role's effects. The real interpreter (`runtime.host`) and the simulated one (`testing`) run
this very machine; neither decides anything. What is lost is repeated here: Hello until the task comes, Ready
until a heartbeat of the coordinator comes, a report of an error until the host is stopped, and one of a host
that was cut off until that is replaced.

The machine must not know what a role does, nor the clock, the network, or how a task is packed.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final

from partita.engine.protocol import messages as m
from partita.engine.protocol.checkpoint_messages import Saved
from partita.engine.protocol.conduct import Conduct
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.failure import sentence
from partita.engine.protocol.membership import DEFAULT_HEARTBEATS
from partita.engine.protocol.names import COORDINATOR, FILES
from partita.engine.protocol.permissions import rejection_reason
from partita.engine.protocol.watch_messages import HostReport, PresentWait, Watch

# What a role's machine is given, beside `Received`, `Tick` and results of its own body.


@dataclass(frozen=True, slots=True)
class PeersChanged:
    """Event: a newer directory. `peers` are all hosts that may be reached, by name, with incarnations."""

    revision: int
    peers: Mapping[str, int]


class RoleMachine(ABC):
    """The decisions of a part, a shard or any other role: pure, and played by the simulator as it is.

    Its effects are `Send`, `Refuse`, and effects of its own for its body. They are carried out in order.

    Attributes:
        version: of the parameters that the role starts from, reported in `Ready`.
        heartbeat_s: seconds between two heartbeats of the host.
        rest_s: seconds for which messages may gather before the host looks for more, as nobody waits.
    """

    version: int = 0
    rest_s: float = 0.0
    heartbeat_s: float = DEFAULT_HEARTBEATS.heartbeat_s

    @abstractmethod
    def receive(self, event: Any, now: float) -> Sequence[Any]:
        """Returns the effects of an event at `now` (seconds, the host's monotonic clock).

        Args:
            event: a `Received` message that the sender may send, a `Tick` about ten times a second, a
                `PeersChanged`, or a result that the body reports.
            now: seconds.
        """

    def may_send(self, message: m.Message, now: float) -> bool:
        """Returns whether a message may leave at `now`: effects before it take a while, and leases end."""
        return True

    def present_waits(self, now: float) -> tuple[PresentWait, ...]:
        """Returns what the role gets no further without at `now`, if that is longer than a second."""
        return ()

    @property
    def staleness(self) -> tuple[int, ...]:
        """Acknowledged pushes by staleness; empty for a role that pushes nothing."""
        return ()

    def validate(self) -> None:  # noqa: B027 - a role without invariants has nothing to check
        """Checks the invariants. Raises AssertionError."""


class PassOn(RoleMachine):
    """A role with nothing to decide: each message is an order, and an effect for its body."""

    def receive(self, event: Any, now: float) -> Sequence[Received]:
        """Returns a message as its own effect, and nothing for any other event."""
        return (event,) if isinstance(event, Received) else ()


# Events and effects of a host.


@dataclass(frozen=True, slots=True)
class BuildRole:
    """Effect: read the task in this `SetUp`, and build its machine and body; `RoleBuilt` or `Raised` ends
    it.
    """

    task: Received


@dataclass(frozen=True, slots=True)
class RoleBuilt:
    """Event: the task is set up; this machine decides from now on."""

    machine: RoleMachine


@dataclass(frozen=True, slots=True)
class Compiled:
    """Event: this many functions were compiled while the host sets up its task."""

    functions: int


@dataclass(frozen=True, slots=True)
class Raised:
    """Event: the machine, the body or a user's function raised, which ends the host's work."""

    report: m.Failed


@dataclass(frozen=True, slots=True)
class Reach:
    """Effect: beside the coordinator's, take messages of these hosts alone; connect to the new ones.

    Args:
        peers: all of them.
        new: those of them that are new or replaced.
    """

    peers: tuple[m.Peer, ...]
    new: tuple[m.Peer, ...]


@dataclass(frozen=True, slots=True)
class EndHost:
    """Effect: close the role's body, and end."""


@dataclass(frozen=True, slots=True)
class MeasureHost:
    """Effect: measure what `watch` asks for; `HostMeasured` reports it at once.

    `waits` and `staleness` are the role's, for the report.
    """

    watch: Watch
    waits: tuple[PresentWait, ...]
    staleness: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HostMeasured:
    """Event, answers `MeasureHost`: the report is complete."""

    report: HostReport


@dataclass(frozen=True, slots=True, kw_only=True)
class HostTimers:
    """Seconds between two repetitions of what was not answered, and between two reports of progress."""

    resend_s: float = 1.0
    progress_s: float = 0.2


DEFAULT_TIMERS: Final = HostTimers()


class HostPhase(Enum):
    """The phases of a host, in order. Values: what it does."""

    GREETING = "repeats Hello until its task comes"
    BUILDING = "sets up its task"
    READY = "repeats Ready until a heartbeat comes"
    AT_WORK = "its role's work"
    FAILED = "repeats its error until it is stopped"
    ENDED = "nothing"


_OWN: Final = frozenset({m.SetUp, m.Directory, m.Stop, Watch})
"""Messages that are the host's own business, whatever its role."""

_LAST: Final = (m.Finished, Saved)
"""Messages after which nothing may follow: what is known of the host by then is sent with them."""

_HAS_ROLE: Final = (HostPhase.READY, HostPhase.AT_WORK)


class HostMachine:
    """One process of a host, from its start to its end.

    Attributes:
        name, incarnation: of the host.
        phase: of its life.
        revision: of the newest directory.
        peers: the hosts in it, by name, with incarnations.
        role: the machine of its task; None until that is set up.
    """

    def __init__(
        self,
        name: str,
        incarnation: int,
        *,
        endpoint: str,
        versions: Mapping[str, str],
        timers: HostTimers = DEFAULT_TIMERS,
    ) -> None:
        """Creates a host that has sent nothing.

        Args:
            name: of the host.
            incarnation: the number of the process with that name.
            endpoint: of its inbox.
            versions: by library, those that all hosts of a run must share.
            timers: when what was not answered is repeated.
        """
        self.name: Final = name
        self.incarnation: Final = incarnation
        self.phase = HostPhase.GREETING
        self.revision = 0
        self.peers: Mapping[str, int] = {}
        self.role: RoleMachine | None = None
        self._addresses: dict[str, m.Peer] = {}
        self._hello: Final = m.Hello(endpoint, dict(versions))
        self._timers: Final = timers
        self._sent_at = self._beat_at = self._progress_at = float("-inf")
        self._failed: m.Failed | None = None
        self._conduct: Final = Conduct(frozenset({COORDINATOR, FILES}))
        self._watch: Watch | None = None  # the last question
        self._cut_off: Final[dict[str, tuple[m.Refused, float]]] = {}  # reports, and when they were sent

    @property
    def failed(self) -> bool:
        """Returns whether the host only waits for its end, because something raised."""
        return self.phase is HostPhase.FAILED

    def may_send(self, message: m.Message, now: float) -> bool:
        """Returns whether a message may leave at `now`; the interpreter asks before each `Send`."""
        return self.role is None or self.role.may_send(message, now)

    @property
    def rest_s(self) -> float:
        """Seconds for which messages may gather, see `RoleMachine`."""
        return 0.0 if self.role is None else self.role.rest_s

    def receive(self, event: Any, now: float) -> Sequence[Any]:
        """Returns the effects of an event at `now` (seconds, monotonic), to be carried out in order.

        Args:
            event: `Received`, `Tick`, `RoleBuilt`, `Compiled`, `Raised`, or a `Refuse` that the body asks
                for; any other is a result of the body for the role's machine.
            now: seconds.
        """
        if self.phase is HostPhase.ENDED:
            return []
        match event:
            case Received():
                return self._received(event, now)
            case Tick():
                return self._tick(now)
            case RoleBuilt(machine=machine):
                return self._built(machine, now)
            case Compiled(functions=functions):
                return self._compiled(functions, now)
            case Raised(report=report):
                return self._fail(report, now)
            case Refuse():
                return self._refuse(event, now)
            case HostMeasured(report=report):
                return [Send(COORDINATOR, report)]
            case _:
                return self._give(event, now)

    # Messages.

    def _received(self, event: Received, now: float) -> Sequence[Any]:
        message = event.message
        if self._conduct.is_cut_off(event.sender):
            return []
        reason = rejection_reason(
            message, sender=event.sender, receiver=self.name, incarnation=event.incarnation
        )
        if reason is not None:
            return self._refuse(Refuse(event.sender, reason), now)
        if self.phase is HostPhase.AT_WORK and type(message) not in _OWN:
            return self._give(event, now)
        if isinstance(message, m.Stop):
            self.phase = HostPhase.ENDED
            return [EndHost()]
        if self.failed:
            return []
        if isinstance(message, m.SetUp):
            return self._set_up(event)
        if isinstance(message, m.Directory):
            return self._update_peers(message, now)
        if isinstance(message, Watch):
            return self._measure(message, now)
        if self.phase is HostPhase.READY and isinstance(message, m.Heartbeat):
            self.phase = HostPhase.AT_WORK
        return self._give(event, now)

    def _set_up(self, event: Received) -> list[Any]:
        if self.phase is not HostPhase.GREETING:
            return []
        self.phase = HostPhase.BUILDING
        return [BuildRole(event)]

    def _update_peers(self, directory: m.Directory, now: float) -> list[Any]:
        effects: list[Any] = []
        if directory.applies_to(self.revision):
            self.revision, self._addresses = directory.revision, directory.applied_to(self._addresses)
            before, self.peers = self.peers, {n: peer.incarnation for n, peer in self._addresses.items()}
            for name in [name for name in before if self.peers.get(name) != before[name]]:
                self._conduct.forget(name)
                self._cut_off.pop(name, None)
            effects.append(self._reach(directory.peers))
            effects += self._give(PeersChanged(self.revision, self.peers), now)
        return [*effects, Send(COORDINATOR, m.DirectoryAck(self.revision))]

    def _reach(self, new: tuple[m.Peer, ...]) -> Reach:
        """Messages are taken of all in the directory but those that are cut off."""
        kept = (peer for peer in self._addresses.values() if not self._conduct.is_cut_off(peer.name))
        return Reach(tuple(kept), new)

    def _refuse(self, effect: Refuse, now: float) -> list[Any]:
        """Counts a message out of place. The first of each sender is reported; one with several is cut off,
        unless it is the coordinator or its files, without which there is no run.
        """
        sender, reason = effect.sender, sentence(effect.reason)
        if self._conduct.is_cut_off(sender):
            return [effect]
        verdict = self._conduct.refused(sender, now)
        if verdict == "cut off":
            report = m.Refused(sender, reason, cut_off=True, incarnation=self.peers.get(sender, 0))
            self._cut_off[sender] = report, now
            return [effect, Send(COORDINATOR, report), self._reach(())]
        return [effect, Send(COORDINATOR, m.Refused(sender, reason))] if verdict == "first" else [effect]

    def _measure(self, watch: Watch, now: float) -> list[Any]:
        role, self._watch = self.role, watch
        if role is None or self.phase not in _HAS_ROLE:
            return []
        return [MeasureHost(watch, role.present_waits(now), role.staleness)]

    # The role.

    def _compiled(self, functions: int, now: float) -> list[Any]:
        if now - self._progress_at < self._timers.progress_s:
            return []
        self._progress_at = now
        return [Send(COORDINATOR, m.SetUpProgress(functions))]

    def _built(self, machine: RoleMachine, now: float) -> list[Any]:
        if self.phase is not HostPhase.BUILDING:
            return []
        self.role, self.phase, self._sent_at = machine, HostPhase.READY, now
        known = self._give(PeersChanged(self.revision, self.peers), now) if self.revision else ()
        return [*known, Send(COORDINATOR, m.Ready(machine.version))]

    def _give(self, event: Any, now: float) -> Sequence[Any]:
        """Gives the role an event; its refusals are reported like the host's own."""
        if self.role is None or self.phase not in _HAS_ROLE:
            return []
        effects = self.role.receive(event, now)
        for effect in effects:
            if isinstance(effect, Refuse):
                return self._with_refusals(effects, now)
            if self._watch is not None and isinstance(effect, Send) and isinstance(effect.message, _LAST):
                return [*effects, *self._measure(self._watch, now)]
        return effects

    def _with_refusals(self, effects: Sequence[Any], now: float) -> list[Any]:
        found: list[Any] = []
        for effect in effects:
            found += self._refuse(effect, now) if isinstance(effect, Refuse) else (effect,)
        return found

    # Time, and the end.

    def _tick(self, now: float) -> list[Any]:
        due = now - self._sent_at >= self._timers.resend_s
        if self._failed is not None:
            return self._fail(self._failed, now) if due else []
        effects: list[Any] = []
        if due and self.phase in (HostPhase.GREETING, HostPhase.READY):
            self._sent_at = now
            ready = None if self.role is None else m.Ready(self.role.version)
            effects.append(Send(COORDINATOR, ready or self._hello))
        if self.role is not None and now - self._beat_at >= self.role.heartbeat_s:
            self._beat_at = now
            effects.append(Send(COORDINATOR, m.Heartbeat(self.incarnation, now)))
        for name, (report, sent_at) in self._cut_off.items():
            if now - sent_at >= self._timers.resend_s:
                self._cut_off[name] = report, now
                effects.append(Send(COORDINATOR, report))
        return [*effects, *self._give(Tick(), now)]

    def _fail(self, report: m.Failed, now: float) -> list[Any]:
        """Reports an error, the first if there are several, again and again."""
        self._failed = self._failed or report
        self.phase, self._sent_at = HostPhase.FAILED, now
        return [Send(COORDINATOR, self._failed)]

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        assert (self._failed is not None) == self.failed or self.phase is HostPhase.ENDED, self.phase
        if self.phase in (HostPhase.GREETING, HostPhase.BUILDING):
            assert self.role is None, self.phase
        if self.phase in _HAS_ROLE:
            assert self.role is not None, self.phase
            self.role.validate()
        assert not self.peers or self.revision > 0, self.peers
