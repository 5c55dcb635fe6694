"""The machine of a part that exchanges with shards: its start, its steps, its reports and its end."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from partita.engine import Downpour
from partita.engine.protocol import LinkedPart, Message, ParameterLinks
from partita.engine.protocol.actions import Action, AllReduce, Compute, Room
from partita.engine.protocol.actions import Install as InstallValues
from partita.engine.protocol.batch_messages import Assignment
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.link import Install
from partita.engine.protocol.linked_part import (
    ClearMetrics,
    FailNonfinite,
    HasSteps,
    Nonfinite,
    PlayerReady,
    RunStep,
    StepPlayed,
)
from partita.engine.protocol.messages import (
    Begin,
    Credit,
    Fetch,
    Finished,
    Heartbeat,
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
from partita.engine.protocol.program_effects import Deliver, StuckOn
from tests.protocol.machines import feed, receive

OTHER = "part 0.1"
PEERS = {OTHER: 0, "shard 0": 0}


class Part:
    """A part of two machines with one shard, and what it sends."""

    def __init__(self, driver: Downpour | None = None, **settings: Any) -> None:
        self.links = ParameterLinks(incarnation=0, shards=(("shard 0", 0, 2),))
        program = (driver or Downpour(replicas=2)).replica
        self.machine = LinkedPart(self.links, program, others=[OTHER], **settings)

    def feed(self, event: object, now: float = 0.0) -> list[Any]:
        return feed(self.machine, event, now=now)

    def receive(self, sender: str, message: Message, payload: object = None, now: float = 0.0) -> list[Any]:
        return receive(self.machine, sender, message, payload, now=now)

    def parameters(self, request: int, *, pushes: int = 0) -> list[Any]:
        message = Parameters(request, 0, pushes, pushes, 0, None, pushes)
        return self.receive("shard 0", message, bytes(8))

    def begun(self, step: int = 0, stop: int = 4) -> Part:
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
    part = Part()
    assert part.feed(PeersChanged(1, {"shard 0": 0})) == [], "the other part is missing"
    assert part.feed(PeersChanged(2, PEERS)) == [Send("shard 0", Fetch(0))]
    assert sent(part.parameters(0), ResumeStep) == [ResumeStep(0)]
    assert sent(part.feed(Tick(), 0.5), ResumeStep) == []
    assert sent(part.feed(Tick(), 1.0), ResumeStep) == [ResumeStep(0)]
    assert RunStep(3, 13, 0) in part.receive(COORDINATOR, order(3, 9))
    assert part.receive(COORDINATOR, order(5, 9)) == [], "a repeat"
    assert part.machine.step == 3


def test_messages_of_other_parts_wait_for_the_first_step_and_are_bounded() -> None:
    part = Part(most_early=2)
    tensor = Tensor(0, "h1", ())
    for message in (tensor, Credit(0)):
        assert part.receive(OTHER, message) == []
    (refused,) = part.receive(OTHER, tensor)
    assert isinstance(refused, Refuse) and "more than the messages of the first steps" in refused.reason
    part.feed(PeersChanged(1, PEERS))
    part.parameters(0)
    effects = part.receive(COORDINATOR, order(0, 4))
    given = [effect.event.message for effect in effects if isinstance(effect, Deliver)]
    assert given == [tensor, Credit(0)]
    assert isinstance(effects[-1], RunStep)
    assert part.receive(OTHER, tensor) == [Deliver(Received(OTHER, 0, tensor))]


def test_a_step_installs_fetches_computes_and_pushes() -> None:
    part = Part().begun()
    part.parameters(1)
    effects = part.feed(StepPlayed())
    assert sent(effects, Push) == [Push(0, 0, 0, 0, 1)]
    assert sent(effects, Fetch) == [Fetch(1)]
    assert effects[-1] == RunStep(1, 11, 1)
    part.parameters(1, pushes=1)
    assert Install not in [type(effect) for effect in part.receive("shard 0", PushAck(0, 0, 0, 1, 0))]
    assert [effect for effect in part.feed(StepPlayed()) if isinstance(effect, Install)]


def test_the_next_step_waits_for_the_player() -> None:
    part = Part().begun()
    assert not [e for e in part.feed(StepPlayed(may_begin=False)) if isinstance(e, RunStep)]
    assert part.receive(OTHER, Credit(0)) == [Deliver(Received(OTHER, 0, Credit(0)))]
    assert part.feed(Tick(), 0.1) == [LookForWaits()]
    assert RunStep(1, 11, 1) in part.feed(PlayerReady())


def test_it_runs_ahead_of_a_push_so_far_and_no_further() -> None:
    part = Part(Downpour(replicas=2, run_ahead=2)).begun()
    part.feed(StepPlayed())
    part.feed(StepPlayed())
    assert not [e for e in part.feed(StepPlayed()) if isinstance(e, RunStep)]
    for now in (1.0, 6.5):
        effects = part.feed(Tick(), now)
    assert [(wait.host, wait.what) for wait in sent(effects, WaitReport)] == [("shard 0", "an answer")]
    effects = part.receive("shard 0", PushAck(0, 0, 0, 1, 0), now=7.0)
    assert [e for e in effects if isinstance(e, RunStep)] == [RunStep(3, 13, 1)]


def test_reports_are_sums_since_the_last_one_at_steps_that_all_parts_share() -> None:
    part, reports = Part(delay=0.5).begun(stop=100), []
    for step in range(1, 100):
        effects = part.feed(StepPlayed(examples=3, loss=float(step), correct=step), now=step * 0.01)
        for sequence in range(part.links.pushes, step):
            part.receive("shard 0", PushAck(0, 0, sequence, sequence + 1, 0), now=step * 0.01)
        found = sent(effects, Report)
        assert len(found) == sum(isinstance(effect, ClearMetrics) for effect in effects)
        reports += found
    assert sum(report.examples for report in reports) == 3 * reports[-1].step
    steps = [report.step for report in reports]
    assert steps[:2] == [1, 2] and all(step % 16 == 0 for step in steps[5:]), steps
    assert all(report.staleness == 0.5 * report.pushes for report in reports)


def test_the_last_step_waits_until_it_is_known_whether_another_one_follows() -> None:
    part = Part(Downpour(replicas=2, fetch_every=9)).begun()
    assert part.machine.step == 0
    part = Part(Downpour(replicas=2, fetch_every=9))
    part.feed(PeersChanged(1, PEERS))
    part.parameters(0)
    part.receive(COORDINATOR, order(0, 2, is_last=False))
    effects = part.feed(StepPlayed(), 0.1)
    assert not [e for e in effects if isinstance(e, RunStep)]
    assert [(report.step, report.held) for report in sent(effects, Report)] == [(1, 0)]
    part.receive("shard 0", PushAck(0, 0, 0, 1, 0), now=0.2)
    assert not sent(part.feed(Tick(), 1.0), Report)
    again = sent(part.feed(Tick(), 1.1), Report)
    assert [(report.step, report.examples, report.held) for report in again] == [(1, 0, 1)], "may be lost"
    assert not sent(part.feed(Tick(), 20.0), WaitReport), "it waits for no shard"
    assert RunStep(1, 11, 1) in part.receive(COORDINATOR, order(0, 3, is_last=False), now=20.1)
    assert not part.receive(COORDINATOR, order(0, 2)), "an order that was overtaken"
    part.feed(StepPlayed(), 20.2)
    assert RunStep(2, 12, 2) in part.receive(COORDINATOR, order(0, 3), now=20.3)


def test_it_goes_on_after_the_end_with_what_another_replica_has_given_back() -> None:
    part = Part(Downpour(replicas=2, fetch_every=9)).begun(stop=1)
    part.feed(StepPlayed())
    assert sent(part.receive("shard 0", PushAck(0, 0, 0, 1, 0)), Finished) == [Finished(1, 1)]
    more = Begin(0, 3, (Lease(1, 4, 6),))
    effects = part.receive(COORDINATOR, more)
    assert sent(effects, Fetch) and RunStep(1, 4, 1) in effects
    assert RunStep(2, 5, 2) in part.feed(StepPlayed())
    assert sent(part.feed(Tick(), 9.0), Finished) == []
    part.parameters(1, pushes=1)
    part.feed(StepPlayed())
    part.receive("shard 0", PushAck(0, 0, 1, 2, 0))
    assert sent(part.receive("shard 0", PushAck(0, 0, 2, 3, 0)), Finished) == [Finished(3, 1)]


def test_the_end_is_reported_when_all_is_acknowledged_and_again_until_it_is_stopped() -> None:
    part = Part(Downpour(replicas=2, fetch_every=9)).begun(stop=1)
    assert sent(part.feed(StepPlayed()), Finished) == []
    effects = part.receive("shard 0", PushAck(0, 0, 0, 1, 0))
    assert sent(effects, Finished) == [Finished(1, 1)]
    assert sent(part.feed(Tick(), 0.5), Finished) == []
    assert sent(part.feed(Tick(), 1.0), Finished) == [Finished(1, 1)]
    effects = part.feed(PeersChanged(2, {**PEERS, "shard 0": 1}), 1.1)
    assert sent(effects, Fetch) == [Fetch(1, acknowledged=1)] and not sent(effects, Finished)
    assert sent(part.feed(Tick(), 3.0), Finished) == [], "the new process has not answered"
    message = Parameters(1, 1, 0, 0, 0, None, 1)
    assert sent(part.receive("shard 0", message, bytes(8), now=3.1), Finished) == [Finished(1, 2)]


@pytest.mark.parametrize(("received", "fails_at"), [(False, 0.0), (True, 2.0)])
def test_an_array_that_came_from_elsewhere_gives_the_other_machine_time(
    received: bool, fails_at: float
) -> None:
    part, found = Part().begun(), []
    found += [(0.0, e) for e in part.feed(Nonfinite("the loss is not finite", received))]
    for now in (1.0, 1.9, 2.0):
        found += [(now, e) for e in part.feed(Tick(), now) if isinstance(e, FailNonfinite)]
        found += [(now, e) for e in part.receive(COORDINATOR, Heartbeat(0))]
    assert found[0] == (fails_at, FailNonfinite("the loss is not finite"))


def test_long_waits_of_the_player_are_reported() -> None:
    part = Part().begun()
    for now in (0.1, 5.2):
        assert (
            part.feed(Tick(), now) == [LookForWaits()]
            if now < 1
            else LookForWaits() in part.feed(Tick(), now)
        )
        effects = part.feed(StuckOn(0, ((OTHER, "h1"),)), now)
    assert [(wait.host, wait.what) for wait in sent(effects, WaitReport)] == [(OTHER, "h1 in step 0")]


def test_a_message_that_is_for_no_part_in_training_is_refused() -> None:
    (refused,) = Part().receive(COORDINATOR, Assignment(0, 0, 0, 0, 1))
    assert isinstance(refused, Refuse) and "not for a part in training" in refused.reason


def test_an_action_that_needs_other_replicas_is_an_error_of_the_driver() -> None:
    def program(me: HasSteps) -> Iterator[Action]:
        for step in me.steps():
            yield Room(1)
            yield InstallValues()
            yield Compute(step)
            yield AllReduce(by=None)

    part = Part()
    part.machine = LinkedPart(part.links, program, others=[OTHER])  # type: ignore[arg-type]
    part.begun()
    with pytest.raises(TypeError, match="has no AllReduce"):
        part.feed(StepPlayed())
