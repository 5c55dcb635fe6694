"""The machine of a host: what it sends, repeats, refuses and gives its role, in any order of events."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import (
    BuildRole,
    Compiled,
    EndHost,
    HostMachine,
    HostPhase,
    HostTimers,
    PeersChanged,
    Raised,
    Reach,
    RoleBuilt,
    RoleMachine,
)
from partita.engine.protocol.messages import (
    Begin,
    Directory,
    DirectoryAck,
    Failed,
    Heartbeat,
    Hello,
    Malformed,
    Parameters,
    Peer,
    Ready,
    Refused,
    SetUp,
    SetUpProgress,
    Stop,
)
from partita.engine.protocol.names import COORDINATOR
from tests.protocol.machines import feed, receive

PEERS = (Peer("shard 0", 2, "sim://shard 0", ""),)
RESULT = "a result of the body"


class Recorded(RoleMachine):
    """A role that keeps its events, and answers each with an effect of its own."""

    version = 7

    def __init__(self) -> None:
        self.events: list[Any] = []
        self.refuses: tuple[Refuse, ...] = ()

    def receive(self, event: Any, now: float) -> list[Any]:
        self.events.append(event)
        return [*self.refuses, ("own", event)]


def greeting() -> HostMachine:
    timers = HostTimers(resend_s=1.0, progress_s=0.2)
    return HostMachine("part 0.0", 3, endpoint="sim://part", versions={"python": "3"}, timers=timers)


def at_work() -> tuple[HostMachine, Recorded]:
    host, role = greeting(), Recorded()
    receive(host, COORDINATOR, SetUp("run"))
    feed(host, RoleBuilt(role))
    receive(host, COORDINATOR, Heartbeat(3))
    role.events.clear()
    return host, role


def messages(effects: list[Any]) -> list[Any]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def test_hello_is_repeated_until_the_task_comes() -> None:
    host = greeting()
    hello = Hello("sim://part", {"python": "3"})
    sent = [messages(feed(host, Tick(), now=now)) for now in (0.0, 0.5, 1.0, 1.9, 2.0)]
    assert sent == [[hello], [], [hello], [], [hello]]
    [order] = receive(host, COORDINATOR, SetUp("run"), b"task", now=2.1)
    assert order == BuildRole(Received(COORDINATOR, 0, SetUp("run"), b"task"))
    assert feed(host, Tick(), now=9.0) == []
    assert receive(host, COORDINATOR, SetUp("run"), b"task", now=9.1) == []


def test_ready_is_repeated_until_a_heartbeat_comes() -> None:
    host, role = greeting(), Recorded()
    receive(host, COORDINATOR, SetUp("run"))
    assert messages(feed(host, RoleBuilt(role), now=0.0)) == [Ready(7)]
    assert Ready(7) not in messages(feed(host, Tick(), now=0.9))
    assert Ready(7) in messages(feed(host, Tick(), now=1.0))
    receive(host, COORDINATOR, Heartbeat(3), now=1.1)
    assert host.phase is HostPhase.AT_WORK
    assert messages(feed(host, Tick(), now=9.0)) == [Heartbeat(3, 9.0)]


def test_heartbeats_have_the_clock_and_the_pace_of_the_role() -> None:
    host, role = at_work()
    role.heartbeat_s = 0.4
    found = [messages(feed(host, Tick(), now=now)) for now in (5.0, 5.25, 5.5)]
    assert found == [[Heartbeat(3, 5.0)], [], [Heartbeat(3, 5.5)]]
    assert role.events == [Tick()] * 3


def test_a_directory_that_came_before_the_role_is_given_to_it() -> None:
    host, role = greeting(), Recorded()
    assert receive(host, COORDINATOR, Directory(PEERS, 4)) == [
        Reach(PEERS, PEERS),
        Send(COORDINATOR, DirectoryAck(4)),
    ]
    receive(host, COORDINATOR, SetUp("run"))
    feed(host, RoleBuilt(role))
    assert role.events == [PeersChanged(4, {"shard 0": 2})]


def test_an_older_directory_is_acknowledged_and_ignored() -> None:
    host, role = at_work()
    receive(host, COORDINATOR, Directory(PEERS, 4))
    assert receive(host, COORDINATOR, Directory((), 3)) == [Send(COORDINATOR, DirectoryAck(4))]
    assert role.events == [PeersChanged(4, {"shard 0": 2})]


def test_changes_since_a_directory_are_added_to_it_and_a_gap_changes_nothing() -> None:
    host, role = at_work()
    receive(host, COORDINATOR, Directory(PEERS, 4))
    other = Peer("shard 1", 0, "sim://shard 1", "")
    reach, _, ack = receive(host, COORDINATOR, Directory((other,), 5, since=4))
    assert (reach, ack) == (Reach((*PEERS, other), (other,)), Send(COORDINATOR, DirectoryAck(5)))
    assert receive(host, COORDINATOR, Directory((), 7, since=6)) == [Send(COORDINATOR, DirectoryAck(5))]
    receive(host, COORDINATOR, Directory((), 6, since=5, removed=("shard 0",)))
    assert [event.peers for event in role.events] == [
        {"shard 0": 2},
        {"shard 0": 2, "shard 1": 0},
        {"shard 1": 0},
    ]


def test_the_role_gets_what_is_not_the_hosts_own() -> None:
    host, role = at_work()
    begin = Received(COORDINATOR, 0, Begin(0, 5))
    assert feed(host, begin) == [("own", begin)]
    assert feed(host, RESULT) == [("own", RESULT)]
    assert role.events == [begin, RESULT]


def test_a_refusal_is_counted_each_time_and_reported_once_for_each_sender() -> None:
    host, role = at_work()
    malformed = Malformed("not a message")
    report = Send(COORDINATOR, Refused("shard 0", "not a message"))
    assert receive(host, "shard 0", malformed) == [Refuse("shard 0", "not a message"), report]
    assert receive(host, "shard 0", malformed) == [Refuse("shard 0", "not a message")]
    [refused, _] = receive(host, "part 1.0", Begin(0, 5))
    assert isinstance(refused, Refuse) and "may not send" in refused.reason
    assert role.events == []
    role.refuses = (Refuse("part 0.1", "out of place"),)
    first, again = feed(host, RESULT), feed(host, RESULT)
    assert messages(first) == [Refused("part 0.1", "out of place")]
    assert [effect for effect in again if isinstance(effect, Refuse)] == list(role.refuses)
    assert messages(again) == []


def test_what_a_stranger_claims_has_no_effect() -> None:
    host, _ = at_work()
    stale = Parameters(0, 1, 0)
    assert isinstance(receive(host, "shard 0", stale, incarnation=2)[0], Refuse)
    assert isinstance(receive(host, "shard 0", Stop())[0], Refuse)
    assert isinstance(receive(host, "part 0.1", SetUp(""))[0], Refuse)
    assert host.phase is HostPhase.AT_WORK


def test_progress_of_the_set_up_is_reported_now_and_then() -> None:
    host = greeting()
    receive(host, COORDINATOR, SetUp("run"))
    reported = [messages(feed(host, Compiled(n), now=0.1 * n)) for n in range(4)]
    assert reported == [[SetUpProgress(0)], [], [SetUpProgress(2)], []]


@pytest.mark.parametrize("build", [greeting, lambda: at_work()[0]])
def test_an_error_is_reported_until_the_host_is_stopped(build: Any) -> None:
    host, failed = build(), Failed("it raised", "its traceback")
    assert feed(host, Raised(failed), now=10.0) == [Send(COORDINATOR, failed)]
    assert receive(host, COORDINATOR, Begin(0, 5), now=10.1) == []
    assert receive(host, COORDINATOR, SetUp(""), now=10.2) == []
    assert feed(host, RESULT, now=10.3) == []
    assert [messages(feed(host, Tick(), now=now)) for now in (10.9, 11.0, 11.5)] == [[], [failed], []]
    assert feed(host, Raised(Failed("another", "")), now=11.6) == [Send(COORDINATOR, failed)]
    assert receive(host, COORDINATOR, Stop(), now=11.7) == [EndHost()]
    assert feed(host, Tick(), now=99.0) == []


def test_a_role_decides_which_messages_may_still_leave() -> None:
    host, role = at_work()
    assert host.may_send(Ready(), 0.0)
    role.may_send = lambda message, now: now < 2.0  # type: ignore[method-assign]
    assert host.may_send(Ready(), 1.0)
    assert not host.may_send(Ready(), 2.0)


EVENTS = st.one_of(
    st.just(Tick()),
    st.just(RESULT),
    st.just(Raised(Failed("it raised", ""))),
    st.builds(Compiled, st.integers(0, 3)),
    st.builds(
        Received,
        st.sampled_from([COORDINATOR, "part 0.1", "part 1.0", "shard 0", "a stranger"]),
        st.integers(0, 1),
        st.one_of(
            st.sampled_from(
                [Begin(0, 5), Heartbeat(3), Hello("", {}), Malformed("x"), Ready(), SetUp(""), Stop()]
            ),
            st.builds(Directory, st.sampled_from([(), PEERS]), st.integers(0, 4)),
            st.builds(Parameters, st.just(0), st.integers(0, 1), st.just(0)),
        ),
    ),
)


@given(st.lists(st.tuples(EVENTS, st.sampled_from([0.0, 0.1, 0.6, 2.0])), max_size=60))
def test_any_order_of_events_keeps_the_promises(events: list[tuple[Any, float]]) -> None:
    """One role is built; it gets nothing out of its life; only what was raised is reported as such."""
    host, role, now = greeting(), Recorded(), 0.0
    built = stopped = raised = 0
    revisions: list[int] = []
    reported: set[str] = set()
    for event, wait_s in events:
        now += wait_s
        effects = feed(host, event, now=now)
        raised += isinstance(event, Raised) and not stopped
        assert not (stopped and effects)
        for effect in list(effects):
            match effect:
                case BuildRole(task=task):
                    assert task.sender == COORDINATOR
                    built += 1
                    effects += feed(host, RoleBuilt(role), now=now)
                case EndHost():
                    stopped += 1
        for message in messages(effects):
            if isinstance(message, DirectoryAck):
                revisions.append(message.revision)
            elif isinstance(message, Refused):
                assert message.by not in reported
                reported.add(message.by)
            elif isinstance(message, Failed):
                assert raised
            elif isinstance(message, Hello):
                assert not built
            elif isinstance(message, Ready | Heartbeat):
                assert built
    assert built <= 1
    assert stopped <= 1
    assert revisions == sorted(revisions)
    kept = [event for event in role.events if isinstance(event, Received)]
    assert not [one for one in kept if one.sender == "a stranger" or isinstance(one.message, SetUp | Stop)]
    assert not (role.events and not built)
