"""A sender that misbehaves is named at first, and then cut off, by hosts and by the coordinator."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import messages as m
from partita.engine.protocol.conduct import BURST, MOST_ACCUSED, MOST_REFUSED, RATE_S, WINDOW_S, Conduct
from partita.engine.protocol.coordinator_effects import AbortRun, Misbehaved, Restart, RunSettings, Warn
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import HostMachine, Reach
from partita.engine.protocol.names import COORDINATOR
from tests.protocol.coordinating import Run, of
from tests.protocol.machines import receive
from tests.protocol.test_host import at_work

ODD = m.Peer("part 0.1", 4, "sim://odd", "")
GOOD = m.Peer("shard 0", 2, "sim://shard 0", "")


def test_a_few_refusals_cut_off_and_seldom_ones_do_not() -> None:
    conduct = Conduct()
    assert [conduct.refused("a", 1.0) for _ in range(MOST_REFUSED + 1)] == [
        "first",
        *["again"] * (MOST_REFUSED - 2),
        "cut off",
        "again",
    ]
    seldom = [conduct.refused("b", n * (WINDOW_S + 1)) for n in range(3 * MOST_REFUSED)]
    assert set(seldom) == {"first", "again"}
    conduct.forget("a")
    assert not conduct.is_cut_off("a") and conduct.refused("a", 2.0) == "first"


@given(st.lists(st.floats(0, 100), max_size=40))
def test_one_that_is_needed_is_never_cut_off(waits: list[float]) -> None:
    conduct, now = Conduct(frozenset({"a"})), 0.0
    verdicts = []
    for wait_s in waits:
        now += wait_s
        verdicts.append(conduct.refused("a", now))
    assert verdicts == [*["first"][: len(waits)], *["again"] * (len(waits) - 1)]


def test_what_waited_for_hours_is_no_flood_and_a_flood_is() -> None:
    conduct = Conduct()
    assert conduct.flood("a", m.Heartbeat(0), 0.0) is None
    assert not any(conduct.flood("a", m.Heartbeat(0), 7200.0) for _ in range(2 * 7200))
    found = [conduct.flood("b", m.Heartbeat(0), n / 10_000) for n in range(3 * BURST)]
    first = next(n for n, reason in enumerate(found) if reason)
    assert BURST <= first <= BURST + RATE_S
    assert "a flood, of which a Heartbeat is message" in str(found[-1])
    assert conduct.flood("c", m.Report(1, 1, 0.0, 0, 0.0, 0), 0.0) is None


def cut_off(host: HostMachine) -> list[Any]:
    receive(host, COORDINATOR, m.Directory((ODD, GOOD), 1))
    effects: list[Any] = []
    for _ in range(MOST_REFUSED):
        effects = receive(host, "part 0.1", m.Stop(), incarnation=4)
    return effects


def test_a_host_takes_nothing_more_of_a_process_that_it_has_cut_off() -> None:
    host, role = at_work()
    refused, report, reach = cut_off(host)
    assert isinstance(refused, Refuse)
    assert report == Send(COORDINATOR, m.Refused("part 0.1", refused.reason, cut_off=True, incarnation=4))
    assert reach == Reach((GOOD,), ())
    role.events.clear()
    tensor = m.Tensor(0, "h", ())
    assert receive(host, "part 0.1", tensor, incarnation=4) == [] and role.events == []
    assert receive(host, "shard 0", m.Parameters(0, 2, 0), incarnation=2) and role.events
    # Another directory keeps it out; its next process is another one.
    reach, *_ = receive(host, COORDINATOR, m.Directory((), 2, since=1))
    assert reach == Reach((GOOD,), ())
    new = m.Peer("part 0.1", 5, "sim://odd", "")
    reach, *_ = receive(host, COORDINATOR, m.Directory((new,), 3, since=2))
    assert set(reach.peers) == {GOOD, new}
    role.events.clear()
    assert receive(host, "part 0.1", tensor, incarnation=5) and role.events


def test_a_host_repeats_whom_it_has_cut_off_until_that_is_replaced() -> None:
    host, _ = at_work()
    _, report, _ = cut_off(host)
    assert report not in host.receive(Tick(), 0.1)
    assert report in host.receive(Tick(), 60.0) and report in host.receive(Tick(), 62.0)
    receive(host, COORDINATOR, m.Directory((m.Peer("part 0.1", 5, "sim://odd", ""),), 2, since=1))
    assert report not in host.receive(Tick(), 70.0)


def test_an_accusation_counts_once_for_each_process() -> None:
    conduct = Conduct()
    assert all(conduct.accused("a", ("b", 0)) for _ in range(2 * MOST_ACCUSED))
    assert conduct.accused("a", ("b", 1)) and not conduct.accused("a", ("c", 0))


def test_a_host_never_cuts_off_its_coordinator() -> None:
    host, role = at_work()
    for _ in range(3 * MOST_REFUSED):
        receive(host, COORDINATOR, m.Malformed("not a message"))
    assert receive(host, COORDINATOR, m.Begin(0, 5)) and role.events


def restarted(effects: list[Any]) -> set[str]:
    return {name for restart in of(Restart, effects) for name, _ in restart.hosts}


@pytest.mark.parametrize("by_table", [True, False])
def test_the_coordinator_replaces_a_part_that_misbehaves(by_table: bool) -> None:
    run = Run().start()
    for _ in range(MOST_REFUSED):
        if by_table:
            effects = run.feed(Misbehaved("part 1.0", 0, "a Begin, which 'part 1.0' may not send"))
        else:
            effects = run.receive("part 1.0", m.WaitReport("nobody", "x", 5.0))
        assert of(Refuse, effects)
    assert restarted(effects) == {"part 1.0", "part 1.1"}
    assert any("part 1.0: cut off by the coordinator" in warned.text for warned in of(Warn, effects))
    run.machine.validate()


def test_a_flood_is_cut_off() -> None:
    run = Run().start()
    effects: list[Any] = []
    for _ in range(BURST + MOST_REFUSED + 1):
        effects += run.receive("part 0.1", m.Heartbeat(0, 1.0))
    assert restarted(effects) == {"part 0.0", "part 0.1"}


def test_a_shard_that_is_cut_off_is_replaced_when_its_lease_has_ended() -> None:
    run = Run().start()
    refused = m.Refused("shard 1", "a Save, which 'shard 1' may not send", cut_off=True)
    effects = run.receive("part 0.0", refused)
    assert "shard 1: cut off by part 0.0" in of(Warn, effects)[0].text and not restarted(effects)
    assert run.receive("part 1.0", refused) == []
    dead_s = run.machine.timeouts.heartbeats.dead_s
    until, found = run.now + dead_s + 1, set[str]()
    while run.now < until:
        run.now += 0.5
        for name in ("part 0.0", "part 0.1", "part 1.0", "part 1.1", "shard 0", "shard 1"):
            run.receive(name, m.Heartbeat(0, run.now))
        found |= restarted(run.feed(Tick()))
        assert not found or run.now > until - 1.5
    assert found == {"shard 1"}
    run.machine.validate()


def test_who_accuses_many_is_the_one_that_is_cut_off() -> None:
    run = Run().start()
    others = ("shard 0", "shard 1", "part 0.1")
    assert len(others) == MOST_ACCUSED + 1
    for other in others:
        effects = run.receive("part 0.0", m.Refused(other, "anything", cut_off=True))
    assert restarted(effects) == {"part 0.0", "part 0.1"}
    assert "part 0.0: cut off by the coordinator: it cuts off more than 2" in of(Warn, effects)[0].text


@pytest.mark.parametrize("by", ["nobody", "coordinator", "part 0.0", "files"])
def test_an_accusation_of_no_other_host_has_no_effect(by: str) -> None:
    run = Run().start()
    assert run.receive("part 0.0", m.Refused(by, "anything", cut_off=True)) == []


def test_an_accusation_of_an_earlier_process_has_no_effect() -> None:
    run = Run().start()
    assert run.receive("part 0.0", m.Refused("shard 0", "anything", cut_off=True, incarnation=7)) == []


def test_a_run_ends_with_the_name_of_a_host_that_misbehaves_each_time() -> None:
    run = Run().start()
    limit = RunSettings().timeouts.deaths
    effects: list[Any] = []
    for n in range(limit):
        for _ in range(MOST_REFUSED):
            effects = run.feed(Misbehaved("part 1.0", n, "a Begin"))
    (abort,) = of(AbortRun, effects)
    assert "part 1.0 died" in abort.reason and "cut off by the coordinator: a Begin" in abort.reason
    assert run.feed(Received("part 0.0", 0, m.Heartbeat(0))) == []
