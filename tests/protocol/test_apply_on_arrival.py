"""The shard alone: exactly once, leases, checkpoints; and random histories against a naive reference."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import ApplyOnArrival, Message, Shard, ShardRanges
from partita.engine.protocol.apply_on_arrival import RestoredState, Watermark
from partita.engine.protocol.checkpoint_messages import AskUnits, LostPushes, Save, Saved, UnitsHeld
from partita.engine.protocol.events import Persist, Persisted, Refuse, Send, Span, Tick
from partita.engine.protocol.file_messages import PushRecord
from partita.engine.protocol.messages import Fetch, Finished, Heartbeat, Parameters, Push, PushAck
from partita.engine.protocol.shard_effects import ApplyGradient, Fenced, ReceiveAgain, ShardEffect
from tests.protocol.machines import RANGES, feed, receive, shard

BYTES = {0: bytes(12), 1: bytes(20)}


def policy_of(machine: Shard) -> ApplyOnArrival:
    assert isinstance(machine.policy, ApplyOnArrival)
    return machine.policy


def push(
    machine: Shard,
    part: str,
    sequence: int,
    *,
    incarnation: int = 0,
    shard_incarnation: int = 0,
    version: int = 0,
    stop: int = 0,
    now: float = 0.0,
) -> list[ShardEffect]:
    message = Push(incarnation, sequence, shard_incarnation, version, stop)
    payload = BYTES[int(part.rpartition(".")[2])]
    return receive(machine, part, message, payload, incarnation=incarnation, now=now)


def test_a_push_is_applied_and_then_acknowledged() -> None:
    assert push(shard(), "part 0.1", 0) == [
        ApplyGradient(Span("x", 3, 8), BYTES[1], 0, "part 0.1", incarnation=0, sequence=0),
        Send("part 0.1", PushAck(shard_incarnation=0, incarnation=0, sequence=0, version=1, staleness=0)),
    ]


def test_the_units_in_the_numbers_of_each_machine_are_known_to_new_processes_and_kept() -> None:
    machine = shard(units={(0, 3): ((0, 4),)})
    for sequence, units in enumerate((((4, 5),), ((7, 9), (11, 12)), ((5, 7),))):
        message = Push(0, sequence, 0, 0, 9, units)
        receive(machine, "part 0.0", message, BYTES[0])
        receive(machine, "part 0.0", message, BYTES[0])
    for part, expected in (("part 1.0", ((0, 4),)), ("part 0.0", ()), ("part 1.1", ())):
        (answer,) = receive(machine, part, Fetch(0))
        assert answer.message.units == expected, "what it began with, until a part pushes"  # type: ignore
    (persist,) = receive(machine, "coordinator", Save(3))
    assert isinstance(persist, Persist) and persist.units == {(0, 3): ((0, 9), (11, 12)), (3, 8): ()}


def test_a_shard_says_which_units_all_and_some_of_its_numbers_hold() -> None:
    machine = shard(units={(0, 3): ((0, 4), (6, 8)), (3, 8): ((2, 7),)})
    (answer,) = receive(machine, "coordinator", AskUnits())
    assert answer == Send("coordinator", UnitsHeld(((2, 4), (6, 7)), ((0, 8),)))


def test_a_push_of_no_unit_in_a_range_is_refused() -> None:
    (refused,) = receive(shard(), "part 0.0", Push(0, 0, 0, 0, 1, ((4, 4),)), BYTES[0])
    assert isinstance(refused, Refuse) and "each range has a unit" in refused.reason


def test_a_repeat_is_acknowledged_alike_and_not_applied() -> None:
    machine = shard()
    push(machine, "part 1.0", 0)
    (_, first) = push(machine, "part 0.0", 0)
    push(machine, "part 1.0", 1)
    (again,) = push(machine, "part 0.0", 0)
    assert isinstance(first, Send)
    assert isinstance(again, Send)
    assert isinstance(first.message, PushAck)
    assert isinstance(again.message, PushAck)
    assert (first.message.staleness, again.message.staleness) == (1, 1)
    assert machine.version == 3


def test_staleness_counts_the_pushes_applied_since_the_parameters_were_read() -> None:
    machine = shard(version=40)
    for sequence, base, expected in [(0, 40, 0), (1, 40, 1), (2, 42, 0), (3, 10, 3)]:
        acknowledgement = push(machine, "part 0.0", sequence, version=base)[-1]
        assert isinstance(acknowledgement, Send)
        assert isinstance(acknowledgement.message, PushAck)
        assert acknowledgement.message.staleness == expected


def test_pushes_to_the_numbers_of_another_machine_make_nothing_stale() -> None:
    machine = shard()
    for sequence in range(3):
        push(machine, "part 0.1", sequence)
    acknowledgement = push(machine, "part 0.0", 0, version=0)[-1]
    assert isinstance(acknowledgement, Send)
    assert isinstance(acknowledgement.message, PushAck)
    assert (acknowledgement.message.version, acknowledgement.message.staleness) == (4, 0)


def test_across_a_restart_staleness_counts_from_where_the_histories_part() -> None:
    machine = shard(shard_incarnation=1, version=10)
    for sequence, base, expected in [(0, 14, 0), (1, 14, 1), (2, 8, 2)]:
        acknowledgement = push(machine, "part 0.0", sequence, shard_incarnation=0, version=base)[-1]
        assert isinstance(acknowledgement, Send)
        assert isinstance(acknowledgement.message, PushAck)
        assert acknowledgement.message.staleness == expected


def test_a_push_of_an_older_incarnation_is_ignored_and_a_newer_one_counts_from_zero() -> None:
    machine = shard()
    push(machine, "part 0.0", 0)
    push(machine, "part 0.0", 1)
    assert push(machine, "part 0.0", 0, incarnation=1) == [], "its fetch comes first"
    receive(machine, "part 0.0", Fetch(0), incarnation=1)
    assert isinstance(push(machine, "part 0.0", 0, incarnation=1)[0], ApplyGradient)
    assert push(machine, "part 0.0", 2, incarnation=0) == []
    assert policy_of(machine).seen == {"part 0.0": (1, 0)}


def test_a_new_process_of_a_part_learns_what_is_here_of_the_one_before_it() -> None:
    machine = shard()
    push(machine, "part 0.0", 0, stop=4)
    push(machine, "part 0.0", 1, stop=9)
    (answer,) = receive(machine, "part 0.0", Fetch(0, earlier=(PushRecord(0, 1, 4),)), incarnation=1)
    assert isinstance(answer, Send) and isinstance(answer.message, Parameters)
    assert answer.message.incarnation == 1
    assert answer.message.earlier == PushRecord(0, 2, 9), "the last one was on its way to being acknowledged"
    assert push(machine, "part 0.0", 1, stop=9) == [], "of a process that was replaced"
    assert policy_of(machine).persist(9).stops == {"part 0.0": 9}


def test_a_process_that_died_before_it_pushed_hides_no_push_of_the_one_before_it() -> None:
    """The part learns of a push whose acknowledgement was lost although its second process died, too."""
    machine = shard()
    push(machine, "part 0.0", 0, stop=4)
    for incarnation in (1, 2):
        (answer,) = receive(machine, "part 0.0", Fetch(0), incarnation=incarnation)
        assert isinstance(answer, Send) and isinstance(answer.message, Parameters)
        assert answer.message.earlier == PushRecord(0, 1, 4)


def test_what_dead_processes_were_acknowledged_is_lost_where_it_is_not_here() -> None:
    machine = shard(shard_incarnation=1, version=6, seen={"part 0.0": (0, 3)})
    earlier = (PushRecord(0, 7, 70), PushRecord(1, 2, 90))
    effects = receive(machine, "part 0.0", Fetch(0, 1, earlier), incarnation=2)
    assert effects[1:] == [Send("coordinator", LostPushes("part 0.0", 3 + 2 + 1))]
    assert policy_of(machine).persist(9).stops == {"part 0.0": 90}
    assert len(receive(machine, "part 0.0", Fetch(1, 1, earlier), incarnation=2)) == 1
    assert policy_of(machine).lost == 6


def test_a_shard_that_comes_back_still_reports_the_steps_of_earlier_processes() -> None:
    """A part's new process had fetched before the checkpoint, and the answer was lost."""
    own = ShardRanges("shard 0", 1, RANGES)
    machine = shard()
    push(machine, "part 0.0", 0, stop=9)
    receive(machine, "part 0.0", Fetch(0), incarnation=1)
    (kept,) = receive(machine, "coordinator", Save(1))
    assert isinstance(kept, Persist)
    restored = RestoredState(kept.version, kept.updates, kept.seen, kept.stops)
    machine = Shard(own, ApplyOnArrival(own, restored=restored))
    receive(machine, "coordinator", Heartbeat(1, clock=0.0))
    answer = receive(machine, "part 0.0", Fetch(1), incarnation=1)[0]
    assert isinstance(answer, Send) and isinstance(answer.message, Parameters)
    assert answer.message.earlier == PushRecord(0, 0, 9)
    push(machine, "part 0.0", 0, incarnation=1, stop=12)
    answer = receive(machine, "part 0.0", Fetch(2, 1), incarnation=1)[0]
    assert isinstance(answer, Send) and isinstance(answer.message, Parameters)
    assert answer.message.earlier is None


def test_a_shard_that_comes_back_counts_acknowledged_pushes() -> None:
    acks = {
        "part 0.0": (PushRecord(0, 7), PushRecord(1, 2)),
        "part 1.0": (PushRecord(0, 4),),
        "part 0.9": (),
    }
    own = ShardRanges("shard 0", 1, RANGES)
    restored = RestoredState(seen={"part 0.0": (0, 3), "part 1.0": (0, 3)})
    machine = Shard(own, ApplyOnArrival(own, restored=restored, acknowledged=acks))
    receive(machine, "coordinator", Heartbeat(1, clock=0.0))
    assert policy_of(machine).lost == 5
    said = Send("coordinator", LostPushes("part 0.0", 5))
    assert said in feed(machine, Tick()) and said not in feed(machine, Tick(), now=0.6)
    assert push(machine, "part 0.0", 4) == [], "of a process that was replaced before"


def test_pushes_that_a_checkpoint_did_not_hold_are_counted_and_reported() -> None:
    machine = shard(shard_incarnation=1, version=6, seen={"part 0.0": (0, 3), "part 1.0": (0, 1)})
    assert Send("coordinator", LostPushes("part 0.0", 2)) in push(machine, "part 0.0", 6)
    assert len(push(machine, "part 1.0", 2)) == 2
    assert policy_of(machine).lost == 2
    receive(machine, "coordinator", Save(1))
    assert Send("coordinator", LostPushes("part 1.0", 3)) in push(machine, "part 1.0", 6)
    assert feed(machine, Persisted(1, 8, "file", "hash")) == [
        Send("coordinator", Saved(1, 1, 8, "file", "hash", lost=2))  # as of the version in the file
    ]


def test_a_fetch_reports_what_was_acknowledged_so_that_every_loss_is_known() -> None:
    machine = shard(shard_incarnation=1, version=6, seen={"part 0.0": (0, 3)})
    assert receive(machine, "part 0.0", Fetch(9, acknowledged=7))[1:] == [
        Send("coordinator", LostPushes("part 0.0", 3))
    ]
    assert len(receive(machine, "part 0.0", Fetch(10, acknowledged=7))) == 1
    assert len(push(machine, "part 0.0", 6)) == 1  # a late copy of one that is counted as lost
    assert isinstance(push(machine, "part 0.0", 7)[0], ApplyGradient)
    assert policy_of(machine).lost == 3
    assert receive(machine, "part 1.1", Fetch(0, acknowledged=2), incarnation=1)[1:] == [
        Send("coordinator", LostPushes("part 1.1", 2))
    ]
    assert receive(machine, "part 1.1", Fetch(0, acknowledged=9), incarnation=0) == []


def test_a_fetch_is_answered_with_the_senders_range() -> None:
    machine = shard(version=5)
    assert receive(machine, "part 3.0", Fetch(7)) == [
        Send("part 3.0", Parameters(request=7, shard_incarnation=0, version=5), Span("x", 0, 3))
    ]


def test_an_answer_counts_the_pushes_of_its_receiver_that_the_values_hold() -> None:
    machine = shard()
    push(machine, "part 0.0", 0)
    push(machine, "part 1.0", 0)
    push(machine, "part 0.0", 1)
    for part, incarnation, acknowledged, held in [("0.0", 0, 1, 2), ("1.0", 0, 1, 1), ("0.0", 1, 3, 3)]:
        fetch = Fetch(0, acknowledged)  # the last one lost its acknowledged pushes with a checkpoint
        answer = receive(machine, f"part {part}", fetch, incarnation=incarnation)[0]
        assert isinstance(answer.message, Parameters)
        assert answer.message.pushes == held


def test_updates_are_counted_for_each_machines_range_and_go_on_from_a_checkpoint() -> None:
    own = ShardRanges("shard 0", 0, RANGES)
    machine = Shard(own, ApplyOnArrival(own, restored=RestoredState(2, 40)))
    receive(machine, "coordinator", Heartbeat(0, clock=0.0), now=0.0)
    for part, sequence, updates in [("part 0.0", 0, 40), ("part 5.0", 0, 41), ("part 0.1", 0, 40)]:
        apply = push(machine, part, sequence)[0]
        assert isinstance(apply, ApplyGradient) and apply.updates == updates
    assert len(push(machine, "part 0.0", 0)) == 1  # a repeat is no update
    for part, updates in [("part 0.0", 42), ("part 0.1", 41)]:
        (answer,) = receive(machine, part, Fetch(0))
        assert isinstance(answer, Send) and isinstance(answer.message, Parameters)
        assert answer.message.updates == updates
    (persist,) = receive(machine, "coordinator", Save(1))
    assert isinstance(persist, Persist) and persist.updates == 42


@pytest.mark.parametrize(
    ("sender", "message", "payload", "says"),
    [
        ("part 0.1", Push(0, 0, 0, 0), bytes(19), "has 20 bytes, not 19"),
        ("part 0.1", Push(0, 0, 0, 0), None, "has 20 bytes, not -1"),
        ("part 0.1", Push(1, 0, 0, 0), bytes(20), "its sender is incarnation 0"),
        ("part 0.1", Push(0, -1, 0, 0), bytes(20), "sequences count from 0"),
        ("part 0.2", Push(0, 0, 0, 0), bytes(20), "holds no parameters of 'part 0.2'"),
        ("shard 1", Fetch(0), None, "holds no parameters of 'shard 1'"),
        ("part 0.1\n", Fetch(0), None, "holds no parameters"),
        ("part 0.0", Fetch(0, 0, (PushRecord(0, 1),)), None, "incarnation 0 reports"),
        ("part 0.0", Save(0), None, "does not take a Save from it"),
        ("part 0.0", Finished(0), None, "does not take a Finished"),
    ],
)
def test_what_breaks_the_protocol_is_refused_and_changes_nothing(
    sender: str, message: Message, payload: object, says: str
) -> None:
    machine = shard()
    (effect,) = receive(machine, sender, message, payload)
    assert isinstance(effect, Refuse)
    assert effect.sender == sender
    assert says in effect.reason
    assert machine.version == 0
    assert policy_of(machine).seen == {}


def test_without_a_lease_nothing_is_applied_answered_or_written() -> None:
    machine = shard(leased=False)
    assert push(machine, "part 0.0", 0) == []
    assert receive(machine, "part 0.0", Fetch(0)) == []
    assert receive(machine, "coordinator", Save(0)) == []
    assert receive(machine, "coordinator", Heartbeat(0)) == []
    assert not machine.holds_lease(0.0)
    assert machine.version == 0


def test_what_comes_before_the_lease_waits_for_it_the_last_of_each_kind() -> None:
    machine = shard(leased=False)
    push(machine, "part 0.0", 0)
    for request in (3, 4):
        receive(machine, "part 0.0", Fetch(request))
    again = [effect.event for effect in receive(machine, "coordinator", Heartbeat(0, clock=0.0))]
    assert [event.message for event in again] == [Push(0, 0, 0, 0), Fetch(4)]
    assert receive(machine, "coordinator", Heartbeat(0, clock=0.0)) == []
    assert isinstance(feed(machine, again[0])[0], ApplyGradient)
    assert feed(machine, again[1], now=3.0) == [], "the lease has ended meanwhile: it waits for the next one"
    assert receive(machine, "coordinator", Heartbeat(0, clock=1.0), now=3.5) == [ReceiveAgain(again[1])]


def test_a_lease_runs_from_when_it_was_asked_for_not_from_when_the_answer_came() -> None:
    machine = shard(leased=False)
    feed(machine, Tick(), now=1.0)
    receive(
        machine, "coordinator", Heartbeat(0, clock=1.0), now=3.5
    )  # lay in a queue while the process was stopped
    assert machine.holds_lease(3.9)
    assert not machine.holds_lease(4.0)
    receive(machine, "coordinator", Heartbeat(0, clock=0.5), now=3.6)  # an older one that was overtaken
    assert machine.holds_lease(3.9)
    assert push(machine, "part 0.0", 0, now=4.0) == []
    receive(machine, "coordinator", Heartbeat(0, clock=99.0), now=4.0)  # no clock reading of this process
    assert not machine.holds_lease(4.0)


def test_a_newer_incarnation_fences_for_good() -> None:
    machine = shard(shard_incarnation=1)
    assert receive(machine, "coordinator", Heartbeat(0, clock=0.0)) == []
    assert [type(effect) for effect in receive(machine, "part 0.0", Heartbeat(2))] == [Refuse]
    assert receive(machine, "coordinator", Heartbeat(2)) == [Fenced(2)]
    assert receive(machine, "coordinator", Heartbeat(2)) == []
    receive(machine, "coordinator", Heartbeat(1, clock=0.0))
    assert push(machine, "part 0.0", 0) == []
    assert feed(machine, Tick(), now=9.0) == []


def test_a_checkpoint_remembers_what_is_applied_and_nothing_later() -> None:
    machine = shard()
    push(machine, "part 0.0", 0)
    (persist,) = receive(machine, "coordinator", Save(3))
    assert persist == Persist(
        3,
        incarnation=0,
        version=1,
        updates=1,
        seen={"part 0.0": (0, 0)},
        stops={"part 0.0": 0},
        units={(0, 3): (), (3, 8): ()},
        finite=True,
        updates_of={0: 1, 1: 0},
    )
    push(machine, "part 0.0", 1)
    assert isinstance(persist, Persist)
    assert persist.seen == {"part 0.0": (0, 0)}
    saved = Send("coordinator", Saved(3, 0, 1, "file", "hash"))
    assert feed(machine, Persisted(3, 1, "file", "hash")) == [saved]
    assert receive(machine, "coordinator", Save(3)) == [saved]
    assert receive(machine, "coordinator", Save(2)) == []


def test_a_file_that_was_under_way_when_it_was_fenced_is_not_spoken_of() -> None:
    machine = shard()
    receive(machine, "coordinator", Save(1))
    receive(machine, "coordinator", Save(2))
    receive(machine, "coordinator", Heartbeat(1))
    assert feed(machine, Persisted(1, 0, "file", "hash")) == []


def test_one_file_is_written_at_a_time_and_only_the_newest_waits() -> None:
    machine = shard()
    receive(machine, "coordinator", Save(1))
    for checkpoint in (1, 3, 2):
        assert receive(machine, "coordinator", Save(checkpoint)) == []
    effects = feed(machine, Persisted(1, 0, "file", "hash"))
    held = {(0, 3): (), (3, 8): ()}
    assert effects[-1] == Persist(3, 0, 0, units=held, finite=True, updates_of={0: 0, 1: 0})
    assert feed(machine, Persisted(3, 0, "file", "hash")) == [
        Send("coordinator", Saved(3, 0, 0, "file", "hash"))
    ]


@dataclass
class Client:
    """A part that sends one push at a time, and goes on when it is acknowledged."""

    incarnation: int = 0
    sequence: int = 0
    acknowledged: list[tuple[int, int]] = field(default_factory=list)

    @property
    def settled(self) -> tuple[PushRecord, ...]:
        """The pushes of each of its processes."""
        counts = Counter(incarnation for incarnation, _ in self.acknowledged)
        return tuple(PushRecord(n, counts[n]) for n in range(self.incarnation + 1))


@dataclass
class Checkpoint:
    version: int = 0
    lost: int = 0
    seen: dict[str, Watermark] = field(default_factory=dict)
    applied: Counter[tuple[str, int, int]] = field(default_factory=Counter)


@given(st.data())
def test_random_histories_apply_an_acknowledged_push_once_or_count_it_once(data: st.DataObject) -> None:
    """Repeats, late copies, deaths of parts, checkpoints, and restarts of the shard, in any order."""
    clients = {"part 0.0": Client(), "part 1.0": Client(), "part 0.1": Client()}
    sent: list[tuple[str, int, int]] = []
    kept = Checkpoint()
    applied: Counter[tuple[str, int, int]] = Counter()
    machine, shard_incarnation, lost = shard(), 0, 0
    for _ in range(data.draw(st.integers(1, 40), label="events")):
        action = data.draw(st.sampled_from(["push", "push", "push", "late copy", "part", "save", "restart"]))
        if action in ("push", "late copy"):
            name = data.draw(st.sampled_from(sorted(clients)))
            key = (name, clients[name].incarnation, clients[name].sequence)
            if action == "late copy" and sent:
                key = data.draw(st.sampled_from(sent))
            sent.append(key)
            for effect in push(
                machine, key[0], key[2], incarnation=key[1], shard_incarnation=shard_incarnation
            ):
                if isinstance(effect, ApplyGradient):
                    applied[key] += 1
                client = clients[key[0]]
                awaited = key[1:] == (client.incarnation, client.sequence)
                if awaited and isinstance(effect, Send) and isinstance(effect.message, PushAck):
                    assert applied[key] == 1
                    client.acknowledged.append(key[1:])
                    client.sequence += 1
        elif action == "part":
            client = clients[data.draw(st.sampled_from(sorted(clients)))]
            client.incarnation, client.sequence = client.incarnation + 1, 0
            name = next(name for name, one in clients.items() if one is client)
            receive(machine, name, Fetch(0, 0, client.settled[:-1]), incarnation=client.incarnation)
        elif action == "save":
            counted = lost + policy_of(machine).lost
            kept = Checkpoint(machine.version, counted, policy_of(machine).seen, applied.copy())
        else:
            shard_incarnation += 1
            lost, applied = kept.lost, kept.applied.copy()
            acks = {name: client.settled for name, client in clients.items()}
            machine = shard(
                shard_incarnation=shard_incarnation, version=kept.version, seen=kept.seen, acknowledged=acks
            )
        assert all(count == 1 for count in applied.values())
        assert machine.version == sum(applied.values())
    for name, client in clients.items():
        receive(machine, name, Fetch(1, client.sequence, client.settled[:-1]), incarnation=client.incarnation)
        after = push(
            machine,
            name,
            client.sequence,
            incarnation=client.incarnation,
            shard_incarnation=shard_incarnation,
        )
        assert any(isinstance(effect, ApplyGradient | Send) for effect in after)
    acknowledged_pushes = {(name, *key) for name, client in clients.items() for key in client.acknowledged}
    assert len(acknowledged_pushes - set(applied)) == lost + policy_of(machine).lost
