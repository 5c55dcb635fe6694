"""The mode of a session: hosts start as in any run, answer calls, and end with the first failure."""

from __future__ import annotations

import math
import random

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.drivers.session import Steps
from partita.engine.protocol import messages as m
from partita.engine.protocol.coordinator import Coordinator
from partita.engine.protocol.coordinator_effects import (
    AbortRun,
    EndRun,
    Launched,
    Opened,
    Restart,
    RunSettings,
    StopRequested,
    Timeouts,
)
from partita.engine.protocol.events import Died, Received, Send, Tick
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.names import Topology
from partita.engine.protocol.request_mode import Answered, Call, Compiling, RequestMode
from partita.engine.protocol.session_messages import Play, Played
from partita.engine.protocol.views import Outline

VERSIONS = {"python": "3.11"}


class Talk:
    """A session of two parts, played by hand."""

    def __init__(self, machines: int = 2, *, timeout_s: float = 100.0) -> None:
        heartbeats = HeartbeatPolicy(suspect_s=timeout_s / 2, dead_s=timeout_s)
        timeouts = Timeouts(start_s=math.inf, heartbeats=heartbeats, checkpoint_every_s=None)
        settings = RunSettings(versions=VERSIONS, timeouts=timeouts)
        self.mode, outline = RequestMode(timeout_s), Outline(epochs=0, examples=0, batch=0, replicas=1)
        topology, schedule = Topology(1, machines, 0), Steps().coordinator
        self.machine = Coordinator(schedule, outline, self.mode, topology, settings=settings)
        self.names = [f"part 0.{machine}" for machine in range(machines)]
        self.now = 0.0

    def give(self, event: object, *, after_s: float = 0.0) -> list[object]:
        self.now += after_s
        effects = list(self.machine.receive(event, self.now))
        self.machine.validate()
        return effects

    def tell(self, name: str, message: m.Message) -> list[object]:
        return self.give(Received(name, 0, message))

    def begin(self, order: list[str] | None = None) -> None:
        """Starts all hosts; every message but the directory comes twice."""
        (restart,) = self.give(Opened())
        assert isinstance(restart, Restart)
        for name, incarnation in restart.hosts:
            self.give(Launched(name, incarnation))
        for name in order or self.names:
            for _ in range(2):
                self.tell(name, m.Hello(f"tcp://{name}", VERSIONS))
        for name in order or self.names:
            assert not self.mode.is_begun
            for _ in range(2):
                self.tell(name, m.Ready())
                self.tell(name, m.DirectoryAck(1))
        assert self.mode.is_begun

    def ask(self) -> list[object]:
        return self.give(Call(Play(0, 4, ()), tuple(self.names)))


def played(step: int = 0) -> Played:
    return Played(step, 1.0, 2, 0.1, 0.1, 0, 0)


@given(st.permutations(range(3)), st.permutations(range(3)))
def test_hosts_start_and_answer_in_any_order(first: list[int], second: list[int]) -> None:
    talk = Talk(3)
    talk.begin([talk.names[n] for n in first])
    for _ in range(2):
        sends = talk.ask()
        assert [send.to for send in sends if isinstance(send, Send)] == talk.names
        for n in second:
            assert not talk.mode.is_answered
            assert talk.tell(talk.names[n], m.Ready()) == [], "no answer to a request"
            assert talk.tell(talk.names[n], played()) == [Answered(talk.names[n], played())]
            assert talk.tell(talk.names[n], played()) == [], "an answer counts once"
        assert talk.mode.is_answered


def test_versions_that_differ_end_the_session() -> None:
    talk = Talk()
    talk.give(Opened())
    *_, lost = talk.tell("part 0.1", m.Hello("tcp://there", {"python": "3.8"}))
    assert (
        isinstance(lost, AbortRun)
        and "part 0.1 runs python 3.8 and the coordinator python 3.11" in lost.reason
    )


def test_a_death_an_error_and_a_silence_end_the_session_and_name_the_host() -> None:
    dead, failed, silent = Talk(), Talk(), Talk()
    for talk in (dead, failed, silent):
        talk.begin()
        talk.ask()
    *stops, lost = dead.give(Died("part 0.1", 0, "its process was ended by SIGKILL"))
    assert lost == AbortRun("its process was ended by SIGKILL", host="part 0.1")
    assert [stop.message for stop in stops if isinstance(stop, Send)] == [m.Stop(), m.Stop()]
    *_, lost = failed.tell("part 0.0", m.Failed("ValueError: no", "its lines"))
    assert lost == AbortRun("ValueError: no", "its lines", "part 0.0")
    silent.tell("part 0.0", played())
    for _ in range(30):
        silent.give(Tick(), after_s=3.0)
        for name in silent.names:
            silent.tell(name, m.Heartbeat(0, silent.now))
    *_, lost = silent.give(Tick(), after_s=10.0)
    advice = "look at what it printed, or allow more by timeout_s"
    assert lost == AbortRun(f"no sign of life for 100 s while playing a step; {advice}", host="part 0.1")
    for talk in (dead, failed, silent):
        assert talk.ask() == [], "nothing comes after the end"


def test_compiled_functions_are_signs_of_life() -> None:
    talk, rng = Talk(), random.Random(0)
    talk.begin()
    talk.ask()
    for n in range(1, 20):
        effects = talk.give(Tick(), after_s=rng.uniform(10.0, 45.0))
        assert not any(isinstance(effect, AbortRun) for effect in effects), talk.now
        for name in talk.names:
            assert talk.tell(name, m.SetUpProgress(n))[-1:] in ([Compiling(2 * n)], [Compiling(2 * n - 1)])
    assert not talk.mode.is_answered and talk.now > 100.0
    for name in talk.names:
        talk.tell(name, played())
    assert talk.mode.is_answered


def test_a_session_that_is_closed_stops_its_hosts_and_answers_no_more() -> None:
    talk = Talk()
    talk.begin()
    *stops, end = talk.give(StopRequested())
    assert [(send.to, send.message) for send in stops if isinstance(send, Send)] == [
        (name, m.Stop()) for name in talk.names
    ]
    assert isinstance(end, EndRun)
    assert talk.tell("part 0.0", played()) == talk.ask() == []


@given(st.data())
def test_whatever_comes_an_order_ends_with_all_answers_or_one_reason(data: st.DataObject) -> None:
    """Messages come twice, late and between others; hosts compile, fail and die; time passes."""
    talk, answered, asked = Talk(2, timeout_s=20.0), set[str](), 0
    talk.begin()
    lost: list[object] = []
    for _ in range(data.draw(st.integers(1, 40))):
        name = data.draw(st.sampled_from(talk.names))
        event = data.draw(st.sampled_from(["ask", "play", "beat", "compile", "hello", "tick", "die", "fail"]))
        is_answered = talk.mode.is_answered
        match event:
            case "ask" if is_answered or lost:
                effects, answered, asked = talk.ask(), set(), asked + 1
            case "play":
                effects = talk.tell(name, played())
                found = [effect for effect in effects if isinstance(effect, Answered)]
                assert len(found) == (bool(asked) and not lost and name not in answered)
                answered |= {name} if asked else set()
            case "tick":
                effects = talk.give(Tick(), after_s=data.draw(st.floats(0.0, 8.0)))
            case "die":
                effects = talk.give(Died(name, data.draw(st.integers(0, 1)), "its process ended"))
            case "fail":
                effects = talk.tell(name, m.Failed("ValueError: no", ""))
            case _:
                sent = {"beat": m.Heartbeat(0, talk.now), "compile": m.SetUpProgress(1)}
                effects = talk.tell(name, sent.get(event, m.Hello("tcp://again", VERSIONS)))
        aborts = [effect for effect in effects if isinstance(effect, AbortRun)]
        assert not lost or not aborts, "one reason"
        lost = lost or aborts
        assert lost or talk.mode.is_answered == (not asked or answered == set(talk.names))
