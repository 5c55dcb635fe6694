"""The work of a part in a session: requests in their order, one at a time, and calls that need no step."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from partita.engine.drivers.session import Steps
from partita.engine.protocol import messages as m
from partita.engine.protocol.events import Received, Refuse, Send, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.part import LookForWaits, Part
from partita.engine.protocol.program_effects import Deliver
from partita.engine.protocol.requested_work import COLLECTED, RequestDone, RequestedWork, RunRequest
from partita.engine.protocol.session_messages import Load, Play, Played

COORDINATOR, OTHER = "coordinator", "part 0.1"


def played(step: int) -> Played:
    return Played(step, 1.0, 2, 0.1, 0.1, 0, 0)


@given(st.lists(st.sampled_from(["ask", "load", "done", "tensor", "tick", "peers"]), max_size=40))
def test_each_request_is_played_once_in_its_turn_and_answered(events: list[str]) -> None:
    part = Part(Steps().replica, RequestedWork(), needed=[OTHER])
    asked = begun = done = 0
    known = False
    for event in events:
        expected: list[object] = []
        match event:
            case "ask":
                request = Received(COORDINATOR, 0, Play(asked, 4), payload=asked)
                effects, asked = part.receive(request, 0.0), asked + 1
            case "load" | "tensor":
                message = Load() if event == "load" else m.Tensor(0, "hidden", (((0, 1),),))
                passed = Received(COORDINATOR if event == "load" else OTHER, 0, message)
                effects, expected = part.receive(passed, 0.0), [Deliver(passed)]
            case "done":
                effects = part.receive(RequestDone(done, answer=played(done)), 0.0)
                if done < begun:
                    expected, done = [Send(COORDINATOR, played(done), COLLECTED)], done + 1
            case "tick":
                effects = part.receive(Tick(), 0.0)
                expected = [LookForWaits()] if done < begun else []
            case _:
                effects, known = part.receive(PeersChanged(1, {OTHER: 0}), 0.0), True
        if known and begun == done and begun < asked:
            expected.append(RunRequest(Play(begun, 4), begun))
            begun += 1
        part.validate()
        assert effects == expected, event


def test_what_is_no_request_is_refused() -> None:
    part = Part(Steps().replica, RequestedWork())
    (refused,) = part.receive(Received(COORDINATOR, 0, m.Begin(0, 5)), 0.0)
    assert refused == Refuse(COORDINATOR, "'Begin', which is not for a part of this driver")
