"""The coordinator's records of each host and each replica, without decisions.

Counts are kept with every change of a state, so that no question about the whole run looks at all hosts.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum

from partita.engine.protocol.coordinator_effects import ProcessId
from partita.engine.protocol.names import Topology


class HostState(Enum):
    """The states of a process, in this order; a restart goes back to the first. Values: what is awaited."""

    LAUNCHED = "its first message"
    PREPARING = "Ready, after its task"
    READY = "nothing"
    GONE = "nothing, it has ended and is not needed"
    AWAY = "the next wave, its replica has left"

    __hash__ = object.__hash__  # that of an enumeration is a Python function


_STARTING = (HostState.LAUNCHED, HostState.PREPARING)
_REACHABLE = (HostState.PREPARING, HostState.READY)
_ENDED = (HostState.GONE, HostState.AWAY)


@dataclass(slots=True, eq=False)
class HostRecord:
    """One host: the newest process of this name, and counts over all of its processes."""

    name: str
    incarnation: int
    replica: int | None  # None: a shard, or a backup
    shard: str = ""  # that a backup has a copy of
    since: float = 0.0
    state: HostState = HostState.LAUNCHED
    public_key: str = ""
    endpoint: str = ""
    machine: str = ""
    runs: bool = False  # its process is known to run
    compiled: int = 0  # functions, while it sets up its task
    step: int = 0  # done, as last reported (parts)
    held: int = 0  # the shards have acknowledged its steps below this one (parts)
    looked_at: int = -1  # its step when it was last looked at (parts)
    furthest: int = 0  # the largest step that any of its processes has reported
    continues: int | None = None  # the shards have the gradients of its steps below this one
    is_informed: bool = False  # it has reported that
    acknowledged: bool = False  # a report has come: Begin need not be repeated
    finished: int = -1  # the directory under which it reported Finished
    sent: int = 0  # the directory that was sent to it last, ...
    informed: int = 0  # ... and the one that it has acknowledged
    deaths: int = 0  # in a row, without getting further
    unresponsive: int = 0  # replacements in a row because it did not answer (shards)
    replaced: tuple[float, str] | None = None  # when, and why: its lease has to end before
    is_whole: bool = True  # it has all that its shard has acknowledged (shards, and their backups)
    failed: tuple[int, ...] = ()  # the incarnations that reported an error

    @property
    def doing(self) -> str:
        """The activity of a host that is not ready, as far as is known."""
        if self.state is HostState.PREPARING:
            return f"setting up its task, with {self.compiled} functions compiled"
        return "connecting to the coordinator" if self.runs else "importing"

    @property
    def is_shard(self) -> bool:
        """Returns whether it is a shard, and not a part or a backup."""
        return self.replica is None and not self.shard

    @property
    def is_reachable(self) -> bool:
        """Returns whether its endpoint is known."""
        return self.state in _REACHABLE

    @property
    def has_ended(self) -> bool:
        """Returns whether no process of it runs or is awaited."""
        return self.state in _ENDED


@dataclass(slots=True, eq=False)
class ReplicaRecord:
    """One replica. `step` is where its present processes began; `begun`: Begin was sent to them."""

    index: int
    stall_s: float
    parts: tuple[HostRecord, ...]
    step: int = 0
    begun: bool = False
    restarted: bool = False
    look_at: float = 0.0  # when it is looked at next
    progress_at: float = 0.0
    excused_at: float = float("-inf")  # when it last waited for a shard: it could not get on
    reachable: int = 0  # parts
    ready: int = 0  # parts
    skipped: int = 0  # numbers of its steps whose units it has given back
    left: int = 0  # times in a row that it has left an elastic run
    returns_at: float = 0.0  # when it is started again after that

    @property
    def is_reachable(self) -> bool:
        """Returns whether the endpoints of all of its parts are known."""
        return self.reachable == len(self.parts)

    @property
    def is_ready(self) -> bool:
        """Returns whether all of its parts are ready."""
        return self.ready == len(self.parts)

    @property
    def is_away(self) -> bool:
        """Returns whether it has left an elastic run, until the next wave."""
        return self.parts[0].state is HostState.AWAY

    @property
    def steps_done(self) -> int:
        """Steps that every part has reported."""
        return min(part.step for part in self.parts)

    def is_complete(self, directory: int) -> bool:
        """Returns whether every part has finished under this directory or a newer one, or is gone for
        good.
        """
        return all(part.state is HostState.GONE or part.finished >= directory for part in self.parts)


@dataclass(slots=True, eq=False)
class HostRegistry:
    """All hosts by name: shards first, then parts by replica and machine, then backups.

    Attributes:
        shards, replicas, hosts: the records.
        backups: of shards, by the shard's name; none where shards have none.
        starting: hosts that are not ready yet, the one without a sign of life for longest first.
        counts: hosts in each state.
        ready_shards: shards that are ready.
        reachable_shards: shards whose endpoints are known.
        ready_replicas: replicas of which all parts are ready.
        reachable_replicas: replicas of which the endpoints of all parts are known.
        running: hosts that have not ended, and whose process is known to run.
        compiled: functions that they have compiled.
    """

    shards: tuple[HostRecord, ...]
    replicas: tuple[ReplicaRecord, ...]
    backups: dict[str, HostRecord] = field(default_factory=dict)
    hosts: dict[str, HostRecord] = field(default_factory=dict)
    starting: dict[str, HostRecord] = field(default_factory=dict)
    counts: Counter[HostState] = field(default_factory=Counter)
    ready_shards: int = 0
    reachable_shards: int = 0
    ready_replicas: int = 0
    reachable_replicas: int = 0
    running: int = 0
    compiled: int = 0

    @classmethod
    def of(cls, topology: Topology, *, stall_s: float, incarnations: Mapping[str, int]) -> HostRegistry:
        """Returns the hosts of a run, none of which has been started."""

        def host(name: str, replica: int | None) -> HostRecord:
            return HostRecord(name, incarnations.get(name, 0), replica)

        shards = tuple(host(name, None) for name in topology.shard_names)
        replicas = tuple(
            ReplicaRecord(r, stall_s, tuple(host(name, r) for name in topology.parts(r)))
            for r in range(topology.replicas)
        )
        names = zip(topology.shard_names, topology.backup_names, strict=False)
        backups = {
            shard: HostRecord(name, incarnations.get(name, 0), None, shard, is_whole=False)
            for shard, name in names
        }
        registry = cls(shards, replicas, backups)
        hosts = (*shards, *(part for replica in replicas for part in replica.parts), *backups.values())
        registry.hosts = {host.name: host for host in hosts}
        registry.starting = dict(registry.hosts)
        registry.counts[HostState.LAUNCHED] = len(registry.hosts)
        return registry

    # Changes.

    def move(self, host: HostRecord, state: HostState, now: float) -> None:
        """Gives a host another state, since `now` (seconds)."""
        before, host.state, host.since = host.state, state, now
        self.counts[before] -= 1
        self.counts[state] += 1
        self.starting.pop(host.name, None)
        if state in _STARTING:
            self.starting[host.name] = host
        ready = (state is HostState.READY) - (before is HostState.READY)
        reachable = (state in _REACHABLE) - (before in _REACHABLE)
        if host.has_ended:
            self._forget_process(host)
        replica = self.replica_of(host)
        if replica is None:
            self.ready_shards += ready * host.is_shard
            self.reachable_shards += reachable * host.is_shard
            return
        was_ready, was_reachable = replica.is_ready, replica.is_reachable
        replica.ready += ready
        replica.reachable += reachable
        self.ready_replicas += replica.is_ready - was_ready
        self.reachable_replicas += replica.is_reachable - was_reachable

    def alive(self, host: HostRecord, now: float, *, compiled: int = 0) -> None:
        """Notes a sign of life of a host that starts."""
        if host.state not in _STARTING:
            return
        self.running += not host.runs
        host.runs, host.since = True, now
        self.compiled += max(compiled - host.compiled, 0)
        host.compiled = max(host.compiled, compiled)
        self.starting.pop(host.name)
        self.starting[host.name] = host

    def relaunch(self, host: HostRecord, now: float) -> ProcessId:
        """Resets a record to the next incarnation, which is not known to run."""
        host.incarnation += 1
        self._forget_process(host)
        self.move(host, HostState.LAUNCHED, now)
        host.public_key = host.endpoint = host.machine = ""
        host.acknowledged, host.finished, host.sent, host.informed = False, -1, 0, 0
        host.continues, host.is_informed = None, False
        host.replaced = None
        return host.name, host.incarnation

    def _forget_process(self, host: HostRecord) -> None:
        self.running -= host.runs
        self.compiled -= host.compiled
        host.runs, host.compiled = False, 0

    # Questions.

    def current(self, name: str, incarnation: int) -> HostRecord | None:
        """Returns the host, if this is its newest process and it has not ended."""
        host = self.hosts.get(name)
        if host is None or host.incarnation != incarnation or host.has_ended:
            return None
        return host

    def replica_of(self, host: HostRecord) -> ReplicaRecord | None:
        """Returns the replica of a part; None for a shard or a backup."""
        return self.replicas[host.replica] if host.replica is not None else None

    def present(self) -> Iterator[HostRecord]:
        """Returns every host that has not ended."""
        return (host for host in self.hosts.values() if not host.has_ended)

    def reachable(self) -> Iterator[HostRecord]:
        """Returns every host whose endpoint is known."""
        return (host for host in self.hosts.values() if host.is_reachable)

    def parts_of_reachable(self) -> Iterator[HostRecord]:
        """Returns the parts of every replica of which all endpoints are known."""
        return (part for replica in self.replicas if replica.is_reachable for part in replica.parts)

    @property
    def n_present(self) -> int:
        """The number of hosts that have not ended."""
        return len(self.hosts) - self.counts[HostState.GONE] - self.counts[HostState.AWAY]

    @property
    def shards_ready(self) -> bool:
        """Returns whether every shard is ready."""
        return self.ready_shards == len(self.shards)

    @property
    def backups_ready(self) -> bool:
        """Returns whether every backup is ready."""
        return all(backup.state is HostState.READY for backup in self.backups.values())

    def backup_of(self, shard: HostRecord) -> HostRecord | None:
        """Returns the backup of a shard; None where it has none that has all that the shard has."""
        backup = self.backups.get(shard.name)
        return backup if backup and backup.is_whole and backup.state is HostState.READY else None

    def validate(self) -> None:
        """Checks the counts. Raises AssertionError."""
        hosts = self.hosts.values()
        states = [host.state for host in hosts]
        for state in HostState:
            assert self.counts[state] == states.count(state), self.counts
        assert self.starting.keys() == {host.name for host in hosts if host.state in _STARTING}
        assert (self.ready_shards, self.reachable_shards) == _ready(self.shards), self.shards
        ready = reachable = 0
        for replica in self.replicas:
            assert (replica.ready, replica.reachable) == _ready(replica.parts), replica
            ready += replica.is_ready
            reachable += replica.is_reachable
        assert (self.ready_replicas, self.reachable_replicas) == (ready, reachable)
        assert self.running == sum([host.runs for host in hosts]), self.running
        assert self.compiled == sum([host.compiled for host in hosts]), self.compiled


def _ready(hosts: Iterable[HostRecord]) -> tuple[int, int]:
    """The hosts that are ready, and those that are reachable."""
    states = [host.state for host in hosts]
    ready = states.count(HostState.READY)
    return ready, ready + states.count(HostState.PREPARING)
