"""Optimizers against torch, against NumPy to the bit, and whatever the place of a number in the vector."""

from __future__ import annotations

import math
import pickle
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import LARS, SGD, Adagrad, Adam, AdamW, Cosine, Momentum, Optimizer, RMSProp
from partita.engine.numerics import downcast_array, upcast_array
from partita.engine.parameters import UpdateContext, Vector
from tests.draws import examples
from tests.parameters.in_torch import torch_of

OPTIMIZERS = [
    SGD(0.1),
    SGD(3, weight_decay=0.1),
    Momentum(0.1, 0.8, weight_decay=0.01),
    Momentum(0.1, nesterov=True),
    Adagrad(0.05),
    Adagrad(0.5, initial_accumulator=0.1, weight_decay=0.1),
    Adagrad(0.05, epsilon=1e-3),
    RMSProp(0.01, weight_decay=0.1),
    RMSProp(0.01, momentum=0.5, centered=True),
    Adam(0.01, weight_decay=0.1),
    AdamW(Cosine(0.01, 100), (0.8, 0.9)),
    LARS(0.1),
]
DTYPES = [np.float32, np.float64]
every_optimizer = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=str)
every_dtype = pytest.mark.parametrize("dtype", DTYPES)


def numbers(n: int, dtype: npt.DTypeLike, seed: int = 0) -> Vector:
    """Gradients as they are: most of ordinary size, some zero, some tiny, some huge."""
    rng = np.random.default_rng(seed)
    scale = rng.choice([0.0, 1e-12, 1e-3, 1.0, 1e6], size=n, p=[0.1, 0.1, 0.3, 0.4, 0.1])
    return (rng.standard_normal(n) * scale).astype(dtype)


def update(
    optimizer: Optimizer,
    values: Vector,
    gradient: npt.NDArray[Any],
    state: dict[str, Vector],
    moment: UpdateContext | int = 0,
    **beside: Any,
) -> bool:
    apply = optimizer.bind(values, gradient, state, **beside)
    return apply(moment if isinstance(moment, UpdateContext) else UpdateContext(moment))


def as_torch_rounds(beta: float) -> float:
    """The beta that torch's Adam computes with: it takes 1 - beta as the weight of the gradient."""
    return 1.0 - (1.0 - beta)


def between(low: float, high: float) -> st.SearchStrategy[float]:
    return st.floats(low, high, allow_subnormal=False)


decays = st.sampled_from([0.0, 0.01, 0.3])
momenta = between(0.001, 0.99)
drawn_optimizers = st.one_of(
    st.builds(SGD, between(1e-3, 1), weight_decay=decays),
    st.builds(Momentum, between(1e-3, 0.1), momenta, st.booleans(), weight_decay=decays),
    st.builds(Adagrad, between(1e-3, 1), between(0, 1), between(1e-10, 1e-3), weight_decay=decays),
    st.builds(
        RMSProp,
        between(1e-3, 0.1),
        between(0.1, 0.99),
        between(1e-3, 0.1),  # a variance that rounds to 0 on one side only would differ by 1 / epsilon
        st.just(0.0) | momenta,
        st.booleans(),
        weight_decay=decays,
    ),
    *(
        st.builds(
            kind,
            between(1e-3, 0.1),
            st.tuples(between(0, 0.99).map(as_torch_rounds), between(0, 0.999)),
            between(1e-8, 1e-3),
            weight_decay=decays,
        )
        for kind in (Adam, AdamW)
    ),
)


@settings(max_examples=examples(40))
@given(optimizer=drawn_optimizers, seed=st.integers(0, 1000))
def test_it_equals_torch(optimizer: Optimizer, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = rng.standard_normal(37)
    parameter = torch.nn.Parameter(torch.tensor(values))
    optimiser = torch_of(optimizer, parameter)
    state, gradient = optimizer.state(37, np.float64), np.zeros(37)
    parameter.grad = torch.from_numpy(gradient)
    apply = optimizer.bind(values, gradient, state)
    for count in range(30):
        gradient[:] = rng.standard_normal(37) * rng.choice([0.0, 0.1, 3.0], 37)
        optimiser.step()
        assert apply(UpdateContext(count))
    expected = parameter.detach().numpy()
    assert values == pytest.approx(expected, rel=1e-9, abs=1e-9 * float(np.abs(expected).max()))


@every_dtype
def test_adagrad_is_its_formula_rounded_once_for_each_operation(dtype: Callable[[float], Any]) -> None:
    optimizer = Adagrad(0.05, initial_accumulator=0.1)
    values, state = numbers(777, dtype, seed=3), optimizer.state(777, dtype)
    learning_rate, epsilon = dtype(0.05), dtype(optimizer.epsilon)
    expected, total = values.copy(), state["sum"].copy()
    for step in range(3):
        gradient = numbers(777, dtype, seed=step)
        total = total + gradient * gradient
        expected = expected - learning_rate * gradient / (np.sqrt(total) + epsilon)
        update(optimizer, values, gradient, state)
    assert np.array_equal(values, expected)
    assert np.array_equal(state["sum"], total)


@every_optimizer
@given(data=st.data())
@settings(max_examples=examples(10))
def test_cutting_a_vector_anywhere_changes_no_bit(optimizer: Optimizer, data: st.DataObject) -> None:
    n, dtype = data.draw(st.integers(1, 200), label="n"), data.draw(st.sampled_from(DTYPES))
    cuts = sorted({0, n, *data.draw(st.lists(st.integers(0, n), max_size=6), label="cuts")})
    whole, cut = numbers(n, dtype, seed=1), numbers(n, dtype, seed=1)
    whole_state, cut_state = optimizer.state(n, dtype), optimizer.state(n, dtype)
    for count in range(3):
        gradient, moment = numbers(n, dtype, seed=10 + count), UpdateContext(count, factor=0.3)
        update(optimizer, whole, gradient, whole_state, moment)
        for a, b in pairwise(cuts):
            state = {name: vector[a:b] for name, vector in cut_state.items()}
            update(optimizer, cut[a:b], gradient[a:b], state, moment)
    assert whole.tobytes() == cut.tobytes()
    assert all(whole_state[name].tobytes() == cut_state[name].tobytes() for name in whole_state)


@pytest.mark.slow
@every_dtype
@every_optimizer
def test_what_accumulates_and_is_copied_changes_nothing_else(
    optimizer: Optimizer, dtype: npt.DTypeLike
) -> None:
    values, state = numbers(501, dtype, seed=1), optimizer.state(501, dtype)
    alone, its_state = values.copy(), optimizer.state(501, dtype)
    accumulated, expected = np.zeros(501, dtype), np.zeros(501, dtype)
    copy = np.zeros(501, np.uint16)
    for count in range(3):
        gradient, before = numbers(501, dtype, seed=20 + count), values.copy()
        moment = UpdateContext(count, factor=0.25)
        assert update(optimizer, values, gradient, state, moment, accumulated=accumulated, copy=copy)
        assert update(optimizer, alone, gradient, its_state, moment)
        decay = values.dtype.type(optimizer.weight_decay if isinstance(optimizer, LARS) else 0.0)
        expected += values.dtype.type(0.25) * (gradient + decay * before)
        assert np.array_equal(copy, downcast_array(values, np.zeros_like(copy)))
    assert np.array_equal(values, alone)
    assert np.array_equal(accumulated, expected)
    assert all(np.array_equal(state[name], its_state[name]) for name in state)


@every_optimizer
def test_a_bfloat16_gradient_is_read_from_its_bits(optimizer: Optimizer) -> None:
    bits = downcast_array(numbers(129, np.float32), np.zeros(129, np.uint16))
    values, state = numbers(129, np.float32, seed=1), optimizer.state(129)
    other, its_state = values.copy(), optimizer.state(129)
    update(optimizer, values, bits, state)
    update(optimizer, other, upcast_array(bits), its_state)
    assert np.array_equal(values, other)


@every_optimizer
@given(place=st.integers(0, 99), bad=st.sampled_from([math.nan, math.inf, -math.inf]), n=st.integers(1, 100))
@settings(max_examples=examples(8))
def test_a_nonfinite_gradient_is_detected_anywhere(
    optimizer: Optimizer, place: int, bad: float, n: int
) -> None:
    for dtype in DTYPES:
        values, gradient, state = np.ones(n, dtype), np.ones(n, dtype), optimizer.state(n, dtype)
        assert update(optimizer, values, gradient, state)
        gradient[place % n] = bad
        assert not update(optimizer, values, gradient, state, 1)


@every_optimizer
def test_a_nonfinite_factor_is_detected(optimizer: Optimizer) -> None:
    ones, state = np.ones(5, np.float32), optimizer.state(5)
    assert not update(optimizer, ones.copy(), ones, state, UpdateContext(0, factor=math.nan))


def test_rates_follow_their_schedule_and_adam_its_states_age() -> None:
    schedule = Cosine(0.5, 10)
    for count in (0, 3, 10):
        values = np.zeros(3)
        update(SGD(schedule), values, np.ones(3), {}, count)
        assert values == pytest.approx([-schedule.at(count)] * 3)
    optimizer = Adam(0.1)
    values, state = np.zeros(1), optimizer.state(1, np.float64)
    update(optimizer, values, np.ones(1), state, UpdateContext(1000, age=0))
    assert values == pytest.approx([-0.1]), "a state that begins is corrected for its own age"


@every_optimizer
def test_an_optimizer_is_pickled_and_printed(optimizer: Optimizer) -> None:
    assert pickle.loads(pickle.dumps(optimizer)) == optimizer
    assert eval(repr(optimizer)) == optimizer
    assert hash(optimizer) == hash(eval(repr(optimizer)))


def test_the_optimizer_of_a_shard_omits_clipping() -> None:
    assert Adam(0.1, clip_norm=1.0).on_shard() == Adam(0.1)
    for optimizer in OPTIMIZERS:
        left = optimizer.on_shard()
        assert left.on_shard() == left
        assert not left.needs_norms
        assert set(left.state(1)) == set(optimizer.state(1)), "checkpoints are read by either"


def test_adagrad_without_a_gradient_stays_where_it_is() -> None:
    optimizer = Adagrad(0.1)
    values = np.ones(3, np.float32)
    update(optimizer, values, np.zeros(3, np.float32), optimizer.state(3))
    assert np.array_equal(values, np.ones(3))


def test_the_first_step_of_adagrad_is_the_rate() -> None:
    optimizer = Adagrad(0.25)
    values = np.zeros(2)
    update(optimizer, values, np.array([1e-3, -40.0]), optimizer.state(2, np.float64))
    assert values == pytest.approx([-0.25, 0.25], rel=1e-6)


def test_arrays_that_do_not_fit_are_refused() -> None:
    values = np.zeros(4, np.float32)
    for other in (np.zeros(3, np.float32), np.zeros((4, 1), np.float32), np.zeros(8, np.float32)[::2]):
        with pytest.raises(ValueError, match="give vectors alike"):
            SGD(0.1).bind(values, other, {})
        with pytest.raises(ValueError, match="give vectors alike"):
            SGD(0.1).bind(values, values, {}, accumulated=other)
    with pytest.raises(ValueError, match="both float32 or float64"):
        SGD(0.1).bind(values, np.zeros(4), {})


@pytest.mark.parametrize("learning_rate", [0, -1.0, math.nan, math.inf, "0.1", None, True])
@pytest.mark.parametrize("optimizer", [SGD, Momentum, Adagrad, RMSProp, Adam, AdamW, LARS])
def test_an_invalid_learning_rate_is_refused(optimizer: type[Optimizer], learning_rate: Any) -> None:
    with pytest.raises(
        ValueError, match=rf"{optimizer.__name__}: learning_rate is .*not a finite number above 0 or a sch"
    ):
        optimizer(learning_rate)


@pytest.mark.parametrize(
    ("kind", "settings", "says"),
    [
        (SGD, {"weight_decay": -1e-3}, "SGD: weight_decay is .*not 0 or a finite number above"),
        (SGD, {"clip_norm": 0}, "SGD: clip_norm is .*not a finite number above 0"),
        (Momentum, {"momentum": 1}, "Momentum: momentum is 1, not a number of at least 0 and below 1"),
        (Adagrad, {"initial_accumulator": -1e-3}, "Adagrad: initial_accumulator is .*not 0 or a finite"),
        (Adagrad, {"epsilon": math.nan}, "Adagrad: epsilon is .*not 0 or a finite number above"),
        (Adagrad, {"epsilon": 0.0}, "a zero gradient gives 0/0"),
        (Adagrad, {"epsilon": 1e-60}, "a zero gradient gives 0/0"),
        (RMSProp, {"epsilon": 1e-60}, "a zero gradient gives 0/0"),
        (RMSProp, {"alpha": 1.0}, "RMSProp: alpha is 1.0, not a number of at least 0 and below 1"),
        (Adam, {"epsilon": 0}, "Adam: epsilon is 0, not a finite number above 0"),
        (Adam, {"betas": (0.9, 1.0)}, "Adam: each of betas is 1.0, not a number of at least 0"),
        (Adam, {"betas": 0.9}, "Adam: betas is 0.9, not two numbers"),
        (LARS, {"trust": 0}, "LARS: trust is 0, not a finite number above 0"),
        (LARS, {"clip_norm": 1.0}, "LARS: clip_norm is 1.0, and its steps do not depend"),
    ],
)
def test_a_setting_out_of_range_is_refused(
    kind: type[Optimizer], settings: dict[str, Any], says: str
) -> None:
    with pytest.raises(ValueError, match=says):
        kind(0.1, **settings)


def test_a_positive_accumulator_needs_no_epsilon() -> None:
    assert Adagrad(0.1, initial_accumulator=0.1, epsilon=0).epsilon == 0
