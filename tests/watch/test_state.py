"""The state of a run, folded from records."""

from __future__ import annotations

from functools import lru_cache

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.watch.curve import Curve, Point
from partita.engine.watch.records import (
    VERSION,
    Exchanges,
    Hosts,
    MalformedRecord,
    Memory,
    Record,
    RunBegan,
    decode,
    encode,
)
from partita.engine.watch.state import State
from tests.watch.invented import Invented, digits_plan, stream


@lru_cache
def _records() -> tuple[Record, ...]:
    return tuple(stream(digits_plan(), Invented(seconds=70.0)))


def _state(records: tuple[Record, ...]) -> State:
    state = State()
    for record in records:
        state.add(record)
    return state


def test_every_record_is_read_as_it_was_written() -> None:
    assert {type(record).__name__ for record in _records()} >= {"RunBegan", "SampledStep", "RunEnded"}
    for record in _records():
        assert decode(encode(record)) == record


def test_a_newer_version_is_refused_and_a_field_more_is_ignored() -> None:
    line = encode(_records()[0])
    assert b'"version":1' in line
    with pytest.raises(MalformedRecord, match="install a newer"):
        decode(line.replace(b'"version":1', b'"version":%d' % (VERSION + 1)))
    assert isinstance(decode(line.replace(b'"version":1', b'"version":1,"colour":"red"')), RunBegan)
    with pytest.raises(MalformedRecord, match="is no record"):
        decode(line[:40])


@given(st.integers(0, 10_000))
def test_any_prefix_of_a_stream_is_a_state(length: int) -> None:
    records = _records()[: length % (len(_records()) + 1)]
    state = _state(records)
    assert state.is_over == any(type(record).__name__ == "RunEnded" for record in records)
    assert state.phase in ("starting", "training", "complete")
    # Every question has an answer.
    assert state.step_s is None or state.step_s > 0
    assert all(count >= 0 for count in state.staleness_counts())
    assert sum(one.resident_bytes for one in state.unique_memory()) >= 0
    if state.run is not None:
        plan = {(link.source, link.destination): link.n_bytes for link in state.run.links}
        assert all(n_bytes == plan[link] for link, n_bytes in state.sent_per_step().items())


@given(st.randoms(use_true_random=False))
def test_the_order_of_hosts_does_not_matter(draw: object) -> None:
    def shuffled(record: Record) -> list[Record]:
        if not isinstance(record, Hosts | Exchanges | Memory):
            return [record]
        rows = list(record.hosts)
        draw.shuffle(rows)  # type: ignore[attr-defined]
        kind = type(record)
        return [kind(at_s=record.at_s, hosts=(row,)) for row in rows]  # type: ignore[arg-type]

    assert _state(tuple(one for record in _records() for one in shuffled(record))) == _state(_records())


@given(st.lists(st.floats(-1e9, 1e9), max_size=200), st.integers(2, 16))
def test_a_curve_keeps_a_bounded_number_of_points_in_order_and_the_last(
    values: list[float], most: int
) -> None:
    curve = Curve(most)
    given = [Point(float(n), n, value) for n, value in enumerate(values)]
    for point in given:
        curve.add(point)
    assert len(curve) <= most + 1
    assert [point.step for point in curve.points] == sorted({point.step for point in curve.points})
    assert set(curve.points) <= set(given)
    assert curve.points[:1] + curve.points[-1:] == given[:1] + given[-1:]
