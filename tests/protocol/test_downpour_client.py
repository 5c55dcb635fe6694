"""The Downpour client alone: when it fetches, installs and pushes, and what follows when no answer comes."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import DownpourClient, Message
from partita.engine.protocol.downpour_client import (
    ClearGradient,
    DownpourEffect,
    DownpourEvent,
    Drain,
    Drained,
    SavePushRecord,
    StepBegins,
    StepEnded,
)
from partita.engine.protocol.events import Received, Refuse, Replaced, Send, Span, Tick
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck, PushRecord, Stop
from partita.engine.protocol.shard_client import Install, Stage, Started, SwapBuffers
from tests.protocol.machines import BYTES, SHARDS, feed, receive, serve, started

SPANS = {name: (start, stop) for name, start, stop in SHARDS}


def step(client: DownpourClient, number: int) -> tuple[list[DownpourEffect], list[DownpourEffect]]:
    return feed(client, StepBegins(number)), feed(client, StepEnded(number))


def settle(client: DownpourClient, sequence: int, *, incarnation: int = 0, staleness: int = 0) -> None:
    for name in BYTES:
        receive(client, name, PushAck(incarnation, 4, sequence, sequence + 1, staleness))


def of_kind(kind: type[Message], effects: list[DownpourEffect]) -> list[Message]:
    return [e.message for e in effects if isinstance(e, Send) and isinstance(e.message, kind)]


def test_it_is_ready_when_every_shard_has_answered() -> None:
    client = DownpourClient(incarnation=0, shards=SHARDS)
    assert feed(client, Started()) == [Send("shard 0", Fetch(0)), Send("shard 2", Fetch(0))]
    payload = bytes(8)
    assert receive(client, "shard 0", Parameters(0, 0, 0), payload) == [Stage(Span("staged", 0, 2), payload)]
    assert not client.ready
    assert client.waits_for == ("shard 2",)
    with pytest.raises(AssertionError, match="without the parameters"):
        client.receive(StepBegins(0), 0.0)
    receive(client, "shard 2", Parameters(0, 0, 0), bytes(12))
    assert client.ready


def test_parameters_are_installed_between_steps_only() -> None:
    client = started()
    assert feed(client, StepBegins(0)) == [
        Install(Span("parameters", 0, 2)),
        Install(Span("parameters", 2, 5)),
    ]
    feed(client, StepEnded(0))
    assert feed(client, StepBegins(1)) == [Send("shard 0", Fetch(1)), Send("shard 2", Fetch(1))]
    (staged,) = receive(client, "shard 2", Parameters(1, 0, 3, incarnation=4), bytes(12))
    assert isinstance(staged, Stage)
    feed(client, StepEnded(1))
    assert feed(client, StepBegins(2)) == [Install(Span("parameters", 2, 5)), Send("shard 2", Fetch(2))]


def test_a_push_is_the_accumulated_gradient_set_aside_and_sent() -> None:
    client = started()
    _, effects = step(client, 0)
    assert effects == [
        SwapBuffers(Span("in_flight", 0, 2)),
        Send("shard 0", Push(4, 0, 0, 0, 1), Span("in_flight", 0, 2)),
        SwapBuffers(Span("in_flight", 2, 5)),
        Send("shard 2", Push(4, 0, 0, 0, 1), Span("in_flight", 2, 5)),
    ]


def test_the_intervals_count_steps_from_zero_and_the_first_fetch_is_that_of_step_zero() -> None:
    client = started(fetch_every=3, push_every=2)
    fetched, pushed = [], []
    for number in range(7):
        begun, ended = step(client, number)
        if of_kind(Fetch, begun):
            fetched.append(number)
            serve(client, len(fetched))
        if of_kind(Push, ended):
            pushed.append(number)
            settle(client, len(pushed) - 1)
    assert (fetched, pushed) == ([3, 6], [1, 3, 5])


@pytest.mark.parametrize(("fetch_every", "push_every"), [(0, 1), (1, -1)])
def test_an_interval_below_one_is_refused(fetch_every: int, push_every: int) -> None:
    with pytest.raises(ValueError, match="use 1 or more"):
        DownpourClient(incarnation=0, shards=SHARDS, fetch_every=fetch_every, push_every=push_every)


def test_a_slow_shard_costs_staleness_and_the_gradient_keeps_accumulating() -> None:
    client = started()
    step(client, 0)
    receive(client, "shard 0", PushAck(0, 4, 0, 1, 0))
    for number in (1, 2):
        _, effects = step(client, number)
        assert {e.to for e in effects if isinstance(e, Send)} <= {"shard 0"}
    receive(client, "shard 2", PushAck(0, 4, 0, 9, 8))
    assert (client.pushes, client.staleness) == (2, 8)
    _, effects = step(client, 3)
    assert of_kind(Push, effects) == [Push(4, 1, 0, 0, 4)]  # one push for steps 1 to 3


def test_a_push_is_as_old_as_the_parameters_of_its_oldest_step() -> None:
    client = started(push_every=3)
    step(client, 0)
    step(client, 1)
    serve(client, 1, version=5)
    _, effects = step(client, 2)
    assert of_kind(Push, effects) == [Push(4, 0, 0, 0, 3)] * 2
    serve(client, 2, version=9)
    settle(client, 0)
    for number in (3, 4, 5):
        _, effects = step(client, number)
    assert of_kind(Push, effects) == [Push(4, 1, 0, 9, 6)] * 2


def test_repeats_and_answers_of_older_incarnations_change_nothing() -> None:
    client = started()
    step(client, 0)
    feed(client, Replaced("shard 0", 2))
    assert receive(client, "shard 0", PushAck(1, 4, 0, 1, 7)) == []
    assert receive(client, "shard 0", Parameters(1, 1, 7, incarnation=4), bytes(8)) == []
    assert receive(client, "shard 2", PushAck(0, 3, 0, 1, 7)) == []
    assert receive(client, "shard 2", PushAck(0, 4, 1, 1, 7)) == []
    for _ in range(3):
        receive(client, "shard 0", PushAck(2, 4, 0, 1, 1))
    assert (client.pushes, client.staleness) == (1, 1)
    (stage,) = receive(client, "shard 0", Parameters(1, 2, 0, incarnation=4), bytes(8))
    assert isinstance(stage, Stage)
    assert receive(client, "shard 0", Parameters(1, 2, 0, incarnation=4), bytes(8)) == []


def test_what_does_not_answer_is_asked_again_ever_more_rarely() -> None:
    client = started()
    step(client, 0)
    feed(client, Replaced("shard 9", 1))
    settle(client, 0)
    feed(client, StepBegins(1), now=10.0)
    times = []
    for tenth in range(100, 800):
        effects = feed(client, Tick(), now=tenth / 10)
        if effects:
            assert effects == [Send(name, Fetch(1, acknowledged=1)) for name in BYTES]
            times.append(tenth / 10)
    assert times == [11.0, 13.0, 17.0, 25.0, 41.0, 57.0, 73.0]


def test_a_replaced_shard_is_asked_again_at_once_with_the_same_sequence() -> None:
    client = started(fetch_every=100)
    step(client, 0)
    assert feed(client, Replaced("shard 2", 1), now=3.0) == [
        Send("shard 2", Fetch(1)),
        Send("shard 2", Push(4, 0, 0, 0, 1), Span("in_flight", 2, 5)),
    ]
    assert feed(client, Replaced("shard 2", 1)) == []
    assert feed(client, Replaced("part 0.1", 1)) == []


def test_staged_values_of_a_replaced_shard_are_dropped() -> None:
    client = started()
    feed(client, Replaced("shard 0", 1))
    assert not client.ready
    receive(client, "shard 0", Parameters(1, 1, 0, incarnation=4), bytes(8))
    assert Install(Span("parameters", 0, 2)) in feed(client, StepBegins(0))


def test_draining_pushes_what_is_left_and_waits_for_every_answer() -> None:
    client = started(push_every=2)
    step(client, 0)
    _, effects = step(client, 1)
    assert len(of_kind(Push, effects)) == 2
    step(client, 2)
    receive(client, "shard 0", PushAck(0, 4, 0, 1, 0))
    assert of_kind(Push, feed(client, Drain())) == [Push(4, 1, 0, 0, 3)]
    assert client.waits_for == ("shard 0", "shard 2")
    assert of_kind(Push, receive(client, "shard 2", PushAck(0, 4, 0, 1, 0))) == [Push(4, 1, 0, 0, 3)]
    for name in BYTES:
        assert receive(client, name, PushAck(0, 4, 1, 2, 0)) == [SavePushRecord(name, PushRecord(4, 2, 3))]
    assert client.waits_for == ("shard 0", "shard 2")  # for the answers to the fetches of step 0
    serve(client, 1)
    assert client.waits_for == ()
    assert feed(client, Drain()) == []
    assert feed(client, Tick(), now=99.0) == []
    assert client.pushes == 4


def test_a_drained_part_reports_to_a_replaced_shard_what_was_acknowledged() -> None:
    client = started(fetch_every=9)
    step(client, 1)
    settle(client, 0)
    assert feed(client, Drain()) == [Drained()]
    assert feed(client, Replaced("shard 2", 1)) == [Send("shard 2", Fetch(1, acknowledged=1))]
    (staged, drained) = receive(client, "shard 2", Parameters(1, 1, 0, incarnation=4), bytes(12))
    assert isinstance(staged, Stage)
    assert drained == Drained()


def test_what_a_process_before_this_one_has_pushed_is_not_pushed_again() -> None:
    """Shard 0 has the steps below 3 and shard 2 those below 1: step 1 is done again for shard 2 alone."""
    noted = {"shard 0": (PushRecord(2, 7, 2), PushRecord(3, 1, 3)), "shard 2": (PushRecord(3, 0, 0),)}
    client = DownpourClient(incarnation=4, shards=SHARDS, earlier=noted)
    assert feed(client, Started())[0] == Send("shard 0", Fetch(0, 0, noted["shard 0"]))
    assert not client.informed
    receive(client, "shard 0", Parameters(0, 0, 0, 0, 4, PushRecord(3, 1, 3)), bytes(8))
    on_its_way = PushRecord(3, 1, 1)  # to be acknowledged, when that process died
    effects = receive(client, "shard 2", Parameters(0, 0, 0, 0, 4, on_its_way), bytes(12))
    assert effects[0] == SavePushRecord("shard 2", on_its_way)
    assert client.informed and client.continues == 1
    for number in (1, 2):
        _, ended = step(client, number)
        assert ClearGradient(Span("accumulated", 0, 2)) in ended
        if number == 1:
            assert of_kind(Push, ended) == [Push(4, 0, 0, 0, 2)]
            assert receive(client, "shard 2", PushAck(0, 4, 0, 1, 0)) == [
                SavePushRecord("shard 2", PushRecord(4, 1, 2))
            ]
    _, ended = step(client, 3)
    assert ClearGradient(Span("accumulated", 0, 2)) not in ended
    assert {e.to for e in ended if isinstance(e, Send)} == {"shard 0"}
    (fetch,) = of_kind(Fetch, feed(client, Replaced("shard 2", 1)))
    assert isinstance(fetch, Fetch) and fetch.earlier == (on_its_way,)


def test_an_answer_to_a_process_before_this_one_is_not_taken() -> None:
    client = DownpourClient(incarnation=4, shards=SHARDS)
    feed(client, Started())
    assert receive(client, "shard 0", Parameters(0, 0, 0, incarnation=3), bytes(8)) == []


def test_a_machine_without_parameters_has_nothing_to_wait_for() -> None:
    client = DownpourClient(incarnation=0, shards=())
    assert client.ready and client.informed and client.continues is None
    assert step(client, 0) == ([], [])
    assert feed(client, Drain()) == [Drained()]


@pytest.mark.parametrize(
    ("sender", "message", "payload", "says"),
    [
        ("shard 0", Parameters(0, 0, 0), bytes(7), "have 8 bytes here, not 7"),
        ("shard 0", Parameters(0, 0, 0), None, "have 8 bytes here, not -1"),
        ("shard 1", Parameters(0, 0, 0), bytes(8), "no parameters of this machine"),
        ("shard 1", PushAck(0, 0, 0, 0, 0), None, "no parameters of this machine"),
        ("shard 0", Stop(), None, "does not take a Stop"),
    ],
)
def test_what_breaks_the_protocol_is_refused(
    sender: str, message: Message, payload: object, says: str
) -> None:
    client = DownpourClient(incarnation=0, shards=SHARDS)
    feed(client, Started())
    (effect,) = receive(client, sender, message, payload)
    assert isinstance(effect, Refuse)
    assert says in effect.reason


@dataclass
class Shard:
    """A naive shard that counts steps: its value is the sum of the gradients that it applied, one a step."""

    incarnation: int = 0
    value: int = 0
    applied: set[int] = field(default_factory=set)


@dataclass
class Bench:
    """A client, a part's three vectors (one number for each shard), and a network of unordered letters."""

    client: DownpourClient
    shards: dict[str, Shard]
    letters: list[tuple[str, Message, int]] = field(default_factory=list)
    accumulated: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BYTES, 0))
    in_flight: dict[str, int] = field(default_factory=lambda: dict.fromkeys(BYTES, 0))
    in_step: bool = False
    drained: bool = False

    def feed(self, event: DownpourEvent, now: float) -> None:
        for effect in self.client.receive(event, now):
            if isinstance(effect, Send):
                self.letters.append((effect.to, effect.message, self.in_flight[effect.to]))
            elif isinstance(effect, SwapBuffers):
                name = next(n for n, span in SPANS.items() if span == (effect.span.start, effect.span.stop))
                self.in_flight[name], self.accumulated[name] = self.accumulated[name], 0
            elif isinstance(effect, Install):
                assert not self.in_step
            elif isinstance(effect, Drained):
                self.drained = True
        self.client.validate()

    def deliver(self, letter: tuple[str, Message, int], now: float) -> None:
        name, message, gradient = letter
        shard = self.shards[name]
        answer: Message
        if isinstance(message, Push):
            if message.sequence not in shard.applied:
                shard.applied.add(message.sequence)
                shard.value += gradient
            answer = PushAck(shard.incarnation, message.incarnation, message.sequence, len(shard.applied), 0)
            self.feed(Received(name, shard.incarnation, answer), now)
        elif isinstance(message, Fetch):
            answer = Parameters(message.request, shard.incarnation, len(shard.applied))
            self.feed(Received(name, shard.incarnation, answer, BYTES[name]), now)


@given(st.data())
def test_whatever_the_network_does_every_step_is_pushed_once(data: st.DataObject) -> None:
    """Drops, repeats, any order, shards that restart without loss: in the end each holds every step once."""
    fetch_every, push_every = data.draw(st.integers(1, 3)), data.draw(st.integers(1, 3))
    client = DownpourClient(incarnation=0, shards=SHARDS, fetch_every=fetch_every, push_every=push_every)
    bench = Bench(client, {name: Shard() for name in BYTES})
    now, steps = 0.0, 0
    bench.feed(Started(), now)
    for _ in range(data.draw(st.integers(1, 60))):
        action = data.draw(st.sampled_from(["step", "step", "deliver", "deliver", "drop", "tick", "restart"]))
        if action == "step" and bench.in_step:
            bench.accumulated = {name: value + 1 for name, value in bench.accumulated.items()}
            bench.in_step = False
            bench.feed(StepEnded(steps), now)
            steps += 1
        elif action == "step" and client.ready:
            bench.feed(StepBegins(steps), now)
            bench.in_step = True
        elif action in ("deliver", "drop") and bench.letters:
            letter = data.draw(st.sampled_from(bench.letters))
            if data.draw(st.booleans()):
                bench.letters.remove(letter)  # otherwise it will come again
            if action == "deliver":
                bench.deliver(letter, now)
        elif action == "tick":
            now += 20.0
            bench.feed(Tick(), now)
        elif action == "restart":
            name = data.draw(st.sampled_from(sorted(BYTES)))
            bench.shards[name].incarnation += 1
            if data.draw(st.booleans()):
                bench.feed(Replaced(name, bench.shards[name].incarnation), now)
    if bench.in_step:
        bench.accumulated = {name: value + 1 for name, value in bench.accumulated.items()}
        bench.in_step = False
        bench.feed(StepEnded(steps), now)
        steps += 1
    bench.feed(Drain(), now)
    for _ in range(8):  # the network is fair again
        while bench.letters:
            bench.deliver(bench.letters.pop(0), now)
        now += 20.0
        bench.feed(Tick(), now)
    assert bench.drained
    assert [shard.value for shard in bench.shards.values()] == [steps, steps]
