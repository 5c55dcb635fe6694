"""The machine of a part that exchanges with shards: its start, its steps, its reports and its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from partita.engine import Downpour
from partita.engine.protocol import Message, ParameterLinks, Part
from partita.engine.protocol.actions import Action, AllReduce, Compute, Drain, Room
from partita.engine.protocol.actions import Install as InstallValues
from partita.engine.protocol.batch_messages import Assignment
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.leased_work import HasSteps, LeasedWork, RunUnit
from partita.engine.protocol.link import Install
from partita.engine.protocol.messages import (
    Begin,
    Credit,
    Fetch,
    Finished,
    Lease,
    Parameters,
    Push,
    PushAck,
    Report,
    ResumeStep,
    Tensor,
    WaitReport,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.part import LookForWaits
from partita.engine.protocol.program_effects import Deliver, StepDone, StuckOn
from tests.protocol.machines import feed, receive

OTHER = "part 0.1"
PEERS = {OTHER: 0, "shard 0": 0}


class Played:
    """A part of two machines with one shard, and what it sends."""

    def __init__(self, driver: Downpour | None = None, **settings: Any) -> None:
        self.links = ParameterLinks(incarnation=0, streams=(("shard 0", 0, 2),))
        program = (driver or Downpour(replicas=2)).replica
        work = LeasedWork(self.links, **settings)
        self.machine = Part(program, work, needed=[OTHER], watched=self.links.shards)

    def feed(self, event: object, now: float = 0.0) -> list[Any]:
        return feed(self.machine, event, now=now)

    def done(self, now: float = 0.0, **sums: Any) -> list[Any]:
        """Ends the step that is computed."""
        number = self.machine.work.computing
        assert number is not None, "nothing is computed"
        return self.feed(StepDone(number, **sums), now)

    def receive(self, sender: str, message: Message, payload: object = None, now: float = 0.0) -> list[Any]:
        return receive(self.machine, sender, message, payload, now=now)

    def parameters(self, request: int, *, pushes: int = 0) -> list[Any]:
        message = Parameters(request, 0, pushes, pushes, 0, None, pushes)
        return self.receive("shard 0", message, bytes(8))

    def begun(self, step: int = 0, stop: int = 4) -> Played:
        self.feed(PeersChanged(1, PEERS))
        self.parameters(0)
        self.receive(COORDINATOR, order(step, stop))
        return self


def order(step: int, stop: int, *, is_last: bool = True) -> Begin:
    """Orders steps of which the units have numbers that are larger by 10."""
    return Begin(step, stop, (Lease(step, 10 + step, 10 + stop),), is_last)


def sent(effects: list[Any], kind: type[Message]) -> list[Any]:
    return [
        effect.message for effect in effects if isinstance(effect, Send) and isinstance(effect.message, kind)
    ]


def test_it_asks_for_parameters_when_its_replica_is_there_and_reports_where_to_go_on() -> None:
    part = Played()
    assert part.feed(PeersChanged(1, {"shard 0": 0})) == [], "the other part is missing"
    assert part.feed(PeersChanged(2, PEERS)) == [Send("shard 0", Fetch(0))]
    assert sent(part.parameters(0), ResumeStep) == [ResumeStep(0)]
    assert sent(part.feed(Tick(), 0.5), ResumeStep) == []
    assert sent(part.feed(Tick(), 1.0), ResumeStep) == [ResumeStep(0)]
    assert RunUnit(0, 3, 13, 0) in part.receive(COORDINATOR, order(3, 9))
    assert part.receive(COORDINATOR, order(5, 9)) == [], "a repeat"
    assert part.machine.work.step == 3


def test_messages_of_other_parts_are_the_players_from_the_start() -> None:
    part = Played()
    for message in (Tensor(0, "h1", ()), Credit(0)):
        assert part.receive(OTHER, message) == [Deliver(Received(OTHER, 0, message))]


def test_a_step_installs_fetches_computes_and_pushes() -> None:
    part = Played().begun()
    part.parameters(1)
    effects = part.done()
    assert sent(effects, Push) == [Push(0, 0, 0, 0, 1, ((10, 11),))]
    assert sent(effects, Fetch) == [Fetch(1)]
    assert effects[-1] == RunUnit(1, 1, 11, 1)
    part.parameters(1, pushes=1)
    assert Install not in [type(effect) for effect in part.receive("shard 0", PushAck(0, 0, 0, 1, 0))]
    assert [effect for effect in part.done() if isinstance(effect, Install)]


def test_it_runs_ahead_of_a_push_so_far_and_no_further() -> None:
    part = Played(Downpour(replicas=2, run_ahead=2)).begun()
    part.done()
    part.done()
    assert not [e for e in part.done() if isinstance(e, RunUnit)]
    for now in (1.0, 6.5):
        effects = part.feed(Tick(), now)
    assert [(wait.host, wait.what) for wait in sent(effects, WaitReport)] == [("shard 0", "an answer")]
    effects = part.receive("shard 0", PushAck(0, 0, 0, 1, 0), now=7.0)
    assert [e for e in effects if isinstance(e, RunUnit)] == [RunUnit(3, 3, 13, 1)]


def test_reports_are_sums_since_the_last_one_at_steps_that_all_parts_share() -> None:
    part, reports = Played(delay=0.5).begun(stop=100), []
    for step in range(1, 100):
        effects = part.done(step * 0.01, examples=3, loss=float(step), correct=step)
        for sequence in range(part.links.pushes, step):
            part.receive("shard 0", PushAck(0, 0, sequence, sequence + 1, 0), now=step * 0.01)
        found = sent(effects, Report)
        reports += found
    assert sum(report.examples for report in reports) == 3 * reports[-1].step
    steps = [report.step for report in reports]
    assert steps[:2] == [1, 2] and all(step % 16 == 0 for step in steps[5:]), steps
    assert all(report.staleness == 0.5 * report.pushes for report in reports)


def test_the_last_step_waits_until_it_is_known_whether_another_one_follows() -> None:
    part = Played(Downpour(replicas=2, fetch_every=9)).begun()
    assert part.machine.work.step == 0
    part = Played(Downpour(replicas=2, fetch_every=9))
    part.feed(PeersChanged(1, PEERS))
    part.parameters(0)
    part.receive(COORDINATOR, order(0, 2, is_last=False))
    effects = part.done(0.1)
    assert not [e for e in effects if isinstance(e, RunUnit)]
    assert [(report.step, report.held) for report in sent(effects, Report)] == [(1, 0)]
    part.receive("shard 0", PushAck(0, 0, 0, 1, 0), now=0.2)
    assert not sent(part.feed(Tick(), 1.0), Report)
    again = sent(part.feed(Tick(), 1.1), Report)
    assert [(report.step, report.examples, report.held) for report in again] == [(1, 0, 1)], "may be lost"
    assert not sent(part.feed(Tick(), 20.0), WaitReport), "it waits for no shard"
    assert RunUnit(1, 1, 11, 1) in part.receive(COORDINATOR, order(0, 3, is_last=False), now=20.1)
    assert not part.receive(COORDINATOR, order(0, 2)), "an order that was overtaken"
    part.done(20.2)
    assert RunUnit(2, 2, 12, 2) in part.receive(COORDINATOR, order(0, 3), now=20.3)


def test_it_goes_on_after_the_end_with_what_another_replica_has_given_back() -> None:
    part = Played(Downpour(replicas=2, fetch_every=9)).begun(stop=1)
    part.done()
    assert sent(part.receive("shard 0", PushAck(0, 0, 0, 1, 0)), Finished) == [Finished(1, 1)]
    more = Begin(0, 3, (Lease(1, 4, 6),))
    effects = part.receive(COORDINATOR, more)
    assert sent(effects, Fetch) and RunUnit(1, 1, 4, 1) in effects
    assert RunUnit(2, 2, 5, 2) in part.done()
    assert sent(part.feed(Tick(), 9.0), Finished) == []
    part.parameters(1, pushes=1)
    part.done()
    part.receive("shard 0", PushAck(0, 0, 1, 2, 0))
    assert sent(part.receive("shard 0", PushAck(0, 0, 2, 3, 0)), Finished) == [Finished(3, 1)]


def test_the_end_is_reported_when_all_is_acknowledged_and_again_until_it_is_stopped() -> None:
    part = Played(Downpour(replicas=2, fetch_every=9)).begun(stop=1)
    assert sent(part.done(), Finished) == []
    effects = part.receive("shard 0", PushAck(0, 0, 0, 1, 0))
    assert sent(effects, Finished) == [Finished(1, 1)]
    assert sent(part.feed(Tick(), 0.5), Finished) == []
    assert sent(part.feed(Tick(), 1.0), Finished) == [Finished(1, 1)]
    effects = part.feed(PeersChanged(2, {**PEERS, "shard 0": 1}), 1.1)
    assert sent(effects, Fetch) == [Fetch(1, acknowledged=1)] and not sent(effects, Finished)
    assert sent(part.feed(Tick(), 3.0), Finished) == [], "the new process has not answered"
    message = Parameters(1, 1, 0, 0, 0, None, 1)
    assert sent(part.receive("shard 0", message, bytes(8), now=3.1), Finished) == [Finished(1, 2)]


def test_long_waits_of_the_player_are_reported() -> None:
    part = Played().begun()
    for now in (0.1, 5.2):
        assert (
            part.feed(Tick(), now) == [LookForWaits()]
            if now < 1
            else LookForWaits() in part.feed(Tick(), now)
        )
        effects = part.feed(StuckOn(0, ((OTHER, "h1"),)), now)
    assert [(wait.host, wait.what) for wait in sent(effects, WaitReport)] == [(OTHER, "h1 in step 0")]


def test_a_message_that_is_for_no_part_in_training_is_refused() -> None:
    (refused,) = Played().receive(COORDINATOR, Assignment(0, 0, 0, 0, 1))
    assert isinstance(refused, Refuse) and "not for a part of this driver" in refused.reason


def test_an_action_that_needs_other_replicas_is_an_error_of_the_driver() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            yield Compute(step)
            yield AllReduce(by=None)

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    part.begun()
    with pytest.raises(TypeError, match=r"yields AllReduce.*: there are Compute, Drain, Install, "):
        part.done()


def test_steps_are_computed_once_in_their_turn() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            yield Compute(step)
            yield Compute(step)

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    part.begun()
    with pytest.raises(RuntimeError, match="computes step 0, and 1 is under way"):
        part.done()


def test_a_step_that_is_left_out_is_an_error_of_the_driver() -> None:
    """It came again and again, for ever."""

    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            if step != 1:
                yield Compute(step)

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    part.begun()
    with pytest.raises(RuntimeError, match="has not computed step 1"):
        part.done()


def test_a_step_without_parameters_is_an_error_of_the_driver() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield Compute(step)

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    with pytest.raises(RuntimeError, match="computes step 0 without parameters of every shard"):
        part.begun()


def test_a_program_that_does_not_drain_is_drained_when_it_ends() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            yield Compute(step)

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    part.begun(stop=1)
    effects = part.done()
    assert sent(effects, Push) == [Push(0, 0, 0, 0, 1, ((10, 11),), is_last=True)] and not sent(
        effects, Finished
    )
    assert sent(part.receive("shard 0", PushAck(0, 0, 0, 1, 0)), Finished) == [Finished(1, 1)]


def test_a_drain_in_the_middle_waits_until_all_is_acknowledged() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            yield Compute(step)
            yield Drain()

    part = Played()
    part.machine = Part(program, LeasedWork(part.links), needed=[OTHER])  # type: ignore[arg-type]
    part.begun(stop=2)
    effects = part.done()
    assert sent(effects, Push) == [Push(0, 0, 0, 0, 1, ((10, 11),), is_last=True)]
    assert not [effect for effect in effects if isinstance(effect, RunUnit)]
    assert RunUnit(1, 1, 11, 1) in part.receive("shard 0", PushAck(0, 0, 0, 1, 0))
    assert sent(part.done(), Push) == [Push(0, 1, 0, 0, 2, ((11, 12),), is_last=True)]
    assert sent(part.receive("shard 0", PushAck(0, 0, 1, 2, 0)), Finished) == [Finished(2, 1)]
