"""The policy that merges pushes: quorum, grace, weights, and processes that begin again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol import ShardRanges
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.merge_on_quorum import MergeOnQuorum
from partita.engine.protocol.merging import Merging, UnitSizes
from partita.engine.protocol.messages import Fetch, Parameters, Push, PushAck
from partita.engine.protocol.shard_effects import ApplyGradient, ShardEffect


@dataclass(frozen=True)
class Numbers:
    n_bytes: int = 16


class Shard:
    """A policy, and the parts that push to it."""

    def __init__(self, merging: Merging, *, parts: int = 3, batch: int = 1) -> None:
        own = ShardRanges("shard 0", 0, {0: (0, 4)})
        self.policy = MergeOnQuorum(own, merging=merging, sizes=UnitSizes(10**6, batch))
        self.sequences = dict.fromkeys(range(parts), 0)
        self.units = 0
        for part in range(parts):
            self.fetch(part)

    def _give(self, part: int, message: Any, incarnation: int) -> list[ShardEffect]:
        payload = Numbers() if isinstance(message, Push) else None
        effects = self.policy.receive(Received(f"part {part}.0", incarnation, message, payload))
        self.policy.validate()
        return effects

    def fetch(self, part: int, *, incarnation: int = 0) -> list[ShardEffect]:
        return self._give(part, Fetch(0, 0, ()), incarnation)

    def push(self, part: int, *, at: float = 0.0, units: int = 1, incarnation: int = 0) -> list[ShardEffect]:
        self.policy.now = at
        of = (self.units, self.units + units)
        self.units += units
        sequence = self.sequences[part]
        self.sequences[part] += 1
        return self._give(part, Push(incarnation, sequence, 0, 0, 0, (of,)), incarnation)

    def tick(self, at: float) -> list[ShardEffect]:
        self.policy.now = at
        effects = self.policy.tick(leased=True)
        self.policy.validate()
        return effects


def merged(effects: list[ShardEffect]) -> list[tuple[str, float]]:
    """The parts of one merge, and their weights."""
    found = [effect for effect in effects if isinstance(effect, ApplyGradient)]
    assert [one.more for one in found] == [True] * (len(found) - 1) + [False] * bool(found)
    return [(one.stream, one.weight or 0.0) for one in found]


def acknowledged(effects: list[ShardEffect]) -> list[str]:
    return [one.to for one in effects if isinstance(one, Send) and isinstance(one.message, PushAck)]


def test_a_push_waits_for_those_that_took_part_before_and_no_longer_than_grace() -> None:
    shard = Shard(Merging(grace=0.5))
    assert shard.push(0) == shard.push(1) == []
    first = shard.push(2, at=0.25)  # everybody is here
    assert [part for part, _ in merged(first)] == ["part 0.0", "part 1.0", "part 2.0"]
    assert acknowledged(first) == ["part 0.0", "part 1.0", "part 2.0"]
    assert {one.message.version for one in first if isinstance(one, Send)} == {3}
    assert shard.push(0, at=1.25) == []
    assert shard.push(1, at=1.5) == []
    assert shard.tick(1.9) == []
    assert len(merged(shard.tick(1.91))) == 2  # after half of the time from one push of a part to its next
    assert shard.push(0, at=2.0) == []
    assert len(merged(shard.push(1, at=2.1))) == 0  # part 2 was missing once
    assert len(merged(shard.tick(3.0))) == 2
    shard.push(0, at=3.5)
    assert len(merged(shard.push(1, at=3.6))) == 2, "part 2 was missing twice: it is not waited for"
    assert shard.push(2, at=3.7) == [], "it comes back, and the others are waited for"


def test_parts_that_are_merged_alone_do_not_shorten_grace() -> None:
    """Else merges with fewer parts would be more of them, whose grace is shorter again."""
    shard, sizes = Shard(Merging(grace=0.5), parts=5), list[int]()
    for tenth in range(300):
        if tenth % 2 == 0:  # each part every second, and a fifth of it after the one before
            sizes.append(len(merged(shard.push(tenth // 2 % 5, at=tenth / 10))))
        sizes.append(len(merged(shard.tick(tenth / 10 + 0.05))))
    later = [n for n in sizes[100:] if n]
    assert min(later) >= 3, later


def test_a_quorum_comes_before_grace_and_patience_ends_it() -> None:
    shard = Shard(Merging(quorum=2, grace=0.0, patience_s=3.0))
    assert shard.push(0, at=1.0) == []
    assert shard.tick(2.9) == []
    assert merged(shard.push(1, at=2.9)) == [("part 0.0", 0.5), ("part 1.0", 0.5)]
    assert shard.push(2, at=3.0) == []
    assert shard.tick(5.9) == []
    assert merged(shard.tick(6.0)) == [("part 2.0", 1.0)]


def test_a_quorum_is_of_those_that_still_come() -> None:
    shard = Shard(Merging(quorum=2, grace=0.0, patience_s=3.0), parts=2)
    for second in (0.0, 10.0):
        assert shard.push(0, at=second) == []
        assert shard.tick(second + 9.9 + second / 5) != []  # without part 1
    assert merged(shard.push(0, at=30.0)) == [("part 0.0", 1.0)]


def test_weights_are_by_examples() -> None:
    shard = Shard(Merging(quorum=2, grace=0.0), parts=2, batch=3)
    shard.push(0, units=1)
    assert merged(shard.push(1, units=3)) == [("part 0.0", 0.25), ("part 1.0", 0.75)]


@given(
    examples=st.integers(1, 50), batch=st.integers(1, 9), start=st.integers(0, 60), size=st.integers(1, 20)
)
def test_unit_sizes_count_a_short_last_unit(examples: int, batch: int, start: int, size: int) -> None:
    per_epoch = -(-examples // batch)
    expected = sum(min(batch, examples - unit % per_epoch * batch) for unit in range(start, start + size))
    assert UnitSizes(examples, batch).of(((start, start + size),)) == expected


@pytest.mark.parametrize("quorum", [1, 3])
def test_a_new_process_gets_what_its_push_has_come_to(quorum: int) -> None:
    """With a quorum the push is merged at once; without one it is dropped, and its steps are done again."""
    shard = Shard(Merging(quorum=quorum, grace=1.0))
    shard.push(1)
    effects = shard.fetch(1, incarnation=1)
    (answer,) = (
        one.message for one in effects if isinstance(one, Send) and isinstance(one.message, Parameters)
    )
    assert [part for part, _ in merged(effects)] == ["part 1.0"] * (quorum == 1)
    assert answer.version == (quorum == 1)
    assert (answer.earlier is not None and answer.earlier.pushes == 1) == (quorum == 1)
    shard.sequences[1] = 0
    shard.push(0, at=1.0)
    shard.push(1, at=1.0, incarnation=1)
    assert len(merged(shard.push(2, at=1.0))) == 3


def test_each_event_brings_one_merge_of_what_has_waited_longest() -> None:
    """The updates of all fragments in a row may take longer than the lease under which they begin."""
    own = ShardRanges("shard 0", 0, {0: (0, 4), 1: (4, 8), 3: (8, 12)}, machines=2)
    policy = MergeOnQuorum(own, merging=Merging(quorum=2, patience_s=2.0), sizes=UnitSizes(10**6, 1))
    for at, part, fragment in ((0.2, "part 0.1", 0), (0.1, "part 0.0", 0), (0.3, "part 0.1", 1)):
        for replica in (0, 1):
            other = f"part {replica}{part[6:]}"
            assert len(policy.receive(Received(other, 0, Fetch(0, fragment=fragment)))) == 1
        policy.now = at
        push = Push(0, 0, 0, 0, 0, ((0, 1),), fragment=fragment)
        assert policy.receive(Received(part, 0, push, Numbers())) == []
    policy.now, streams = 9.0, list[str]()
    for _ in range(3):
        effects = policy.tick(leased=True)
        assert len(merged(effects)) == 1
        streams += [stream for stream, _ in merged(effects)]
        policy.validate()
    assert streams == ["part 0.0", "part 0.1", "part 0.1 fragment 1"]
    assert policy.tick(leased=True) == []


def test_a_repeated_push_waits_once() -> None:
    shard = Shard(Merging(quorum=2, grace=0.0), parts=2)
    shard.push(0)
    shard.sequences[0] = 0
    assert shard.push(0) == []
    assert len(merged(shard.push(1))) == 2
    shard.sequences[0] = 0
    assert acknowledged(shard.push(0)) == ["part 0.0"]
