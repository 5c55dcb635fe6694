"""Copies of named vectors: complete and right whatever is lost, and never more than a window ahead."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.protocol.events import Received, Refuse, Send, Span, Tick
from partita.engine.protocol.exchange import CopyChunk, CopySource, CopyTarget, ExchangeDone, Group, Member
from partita.engine.protocol.exchange import copy as module
from partita.engine.protocol.replica_messages import ChunkRequest, FinalChunk, PartialChunk
from tests.protocol.exchange.test_sums import SEEDS

SOURCE, TARGET = Member("part 0.0", 1), Member("part 1.0", 2)


def group(me: Member) -> Group:
    return Group((SOURCE, TARGET), me.name, view=4, exchange=9)


@pytest.fixture(autouse=True)
def _small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "CHUNK_BYTES", 8)


def spans_of(lengths: list[int]) -> list[Span]:
    return [Span(f"vector {n}", n, n + length) for n, length in enumerate(lengths)]


@given(
    lengths=st.lists(st.integers(0, 90), max_size=4),
    drop=st.sampled_from([0.0, 0.1, 0.5]),
    repeat=st.sampled_from([0.0, 0.2]),
    seed=SEEDS,
)
def test_every_vector_arrives(lengths: list[int], drop: float, repeat: float, seed: int) -> None:
    rng = random.Random(seed)
    spans = spans_of(lengths)
    source, target = CopySource(group(SOURCE), spans), CopyTarget(group(TARGET), SOURCE.name, spans)
    values = {span.vector: np.arange(span.stop, dtype=np.float32) + 1 for span in spans}
    copies = {name: np.zeros_like(vector) for name, vector in values.items()}
    flights: list[tuple[bool, Received]] = []
    ends = 0

    def act(effects: list[Any], *, of_source: bool) -> None:
        nonlocal ends
        for effect in effects:
            match effect:
                case Send(message=message, payload=span):
                    data = None if span is None else values[span.vector][span.start : span.stop].tobytes()
                    member = SOURCE if of_source else TARGET
                    flights.append((of_source, Received(member.name, member.incarnation, message, data)))
                case CopyChunk(span=span, payload=payload):
                    copies[span.vector][span.start : span.stop] = np.frombuffer(payload, np.float32)
                case ExchangeDone(exchange=9, number=0):
                    ends += 1
                case _:
                    raise AssertionError(effect)

    act(target.begin(0.0), of_source=False)
    now = 0.0
    for _ in range(10_000):
        if not target.under_way:
            break
        waiting = sum(of_source for of_source, _ in flights)
        assert waiting <= module.AHEAD * (1 if not drop and not repeat else 1000)
        if not flights:
            now += 40.0
            act(target.receive(Tick(), now), of_source=False)
            continue
        of_source, event = flights.pop(rng.randrange(len(flights)))
        if rng.random() < drop:
            continue
        if rng.random() < repeat:
            flights.append((of_source, event))
        if of_source:
            act(target.receive(event, now), of_source=False)
            target.validate()
        else:
            act(source.receive(event, now), of_source=True)
    assert not target.under_way
    assert ends == 1
    for span in spans:
        assert (copies[span.vector][span.start :] == values[span.vector][span.start :]).all()
        assert not copies[span.vector][: span.start].any()
    if not drop and not repeat:
        assert source.pieces_sent == sum(-(-length // 2) for length in lengths)


def started() -> CopyTarget:
    target = CopyTarget(group(TARGET), SOURCE.name, spans_of([4]))
    target.begin(0.0)
    return target


@pytest.mark.parametrize(
    ("sender", "incarnation", "message", "n_bytes", "reason"),
    [
        ("part 5.0", 1, FinalChunk(4, 9, 0, 0), 8, "it is no member of this exchange"),
        ("part 0.0", 0, FinalChunk(4, 9, 0, 0), 8, "incarnation 1 of it is a member of this exchange, not 0"),
        ("part 1.0", 2, FinalChunk(4, 9, 0, 0), 8, "'part 0.0' is the source of this copy"),
        ("part 0.0", 1, FinalChunk(4, 9, 0, 2), 8, "piece 2 of a copy of 2"),
        ("part 0.0", 1, FinalChunk(4, 9, 0, 1), 4, "piece 1 has 8 bytes, not 4"),
        ("part 0.0", 1, PartialChunk(4, 9, 0, 1), 8, "a copy does not take a PartialChunk"),
    ],
)
def test_pieces_out_of_place_are_refused(
    sender: str, incarnation: int, message: Any, n_bytes: int, reason: str
) -> None:
    event = Received(sender, incarnation, message, bytes(n_bytes))
    assert started().receive(event, 0.0) == [Refuse(sender, reason)]


@pytest.mark.parametrize("message", [FinalChunk(3, 9, 0, 0), FinalChunk(4, 8, 0, 0), FinalChunk(4, 9, 1, 0)])
def test_pieces_of_another_view_exchange_or_number_have_no_effect(message: FinalChunk) -> None:
    assert started().receive(Received(SOURCE.name, 1, message, bytes(8)), 0.0) == []


def test_a_source_answers_members_of_its_view_only() -> None:
    source = CopySource(group(SOURCE), spans_of([4]))
    ask = ChunkRequest(4, 9, 0, (), ((0, 1 << 40),))
    assert len(source.receive(Received(TARGET.name, 2, ask), 0.0)) == 2
    assert source.receive(Received(TARGET.name, 2, ChunkRequest(3, 9, 0, (), ((0, 2),))), 0.0) == []
    (refused,) = source.receive(Received(TARGET.name, 1, ask), 0.0)
    assert refused == Refuse(TARGET.name, "incarnation 2 of it is a member of this exchange, not 1")
    assert source.receive(Tick(), 0.0) == []
