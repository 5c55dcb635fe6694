"""The interpreter of a host: a role's machine decides, its body acts, in the order of the effects."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from threading import Thread
from typing import Any

import pytest

from partita.engine.launch import ThreadLauncher
from partita.engine.protocol.events import Received, Refuse, Send, Span
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.messages import (
    Begin,
    Failed,
    Hello,
    Message,
    Ready,
    Refused,
    ResumeStep,
    SetUp,
    Stop,
)
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.task import Body, CannotGoOn, HostContext, NeverEnds, pack_task
from partita.engine.transport import Payload

DEADLINE_S = 30.0
PART = "part 0.0"
NUMBERS = b"numbers of a span"

SCRIPTS: dict[str, list[Any]] = {
    "results": [("result", 1), ("result", 2), Send(COORDINATOR, ResumeStep(10))],
    "thread": [("thread", 3)],
    "payload": [Send(COORDINATOR, ResumeStep(11), Span("x", 0, 2))],
    "too late": [Send(COORDINATOR, ResumeStep(99)), Send(COORDINATOR, ResumeStep(12))],
    "refusals": [Refuse("part 0.1", "out of place")] * 3,
    "raises": [("raise", ValueError("in the body")), Send(COORDINATOR, ResumeStep(13))],
    "cannot go on": [("raise", CannotGoOn("a sentence"))],
}


@dataclass(frozen=True)
class Scripted:
    """A task whose machine answers `Begin` with the effects of a script."""

    script: str
    threads: int = 1
    rank: tuple[int, int] = (0, 1)

    def role(self, context: HostContext) -> tuple[RoleMachine, Body]:
        BODIES.append(ScriptedBody(context, stuck=self.script == "stuck"))
        return ScriptedMachine(SCRIPTS.get(self.script, [])), BODIES[-1]


class ScriptedMachine(RoleMachine):
    version = 5

    def __init__(self, script: list[Any]) -> None:
        self.script = script

    def receive(self, event: Any, now: float) -> list[Any]:
        match event:
            case Received(message=Begin()):
                return self.script
            case int():
                return [Send(COORDINATOR, ResumeStep(event))]
        return []

    def may_send(self, message: Message, now: float) -> bool:
        return message != ResumeStep(99)


class ScriptedBody(Body):
    def __init__(self, context: HostContext, *, stuck: bool) -> None:
        self.context, self.stuck = context, stuck
        self.found: list[int] = []
        self.closed = False

    def carry_out(self, effect: Any, now: float) -> Any:
        match effect:
            case ("result", number):
                return number
            case ("raise", error):
                raise error
            case ("thread", number):
                Thread(target=self.work, args=(number,)).start()
        return None

    def work(self, number: int) -> None:
        self.found.append(number)
        self.context.wake()

    def payload(self, send: Send) -> bytes:
        assert send.payload == Span("x", 0, 2)
        return NUMBERS

    def poll(self, now: float) -> Iterator[Any]:
        while self.found:
            yield self.found.pop(0)

    def tick(self, now: float) -> None:
        if self.stuck:
            raise NeverEnds("an instruction does not end", "its stack")

    def close(self) -> None:
        self.closed = True


BODIES: list[ScriptedBody] = []


class Play:
    def __init__(self, launcher: ThreadLauncher, script: str) -> None:
        self.launcher = launcher
        self.seen: list[Received] = []
        launcher.launch(PART, 0)
        hello = self.next(lambda event: isinstance(event.message, Hello)).message
        assert isinstance(hello, Hello)
        launcher.reach(PART, 0, hello.endpoint)
        launcher.mailbox.send(PART, SetUp(""), pack_task(Scripted(script)))
        self.next(lambda event: event.message == Ready(5))
        launcher.mailbox.send(PART, Begin(0, 1))

    def next(self, wanted: Callable[[Received], bool]) -> Received:
        deadline = time.monotonic() + DEADLINE_S
        while time.monotonic() < deadline:
            for event in self.launcher.mailbox.receive(0.1):
                self.seen.append(event)
                if wanted(event):
                    return event
        raise AssertionError([event.message for event in self.seen])

    def step(self, step: int) -> Received:
        return self.next(lambda event: event.message == ResumeStep(step))

    @property
    def steps(self) -> list[int | None]:
        return [event.message.step for event in self.seen if isinstance(event.message, ResumeStep)]

    def failure(self) -> Failed:
        message = self.next(lambda event: isinstance(event.message, Failed)).message
        assert isinstance(message, Failed)
        return message


@pytest.fixture
def play() -> Iterator[Callable[[str], Play]]:
    BODIES.clear()
    with ThreadLauncher() as launcher:
        yield lambda script: Play(launcher, script)
        launcher.mailbox.send(PART, Stop())
    assert [body.closed for body in BODIES] == [True]


def test_results_that_are_there_at_once_follow_all_effects_of_their_event(
    play: Callable[[str], Play],
) -> None:
    played = play("results")
    played.step(2)
    assert played.steps == [10, 1, 2]


def test_results_of_other_threads_are_polled(play: Callable[[str], Play]) -> None:
    play("thread").step(3)


def test_a_body_gives_the_numbers_of_a_message(play: Callable[[str], Play]) -> None:
    payload = play("payload").step(11).payload
    assert isinstance(payload, Payload)
    assert payload.to_bytes() == NUMBERS


def test_a_machine_may_forbid_a_message_whose_time_is_over(play: Callable[[str], Play]) -> None:
    played = play("too late")
    played.step(12)
    assert played.steps == [12]


def test_refusals_of_a_role_are_counted_and_reported_once(play: Callable[[str], Play]) -> None:
    played = play("refusals")
    played.next(lambda event: event.message == Refused("part 0.1", "out of place"))
    counters = BODIES[0].context.counters
    deadline = time.monotonic() + DEADLINE_S
    while counters.refused_messages < 3 and time.monotonic() < deadline:
        pass
    assert counters.refused_messages == 3
    assert sum(isinstance(event.message, Refused) for event in played.seen) == 1


def test_effects_after_one_that_raises_are_dropped(play: Callable[[str], Play]) -> None:
    played = play("raises")
    failed = played.failure()
    assert failed.reason == "ValueError: in the body"
    assert not failed.final
    assert played.steps == []


def test_what_cannot_go_on_is_final_and_has_no_traceback(play: Callable[[str], Play]) -> None:
    assert play("cannot go on").failure() == Failed("a sentence", "", final=True)


def test_a_body_that_is_stuck_says_so(play: Callable[[str], Play]) -> None:
    assert play("stuck").failure() == Failed("an instruction does not end", "its stack", stuck=True)
