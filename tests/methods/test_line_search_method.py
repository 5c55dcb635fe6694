"""The loop that methods with a line search share: what it asks for, how it ends, what it leaves in `x`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import (
    LBFGS,
    Direction,
    DirectionGenerator,
    GradientDescent,
    LineSearchMethod,
    Method,
    NonlinearCG,
    Objective,
    Outcome,
    minimise,
)
from partita.engine.methods import GRADIENT
from partita.engine.parameters import VectorStore
from partita.engine.protocol.commands import (
    POINT,
    Combine,
    Dots,
    Evaluate,
    Iterated,
    Portions,
    Request,
    Scalars,
    Steps,
    axpy,
    evaluation_in,
)
from partita.engine.protocol.recovery import still_needed
from partita.layers.text import counted
from tests.methods.problems import Array, Function, quadratic, rosenbrock

METHODS = (LBFGS(), LBFGS(history=1), NonlinearCG(), GradientDescent())
ALONE = Objective(Portions(1, 1))


@dataclass
class Played:
    """All requests of a method, and their answers."""

    outcome: Outcome
    wishes: list[Request | Iterated]
    answers: list[Scalars]
    x: Array


def played(method: Method, function: Function, start: Array, objective: Objective = ALONE) -> Played:
    store, steps = VectorStore(start.astype(np.float64)), method.steps(objective)
    wishes: list[Request | Iterated] = []
    answers: list[Scalars] = []
    try:
        wish = next(steps)
        while True:
            wishes.append(wish)
            answers.append(() if isinstance(wish, Iterated) else answered(wish, store, function))
            wish = steps.send(answers[-1])
    except StopIteration as end:
        return Played(end.value, wishes, answers, store.vector(POINT).copy())


def answered(request: Request, store: VectorStore, function: Function) -> Scalars:
    scalars: list[float] = []
    for operation in request:
        if isinstance(operation, Evaluate):
            value, gradient = function(store.vector(POINT).copy())
            store.target(operation.segments[0].vector)[...] = gradient
            scalars += (value, 0.0)
        else:
            scalars += store.execute(operation)
    return tuple(scalars)


def between_iterations(wishes: Sequence[Request | Iterated]) -> list[list[Request]]:
    """The requests of each iteration."""
    found: list[list[Request]] = [[]]
    for wish in wishes:
        if isinstance(wish, Iterated):
            found.append([])
        else:
            found[-1].append(wish)
    return found[:-1]


@pytest.mark.parametrize("method", [LBFGS(), NonlinearCG(), GradientDescent()])
def test_one_request_for_an_iteration_whose_first_trial_is_accepted(method: Method) -> None:
    """Each further trial takes one more request."""
    function, start, _ = quadratic(20, 1e2)
    iterations = between_iterations(played(method, function, start).wishes)[1:]
    trials = [sum(evaluation_in(request) is not None for request in requests) for requests in iterations]
    assert min(trials) == 1
    assert [len(requests) for requests in iterations] == trials


@pytest.mark.parametrize("method", METHODS)
def test_in_the_middle_of_a_search_no_evaluation_is_done_again(method: Method) -> None:
    """A run is resumed from a checkpoint before any request of an iteration, at any later one of it."""
    function, start, _ = quadratic(20, 1e2)

    def walled(x: Array) -> tuple[float, Array]:
        return function(x) if np.abs(x).max() < 0.3 else (math.nan, np.full_like(x, math.nan))

    iterations = between_iterations(played(method, walled, start).wishes)[1:]
    assert max(map(len, iterations)) > 2
    for requests in iterations:
        for now, following in enumerate(requests):
            for held in range(now):
                again = still_needed(requests[held:now], following)
                assert not any(map(evaluation_in, again)), (held, now)


@pytest.mark.parametrize("method", METHODS)
def test_a_replay_asks_for_the_same(method: Method) -> None:
    """Up to any place, as after a death in the middle of a line search."""
    first = played(method, rosenbrock, np.array([-1.2, 1.0]))
    steps = method.steps(ALONE)
    assert next(steps) == first.wishes[0]
    for scalars, wish in zip(first.answers, first.wishes[1:], strict=False):
        assert steps.send(scalars) == wish
    with pytest.raises(StopIteration) as end:
        steps.send(first.answers[-1])
    assert end.value.value == first.outcome


@given(seed=st.integers(0, 1000), most=st.integers(1, 12), method=st.sampled_from(METHODS))
def test_never_more_iterations_than_allowed(seed: int, most: int, method: LineSearchMethod) -> None:
    start = np.random.default_rng(seed).uniform(-2, 2, 6)
    method = replace(method, max_iterations=most, gtol=0.0, ftol=0.0)
    found = minimise(rosenbrock, start, method)
    assert [step.iteration for step in found.iterations] == list(range(1, most + 1))
    assert found.outcome == Outcome(
        "stopped", f"Stopped after {counted(most, 'iteration')}, as max_iterations says."
    )
    assert found.loss == found.iterations[-1].loss == rosenbrock(found.x)[0]
    assert found.iterations[-1].gradient_norm == np.abs(rosenbrock(found.x)[1]).max()
    losses = [step.loss for step in found.iterations]
    assert losses == sorted(losses, reverse=True)


@given(l2=st.floats(0, 10), seed=st.integers(0, 1000), method=st.sampled_from(METHODS))
def test_the_penalty_is_part_of_the_function(l2: float, seed: int, method: Method) -> None:
    """A quadratic function with l2 has its minimum elsewhere."""
    rng = np.random.default_rng(seed)
    middle, start = rng.normal(size=(2, 4))
    found = minimise(lambda x: (0.5 * float((x - middle) @ (x - middle)), x - middle), start, method, l2=l2)
    np.testing.assert_allclose(found.x, middle / (1 + l2), atol=1e-3)
    expected = 0.5 * float((found.x - middle) @ (found.x - middle)) + l2 / 2 * float(found.x @ found.x)
    assert found.loss == pytest.approx(expected, rel=1e-9, abs=1e-12)


def test_at_the_minimum_nothing_is_done() -> None:
    found = minimise(rosenbrock, np.ones(4))
    assert found.iterations == () and found.evaluations == 1
    assert found.outcome.kind == "converged" and "gtol" in found.outcome.reason
    np.testing.assert_array_equal(found.x, np.ones(4))


@pytest.mark.parametrize("bad", [math.nan, math.inf])
def test_a_start_without_a_number_fails(bad: float) -> None:
    found = minimise(lambda x: (bad, x), np.array([1.0, 2.0]))
    assert found.outcome == Outcome(
        "failed", f"The loss at the start is {bad}, or its gradient is not finite; begin from another point."
    )
    np.testing.assert_array_equal(found.x, [1.0, 2.0])


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("nothing", [math.nan, math.inf])
def test_nonfinite_points_are_avoided(method: Method, nothing: float) -> None:
    """x - log(x), from far on the right, with steps that go beyond 0."""

    def function(x: Array) -> tuple[float, Array]:
        if x.min() <= 0:
            return nothing, np.full_like(x, nothing)
        return float((20 * x - np.log(x)).sum()), 20 - 1 / x

    found = minimise(function, np.array([0.3, 0.8]), method)
    assert found.outcome.kind == "converged"
    np.testing.assert_allclose(found.x, 1 / 20, rtol=1e-4)


@pytest.mark.parametrize("method", METHODS)
def test_a_function_without_a_minimum(method: Method) -> None:
    found = minimise(lambda x: (float(-x.sum()), -np.ones_like(x)), np.zeros(3), method)
    assert found.outcome.kind == "stopped"
    assert "seems to have no minimum" in found.outcome.reason
    assert found.loss == -found.x.sum() < -1e9


@pytest.mark.parametrize("method", METHODS)
def test_rounding_in_the_losses_ends_with_a_sentence_and_the_best_point(method: Method) -> None:
    """Losses with three digits, tolerances that cannot be met."""
    function, start, minimum = quadratic(10, 10.0)

    def rough(x: Array) -> tuple[float, Array]:
        value, gradient = function(x)
        return round(value, 3), gradient

    found = minimise(rough, start, replace(method, gtol=0.0, ftol=0.0))
    assert found.outcome.kind in ("stopped", "converged")
    assert found.outcome.reason.endswith(".")
    assert found.loss == rough(found.x)[0] == min(step.loss for step in found.iterations)
    assert found.loss <= function(minimum)[0] + 5e-3
    assert found.evaluations < 200


@pytest.mark.parametrize("method", METHODS)
def test_a_jump_does_not_make_the_search_ascend(method: Method) -> None:
    """Down to a cliff at 1, behind which everything is higher."""

    def function(x: Array) -> tuple[float, Array]:
        return float((x - 2) @ (x - 2)) + 100 * float(x[0] > 1), 2 * (x - 2)

    found = minimise(function, np.zeros(2), method)
    assert found.outcome.kind in ("stopped", "converged")
    assert found.x[0] <= 1
    assert found.loss == function(found.x)[0] <= function(np.zeros(2))[0]


def test_a_wrong_gradient_is_reported() -> None:
    found = minimise(lambda x: (float(x @ x), -2 * x), np.array([1.0, -2.0]))
    assert found.outcome.kind == "failed"
    assert "or the gradient is not the loss's" in found.outcome.reason
    np.testing.assert_array_equal(found.x, [1.0, -2.0])


def test_float32_losses_converge_as_far_as_they_can_tell() -> None:
    function, start, minimum = quadratic(20, 1e2)

    def narrow(x: Array) -> tuple[float, Array]:
        value, gradient = function(x.astype(np.float64))
        return float(np.float32(value)), gradient.astype(np.float32)

    found = minimise(narrow, start.astype(np.float32), LBFGS(gtol=1e-9))
    assert found.x.dtype == np.float32
    assert found.outcome.kind in ("stopped", "converged")
    assert found.loss == pytest.approx(function(minimum)[0], rel=1e-6)


def test_a_pair_without_curvature_is_rejected_and_reported() -> None:
    """A straight slope before a bowl."""

    def function(x: Array) -> tuple[float, Array]:
        flat = x[0] < 50
        return (float(-x[0]), np.array([-1.0])) if flat else (float((x[0] - 51) ** 2 / 2 - 50.5), x - 51)

    found = minimise(function, np.zeros(1), LBFGS(max_evaluations=2))
    assert found.outcome.kind == "converged"
    assert any("a pair without curvature was left out" in step.note for step in found.iterations)
    np.testing.assert_allclose(found.x, 51.0, atol=1e-4)


@dataclass(frozen=True, kw_only=True)
class OnceUphill(LineSearchMethod):
    """Goes down twice, then up; begun anew, it goes down."""

    def directions(self) -> DirectionGenerator:
        yield Direction(((-1.0, GRADIENT),))
        yield Direction(((-1.0, GRADIENT),))
        yield Direction(((1.0, GRADIENT),), step=0.1)


def test_a_method_restarts_after_an_ascent_direction() -> None:
    function, start, minimum = quadratic(5, 3.0)
    found = minimise(function, start, OnceUphill())
    assert found.outcome.kind == "converged"
    assert [step.note for step in found.iterations[:4]] == ["", "", "begun anew", ""]
    np.testing.assert_allclose(found.x, minimum, atol=1e-4)


def test_a_method_may_know_no_further_direction() -> None:
    @dataclass(frozen=True, kw_only=True)
    class Once(LineSearchMethod):
        def directions(self) -> DirectionGenerator:
            yield Direction(((-1.0, GRADIENT),))

    function, start, _ = quadratic(5, 30.0)
    found = minimise(function, start, Once())
    assert found.outcome == Outcome("stopped", "After 1 iteration the method knows no further direction.")
    assert found.loss == function(found.x)[0]


@dataclass(frozen=True)
class FixedSteps(Method):
    """All of `steps` by hand: steps of one length, with heavy-ball momentum."""

    rate: float
    momentum: float
    iterations: int

    def steps(self, objective: Objective) -> Steps:
        yield (Combine("v"),)
        for n in range(self.iterations):
            scalars = yield (
                axpy(POINT, 1.0, "v"),
                *objective.evaluation(n),
                Combine("v", ((self.momentum, "v"), (-self.rate, GRADIENT))),
            )
            value = objective.value(n, scalars)
            yield Iterated(n + 1, value.loss, value.largest, self.rate, n + 1)
        return Outcome("stopped", "All steps are made.")


def test_a_method_may_be_written_whole() -> None:
    function, start, minimum = quadratic(10, 10.0)
    found = minimise(function, start, FixedSteps(0.1, 0.5, 200))
    np.testing.assert_allclose(found.x, minimum, atol=1e-6)
    assert len(found.iterations) == found.evaluations == 200


@dataclass(frozen=True)
class Moves(Method):
    """Operations that shards would refuse as well."""

    def steps(self, objective: Objective) -> Steps:
        yield (*objective.evaluation(0), axpy(POINT, -0.1, GRADIENT))
        return Outcome("stopped", "All steps are made.")


@dataclass(frozen=True)
class SaysNothing(Method):
    """A method that forgets its outcome."""

    def steps(self, objective: Objective) -> Steps:  # type: ignore[return]
        yield objective.evaluation(0)


@pytest.mark.parametrize(
    ("method", "what"),
    [
        (Moves(), "a method changes 'x' where it has just evaluated"),
        (SaysNothing(), "a method ended with None; it must return an Outcome"),
    ],
)
def test_one_process_permits_the_operations_of_shards(method: Method, what: str) -> None:
    function, start, _ = quadratic(3, 10.0)
    with pytest.raises(ValueError, match=what):
        minimise(function, start, method)


@dataclass(frozen=True, kw_only=True)
class BarzilaiBorwein(LineSearchMethod):
    """A step length from the products that come with the evaluation."""

    def directions(self) -> DirectionGenerator:
        step = None
        while True:
            ss, sy = yield Direction(((-1.0, GRADIENT),), step, then=(Dots(("s",), ("s", "y")),))
            step = ss / sy if sy > 0 else None


@dataclass(frozen=True, kw_only=True)
class InRequestsOfItsOwn(LineSearchMethod):
    """The same; it asks when the trial is accepted."""

    def directions(self) -> DirectionGenerator:
        yield Direction(((-1.0, GRADIENT),))
        while True:
            ss, sy = yield (Dots(("s",), ("s", "y")),)
            yield Direction(((-1.0, GRADIENT),), step=ss / sy if sy > 0 else None)


def test_a_direction_may_ask_for_what_it_needs() -> None:
    function, start, minimum = quadratic(10, 100.0)
    found, again = (
        played(method(ftol=0), function, start) for method in (BarzilaiBorwein, InRequestsOfItsOwn)
    )
    assert found.outcome.kind == "converged"
    np.testing.assert_allclose(found.x, minimum, atol=1e-4)
    assert found.x.tobytes() == again.x.tobytes()
    assert len(found.wishes) < len(again.wishes)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"gtol": -1.0}, "gtol is -1.0; a tolerance must not be below 0"),
        ({"ftol": math.nan}, "ftol is nan; a tolerance must not be below 0"),
        ({"max_iterations": 0}, "max_iterations is 0; allow at least 1"),
        ({"max_evaluations": 0}, "max_evaluations is 0; allow at least 1"),
        ({"c1": 0.9, "c2": 0.1}, "c1 is 0.9 and c2 is 0.1; they must be 0 < c1 < c2 < 1"),
        ({"history": 0}, "history is 0; keep at least 1 pair"),
    ],
)
def test_settings_that_make_no_sense(settings: dict[str, Any], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        LBFGS(**settings)


def test_a_gradient_of_another_size_is_refused() -> None:
    with pytest.raises(ValueError, match=r"the gradient is \(2,\) and x is \(3,\)"):
        minimise(lambda x: (0.0, np.zeros(2)), np.zeros(3))
