"""The links of a part alone: what is fetched, installed and pushed, and what follows when no answer comes."""

from __future__ import annotations

from typing import Any

import pytest

from partita.engine.protocol import Message, ParameterLinks
from partita.engine.protocol.events import Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck, Stop
from partita.engine.protocol.parameter_links import ClearGradient, LinkEffect, SavePushRecord
from tests.protocol.machines import BYTES, SHARDS, feed, linked, receive, serve

SPANS = {name: (start, stop) for name, start, stop in SHARDS}
WHOLE = (Span("parameters", 0, 2), Span("parameters", 2, 5))


def done(links: ParameterLinks, effects: Any) -> list[LinkEffect]:
    found = list(effects)
    links.validate()
    return found


def begin(links: ParameterLinks) -> list[LinkEffect]:
    """Begins a step that is not the process's first; it fetches."""
    assert links.has_room(16)
    links._done = links._done or 0
    return [*done(links, links.install()), *done(links, links.pull(0.0))]


def end(links: ParameterLinks, step: int, *, pushes: bool = True) -> list[LinkEffect]:
    return [*done(links, links.computed(step, step, 0.0)), *(done(links, links.push(0.0)) if pushes else ())]


def settle(links: ParameterLinks, sequence: int, *, incarnation: int = 0, staleness: int = 0) -> None:
    for name in BYTES:
        receive(links, name, PushAck(incarnation, 4, sequence, sequence + 1, staleness))


def of_kind(kind: type[Message], effects: list[LinkEffect]) -> list[Message]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def test_there_is_room_when_every_shard_has_answered() -> None:
    links = ParameterLinks(incarnation=0, streams=SHARDS)
    assert done(links, links.pull(0.0)) == [Send("shard 0", Fetch(0)), Send("shard 2", Fetch(0))]
    assert done(links, links.pull(0.0)) == [], "under way"
    payload = bytes(8)
    assert receive(links, "shard 0", Parameters(0, 0, 0), payload) == [Stage(Span("staged", 0, 2), payload)]
    assert not links.has_room(16)
    assert links.waits_for == ("shard 2",)
    receive(links, "shard 2", Parameters(0, 0, 0), bytes(12))
    assert links.has_room(16)


def test_before_the_first_step_one_fetch_is_enough() -> None:
    links = linked()
    assert done(links, links.pull(0.0)) == []
    done(links, links.install())
    assert done(links, links.pull(0.0)) == []
    end(links, 0)
    assert len(done(links, links.pull(0.0))) == 2


def test_a_push_is_the_accumulated_gradient_set_aside_and_sent() -> None:
    links = linked()
    assert begin(links)[:2] == [Install(span) for span in WHOLE]
    assert end(links, 0) == [
        SwapBuffers(Span("in_flight", 0, 2)),
        Send("shard 0", Push(4, 0, 0, 0, 1, ((0, 1),)), Span("in_flight", 0, 2)),
        SwapBuffers(Span("in_flight", 2, 5)),
        Send("shard 2", Push(4, 0, 0, 0, 1, ((0, 1),)), Span("in_flight", 2, 5)),
    ]


def test_a_slow_shard_costs_staleness_and_the_gradient_keeps_accumulating() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    receive(links, "shard 0", PushAck(0, 4, 0, 1, 0))
    for step in (1, 2):
        assert {e.to for e in end(links, step) if isinstance(e, Send)} <= {"shard 0"}
    receive(links, "shard 2", PushAck(0, 4, 0, 9, 8))
    assert (links.pushes, links.staleness) == (2, 8)
    assert of_kind(Push, end(links, 3)) == [Push(4, 1, 0, 0, 4, ((1, 4),))]  # one push for steps 1 to 3


def test_after_so_many_steps_beyond_a_push_there_is_no_room() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    receive(links, "shard 0", PushAck(0, 4, 0, 1, 0))
    for step in range(1, 4):
        assert links.has_room(3)
        end(links, step)
        receive(links, "shard 0", PushAck(0, 4, step, step + 1, 0))
    assert not links.has_room(3) and links.has_room(4)
    receive(links, "shard 2", PushAck(0, 4, 0, 1, 0))
    assert links.has_room(3)


def test_a_push_is_as_old_as_the_parameters_of_its_oldest_step() -> None:
    links = linked()
    begin(links)
    end(links, 0, pushes=False)
    begin(links)
    end(links, 1, pushes=False)
    serve(links, 1, version=5)
    begin(links)
    assert of_kind(Push, end(links, 2)) == [Push(4, 0, 0, 0, 3, ((0, 3),))] * 2
    serve(links, 2, version=9, pushes=1)
    settle(links, 0)
    begin(links)
    assert of_kind(Push, end(links, 3)) == [Push(4, 1, 0, 9, 4, ((3, 4),))] * 2


# Reading one's own writes.


def test_what_is_in_flight_and_what_has_accumulated_is_applied_over_what_lacks_it() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    end(links, 1)
    serve(links, 1, version=7, updates=7)
    assert done(links, links.install()) == [
        Install(span, ("in_flight", "accumulated"), 7, (1.0, 1.0)) for span in WHOLE
    ]
    assert links.updates == 8, "with the push in flight"


def test_what_the_shard_has_applied_is_not_applied_again() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    serve(links, 1, version=7, updates=7, pushes=1)
    assert done(links, links.install()) == [Install(span, (), updates=7) for span in WHOLE]
    assert links.updates == 7


def test_values_that_lack_a_push_are_installed_before_the_next_one_overwrites_it() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    serve(links, 1, version=3, updates=3)
    settle(links, 0)
    found = end(links, 1)
    assert found[:2] == [
        Install(WHOLE[0], ("in_flight", "accumulated"), 3, (1.0, 1.0)),
        SwapBuffers(Span("in_flight", 0, 2), step=1),
    ]
    assert done(links, links.install()) == []


def test_values_that_lack_a_push_which_is_gone_are_fetched_again() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    settle(links, 0)
    end(links, 1)
    late = Parameters(1, 0, 3, 3, 4, None, 0)
    assert receive(links, "shard 0", late, bytes(8)) == [Send("shard 0", Fetch(2, acknowledged=1))]
    assert receive(links, "shard 0", late, bytes(8)) == [], "of an earlier request"


def test_staleness_is_that_of_others_alone() -> None:
    links = linked()
    begin(links)
    for step in range(3):
        end(links, step)
        settle(links, step, staleness=step + 2)  # of which its own are as many as the step says
    assert links.staleness == 3 * 2 * 2


# A replica alone.


def test_alone_nothing_is_fetched_again_and_no_push_merges_two() -> None:
    links = linked(alone=True, stateful=False)
    assert begin(links) == [Install(span) for span in WHOLE]
    assert len(of_kind(Push, end(links, 0))) == 2
    receive(links, "shard 0", PushAck(0, 4, 0, 1, 0))
    assert begin(links) == []
    (push,) = of_kind(Push, end(links, 1))
    assert push == Push(4, 1, 0, 0, 2, ((1, 2),))
    assert not links.has_room(16), "shard 2 has not acknowledged the first"
    found = receive(links, "shard 2", PushAck(0, 4, 0, 1, 0))
    assert of_kind(Push, found) == [Push(4, 1, 0, 0, 2, ((1, 2),))]
    assert links.has_room(16)


@pytest.mark.parametrize(
    ("stateful", "updates", "fetches"), [(True, 9, True), (True, 0, False), (False, 9, False)]
)
def test_alone_a_state_that_only_the_shard_has_needs_fetches(
    stateful: bool, updates: int, fetches: bool
) -> None:
    links = ParameterLinks(incarnation=4, streams=SHARDS, alone=True, stateful=stateful)
    done(links, links.pull(0.0))
    serve(links, 0, updates=updates)
    assert bool(of_kind(Fetch, begin(links))) == fetches


@pytest.mark.parametrize(("updates", "installs"), [(1, False), (0, True)])
def test_alone_values_of_a_restarted_shard_are_installed_if_it_lost_pushes(
    updates: int, installs: bool
) -> None:
    links = linked(alone=True, stateful=False)
    begin(links)
    end(links, 0)
    settle(links, 0)
    feed(links, Replaced("shard 0", 1))
    receive(links, "shard 0", Parameters(1, 1, 5, updates, 4, None, 1), bytes(8))
    assert done(links, links.install()) == [Install(WHOLE[0], (), updates)] * installs


# Lost messages and processes.


def test_repeats_and_answers_of_older_incarnations_change_nothing() -> None:
    links = linked()
    begin(links)
    end(links, 0)
    feed(links, Replaced("shard 0", 2))
    assert receive(links, "shard 0", PushAck(1, 4, 0, 1, 7)) == []
    assert receive(links, "shard 0", Parameters(1, 1, 7, incarnation=4), bytes(8)) == []
    assert receive(links, "shard 2", PushAck(0, 3, 0, 1, 7)) == []
    assert receive(links, "shard 2", PushAck(0, 4, 1, 1, 7)) == []
    for _ in range(3):
        receive(links, "shard 0", PushAck(2, 4, 0, 1, 1))
    assert (links.pushes, links.staleness) == (1, 1)
    (stage,) = receive(links, "shard 0", Parameters(2, 2, 0, incarnation=4), bytes(8))
    assert isinstance(stage, Stage)
    assert receive(links, "shard 0", Parameters(2, 2, 0, incarnation=4), bytes(8)) == []


def test_what_does_not_answer_is_asked_again_ever_more_rarely() -> None:
    links = linked()
    begin(links)
    serve(links, 1)
    end(links, 0)
    feed(links, Replaced("shard 9", 1))
    settle(links, 0)
    list(links.pull(10.0))
    times = []
    for tenth in range(100, 800):
        effects = feed(links, Tick(), now=tenth / 10)
        if effects:
            assert effects == [Send(name, Fetch(2, acknowledged=1)) for name in BYTES]
            times.append(tenth / 10)
    assert times == [11.0, 13.0, 17.0, 25.0, 41.0, 57.0, 73.0]


def test_a_replaced_shard_is_asked_again_at_once_with_the_same_sequence() -> None:
    links = linked()
    done(links, links.install())
    end(links, 0)
    assert feed(links, Replaced("shard 2", 1), now=3.0) == [
        Send("shard 2", Fetch(1)),
        Send("shard 2", Push(4, 0, 0, 0, 1, ((0, 1),)), Span("in_flight", 2, 5)),
    ]
    assert feed(links, Replaced("shard 2", 1)) == []
    assert feed(links, Replaced("part 0.1", 1)) == []


def test_staged_values_of_a_replaced_shard_are_dropped() -> None:
    links = linked()
    feed(links, Replaced("shard 0", 1))
    assert not links.has_room(16)
    receive(links, "shard 0", Parameters(1, 1, 0, incarnation=4), bytes(8))
    assert Install(WHOLE[0]) in done(links, links.install())


def test_draining_pushes_what_is_left_and_waits_for_every_answer() -> None:
    links = linked()
    begin(links)
    assert len(of_kind(Push, end(links, 0))) == 2
    end(links, 1, pushes=False)
    receive(links, "shard 0", PushAck(0, 4, 0, 1, 0))
    assert of_kind(Push, done(links, links.drain(0.0))) == [Push(4, 1, 0, 0, 2, ((1, 2),), is_last=True)]
    assert links.waits_for == ("shard 0", "shard 2")
    assert of_kind(Push, receive(links, "shard 2", PushAck(0, 4, 0, 1, 0))) == [
        Push(4, 1, 0, 0, 2, ((1, 2),), is_last=True)
    ]
    for name in BYTES:
        assert receive(links, name, PushAck(0, 4, 1, 2, 0)) == [SavePushRecord(name, PushRecord(4, 2, 2))]
    assert links.waits_for == ("shard 0", "shard 2") and not links.drained, "for the answers to the fetches"
    serve(links, 1, pushes=2)
    assert links.drained
    assert feed(links, Tick(), now=99.0) == []
    assert links.pushes == 4


def test_a_drained_part_reports_to_a_replaced_shard_what_was_acknowledged() -> None:
    links = linked()
    done(links, links.install())
    end(links, 1)
    settle(links, 0)
    assert done(links, links.drain(0.0)) == [] and links.drained
    assert feed(links, Replaced("shard 2", 1)) == [Send("shard 2", Fetch(1, acknowledged=1))]
    assert not links.drained
    receive(links, "shard 2", Parameters(1, 1, 0, 0, 4, None, 1), bytes(12))
    assert links.drained


def test_what_a_process_before_this_one_has_pushed_is_not_pushed_again() -> None:
    """Shard 0 has the steps below 3 and shard 2 those below 1: step 1 is done again for shard 2 alone."""
    noted = {"shard 0": (PushRecord(2, 7, 2), PushRecord(3, 1, 3)), "shard 2": (PushRecord(3, 0, 0),)}
    links = ParameterLinks(incarnation=4, streams=SHARDS, earlier=noted)
    assert next(iter(links.pull(0.0))) == Send("shard 0", Fetch(0, 0, noted["shard 0"]))
    list(links.pull(0.0))
    assert not links.informed
    receive(links, "shard 0", Parameters(0, 0, 0, 0, 4, PushRecord(3, 1, 3)), bytes(8))
    on_its_way = PushRecord(3, 1, 1)  # to be acknowledged, when that process died
    effects = receive(links, "shard 2", Parameters(0, 0, 0, 0, 4, on_its_way), bytes(12))
    assert effects[0] == SavePushRecord("shard 2", on_its_way)
    assert links.informed and links.continues == 1
    done(links, links.install())
    for step in (1, 2):
        ended = end(links, step)
        assert ended[:2] == [
            ClearGradient(Span("accumulated", 0, 2)),
            Send("shard 0", Fetch(step, 0, noted["shard 0"])),
        ]
        assert not links.has_room(16), "its parameters have taken the step twice"
        if step == 1:
            assert of_kind(Push, ended) == [Push(4, 0, 0, 0, 2, ((1, 2),))]
            assert receive(links, "shard 2", PushAck(0, 4, 0, 1, 0)) == [
                SavePushRecord("shard 2", PushRecord(4, 1, 2))
            ]
        receive(links, "shard 0", Parameters(step, 0, 0, 0, 4), bytes(8))
        assert Install(WHOLE[0]) in done(links, links.install())
    ended = end(links, 3)
    assert ClearGradient(Span("accumulated", 0, 2)) not in ended
    assert {e.to for e in ended if isinstance(e, Send)} == {"shard 0"}
    (fetch,) = of_kind(Fetch, feed(links, Replaced("shard 2", 1)))
    assert isinstance(fetch, Fetch) and fetch.earlier == (on_its_way,)


def test_what_another_run_has_pushed_is_left_out_for_the_shards_that_have_it() -> None:
    """Shard 0 has the units 1 and 3 of an earlier run, and shard 2 none of the four."""
    links = ParameterLinks(incarnation=4, streams=SHARDS)
    list(links.pull(0.0))
    receive(links, "shard 0", Parameters(0, 0, 0, 0, 4, units=((1, 2), (3, 4))), bytes(8))
    receive(links, "shard 2", Parameters(0, 0, 0, 0, 4), bytes(12))
    done(links, links.install())
    end(links, 0, pushes=False)
    assert not links.has_way(1), "what has accumulated would be cleared with it"
    assert of_kind(Push, done(links, links.make_way(1, 0.0))) == [Push(4, 0, 0, 0, 1, ((0, 1),))]
    assert links.has_way(1), "it need not be acknowledged"
    assert end(links, 1, pushes=False)[0] == ClearGradient(Span("accumulated", 0, 2))
    receive(links, "shard 0", Parameters(1, 0, 0, 0, 4, units=((7, 9),)), bytes(8))
    done(links, links.install())
    end(links, 2, pushes=False)
    assert done(links, links.make_way(3, 0.0)) == [] and not links.has_way(3), "one push is under way"
    acknowledged = receive(links, "shard 0", PushAck(0, 4, 0, 1, 0))
    assert of_kind(Push, acknowledged) == [Push(4, 1, 0, 0, 3, ((2, 3),))]
    assert links.has_way(3) and links.has_way(7), "only what it had when this process began"
    assert end(links, 3, pushes=False)[0] == ClearGradient(Span("accumulated", 0, 2))
    assert of_kind(Push, done(links, links.push(0.0))) == [Push(4, 0, 0, 0, 4, ((0, 4),))]


def test_an_answer_to_a_process_before_this_one_is_not_taken() -> None:
    links = ParameterLinks(incarnation=4, streams=SHARDS)
    done(links, links.pull(0.0))
    assert receive(links, "shard 0", Parameters(0, 0, 0, incarnation=3), bytes(8)) == []


def test_a_machine_without_parameters_has_nothing_to_wait_for() -> None:
    links = ParameterLinks(incarnation=0, streams=())
    assert links.has_room(1) and links.informed and links.continues is None and links.updates == 0
    assert begin(links) == end(links, 0) == []
    assert done(links, links.drain(0.0)) == [] and links.drained


@pytest.mark.parametrize(
    ("sender", "message", "payload", "says"),
    [
        ("shard 0", Parameters(0, 0, 0), bytes(7), "have 8 bytes here, not 7"),
        ("shard 0", Parameters(0, 0, 0), None, "have 8 bytes here, not -1"),
        ("shard 1", Parameters(0, 0, 0), bytes(8), "no parameters of this machine"),
        ("shard 1", PushAck(0, 0, 0, 0, 0), None, "no parameters of this machine"),
        ("shard 0", Parameters(0, 0, 0, pushes=1), bytes(8), "holds 1 pushes, and 0 were made"),
        ("shard 0", Stop(), None, "does not take a Stop"),
    ],
)
def test_what_breaks_the_protocol_is_refused(
    sender: str, message: Message, payload: object, says: str
) -> None:
    links = ParameterLinks(incarnation=0, streams=SHARDS)
    done(links, links.pull(0.0))
    (effect,) = receive(links, sender, message, payload)
    assert isinstance(effect, Refuse)
    assert says in effect.reason
