"""Update rules against torch, against NumPy to the bit, and whatever the place of a number in the vector."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import SGD, Adagrad, Rule, Vector

RULES = [SGD(0.1), SGD(3), Adagrad(0.05), Adagrad(0.5, initial_accumulator=0.1), Adagrad(0.05, epsilon=1e-3)]
DTYPES = [np.float32, np.float64]


def numbers(n: int, dtype: type, seed: int = 0) -> Vector:
    """Gradients as they are: most of ordinary size, some zero, some tiny, some huge."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.0, 1e-12, 1e-3, 1.0, 1e6], size=n, p=[0.1, 0.1, 0.3, 0.4, 0.1])
    return (rng.standard_normal(n) * scale).astype(dtype)


def torch_optimiser(rule: Rule, parameter: torch.nn.Parameter) -> torch.optim.Optimizer:
    if isinstance(rule, Adagrad):
        return torch.optim.Adagrad(
            [parameter],
            lr=rule.rate,
            initial_accumulator_value=rule.initial_accumulator,
            eps=rule.epsilon,
            foreach=False,
        )
    assert isinstance(rule, SGD)
    return torch.optim.SGD([parameter], lr=rule.rate, foreach=False)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_it_equals_torch(rule: Rule, dtype: type) -> None:
    values = numbers(1003, dtype, seed=9)
    parameter = torch.nn.Parameter(torch.tensor(values))
    optimiser = torch_optimiser(rule, parameter)
    state = rule.state(values.size, dtype)
    for step in range(5):
        gradient = numbers(values.size, dtype, seed=step)
        parameter.grad = torch.tensor(gradient)
        optimiser.step()
        rule.update(values, gradient, state)
    # Torch may fuse a product and a sum: a few roundings of each step's change, and of the value itself.
    expected = parameter.detach().numpy()
    scale = np.abs(expected) + np.abs(values) + 5 * max(1.0, getattr(rule, "rate", 1.0))
    if isinstance(rule, SGD):
        scale = scale + rule.rate * 5e6
    assert np.all(np.abs(values - expected) <= 8 * np.finfo(dtype).eps * scale)


@pytest.mark.parametrize("dtype", DTYPES)
def test_adagrad_is_its_formula_rounded_once_for_each_operation(dtype: type) -> None:
    rule = Adagrad(0.05, initial_accumulator=0.1)
    values, state = numbers(777, dtype, seed=3), rule.state(777, dtype)
    rate, epsilon = dtype(rule.rate), dtype(rule.epsilon)
    expected, total = values.copy(), state["sum"].copy()
    for step in range(3):
        gradient = numbers(777, dtype, seed=step)
        total = total + gradient * gradient
        expected = expected - rate * gradient / (np.sqrt(total) + epsilon)
        rule.update(values, gradient, state)
    assert np.array_equal(values, expected)
    assert np.array_equal(state["sum"], total)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=str)
@given(data=st.data())
def test_cutting_a_vector_anywhere_changes_no_bit(rule: Rule, dtype: type, data: st.DataObject) -> None:
    n = data.draw(st.integers(1, 200), label="n")
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=6), label="cuts")})
    whole, cut = numbers(n, dtype, seed=1), numbers(n, dtype, seed=1)
    whole_state, cut_state = rule.state(n, dtype), rule.state(n, dtype)
    for step in range(3):
        gradient = numbers(n, dtype, seed=10 + step)
        rule.update(whole, gradient, whole_state)
        for a, b in pairwise(cuts):
            rule.update(cut[a:b], gradient[a:b], {name: vector[a:b] for name, vector in cut_state.items()})
    assert whole.tobytes() == cut.tobytes()
    assert all(whole_state[name].tobytes() == cut_state[name].tobytes() for name in whole_state)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("rule", RULES, ids=str)
def test_a_parts_step_is_the_update_and_accrues(rule: Rule, dtype: type) -> None:
    values, accrued = numbers(501, dtype, seed=1), np.zeros(501, dtype)
    state, shard_state = rule.state(501, dtype), rule.state(501, dtype)
    shard, expected = values.copy(), np.zeros(501, dtype)
    for step in range(3):
        gradient = numbers(501, dtype, seed=20 + step)
        rule.step(values, gradient, accrued, state)
        rule.update(shard, gradient, shard_state)
        expected += gradient
    assert np.array_equal(values, shard)
    assert np.array_equal(accrued, expected)
    assert all(np.array_equal(state[name], shard_state[name]) for name in state)


@pytest.mark.parametrize("rule", RULES[:3], ids=str)
def test_it_compiles_ahead(rule: Rule) -> None:
    for dtype in DTYPES:
        rule.compile(dtype)


def test_adagrad_without_a_gradient_stays_where_it_is() -> None:
    rule = Adagrad(0.1)
    values, state = np.ones(3, np.float32), rule.state(3)
    rule.update(values, np.zeros(3, np.float32), state)
    assert np.array_equal(values, np.ones(3))


def test_the_first_step_of_adagrad_is_the_rate() -> None:
    rule = Adagrad(0.25)
    values, state = np.zeros(2), rule.state(2, np.float64)
    rule.update(values, np.array([1e-3, -40.0]), state)
    assert values == pytest.approx([-0.25, 0.25], rel=1e-6)


@pytest.mark.parametrize("rate", [0, -1.0, math.nan, math.inf, "0.1", None, True])
@pytest.mark.parametrize("rule", [SGD, Adagrad])
def test_a_rate_that_is_no_rate_is_refused(rule: type[Adagrad], rate: float) -> None:
    with pytest.raises(ValueError, match=rf"{rule.__name__}: rate is .*not a finite number above 0"):
        rule(rate)


@pytest.mark.parametrize("name", ["initial_accumulator", "epsilon"])
@pytest.mark.parametrize("value", [-1e-3, math.nan])
def test_a_setting_of_adagrad_out_of_range_is_refused(name: str, value: float) -> None:
    with pytest.raises(ValueError, match=f"Adagrad: {name} is .*not 0 or a finite number above"):
        Adagrad(0.1, **{name: value})


@pytest.mark.parametrize("epsilon", [0.0, 1e-60])
def test_zero_over_zero_is_refused(epsilon: float) -> None:
    with pytest.raises(ValueError, match="a zero gradient gives 0/0"):
        Adagrad(0.1, epsilon=epsilon)
    Adagrad(0.1, initial_accumulator=0.1, epsilon=epsilon)
