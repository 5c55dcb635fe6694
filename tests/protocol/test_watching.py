"""A run that is watched: which hosts are asked, which steps are recorded, and what the answers give."""

from __future__ import annotations

import pytest

from partita.engine.protocol.coordinator_effects import HostObserved, RunSettings, WatchPolicy
from partita.engine.protocol.events import Died
from partita.engine.protocol.watch_messages import HostReport, Lane, RecordedStep, Traffic, Watch
from partita.engine.testing.__main__ import PLAYERS
from tests.protocol.coordinating import HOSTS, PARTS, Run, messages, of
from tests.simulation.outcomes import all_hold


def _report(
    watch: Watch, *, ahead_s: float = 0.0, steps: int = 0, cost_s: float = 0.0, clock: str = ""
) -> HostReport:
    """The answer of a host whose clock is so far ahead, 1 ms after the question left and 3 ms before it is
    here.
    """
    there = watch.sent_s + ahead_s + 0.001
    lane = Lane(machine=0, compute_s=1.0, transfer_s=0.0, wait_s=0.0, idle_s=0.0)
    recorded = RecordedStep(0, 0, there - 1.0, there, cost_s, lane) if cost_s else None
    return HostReport(
        watch.sent_s, there, there, 7, 1, 1000, None, 0.5, Traffic(), steps, recorded=recorded, clock=clock
    )


class _Watched(Run):
    """A run whose parts do so many steps in a second, and answer."""

    def __init__(self, rate: float, cost_s: float = 0.0, **options: object) -> None:
        super().__init__(watch=WatchPolicy(clock="here"), **options)
        self.rate, self.cost_s = rate, cost_s
        self.began = self.now
        self.start()

    def ask(self, seconds: float) -> list[tuple[str, Watch]]:
        """Lets time pass; answers all questions and returns them."""
        asked = []
        until = self.now + seconds
        while self.now < until:
            for name, watch in messages(Watch, self.wait(0.25)).items():
                asked.append((name, watch))
                self.now += 0.004
                steps = int(self.rate * (self.now - self.began)) if name in PARTS else 0
                self.receive(name, _report(watch, steps=steps, cost_s=self.cost_s))
        return asked


def test_a_run_that_nobody_watches_asks_nobody() -> None:
    run = Run().start()
    assert not messages(Watch, run.wait(5.0))
    assert not of(HostObserved, run.receive("shard 0", _report(Watch(run.now))))


def test_every_host_is_asked_about_once_a_second_when_it_is_ready() -> None:
    run = _Watched(rate=100.0)
    run.ask(3.0)
    asked = [name for name, _ in run.ask(10.0)]
    assert {name: asked.count(name) for name in HOSTS} == dict.fromkeys(HOSTS, pytest.approx(10, abs=2))


@pytest.mark.parametrize("rate", [0.2, 37.0, 5_000.0])
def test_the_parts_of_a_replica_record_the_same_steps_every_two_seconds(rate: float) -> None:
    run = _Watched(rate=rate)
    run.ask(16.0)
    last = {name: watch.step_every for name, watch in run.ask(3.0)}
    assert len({last[name] for name in PARTS}) == 1
    assert {last["shard 0"], last["shard 1"]} == {0}
    every = last["part 0.0"]
    assert every >= 1 and every & (every - 1) == 0
    assert every == 1 or 1.9 <= every / rate <= 4.3


def test_steps_that_cost_much_to_record_are_recorded_seldom() -> None:
    costs = {cost_s: _Watched(rate=100.0, cost_s=cost_s) for cost_s in (0.001, 0.05)}
    every = {}
    for cost_s, run in costs.items():
        run.ask(9.0)
        every[cost_s] = dict(run.ask(3.0))["part 0.0"].step_every
    # Each of the four parts runs on a machine of its own here.
    assert every[0.001] / 100.0 < 4.0
    assert 0.05 / (every[0.05] / 100.0) <= 1 / 400


def test_clocks_are_compared_unless_they_are_one() -> None:
    run = _Watched(rate=10.0)
    while not (asked := messages(Watch, run.wait(0.25))).get("shard 0"):
        pass
    watch = asked["shard 0"]
    run.now += 0.004
    (seen,) = of(HostObserved, run.receive("shard 0", _report(watch, ahead_s=50.0)))
    assert seen.clock.offset_s == pytest.approx(-50.0, abs=0.004)
    assert 0.0 < seen.clock.uncertainty_s <= 0.002 + 1e-9
    (seen,) = of(HostObserved, run.receive("shard 0", _report(watch, clock="here")))
    assert (seen.clock.offset_s, seen.clock.uncertainty_s) == (0.0, 0.0)


def test_answers_of_replaced_processes_and_to_no_question_count_for_nothing() -> None:
    run = _Watched(rate=10.0)
    watch = messages(Watch, run.wait(3.0))["part 0.0"]
    assert not of(HostObserved, run.receive("part 0.0", _report(Watch(watch.sent_s - 1.0))))
    run.feed(Died("part 0.0", 0, "killed"))
    assert not of(HostObserved, run.receive("part 0.0", _report(watch), incarnation=0))


@pytest.mark.parametrize("driver", ["downpour", "sandblaster", "all_reduce"])
def test_every_invariant_holds_in_runs_that_are_watched(driver: str, monkeypatch: pytest.MonkeyPatch) -> None:
    defaults = RunSettings.__init__.__kwdefaults__
    assert defaults is not None and "watch" in defaults
    monkeypatch.setitem(defaults, "watch", WatchPolicy(ask_s=0.5))
    all_hold(PLAYERS[driver], range(8))
