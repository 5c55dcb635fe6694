"""The coordinator's records of each host and each replica, without decisions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from partita.engine.protocol.coordinator_effects import ProcessId
from partita.engine.protocol.events import Send
from partita.engine.protocol.messages import Directory, Peer
from partita.engine.protocol.names import Topology


class HostState(Enum):
    """The states of a process, in this order; a restart goes back to the first. Values: what is awaited."""

    LAUNCHED = "its first message"
    PREPARING = "Ready, after its task"
    READY = "nothing"
    GONE = "nothing, it has ended and is not needed"


@dataclass(slots=True, eq=False)
class HostRecord:
    """One host: the newest process of this name, and counts over all of its processes."""

    name: str
    incarnation: int
    replica: int | None  # None: a shard
    since: float = 0.0
    state: HostState = HostState.LAUNCHED
    public_key: str = ""
    endpoint: str = ""
    machine: str = ""
    runs: bool = False  # its process is known to run
    compiled: int = 0  # functions, while it sets up its task
    step: int = 0  # done, as last reported (parts)
    furthest: int = 0  # the largest step that any of its processes has reported
    continues: int | None = None  # the shards have the gradients of its steps below this one
    is_informed: bool = False  # it has reported that
    acknowledged: bool = False  # a report has come: Begin need not be repeated
    finished: int = -1  # the directory under which it reported Finished
    informed: int = 0  # the directory that it has
    deaths: int = 0  # in a row, without getting further
    unresponsive: int = 0  # replacements in a row because it did not answer (shards)
    replaced: tuple[float, str] | None = None  # when, and why: its lease has to end before
    failed: tuple[int, ...] = ()  # the incarnations that reported an error

    def relaunch(self, now: float) -> ProcessId:
        """Resets the record to the next incarnation, which is not known to run."""
        self.incarnation += 1
        self.state, self.since = HostState.LAUNCHED, now
        self.public_key = self.endpoint = self.machine = ""
        self.acknowledged, self.finished, self.informed = False, -1, 0
        self.continues, self.is_informed = None, False
        self.replaced = None
        self.runs, self.compiled = False, 0
        return self.name, self.incarnation

    @property
    def doing(self) -> str:
        """The activity of a host that is not ready, as far as is known."""
        if self.state is HostState.PREPARING:
            return f"setting up its task, with {self.compiled} functions compiled"
        return "connecting to the coordinator" if self.runs else "importing"

    @property
    def is_reachable(self) -> bool:
        """Whether its endpoint is known."""
        return self.state in (HostState.PREPARING, HostState.READY)


@dataclass(slots=True, eq=False)
class ReplicaRecord:
    """One replica. `first` is the step at which the run began, `step` where its present processes did, and
    `begun` whether Begin was sent to them.
    """

    index: int
    first: int
    step: int
    stall_s: float
    parts: tuple[HostRecord, ...] = ()
    begun: bool = False
    restarted: bool = False
    asked_at: float = 0.0
    progress_at: float = 0.0
    excused_at: float = float("-inf")  # when it last waited for a shard: it could not get on

    @property
    def steps_done(self) -> int:
        """Steps that every part has reported."""
        return min((part.step for part in self.parts), default=self.step)

    def is_complete(self, directory: int) -> bool:
        """Whether every part has finished under this directory or a newer one, or is gone for good."""
        return all(part.state is HostState.GONE or part.finished >= directory for part in self.parts)


@dataclass(slots=True, eq=False)
class HostRegistry:
    """All hosts by name: shards first, then parts by replica and machine."""

    shards: tuple[HostRecord, ...]
    replicas: tuple[ReplicaRecord, ...]
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    revision: int = 0
    published_at: float = 0.0

    @classmethod
    def of(
        cls,
        topology: Topology,
        *,
        done: tuple[int, ...],
        steps: int,
        stall_s: float,
        incarnations: Mapping[str, int],
    ) -> HostRegistry:
        """Returns the hosts of a run. A replica without steps has none; nor have shards without replicas."""
        replicas = tuple(
            ReplicaRecord(r, min(step, steps), min(step, steps), stall_s) for r, step in enumerate(done)
        )
        for replica in replicas:
            if replica.step < steps:
                replica.parts = tuple(
                    HostRecord(
                        name,
                        incarnations.get(name, 0),
                        replica.index,
                        step=replica.step,
                        furthest=replica.step,
                    )
                    for name in topology.parts(replica.index)
                )
        works = any(replica.parts for replica in replicas)
        names = topology.shard_names if works else ()
        shards = tuple(HostRecord(name, incarnations.get(name, 0), None) for name in names)
        registry = cls(shards, replicas)
        registry.hosts = {host.name: host for host in shards}
        registry.hosts |= {host.name: host for replica in replicas for host in replica.parts}
        return registry

    def current(self, name: str, incarnation: int) -> HostRecord | None:
        """Returns the host, if this is its newest process and it has not ended."""
        host = self.hosts.get(name)
        if host is None or host.incarnation != incarnation or host.state is HostState.GONE:
            return None
        return host

    def replica_of(self, host: HostRecord) -> ReplicaRecord | None:
        """Returns the replica of a part; None for a shard."""
        return self.replicas[host.replica] if host.replica is not None else None

    def present(self) -> Iterator[HostRecord]:
        """Returns every host that has not ended for good."""
        return (host for host in self.hosts.values() if host.state is not HostState.GONE)

    def reachable(self) -> Iterator[HostRecord]:
        """Returns every host whose endpoint is known."""
        return (host for host in self.hosts.values() if host.is_reachable)

    def all_in(self, *states: HostState) -> bool:
        """Returns whether all hosts that have not ended are in one of these states."""
        return all(host.state in states for host in self.present())

    @property
    def shards_ready(self) -> bool:
        """Whether every shard is ready."""
        return all(shard.state is HostState.READY for shard in self.shards)

    def publish(self, now: float) -> list[Send]:
        """Sends a new revision of the directory to every host."""
        self.revision += 1
        self.published_at = now
        return [self._directory(host) for host in self.reachable()]

    def publish_again(self, now: float, retry_s: float) -> list[Send]:
        """Repeats the revision to hosts that have not acknowledged it."""
        if now - self.published_at < retry_s:
            return []
        behind = [host for host in self.reachable() if host.informed < self.revision]
        if behind:
            self.published_at = now
        return [self._directory(host) for host in behind]

    def _directory(self, receiver: HostRecord) -> Send:
        """Returns the directory of a host: a part's own replica and the shards, or all parts for a shard."""
        peers = tuple(
            Peer(host.name, host.incarnation, host.endpoint, host.public_key, host.machine)
            for host in self.reachable()
            if host is not receiver and self._are_connected(receiver, host)
        )
        return Send(receiver.name, Directory(peers, self.revision))

    @staticmethod
    def _are_connected(receiver: HostRecord, other: HostRecord) -> bool:
        if receiver.replica is None or other.replica is None:
            return receiver.replica is not other.replica
        return receiver.replica == other.replica
