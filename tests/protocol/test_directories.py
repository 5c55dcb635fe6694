"""Directories: what is sent for a change does not grow with the run, and what is lost is sent again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.directories import Directories
from partita.engine.protocol.events import Send
from partita.engine.protocol.host_registry import HostRecord, HostRegistry, HostState
from partita.engine.protocol.messages import Directory, Peer, encode
from partita.engine.protocol.names import Topology

RETRY_S = 1.0


class Run:
    """Directories of a run, and what each host has received."""

    def __init__(self, topology: Topology, *, collective: bool = False) -> None:
        self.registry = HostRegistry.of(topology, stall_s=1.0, incarnations={})
        self.book = Directories(self.registry, collective=collective)
        self.now = 0.0
        self.revisions: dict[tuple[str, int], int] = {}
        self.peers: dict[tuple[str, int], dict[str, Peer]] = {}

    def start(self) -> list[Send]:
        hosts = [*self.registry.hosts.values()]
        for host in hosts:
            self._reach(host)
        return self.book.publish(hosts, self.now)

    def _reach(self, host: HostRecord) -> None:
        self.registry.move(host, HostState.PREPARING, self.now)
        host.endpoint = f"tcp://{host.name}"

    def restart(self, hosts: Sequence[HostRecord]) -> list[Send]:
        """Ends these hosts, and publishes their next processes."""
        for host in hosts:
            self.book.withdraw(host)
            self.registry.relaunch(host, self.now)
        for host in hosts:
            self._reach(host)
        return self.book.publish(hosts, self.now)

    def deliver(self, sends: Sequence[Send]) -> None:
        """The receivers take these directories as hosts do, and acknowledge them."""
        for send in sends:
            host, directory = self.registry.hosts[send.to], send.message
            assert isinstance(directory, Directory)
            process = host.name, host.incarnation
            if directory.applies_to(self.revisions.get(process, 0)):
                self.peers[process] = directory.applied_to(self.peers.get(process, {}))
                self.revisions[process] = directory.revision
            self.book.acknowledge(host, self.revisions.get(process, 0))
        self.book.validate()

    def known_to(self, name: str) -> dict[str, int]:
        host = self.registry.hosts[name]
        return {n: peer.incarnation for n, peer in self.peers.get((name, host.incarnation), {}).items()}

    def expected(self, name: str) -> dict[str, int]:
        host, hosts = self.registry.hosts[name], self.registry.hosts.values()
        return {
            other.name: other.incarnation
            for other in hosts
            if other is not host
            and other.is_reachable
            and (host.replica is None) + (other.replica is None) < 2
            and (None in (host.replica, other.replica) or host.replica == other.replica)
        }


@pytest.mark.parametrize("replicas", [2, 200, 2000])
def test_a_death_is_news_for_its_replica_and_the_shards_alone(replicas: int) -> None:
    """2,000 replicas of 8 machines get what 2 get; a full directory for every host would be 16,008."""
    run = Run(Topology(replicas, 8, 8))
    run.deliver(run.start())
    sends = run.restart(run.registry.replicas[1].parts)
    assert len(sends) == 8 + 8
    assert [len(send.message.peers) for send in sends] == [7 + 8] * 8 + [8] * 8  # type: ignore[union-attr]
    assert sum(len(encode(send.message)) for send in sends) < 9000, "bytes, for 2,000 replicas as for 2"
    run.deliver(sends)
    assert run.known_to("part 1.3") == run.expected("part 1.3")
    assert run.known_to("shard 5") == run.expected("shard 5")


def test_a_new_shard_is_one_address_for_each_part() -> None:
    run = Run(Topology(50, 2, 3))
    run.deliver(run.start())
    sends = run.restart(run.registry.shards[:1])
    assert {send.to for send in sends} == {
        "shard 0",
        *(p.name for r in run.registry.replicas for p in r.parts),
    }
    assert {len(send.message.peers) for send in sends if send.to != "shard 0"} == {1}  # type: ignore[union-attr]


def test_what_is_not_acknowledged_is_sent_again_and_nothing_else() -> None:
    run = Run(Topology(100, 2, 2))
    run.deliver([send for send in run.start() if send.to != "shard 1"])
    run.now += RETRY_S / 2
    assert run.book.repeat(run.now, RETRY_S) == []
    run.now += RETRY_S / 2
    [again] = run.book.repeat(run.now, RETRY_S)
    assert again.to == "shard 1" and again.message.since == 0  # type: ignore[union-attr]
    assert run.book.repeat(run.now, RETRY_S) == []
    run.deliver([again])
    run.now += 5 * RETRY_S
    assert run.book.repeat(run.now, RETRY_S) == []


def test_a_gap_is_filled_from_what_was_acknowledged() -> None:
    run = Run(Topology(20, 1, 1))
    run.deliver(run.start())
    lost = [run.restart(run.registry.replicas[r].parts) for r in (3, 4)]
    newest = run.restart(run.registry.replicas[5].parts)
    run.deliver([send for send in newest if send.to == "shard 0"])
    assert run.known_to("shard 0") != run.expected("shard 0"), "it lacks what came before"
    run.now += RETRY_S
    again = [send for send in run.book.repeat(run.now, RETRY_S) if send.to == "shard 0"]
    assert {peer.name for peer in again[0].message.peers} == {f"part {r}.0" for r in (3, 4, 5)}  # type: ignore[union-attr]
    run.deliver(again)
    assert run.known_to("shard 0") == run.expected("shard 0")
    run.deliver([send for sends in lost for send in sends if send.to == "shard 0"])
    assert run.known_to("shard 0") == run.expected("shard 0"), "late ones change nothing"


def test_a_replica_that_has_left_is_taken_out() -> None:
    run = Run(Topology(3, 2, 1))
    run.deliver(run.start())
    gone = run.registry.replicas[1].parts
    for part in gone:
        run.registry.move(part, HostState.AWAY, run.now)
    [send] = run.book.remove(gone, run.now)
    assert set(send.message.removed) == {"part 1.0", "part 1.1"}  # type: ignore[union-attr]
    run.deliver([send])
    assert run.known_to("shard 0") == run.expected("shard 0")


def test_one_that_leaves_before_anything_was_published_is_no_directory() -> None:
    run = Run(Topology(3, 2, 1))
    assert run.book.remove(run.registry.replicas[1].parts, run.now) == []
    assert run.book.revision == 0
    run.deliver(run.start())
    assert all(run.known_to(name) == run.expected(name) for name in run.registry.hosts)


def test_replicas_that_exchange_messages_have_one_another() -> None:
    run = Run(Topology(3, 2, 1), collective=True)
    run.deliver(run.start())
    assert len(run.known_to("part 0.0")) == 6
    sends = run.restart(run.registry.replicas[2].parts)
    assert {send.to for send in sends} == set(run.registry.hosts)
    run.deliver(sends)
    assert run.known_to("part 0.1")["part 2.0"] == run.known_to("part 2.1")["part 2.0"] == 1


@given(
    st.lists(
        st.tuples(st.sampled_from(range(5)), st.floats(0.0, 1.5), st.integers(0, 2**12 - 1)), max_size=12
    )
)
def test_whatever_is_lost_every_host_gets_its_directory(
    events: Sequence[tuple[int, float, int]],
) -> None:
    """Restarts of any host, with any messages lost and others late; repetitions come in the end."""
    run = Run(Topology(3, 2, 2))
    late = run.start()
    for which, passed_s, lost in events:
        if which < 3:
            sends = run.restart(run.registry.replicas[which].parts)
        else:
            sends = run.restart(run.registry.shards[which - 3 : which - 2])
        run.now += passed_s
        sends += run.book.repeat(run.now, RETRY_S)
        run.book.validate()
        kept = [send for n, send in enumerate(sends) if not lost >> n % 12 & 1]
        hosts = run.registry.hosts
        run.deliver([*kept, *(s for s in late if hosts[s.to].incarnation == 0)])
        late = [] if lost & 1 else late
    for _ in range(2):
        run.now += RETRY_S
        run.deliver(run.book.repeat(run.now, RETRY_S))
    for name in run.registry.hosts:
        assert run.known_to(name) == run.expected(name), name
