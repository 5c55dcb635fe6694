"""Failure detection: heartbeats, suspicion, death, and a coordinator that was itself paused."""

from __future__ import annotations

import pytest

from partita.engine.protocol import Membership, Message
from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.membership import HeartbeatPolicy, MembershipEffect, Recovered, Suspected
from partita.engine.protocol.messages import Heartbeat, Ready

TICK_S = 0.125  # exact in binary


class Clock:
    """A membership, ticked eight times a second."""

    def __init__(self) -> None:
        self.members = Membership()
        self.now = 0.0

    def receive(
        self, name: str, message: Message | None = None, *, incarnation: int = 0
    ) -> list[MembershipEffect]:
        received = Received(name, incarnation, message or Ready())
        return self._checked(self.members.receive(received, self.now))

    def run(self, until: float) -> list[tuple[float, MembershipEffect]]:
        """Ticks up to this time. Returns the effects, and when they came."""
        found = []
        while self.now < until - TICK_S / 2:
            self.now += TICK_S
            found += [(self.now, e) for e in self._checked(self.members.receive(Tick(), self.now))]
        return found

    def _checked(self, effects: list[MembershipEffect]) -> list[MembershipEffect]:
        self.members.validate()
        return effects


@pytest.fixture
def clock() -> Clock:
    clock = Clock()
    clock.run(TICK_S)
    clock.members.watch("shard 0", 2, clock.now)
    return clock


def test_heartbeats_go_to_every_host_twice_a_second_with_its_own_incarnation(clock: Clock) -> None:
    clock.members.watch("part 0.0", 0, clock.now)
    sent = [effect for _, effect in clock.run(1.5) if isinstance(effect, Send)]
    to_shard = [effect.message for effect in sent if effect.to == "shard 0"]
    assert to_shard == [Heartbeat(2)] * 3
    assert sum(effect.to == "part 0.0" for effect in sent) == 3


def test_silence_is_suspected_after_two_seconds_and_death_after_four(clock: Clock) -> None:
    signs = [(at, e) for at, e in clock.run(6.0) if not isinstance(e, Send)]
    assert signs == [
        (2.125, Suspected("shard 0", 2.0)),
        (4.125, Died("shard 0", 2, "silent for 4.0 s")),
    ]
    assert "shard 0" not in clock.members.watched


def test_any_traffic_is_a_sign_of_life(clock: Clock) -> None:
    for second in range(1, 10):
        assert all(isinstance(effect, Send) for _, effect in clock.run(float(second)))
        assert clock.receive("shard 0", incarnation=2) == []


def test_a_suspect_that_sends_again_recovers(clock: Clock) -> None:
    assert any(isinstance(effect, Suspected) for _, effect in clock.run(3.0))
    assert clock.receive("shard 0", incarnation=2) == [Recovered("shard 0", 2.875)]
    assert clock.receive("shard 0", incarnation=2) == []
    assert not [e for _, e in clock.run(4.5) if isinstance(e, Died)]


def test_a_replaced_process_keeps_nobody_alive(clock: Clock) -> None:
    clock.run(3.0)
    assert clock.receive("shard 0", incarnation=1) == []
    assert [e for _, e in clock.run(5.0) if isinstance(e, Died)]


def test_the_first_clock_reading_is_given_back_at_once_and_the_newest_ever_after(clock: Clock) -> None:
    """A lease is counted from the reading; an older one, overtaken on its way, does not replace a newer."""
    assert clock.receive("shard 0", Heartbeat(2, clock=-7.5), incarnation=2) == [
        Send("shard 0", Heartbeat(2, clock=-7.5))
    ]
    assert clock.receive("shard 0", Heartbeat(2, clock=-7.0), incarnation=2) == []
    assert clock.receive("shard 0", Heartbeat(2, clock=-7.2), incarnation=2) == []
    sent = [effect for _, effect in clock.run(0.5) if isinstance(effect, Send)]
    assert sent == [Send("shard 0", Heartbeat(2, clock=-7.0))]


def test_a_coordinator_that_was_paused_declares_no_host_dead(clock: Clock) -> None:
    clock.run(1.0)
    clock.now = 50.0
    assert all(isinstance(effect, Send) for effect in clock.members.receive(Tick(), clock.now))
    deaths = [at for at, e in clock.run(60.0) if isinstance(e, Died)]
    assert deaths == [53.125], "what was left of its four seconds"


def test_a_forgotten_host_may_be_silent(clock: Clock) -> None:
    clock.members.forget("shard 0")
    clock.members.forget("shard 0")
    assert clock.run(9.0) == []


@pytest.mark.parametrize("times", [(0.0, 2.0, 4.0), (2.0, 2.0, 4.0), (0.5, 4.0, 4.0)])
def test_a_pace_must_be_in_order(times: tuple[float, float, float]) -> None:
    with pytest.raises(ValueError, match=r"a lease lasts 1.5 s, 75% of dead_s, .* choose a heartbeat_s"):
        HeartbeatPolicy(heartbeat_s=0.8, suspect_s=1.0, dead_s=2.0)
    assert HeartbeatPolicy().lease_s < HeartbeatPolicy().dead_s
    with pytest.raises(ValueError, match="choose 0 < heartbeat_s"):
        HeartbeatPolicy(*times)


def test_a_host_whose_lease_is_revoked_gets_none_and_is_still_watched() -> None:
    membership = Membership()
    membership.watch("shard 0", 0, 0.0)
    membership.receive(Received("shard 0", 0, Heartbeat(0, clock=7.0)), 0.1)
    given = [Send("shard 0", Heartbeat(0, clock=7.0))]
    assert membership.receive(Tick(), 0.2) == given
    membership.revoke("shard 0")
    membership.receive(Received("shard 0", 0, Heartbeat(0, clock=8.0)), 0.6)
    assert membership.receive(Tick(), 0.8) == [Send("shard 0", Heartbeat(0))]
