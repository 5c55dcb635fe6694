"""A part under Sandblaster: which assignments it runs at which point, and when their gradients leave."""

from __future__ import annotations

import math
import random
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import Sandblaster
from partita.engine.protocol import Message, Part, PointLinks
from partita.engine.protocol.assigned_work import AssignedWork, RunAssignment
from partita.engine.protocol.batch_messages import (
    Assignment,
    AssignmentResult,
    Contribution,
    ContributionAck,
    FetchPoint,
    Point,
)
from partita.engine.protocol.events import Received, Refuse, Send, Span, Tick
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.link import Install, Stage, SwapBuffers
from partita.engine.protocol.messages import Stop
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.program_effects import StepDone
from tests.draws import examples
from tests.protocol.machines import BYTES, SHARDS, assign, feed, receive

SPANS = {name: (start, stop) for name, start, stop in SHARDS}
PEERS = {"shard 0": 0, "shard 1": 0, "shard 2": 0}
WHOLE = Span("in_flight", 0, max(stop for _, _, stop in SHARDS))


def play_of(assignment: int, evaluation: int, *, discarded: bool = False) -> RunAssignment:
    return RunAssignment(assignment, evaluation, assignment + 10, 2 * assignment, 2, discarded)


def point(client: Part, evaluation: int, *, shards: tuple[str, ...] = tuple(BYTES)) -> list[Any]:
    effects: list[Any] = []
    for shard in shards:
        effects += receive(client, shard, Point(evaluation), BYTES[shard])
    return effects


def take(
    client: Part, assignment: int, evaluation: int, *, shards: tuple[str, ...] = tuple(BYTES)
) -> list[Any]:
    effects: list[Any] = []
    for shard in shards:
        effects += receive(client, shard, ContributionAck(evaluation, assignment + 10))
    return effects


def over(client: Part, assignment: int) -> list[Any]:
    return feed(client, StepDone(assignment, loss=0.5 * assignment, correct=assignment))


def contributions(assignment: int, evaluation: int) -> list[Any]:
    message = Contribution(evaluation, assignment + 10)
    return [
        SwapBuffers(WHOLE),
        *(Send(name, message, Span("in_flight", *SPANS[name])) for name in BYTES),
    ]


def computed(assignment: int, evaluation: int) -> Send:
    return Send(
        COORDINATOR, AssignmentResult(assignment, evaluation, assignment + 10, 0.5 * assignment, assignment)
    )


def played(effects: list[Any]) -> list[RunAssignment]:
    return [effect for effect in effects if isinstance(effect, RunAssignment)]


def of_shards(effects: list[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, Send) and effect.to != COORDINATOR]


def messages(effects: list[Any]) -> list[Any]:
    return [effect for effect in effects if isinstance(effect, Send)]


def waits(client: Part) -> tuple[str, ...]:
    return tuple(host for host, _ in client.work.waits())


def replaced(client: Part, name: str, incarnation: int) -> list[Any]:
    return feed(client, PeersChanged(incarnation + 1, {**PEERS, name: incarnation}))


def said(effects: list[Any]) -> list[Message]:
    return [effect.message for effect in effects if isinstance(effect, Send)]


def part_of(shards: tuple[tuple[str, int, int], ...], *, alone: bool) -> Part:
    work = AssignedWork(PointLinks(streams=shards, retry_s=1.0), alone=alone)
    return Part(Sandblaster().replica, work, needed=BYTES, watched=[name for name, _, _ in shards])


def started(*, alone: bool = True) -> Part:
    client = part_of(SHARDS, alone=alone)
    assert feed(client, PeersChanged(1, PEERS)) == [Send(name, FetchPoint(0)) for name in BYTES]
    return client


def test_an_assignment_runs_at_the_point_of_its_evaluation() -> None:
    client = started()
    assert assign(client, 0, 3) == []
    assert waits(client) == tuple(BYTES)
    assert point(client, 3, shards=("shard 0",)) == [
        Stage(Span("staged", 0, 2), BYTES["shard 0"]),
    ]
    assert point(client, 3, shards=("shard 2",)) == [
        Stage(Span("staged", 2, 5), BYTES["shard 2"]),
        Install(Span("parameters", 0, 2)),
        Install(Span("parameters", 2, 5)),
        play_of(0, 3),
        *(Send(name, FetchPoint(3)) for name in BYTES),
    ]
    assert waits(client) == ()
    assert over(client, 0) == [*contributions(0, 3), computed(0, 3)]
    assert assign(client, 1, 3) == [play_of(1, 3)], "the point is there already"


def test_a_point_may_come_before_the_assignment() -> None:
    client = started()
    point(client, 3)
    assert [type(effect) for effect in assign(client, 0, 3)] == [Install, Install, RunAssignment, Send, Send]


def test_a_replica_without_an_assignment_asks_for_no_point() -> None:
    client = started()
    assert said(point(client, 3)) == []
    assert feed(client, Tick(), now=5.0) == [], "nothing is open that could be asked for again"
    assert assign(client, 0, 5) == [Send(name, FetchPoint(3)) for name in BYTES]
    assert waits(client) == tuple(BYTES)
    assert play_of(0, 5) in point(client, 5)


def test_an_old_point_that_comes_late_is_followed_by_a_newer_request() -> None:
    client = started(alone=False)
    assign(client, 1, 4)
    assert played(assign(client, 0, 3)) == [RunAssignment(0, 3, 10, 0, 2, discarded=True)]
    found = point(client, 3)
    assert [one for one in said(found) if isinstance(one, FetchPoint)] == [FetchPoint(3)] * len(BYTES)


def test_a_point_that_one_shard_has_sent_is_asked_for_at_the_others() -> None:
    client = started()
    point(client, 3)
    assert said(assign(client, 0, 4)) == [FetchPoint(3), FetchPoint(3)]
    (discarded,) = said(point(client, 5, shards=("shard 0",)))
    assert isinstance(discarded, AssignmentResult)
    assert said(assign(client, 1, 5)) == [], "the other shard's answer is still due"
    assert waits(client) == ("shard 2",)


def test_assignments_run_in_their_order() -> None:
    client = started()
    point(client, 3)
    assert assign(client, 1, 3) == []
    assert client.work.following is None
    assert played(assign(client, 0, 3)) == [play_of(0, 3)]
    following = client.work.following
    assert following is not None and following.sequence == 1
    assert played(over(client, 0)) == [play_of(1, 3)]


def test_a_repeat_of_what_is_done_is_answered_from_memory() -> None:
    client = started()
    point(client, 3)
    assign(client, 0, 3)
    assert assign(client, 0, 3) == [], "it is being played"
    over(client, 0)
    assert assign(client, 0, 3) == [computed(0, 3)]


def test_one_gradient_is_in_flight_and_one_accumulates() -> None:
    client = started()
    point(client, 3)
    for assignment in range(3):
        assign(client, assignment, 3)
    assert played(over(client, 0)) == [play_of(1, 3)]
    assert over(client, 1) == [computed(1, 3)], "reported, but neither sent nor followed"
    assert waits(client) == tuple(BYTES)
    assert take(client, 0, 3, shards=("shard 2",)) == []
    assert waits(client) == ("shard 0",)
    assert take(client, 0, 3, shards=("shard 2",)) == [], "said again"
    assert take(client, 0, 3, shards=("shard 0",)) == [*contributions(1, 3), play_of(2, 3)]
    assert take(client, 0, 3) == [], "of the one before"


@pytest.mark.parametrize("by_point", [True, False])
def test_what_is_over_is_dropped(by_point: bool) -> None:
    """Gradients in flight and accumulated, and assignments that were not begun."""
    client = started()
    point(client, 3)
    for assignment in range(3):
        assign(client, assignment, 3)
    over(client, 0)
    over(client, 1)
    effects = point(client, 4) if by_point else assign(client, 3, 4)
    (result,) = [message for message in said(effects) if isinstance(message, AssignmentResult)]
    assert (result.sequence, result.evaluation) == (2, 3) and math.isnan(result.loss)
    effects = assign(client, 3, 4) if by_point else point(client, 4)
    assert played(effects) == [play_of(3, 4)]
    assert over(client, 3) == [*contributions(3, 4), computed(3, 4)]


def test_an_assignment_that_is_over_in_the_middle_is_cut_short() -> None:
    client = started()
    point(client, 3)
    assign(client, 0, 3)
    assert not client.work.is_over(3)
    point(client, 4)
    assert client.work.is_over(3)
    (result,) = said(over(client, 0))
    assert isinstance(result, AssignmentResult) and math.isnan(result.loss)


def test_with_other_parts_assignments_that_are_over_run_and_are_discarded() -> None:
    client = started(alone=False)
    assign(client, 0, 3)
    assert played(assign(client, 1, 4)) == [play_of(0, 3, discarded=True)]
    (result,) = said(over(client, 0))
    assert isinstance(result, AssignmentResult) and math.isnan(result.loss)
    assert played(point(client, 4)) == [play_of(1, 4)]


def test_points_of_two_evaluations_are_never_mixed() -> None:
    client = started()
    assign(client, 0, 3)
    point(client, 3, shards=("shard 0",))
    assert played(point(client, 4, shards=("shard 2",))) == []
    assert played(assign(client, 1, 4)) == [], "shard 0 has not sent its slice of it"
    assert played(point(client, 4, shards=("shard 0",))) == [play_of(1, 4)]


def test_what_is_not_answered_is_sent_again() -> None:
    client = started()
    point(client, 3)
    assign(client, 0, 3)
    over(client, 0)
    take(client, 0, 3, shards=("shard 0",))
    assert messages(feed(client, Tick(), now=0.5)) == []
    resend = [Send("shard 0", FetchPoint(3)), Send("shard 2", FetchPoint(3))]
    gradient = contributions(0, 3)[2]
    assert messages(feed(client, Tick(), now=1.0)) == [*resend, gradient]
    assert messages(feed(client, Tick(), now=2.9)) == [], "twice as long"
    assert messages(feed(client, Tick(), now=3.0)) == [*resend, gradient]


def test_a_new_evaluation_asks_soon_again() -> None:
    """A request without an answer for long had become rare."""
    client = started()
    point(client, 3)
    assign(client, 0, 3)
    over(client, 0)
    take(client, 0, 3)
    for now in (1.0, 3.0, 7.0, 15.0):
        assert len(of_shards(feed(client, Tick(), now=now))) == 2
    assign(client, 1, 4, now=16.0)
    assert said(of_shards(feed(client, Tick(), now=17.0))) == [FetchPoint(3), FetchPoint(3)]


def test_a_replaced_shard_gets_open_requests_again() -> None:
    client = started()
    point(client, 3)
    assign(client, 0, 3)
    over(client, 0)
    gradient = contributions(0, 3)[1]
    assert replaced(client, "shard 0", 1) == [Send("shard 0", FetchPoint(3)), gradient]
    take(client, 0, 3)
    assert replaced(client, "shard 0", 2) == [Send("shard 0", FetchPoint(3))]
    assert replaced(client, "shard 1", 2) == [], "none of this machine's"


def test_a_machine_without_parameters_only_plays() -> None:
    client = part_of((), alone=False)
    assert feed(client, PeersChanged(1, PEERS)) == []
    assert assign(client, 0, 1) == [play_of(0, 1)]
    assert over(client, 0) == [computed(0, 1)]


def test_what_does_not_fit_is_refused() -> None:
    client = started()
    refused = [
        *receive(client, "shard 0", Point(1), bytes(4)),
        *receive(client, "shard 1", Point(1), bytes(8)),
        *receive(client, "shard 1", ContributionAck(1, 0)),
        *receive(client, COORDINATOR, Stop()),
        *assign(client, 1000, 1),
    ]
    assign(client, 0, 1)
    refused += assign(client, 0, 2)
    assert [type(effect) for effect in refused] == [Refuse] * 6


@given(
    evaluations=st.lists(st.integers(1, 4), min_size=1, max_size=6).map(sorted),
    alone=st.booleans(),
    seed=st.integers(0, 1 << 30),
)
@settings(max_examples=examples(100), deadline=None)
def test_any_order_ends_with_every_wanted_gradient_taken(
    evaluations: list[int], alone: bool, seed: int
) -> None:
    """Drops, repeats and any order: every assignment of the last evaluation counts, with its own numbers."""
    client = part_of(SHARDS, alone=alone)
    rng = random.Random(seed)
    last = evaluations[-1]
    hands = [Received(COORDINATOR, 0, Assignment(e, n, n + 10, 2 * n, 2)) for n, e in enumerate(evaluations)]
    wanted = {(last, n + 10) for n, e in enumerate(evaluations) if e == last}
    taken: dict[str, dict[tuple[int, int], tuple[int, int]]] = {shard: {} for shard in BYTES}
    results: set[int] = set()
    now, accumulated, in_flight = 0.0, (0, 0), (0, 0)
    waiting: list[Any] = [PeersChanged(1, PEERS), *hands]
    for _ in range(1000):
        if not waiting:
            if len(results) == len(hands) and all(wanted <= set(found) for found in taken.values()):
                break
            waiting += [Tick(), *hands]
        event = waiting.pop(rng.randrange(len(waiting)))
        now += 20.0
        for effect in feed(client, event, now=now):
            match effect:
                case RunAssignment():
                    accumulated = (effect.evaluation, effect.unit)
                    waiting.append(StepDone(effect.number))
                case SwapBuffers():
                    in_flight = accumulated
                case Send(to=to, message=FetchPoint(after=after)):
                    later = [e for e in evaluations if e > after]
                    if later and rng.random() < 0.6:
                        waiting.append(Received(to, 0, Point(rng.choice(later)), BYTES[to]))
                case Send(to=to, message=Contribution(evaluation=evaluation, unit=unit)):
                    if rng.random() < 0.6:
                        taken[to].setdefault((evaluation, unit), in_flight)
                        if rng.random() < 0.6:
                            waiting.append(Received(to, 0, ContributionAck(evaluation, unit)))
                case Send(message=AssignmentResult(sequence=assignment)):
                    results.add(assignment)
    assert results == set(range(len(hands)))
    for found in taken.values():
        assert all(key == of for key, of in found.items()), "a gradient under another's name"
        assert wanted <= set(found)
