"""Minibatches shared by replicas: each is answered once by all parts of one replica, whoever dies."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine.drivers.evaluate import Evaluate
from partita.engine.protocol import messages as m
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    EndRun,
    Launched,
    Opened,
    Restart,
    RunSettings,
    Timeouts,
)
from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.minibatch_mode import AHEAD, MinibatchMode
from partita.engine.protocol.names import Topology, part_indices
from partita.engine.protocol.request_mode import Answered
from partita.engine.protocol.session_messages import Load, Loaded, Play, Played
from partita.engine.protocol.views import Outline
from tests.draws import examples

BATCH = 4


class Replicas:
    """Parts that do what they are sent, when the test says so."""

    def __init__(self, replicas: int, machines: int, examples: int) -> None:
        self.mode = MinibatchMode(100.0, ("scores",))
        timeouts = Timeouts(start_s=math.inf, stall_s=100.0, checkpoint_every_s=None, deaths=1000)
        outline, driver = Outline(1, examples, BATCH, replicas), Evaluate(replicas=replicas)
        topology = Topology(replicas, machines, 0)
        self.machine = Coordinator(
            driver.coordinator, outline, self.mode, topology, settings=RunSettings(timeouts=timeouts)
        )
        self.examples, self.machines, self.now = examples, machines, 0.0
        self.incarnations: dict[str, int] = {}
        self.queues: dict[str, list[m.Message]] = {}
        self.sent_units: dict[str, list[int]] = {}
        self.answers: dict[int, dict[int, tuple[int, int]]] = {}
        self.end: EndRun | AbortRun | None = None
        self.give(Opened())

    def give(self, event: object) -> None:
        for effect in self.machine.receive(event, self.now):  # type: ignore[arg-type]
            match effect:
                case Restart(hosts=hosts):
                    for name, incarnation in hosts:
                        self.incarnations[name], self.queues[name] = incarnation, [m.Hello("tcp://there", {})]
                        self.sent_units[name] = []
                        self.give(Launched(name, incarnation))
                case Send(to=to, message=m.SetUp()):
                    self.queues[to].append(m.Ready())
                case Send(to=to, message=m.Directory(revision=revision)):
                    self.queues[to].append(m.DirectoryAck(revision))
                case Send(to=to, message=Load()):
                    self.queues[to].append(Loaded())
                case Send(to=to, message=Play() as play, payload=span):
                    assert span is not None and play.step == len(self.sent_units[to]), (to, play)
                    assert play.examples == min(BATCH, self.examples - span.start * BATCH), play
                    self.sent_units[to].append(span.start)
                    self.queues[to].append(Played(play.step, 1.0, 0, 0.1, 0.1, 0, 0))
                case Answered(name=name, message=Played(step=step), unit=unit):
                    replica, machine = part_indices(name) or (-1, -1)
                    assert self.sent_units[name][step] == unit
                    self.answers.setdefault(unit, {})[machine] = replica, self.incarnations[name]
                case EndRun() | AbortRun():
                    self.end = effect
        self.machine.validate()

    def go_on(self, name: str) -> None:
        """Has a part send the first message that it has not sent."""
        if self.queues[name]:
            self.give(Received(name, self.incarnations[name], self.queues[name].pop(0)))

    def finish(self) -> None:
        """Has all parts go on to the end of the run."""
        for _ in range(1000):
            if self.end is not None:
                return
            for name in sorted(self.queues):
                if self.end is None:
                    self.go_on(name)
            self.now += 0.1
            self.give(Tick())
        raise AssertionError("the run does not end")

    def check(self) -> None:
        assert isinstance(self.end, EndRun) and self.end.complete, self.end
        units = -(-self.examples // BATCH)
        assert sum(self.end.steps) == units
        assert sorted(self.answers) == [*range(units)]
        for unit, answers in self.answers.items():
            assert len(answers) == self.machines, unit
            assert len({replica for replica, _ in answers.values()}) == 1, f"unit {unit}: {answers}"


@settings(max_examples=examples(60))
@given(st.integers(1, 3), st.integers(1, 2), st.integers(1, 40), st.data())
def test_each_minibatch_counts_once_whoever_dies(
    replicas: int, machines: int, examples: int, data: st.DataObject
) -> None:
    run = Replicas(replicas, machines, examples)
    names = sorted(run.queues)
    for _ in range(data.draw(st.integers(0, 80))):
        name = data.draw(st.sampled_from(names))
        if run.end is not None:
            break
        if data.draw(st.integers(0, 9)) == 0:
            run.give(Died(name, run.incarnations[name], "killed"))
        else:
            run.go_on(name)
    run.finish()
    run.check()


def test_a_replica_has_little_ahead_and_a_silent_one_is_started_again() -> None:
    run = Replicas(2, 1, 40)
    while not all(len(units) == AHEAD for units in run.sent_units.values()):
        for name in run.queues:
            if not run.sent_units[name]:
                run.go_on(name)
    assert sorted(run.sent_units["part 0.0"] + run.sent_units["part 1.0"]) == [0, 1, 2, 3]
    for _ in range(4):
        run.now += 30.0
        run.give(Received("part 0.0", 0, m.Heartbeat(0, run.now)))
        run.give(Received("part 1.0", 0, m.Heartbeat(0, run.now)))
        if run.incarnations["part 1.0"] == 0:
            run.go_on("part 0.0")
            run.give(Tick())
    assert run.incarnations == {"part 0.0": 0, "part 1.0": 1}, "the one that does not answer"
    run.finish()
    run.check()


def test_an_error_that_comes_again_ends_the_run() -> None:
    run = Replicas(2, 1, 40)
    for _ in range(50):
        for name in run.queues:
            if run.end is None and len(run.sent_units[name]):
                run.give(Received(name, run.incarnations[name], m.Failed("ValueError: no", "its lines")))
            elif run.end is None:
                run.go_on(name)
    assert isinstance(run.end, AbortRun)
    assert run.end.reason == "part 0.0 failed 3 times: ValueError: no; correct what its traceback shows"


@pytest.mark.parametrize("replicas", [0, 2.5])
def test_a_number_of_replicas_is_whole(replicas: object) -> None:
    with pytest.raises(ValueError, match="replicas is"):
        Evaluate(replicas=replicas)  # type: ignore[arg-type]
