"""Requests of an evaluation, and the meaning of its scalars and vectors."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import Objective
from partita.engine.methods import GRADIENT
from partita.engine.parameters import VectorStore
from partita.engine.protocol.commands import Evaluate, Portions, evaluation_in, n_scalars
from tests.methods.problems import Array, Logistic
from tests.methods.sampled import Portioned


@st.composite
def objectives(draw: st.DrawFn) -> Objective:
    portions = Portions(draw(st.integers(1, 40)), draw(st.integers(1, 12)))
    batch = draw(st.none() | st.integers(1, portions.per_epoch))
    overlap = 0 if batch is None else draw(st.integers(1, max(1, batch // 2)))
    if batch == 1 and portions.per_epoch > 1:
        batch = None
    return Objective(portions, batch=batch, overlap=overlap, l2=draw(st.sampled_from([0.0, 0.3])))


@given(objective=objectives(), number=st.integers(0, 9), seed=st.integers(0, 99))
def test_sums_become_means(objective: Objective, number: int, seed: int) -> None:
    """Gradients are means over the batch and over its shared portions; the padding counts for nothing."""
    rng = np.random.default_rng(seed)
    n = objective.portions.examples
    problem = Logistic(rng.normal(size=(n, 3)), np.eye(2)[rng.integers(0, 2, n)])
    data, x = Portioned(problem, objective.portions.size), rng.normal(size=8)
    store, scalars = evaluated(objective, number, x, data)
    value = objective.value(number, scalars)
    segments = segments_of(objective, number)
    for loss, vector, part in (
        (value.loss, GRADIENT, segments),
        (value.head, objective.head, segments[:1]),
        (value.tail, objective.tail, segments[-1:]),
    ):
        expected, gradient = data.mean(x, *part, l2=objective.l2)
        assert loss == pytest.approx(expected, rel=1e-12)
        np.testing.assert_allclose(store.vector(vector), gradient, rtol=1e-9, atol=1e-12)
    assert value.largest == np.abs(store.vector(GRADIENT)).max()
    assert value.finite


def evaluated(
    objective: Objective, number: int, x: Array, data: Portioned
) -> tuple[VectorStore, tuple[float, ...]]:
    store = VectorStore(x)
    scalars: list[float] = []
    for operation in objective.evaluation(number):
        if not isinstance(operation, Evaluate):
            scalars += store.execute(operation)
            continue
        for segment in operation.segments:
            loss, right, gradient = data.evaluate(x, segment)
            store.target(segment.vector)[...] = gradient
            scalars += (loss, right)
    assert len(scalars) == sum(map(n_scalars, objective.evaluation(number)))
    return store, tuple(scalars)


def segments_of(objective: Objective, number: int) -> tuple[Any, ...]:
    evaluate = evaluation_in(objective.evaluation(number))
    assert evaluate is not None
    return evaluate.segments


@given(objective=objectives(), number=st.integers(0, 50))
def test_batches_follow_each_other_and_share_portions(objective: Objective, number: int) -> None:
    now, later = segments_of(objective, number), segments_of(objective, number + 1)
    ids = [n for segment in now for n in range(segment.first, segment.first + segment.count)]
    if not objective.sampled:
        assert now == later
        assert ids == list(range(objective.portions.per_epoch))
        return
    assert ids == list(range(ids[0], ids[0] + len(ids)))
    assert len(ids) == objective.batch
    assert (now[-1].first, now[-1].count) == (later[0].first, later[0].count)
    assert now[-1].count == objective.overlap
    if number == 0:
        assert ids[0] == 0


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (
            {"batch": 5},
            "a batch of 5 portions cannot be taken from data of 4; use 1 to 4, or None for all of it",
        ),
        ({"batch": 0}, "a batch of 0 portions cannot be taken from data of 4"),
        (
            {"batch": 3, "overlap": 2},
            "batches of 3 portions cannot share 2 with the next; they share at least 1",
        ),
        ({"batch": 3}, "batches of 3 portions cannot share 0 with the next"),
        ({"l2": -0.1}, "l2 is -0.1; it must not be below 0"),
        ({"l2": float("nan")}, "l2 is nan; it must not be below 0"),
    ],
)
def test_impossible_objectives_are_refused(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Objective(Portions(examples=100, size=25), **settings)


def test_no_examples_are_refused() -> None:
    with pytest.raises(ValueError, match="there are no examples"):
        Objective(Portions(examples=0, size=25))
