"""A shard's storage behind its protocol: what pushes do to it is what a naive sum does."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import (
    LARS,
    SGD,
    Adagrad,
    Adam,
    InverseTime,
    Optimizer,
    Snapshot,
    Storage,
    Vector,
)
from partita.engine.parameters.storage import NotFinite
from partita.engine.protocol.events import Persist, Received, Send, Span
from partita.engine.protocol.membership import HeartbeatPolicy
from partita.engine.protocol.messages import Heartbeat, Push, Save
from partita.engine.protocol.parameter_shard import ApplyGradient, ParameterShard, RestoredState, Watermark


class Payload(NamedTuple):
    """A payload whose size the protocol sees, and whose numbers only the interpreter reads."""

    numbers: Vector

    @property
    def n_bytes(self) -> int:
        return self.numbers.nbytes


SPAN = Span("values", 2, 5)
RANGES = {0: (0, 3), 1: (3, 8)}


def storage(optimizer: Optimizer | None = None, n: int = 8, dtype: type = np.float64) -> Storage:
    return Storage(optimizer or SGD(0.5), np.zeros(n, dtype))


def test_a_span_is_updated_and_nothing_else() -> None:
    held = storage(Adagrad(0.5))
    held.apply(SPAN, np.array([1.0, -2.0, 0.0]), 0)
    assert held.read(Span("values", 0, 8)) == pytest.approx([0, 0, -0.5, 0.5, 0, 0, 0, 0])
    assert held.snapshot().state["sum"].tolist() == [0, 0, 1, 4, 0, 0, 0, 0]


def test_what_is_read_or_kept_is_not_changed_by_later_updates() -> None:
    held = storage(Adagrad(0.5))
    read, kept = held.read(SPAN), held.snapshot()
    held.apply(SPAN, np.ones(3), 0)
    assert not read.any()
    assert not kept.values.any()
    assert not kept.state["sum"].any()


def test_a_snapshot_restores_it() -> None:
    first = storage(Adagrad(0.5))
    first.apply(SPAN, np.ones(3), 0)
    kept = first.snapshot()
    second = Storage(first.optimizer, kept.values, kept.state)
    for held in (first, second):
        held.apply(SPAN, np.ones(3), 0)
    assert np.array_equal(first.snapshot().values, second.snapshot().values)


@pytest.mark.parametrize(
    ("span", "gradient", "says"),
    [
        (SPAN, np.ones(4), "must be float64"),
        (SPAN, np.ones(3, np.float32), "must be float64"),
        (SPAN, np.ones((3, 1)), "must be float64"),
        (Span("values", 6, 9), np.ones(3), "no range of a shard's 8 values"),
        (Span("values", -1, 2), np.ones(3), "no range"),
        (Span("staged", 2, 5), np.ones(3), "no range"),
    ],
)
def test_what_does_not_fit_is_refused_and_changes_nothing(span: Span, gradient: Vector, says: str) -> None:
    held = storage()
    with pytest.raises(ValueError, match=says):
        held.apply(span, gradient, 0)
    assert not held.snapshot().values.any()


@pytest.mark.parametrize("state", [{}, {"sum": np.zeros(7)}, {"sum": np.zeros(8), "more": np.zeros(8)}])
def test_the_state_of_another_optimizer_is_refused(state: dict[str, Vector]) -> None:
    with pytest.raises(ValueError, match="continue with the optimizer"):
        Storage(Adagrad(0.5), np.zeros(8), state)


def test_only_float_vectors_are_values() -> None:
    with pytest.raises(ValueError, match="use a float32 or float64 vector"):
        Storage(SGD(0.5), np.zeros(3, np.float16))


def test_the_rate_is_that_of_the_updates_before() -> None:
    held = storage(SGD(InverseTime(1.0, 1)))
    for updates in (0, 1, 3):
        held.apply(SPAN, np.ones(3), updates)
    assert held.read(SPAN) == pytest.approx([-1 - 1 / 2 - 1 / 4] * 3)


@pytest.mark.parametrize("optimizer", [SGD(0.5, clip_norm=1e-3), LARS(0.5)])
def test_a_shard_does_not_clip_again(optimizer: Optimizer) -> None:
    held = storage(optimizer)
    held.apply(SPAN, np.full(3, 8.0), 0)
    assert held.read(SPAN) == pytest.approx([-4.0] * 3)


@pytest.mark.parametrize("bad", [np.nan, np.inf])
@pytest.mark.parametrize("optimizer", [SGD(0.5), Adagrad(0.5), Adam(0.5)], ids=str)
def test_a_nonfinite_push_is_reported_and_never_stored(optimizer: Optimizer, bad: float) -> None:
    held = storage(optimizer)
    held.snapshot().check_finite()
    with pytest.raises(NotFinite, match=r"a push to its values \[2:5\] is not finite; lower the"):
        held.apply(SPAN, np.array([1.0, bad, 1.0]), 0)
    with pytest.raises(NotFinite, match="its parameters are not finite; lower the learning rate"):
        held.snapshot().check_finite()


def test_a_nonfinite_state_is_not_stored() -> None:
    held = storage(Adagrad(0.5), dtype=np.float32)
    held.apply(SPAN, np.full(3, 1e30, np.float32), 0)
    with pytest.raises(NotFinite, match="its 'sum' of the optimizer are not finite"):
        held.snapshot().check_finite()


def machine_of(
    incarnation: int, version: int, seen: dict[str, Watermark], updates: int = 0
) -> ParameterShard:
    machine = ParameterShard(
        "shard 0",
        incarnation=incarnation,
        ranges=RANGES,
        restored=RestoredState(version, updates, seen),
        item_bytes=8,
        heartbeats=HeartbeatPolicy(1.0, 2.0, 2e9),
    )
    machine.receive(Received("coordinator", 0, Heartbeat(incarnation, clock=0.0)), 0.0)
    return machine


@given(st.data())
def test_any_history_of_pushes_is_the_sum_of_what_was_applied_in_order(data: st.DataObject) -> None:
    """Repeats, reorderings and restarts from a checkpoint, against a list of the gradients that count."""
    optimizer = Adagrad(InverseTime(0.5, 3))
    held = storage(optimizer)
    machine, incarnation = machine_of(0, 0, {}), 0
    had = dict.fromkeys(RANGES, 0)  # updates of each machine's range
    kept: tuple[Snapshot, int, dict[str, Watermark], int, int] = (held.snapshot(), 0, {}, 0, 0)
    counted: list[tuple[Span, Vector, int]] = []
    parts = ["part 0.0", "part 0.1", "part 1.1"]
    for _ in range(data.draw(st.integers(0, 30))):
        action = data.draw(st.sampled_from(["push", "push", "push", "save", "restart"]))
        if action == "push":
            part = data.draw(st.sampled_from(parts))
            sequence = data.draw(st.integers(0, 8))
            owner = int(part[-1])
            start, stop = RANGES[owner]
            gradient = np.random.default_rng([sequence, parts.index(part)]).standard_normal(stop - start)
            is_new = sequence > machine.seen.get(part, (0, -1))[1]
            effects = machine.receive(
                Received(part, 0, Push(0, sequence, incarnation, 0), Payload(gradient)), 0.0
            )
            for effect in effects:
                if isinstance(effect, ApplyGradient):
                    assert isinstance(effect.payload, Payload)
                    held.apply(effect.span, effect.payload.numbers, effect.updates)
            assert any(isinstance(effect, Send) for effect in effects)
            if is_new:
                counted.append((Span("values", start, stop), gradient, had[owner]))
                had[owner] += 1
        elif action == "save":
            (persist,) = machine.receive(Received("coordinator", 0, Save(len(counted))), 0.0) or [None]
            if isinstance(persist, Persist):
                assert persist.updates == max(had.values())
                kept = (held.snapshot(), persist.version, dict(persist.seen), persist.updates, len(counted))
        else:
            incarnation += 1
            snapshot, version, seen, updates, n_counted = kept
            machine, had = machine_of(incarnation, version, seen, updates), dict.fromkeys(RANGES, updates)
            held = Storage(optimizer, snapshot.values, snapshot.state)
            del counted[n_counted:]
        machine.validate()
    naive = storage(optimizer)
    for span, gradient, updates in counted:
        naive.apply(span, gradient, updates)
    assert machine.version == len(counted)
    assert np.array_equal(held.snapshot().values, naive.snapshot().values)
    assert np.array_equal(held.snapshot().state["sum"], naive.snapshot().state["sum"])
