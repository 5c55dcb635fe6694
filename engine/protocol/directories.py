"""The addresses that each host has: numbered revisions of a directory, sent as changes and acknowledged.

A part exchanges messages with the other parts of its replica and with the shards, a shard with all parts and
its backup. So a change concerns few hosts: a new replica its own parts and the shards, a new shard itself,
its backup and the parts, a new backup itself and its shard.
Each of them gets what has changed since the revision that was sent to it last; without its acknowledgement it
gets, some time later, what has changed since the one that it has acknowledged.

Where replicas exchange messages with one another (`Topology.collective`), a part also has the parts of the
other replicas.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord, HostRegistry
from partita.engine.protocol.messages import Directory, Peer


class Directories:
    """The directories of all hosts of a run.

    Attributes:
        revision: the newest one. 0: none was published yet.
    """

    def __init__(self, registry: HostRegistry, *, collective: bool = False) -> None:
        """Publishes nothing yet. `collective`: parts have the parts of other replicas, too."""
        self.revision = 0
        self._registry: Final = registry
        self._collective: Final = collective
        self._changed: Final[dict[str, int]] = {}  # name -> revision in which it changed, ascending
        self._parts: Final[dict[str, HostRecord]] = {}  # that were published, and have not ended
        self._behind: Final[dict[str, float]] = {}  # hosts that have not acknowledged, since when

    def publish(self, hosts: Iterable[HostRecord], now: float) -> list[Send]:
        """Publishes the addresses of reachable hosts in one revision: shards, and whole replicas."""
        self.revision += 1
        new = list(hosts)
        for host in new:
            self._note(host)
            if host.replica is not None:
                self._parts[host.name] = host
        receivers = dict.fromkeys([*new, *self._receivers(new)])
        return [self._send(host, host.sent, now) for host in receivers]

    def withdraw(self, host: HostRecord) -> None:
        """Notes that a process has ended: its address is sent no more, and nothing is sent to it."""
        self._behind.pop(host.name, None)
        self._parts.pop(host.name, None)
        host.sent = host.informed = 0

    def remove(self, hosts: Iterable[HostRecord], now: float) -> list[Send]:
        """Takes hosts that have ended out of the directories of others, as far as anything was published."""
        gone = [host for host in hosts if host.name in self._changed]
        if gone:
            self.revision += 1
        for host in gone:
            self.withdraw(host)
            self._note(host)
        return [self._send(host, host.sent, now) for host in self._receivers(gone) if host.is_reachable]

    def acknowledge(self, host: HostRecord, revision: int) -> None:
        """Notes the revision that a host has."""
        host.informed = max(host.informed, min(revision, host.sent))
        if host.informed == host.sent:
            self._behind.pop(host.name, None)

    def repeat(self, now: float, retry_s: float) -> list[Send]:
        """Sends to hosts that have not acknowledged their revision for so long what they lack."""
        sends: list[Send] = []
        while self._behind:
            name, at = next(iter(self._behind.items()))
            if now - at < retry_s:
                break
            host = self._registry.hosts[name]
            sends.append(self._send(host, host.informed, now))
        return sends

    def _note(self, host: HostRecord) -> None:
        self._changed.pop(host.name, None)
        self._changed[host.name] = self.revision

    def _receivers(self, changed: Iterable[HostRecord]) -> Iterator[HostRecord]:
        """Yields the published hosts that exchange messages with one of these."""
        registry, changed = self._registry, list(changed)
        has_parts = any(host.replica is not None for host in changed)
        if (self._collective and changed) or any(host.is_shard for host in changed):
            yield from self._parts.values()
        if has_parts:
            yield from (shard for shard in registry.shards if shard.sent)
        for host in changed:
            other = registry.hosts[host.shard] if host.shard else registry.backups.get(host.name)
            if other is not None and other.sent:
                yield other

    def _send(self, receiver: HostRecord, since: int, now: float) -> Send:
        """Sends what has changed for a host since a revision; everything since 0."""
        peers: list[Peer] = []
        removed: list[str] = []
        for host in self._changes(receiver, since):
            if host.name in self._parts or (host.replica is None and host.is_reachable):
                peers.append(Peer(host.name, host.incarnation, host.endpoint, host.public_key, host.machine))
            elif since:
                removed.append(host.name)
        receiver.sent = self.revision
        self._behind.pop(receiver.name, None)
        self._behind[receiver.name] = now
        return Send(receiver.name, Directory(tuple(peers), self.revision, since, tuple(removed)))

    def _changes(self, receiver: HostRecord, since: int) -> Iterator[HostRecord]:
        """Yields the hosts that the receiver exchanges messages with, and that have changed since then."""
        hosts = self._registry.hosts
        if receiver.replica is None or self._collective:
            found = [hosts[name] for name in self._since(since)]
            if receiver.replica is None:
                found = [host for host in found if _exchange(receiver, host)]
            yield from (host for host in found if host is not receiver)
            return
        mates = self._registry.replicas[receiver.replica].parts
        for host in (*self._registry.shards, *mates):
            if host is not receiver and self._changed.get(host.name, 0) > since:
                yield host

    def _since(self, revision: int) -> Iterator[str]:
        """Yields the names that have changed since a revision, the last one first; all since 0, in order."""
        if revision == 0:
            yield from self._changed
            return
        for name in reversed(self._changed):
            if self._changed[name] <= revision:
                return
            yield name

    def validate(self) -> None:
        """Checks the invariants. Raises AssertionError."""
        revisions = list(self._changed.values())
        assert revisions == sorted(revisions), revisions
        for name, host in self._parts.items():
            assert self._registry.hosts[name] is host and host.is_reachable, host
        for host in self._registry.hosts.values():
            assert 0 <= host.informed <= host.sent <= self.revision, host
            assert (host.name in self._behind) == (host.informed < host.sent), host


def _exchange(receiver: HostRecord, host: HostRecord) -> bool:
    """Returns whether a shard or a backup exchanges messages with a host."""
    if receiver.shard:
        return host.name == receiver.shard
    return host.replica is not None or host.shard == receiver.name
