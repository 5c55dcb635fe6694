"""Batches that are samples: progress, one evaluation for an iteration, and honest curvature pairs."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from partita.engine import LBFGS, GradientDescent, LineSearchMethod, NonlinearCG, Objective, Outcome
from partita.engine.methods import GRADIENT
from partita.engine.parameters import VectorStore
from partita.engine.protocol.commands import (
    POINT,
    Combine,
    Evaluate,
    Iterated,
    Request,
    Segment,
    Steps,
    evaluation_in,
)
from partita.engine.run.minimise import Summed, play
from tests.methods.problems import Array, Logistic, examples
from tests.methods.sampled import Portioned

L2 = 1e-2


def shuffled(name: str) -> Logistic:
    inputs, targets = examples(name)
    order = np.random.default_rng(0).permutation(len(inputs))
    return Logistic(inputs[order], targets[order])


def started(overlap: int = 2, batch: int = 6) -> tuple[Portioned, Objective, VectorStore]:
    data = Portioned(shuffled("breast_cancer"), 32)
    objective = Objective(data.portions, batch=batch, overlap=overlap, l2=L2)
    return data, objective, VectorStore(data.problem.start)


@pytest.mark.parametrize("method", [LBFGS(), NonlinearCG(), GradientDescent()])
@pytest.mark.parametrize(("overlap", "batch"), [(2, 6), (3, 6)])
def test_progress_on_all_the_data(method: LineSearchMethod, overlap: int, batch: int) -> None:
    """Near the minimum of the whole, which no batch knows, with hardly more than one evaluation a step."""
    data, objective, store = started(overlap, batch)
    function, lowest = data.problem.mean(L2), VectorStore(data.problem.start)
    play(LBFGS(gtol=1e-6).steps(Objective(data.portions, l2=L2)), lowest, data.evaluate)
    least, start = function(lowest.vector(POINT))[0], function(data.problem.start)[0]
    outcome, iterations = play(replace(method, max_iterations=60).steps(objective), store, data.evaluate)
    assert outcome == Outcome("stopped", "Stopped after 60 iterations, as max_iterations says.")
    assert function(store.vector(POINT))[0] - least < 0.1 * (start - least)
    assert iterations[-1].evaluations <= (200 if isinstance(method, NonlinearCG) else 100)


@pytest.mark.parametrize("method", [LBFGS(), NonlinearCG(), GradientDescent()])
def test_a_trial_that_is_accepted_at_once_is_one_request(method: LineSearchMethod) -> None:
    data, objective, store = started()
    asked = [0]

    def counted(steps: Steps) -> Steps:
        wish = next(steps)
        while True:
            if isinstance(wish, Iterated):
                asked.append(0)
            else:
                asked[-1] += 1
            try:
                wish = steps.send((yield wish))
            except StopIteration as end:
                outcome: Outcome = end.value
                return outcome

    play(counted(replace(method, max_iterations=20).steps(objective)), store, data.evaluate)
    assert len(asked) == 21
    assert min(asked[1:-1]) == 1


def test_gtol_ends_it_and_a_loss_that_stays_does_not() -> None:
    """Losses of batches say nothing of progress."""
    data, objective, store = started()
    loose = LBFGS(gtol=0.03, ftol=math.inf)
    outcome, iterations = play(loose.steps(objective), store, data.evaluate)
    assert outcome.kind == "converged" and "gtol" in outcome.reason
    assert len(iterations) > 2


def test_a_search_that_finds_nothing_goes_on_from_where_it_was_with_the_next_batch() -> None:
    """Losses that rise with every evaluation, as no step can help."""
    data, objective, store = started()
    seen: list[Segment] = []

    def rising(x: Array, segment: Segment) -> Summed:
        seen.append(segment)
        _, right, gradient = data.evaluate(x, segment)
        return 1e9 * len(seen), right, gradient

    outcome, iterations = play(LBFGS(max_evaluations=3).steps(objective), store, rising)
    assert outcome.kind == "failed" and iterations == ()
    np.testing.assert_array_equal(store.vector(POINT), data.problem.start)
    assert seen[-3:] == list(_segments(objective, 1))


def test_a_point_with_a_nonfinite_loss_is_not_accepted() -> None:
    """Though the examples that both batches share have one."""
    data, objective, store = started()
    steep = 0.3

    def walled(x: Array, segment: Segment) -> Summed:
        loss, right, gradient = data.evaluate(x, segment)
        return (math.nan if segment.vector == GRADIENT and np.abs(x).max() > steep else loss), right, gradient

    _, iterations = play(LBFGS(max_iterations=20).steps(objective), store, walled)
    assert all(math.isfinite(step.loss) for step in iterations)
    assert 0 < np.abs(store.vector(POINT)).max() <= steep


def test_a_pair_is_of_the_portions_that_both_batches_share() -> None:
    data, objective, store = started()
    pairs = 0
    steps = LBFGS(max_iterations=25).steps(objective)
    request = next(steps)
    at = store.vector(POINT).copy()
    last: Request = ()
    try:
        while True:
            if isinstance(request, Iterated):
                before, at = at, store.vector(POINT).copy()
                move, change = (op.to for op in last if isinstance(op, Combine) and op.to[0] in "sy")
                np.testing.assert_array_equal(store.vector(move), at - before)
                evaluate = evaluation_in(last)
                assert evaluate is not None
                expected = difference(data, at, before, evaluate.segments[0])
                np.testing.assert_allclose(store.vector(change), expected, rtol=1e-8, atol=1e-10)
                pairs += 1
                request = steps.send(())
                continue
            last, scalars = request, []
            for operation in request:
                if isinstance(operation, Evaluate):
                    for segment in operation.segments:
                        loss, right, gradient = data.evaluate(store.vector(POINT), segment)
                        store.target(segment.vector)[...] = gradient
                        scalars += (loss, right)
                else:
                    scalars += store.execute(operation)
            request = steps.send(tuple(scalars))
    except StopIteration:
        pass
    assert pairs == 25


def difference(data: Portioned, at: Array, before: Array, shared: Segment) -> Array:
    """Change of the gradient of the shared examples."""
    return data.mean(at, shared, l2=L2)[1] - data.mean(before, shared, l2=L2)[1]


def _segments(objective: Objective, number: int) -> tuple[Segment, ...]:
    evaluate = evaluation_in(objective.evaluation(number))
    assert evaluate is not None
    return evaluate.segments
