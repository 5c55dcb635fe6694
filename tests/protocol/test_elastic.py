"""Elastic runs: who the run begins with, who joins, who leaves and when it is tried again."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import Topology
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    Commit,
    CoordinatorEffect,
    EndHosts,
    Opened,
    Restart,
    Starting,
    Timeouts,
    Warn,
)
from partita.engine.protocol.events import Died, Tick
from partita.engine.protocol.host_lifecycle import Phase
from partita.engine.protocol.messages import Begin, Directory, Lease
from partita.engine.protocol.seats import Seats, replicas_text
from tests.protocol.coordinating import HOSTS, PARTS, SHARDS, Run, begins, messages, of

TIMEOUTS = Timeouts(deaths=2, checkpoint_every_s=None, wave_s=10.0, longest_wave_s=25.0, start_s=50.0)
FIRST, SECOND = PARTS[:2], PARTS[2:]


def elastic(least: int = 1, **options: object) -> Run:
    run = Run(least=least, **{"timeouts": TIMEOUTS, **options})
    run.feed(Opened())
    return run


def bring(run: Run, names: Sequence[str]) -> list[CoordinatorEffect]:
    return run.restarted(*names)


def texts(effects: Sequence[CoordinatorEffect]) -> list[str]:
    return [warning.text for warning in of(Warn, effects)]


@pytest.fixture
def run() -> Run:
    """Both replicas are at work."""
    run = elastic()
    bring(run, HOSTS)
    run.wait(0.25)
    return run


def kill(run: Run, part: str, *, times: int = TIMEOUTS.deaths) -> list[CoordinatorEffect]:
    effects: list[CoordinatorEffect] = []
    for n in range(times):
        effects = run.feed(Died(part, run.incarnations[part], "killed"))
        if n < times - 1:
            bring(run, [p for p in PARTS if p[:6] == part[:6]])
    return effects


def test_it_begins_with_the_least_and_says_who_joins_later() -> None:
    run = elastic()
    begun = bring(run, [*SHARDS, *SECOND])
    assert begins(begun) == dict.fromkeys(SECOND, (0, 10))
    assert run.machine.phase is Phase.RUNNING
    said = texts(run.wait(0.25))
    assert said == ["view 1: replica 1; replica 0 joins when it is ready"]
    joined = bring(run, FIRST)
    assert set(messages(Directory, joined)) == {*SHARDS, *FIRST}, "the other replica does not notice"
    assert begins(joined) == dict.fromkeys(FIRST, (0, 10))
    assert texts(run.wait(0.25)) == ["view 2: replicas 0, 1"]


def test_a_run_that_is_not_elastic_needs_all_and_is_silent_about_views() -> None:
    run = Run(timeouts=TIMEOUTS)
    run.feed(Opened())
    assert not begins(bring(run, [*SHARDS, *SECOND]))
    [starting] = of(Starting, run.feed(Tick()))
    assert starting.waits_for == "part 0.0 (importing), part 0.1 (importing)"
    bring(run, FIRST)
    assert not texts(run.wait(1.0))
    [failure] = of(AbortRun, kill(run, "part 0.0"))
    assert "died 2 times" in failure.reason


def test_it_does_not_begin_without_the_least_nor_without_a_shard() -> None:
    run = elastic(2)
    assert not begins(bring(run, [SHARDS[0], *PARTS]))
    assert begins(bring(run, SHARDS[1:]))
    run = elastic(2)
    assert not begins(bring(run, [*SHARDS, *FIRST]))
    assert begins(bring(run, SECOND))


def test_one_that_dies_too_often_leaves_and_the_others_go_on(run: Run) -> None:
    effects = kill(run, "part 0.1")
    assert texts(effects) == [
        "part 0.1 died 2 times without getting any further: killed; replica 0 leaves the run, which goes "
        "on with replica 1; it is tried again in 10 s"
    ]
    assert of(EndHosts, effects) == [EndHosts(FIRST)]
    taken_out = messages(Directory, effects)
    assert set(taken_out) == set(SHARDS)
    assert {frozenset(directory.removed) for directory in taken_out.values()} == {frozenset(FIRST)}
    assert texts(run.wait(0.25)) == ["view 5: replica 1"]
    assert run.report("part 1.0", 1) and run.report("part 1.1", 1)
    assert run.feed(Died("part 0.0", run.incarnations["part 0.0"])) == [], "it was ended"


def test_the_last_ones_are_needed(run: Run) -> None:
    kill(run, "part 0.1")
    [failure] = of(AbortRun, kill(run, "part 1.0"))
    assert failure.reason == "part 1.0 died 2 times without getting any further: killed"


def test_it_is_tried_again_later_and_later_until_it_gets_further(run: Run) -> None:
    alive = [*SHARDS, *SECOND]
    kill(run, "part 0.1")
    for wait_s in (10.0, 20.0, 25.0):
        assert not of(Restart, run.wait(wait_s - 0.25, hearing=alive))
        [restart] = of(Restart, run.wait(0.5, hearing=alive))
        assert [name for name, _ in restart.hosts] == list(FIRST)
        assert of(EndHosts, run.feed(Died("part 0.0", run.incarnations["part 0.0"])))
    run.wait(25.5, hearing=alive)
    assert begins(bring(run, FIRST)) == dict.fromkeys(FIRST, (10, 20)), "its numbers are not used again"
    for part in FIRST:
        run.report(part, 11)
    kill(run, "part 0.0")
    assert of(Restart, run.wait(10.25, hearing=alive)), "it got further: counted anew"


def test_one_that_does_not_start_leaves_too() -> None:
    run = elastic()
    bring(run, [*SHARDS, *FIRST])
    effects = run.wait(TIMEOUTS.start_s + 0.5, hearing=[*SHARDS, *FIRST])
    assert [restart.hosts for restart in of(Restart, effects)] == [(("part 1.0", 1), ("part 1.1", 1))]
    effects = run.wait(TIMEOUTS.start_s, hearing=[*SHARDS, *FIRST])
    assert of(EndHosts, effects) == [EndHosts(SECOND)]
    assert run.machine.phase is Phase.RUNNING


def test_one_that_cannot_start_at_first_is_left_behind() -> None:
    run = elastic()
    for part in FIRST:
        run.hello(part)
    effects = run.wait(TIMEOUTS.start_s + 0.25, hearing=())
    assert of(AbortRun, effects), "nobody else is there: a shard is missing"
    run = elastic()
    bring(run, [*SHARDS, *SECOND[:1]])
    effects = run.wait(TIMEOUTS.start_s, hearing=[*SHARDS, *SECOND])
    assert of(EndHosts, effects) == [EndHosts(FIRST)]


def test_the_others_do_what_one_that_leaves_had_not_done(run: Run) -> None:
    for part in FIRST:
        run.report(part, 7, held=6)
    for part in SECOND:
        run.report(part, 8, held=8)
    effects = kill(run, "part 0.1", times=1)
    bring(run, FIRST)
    effects = kill(run, "part 0.0") if not of(EndHosts, effects) else effects
    sent = messages(Begin, effects)
    assert set(sent) == set(SECOND), "at once, since they have little left"
    assert sent["part 1.0"].leases == (Lease(8, 18, 20), Lease(10, 6, 10)), "what the shards do not hold"
    assert not messages(Save, run.finish(*SECOND)), "that was said before it had more"
    assert messages(Save, run.finish(*SECOND, step=14)) == dict.fromkeys(SHARDS, Save(1))
    run.saved("shard 0", 1)
    [commit] = of(Commit, run.saved("shard 1", 1))
    assert (commit.done, commit.steps) == (((0, 20),), (6, 14))


def test_replicas_that_had_finished_go_on_with_what_is_given_back(run: Run) -> None:
    run.finish(*SECOND)
    run.feed(Died("part 1.0", 0))
    run.feed(Died("part 1.1", 0))
    assert not of(Restart, run.wait(1.0)), "they were not needed"
    effects = kill(run, "part 0.1")
    assert [restart.hosts for restart in of(Restart, effects)] == [(("part 1.0", 1), ("part 1.1", 1))]
    assert begins(bring(run, SECOND)) == dict.fromkeys(SECOND, (10, 20))
    assert messages(Save, run.finish(*SECOND, step=20)) == dict.fromkeys(SHARDS, Save(1))


def test_nobody_is_seated_twice() -> None:
    seats = Seats()
    seats.join(3, (0, 0))
    with pytest.raises(AssertionError, match="replica 3 is seated twice in view 1"):
        seats.join(3, (0, 0))
    seats.leave(3)
    seats.leave(3)
    seats.join(3, (1, 1))
    assert (seats.number, dict(seats.seated)) == (3, {3: (1, 1)})


def test_replicas_in_words() -> None:
    assert replicas_text(()) == "no replica"
    assert replicas_text((4,)) == "replica 4"
    assert replicas_text((0, 1)) == "replicas 0, 1"
    assert replicas_text((0, 1, 2, 5, 7, 8, 9, 10)) == "replicas 0 to 2, 5, 7 to 10"


@given(st.lists(st.tuples(st.sampled_from(range(8)), st.sampled_from(HOSTS)), max_size=60), st.integers(1, 3))
def test_in_any_order_nothing_is_seated_twice_and_enough_stay(
    events: Sequence[tuple[int, str]], least: int
) -> None:
    """Hosts become ready, die and are awaited in any order; the machines check themselves."""
    run = elastic(least, topology=Topology(3, 2, 2))
    parts = [f"part {replica}.{machine}" for replica in range(3) for machine in range(2)]
    run.incarnations.update(dict.fromkeys(parts, 0))
    names = [*SHARDS, *parts]
    number = 0
    for kind, name in events:
        index = names[(HOSTS.index(name) + 2 * kind) % len(names)]
        if run.machine.phase is Phase.OVER:
            break
        if kind < 4:
            run.restarted(index)
        elif kind < 6:
            run.feed(Died(index, run.incarnations[index], "killed"))
        else:
            run.wait(4.0, hearing=names)
        seats = run.machine.seats
        assert seats.number >= number, "views are numbered upwards"
        number = seats.number
