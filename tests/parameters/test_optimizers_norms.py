"""Norms of whole parameters: sums of squares, clipping against torch, LARS against its paper."""

from __future__ import annotations

import math

import numpy as np
import numpy.typing as npt
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import LAMB, LARS, SGD, Adam, Cosine, Downpour, LinearWarmup
from partita.engine.numerics import downcast_array, upcast_array
from partita.engine.parameters import UpdateContext, Vector
from partita.engine.parameters.optimizers import Squares, all_finite, sum_of_squares
from partita.engine.runtime import directions
from partita.engine.runtime.devices import Device
from partita.engine.runtime.directions import Directions
from tests.draws import examples

Network = dict[str, Vector]


def vectors(seed: int, scale: float = 1.0) -> Network:
    """One vector for each of three parameters."""
    rng = np.random.default_rng(seed)
    sizes = {"hidden.weight": 60, "hidden.bias": 7, "scores.weight": 21}
    return {name: rng.standard_normal(size) * scale for name, size in sizes.items()}


def squares_of(values: Network, gradients: Network) -> dict[str, Squares]:
    return {name: (sum_of_squares(values[name]), sum_of_squares(gradients[name])) for name in values}


@given(n=st.integers(0, 300), dtype=st.sampled_from([np.float32, np.float64]), seed=st.integers(0, 99))
def test_a_sum_of_squares_is_taken_in_float64(n: int, dtype: npt.DTypeLike, seed: int) -> None:
    vector = (np.random.default_rng(seed).standard_normal(n) * 1e20).astype(dtype)
    expected = math.fsum(x * x for x in vector.astype(np.float64).tolist())
    assert sum_of_squares(vector) == pytest.approx(expected, rel=1e-13)
    assert sum_of_squares(vector.copy()) == sum_of_squares(vector)


def test_a_sum_of_squares_of_bfloat16() -> None:
    bits = downcast_array(np.linspace(-3, 3, 100, dtype=np.float32), np.zeros(100, np.uint16))
    assert sum_of_squares(bits) == pytest.approx(float(np.sum(upcast_array(bits).astype(float) ** 2)))


@given(n=st.integers(1, 100), place=st.integers(0, 99), bad=st.sampled_from([math.nan, math.inf, -math.inf]))
def test_one_nonfinite_number_is_found(n: int, place: int, bad: float) -> None:
    vector = np.full(n, 3e38, np.float32)
    assert all_finite(vector)
    assert all_finite(vector.astype(np.float64))
    assert all_finite(downcast_array(vector, np.zeros(n, np.uint16)))
    vector[place % n] = bad
    assert not all_finite(vector)
    assert not all_finite(vector.astype(np.float64))
    assert not all_finite(downcast_array(vector, np.zeros(n, np.uint16)))


@given(clip=st.floats(1e-3, 100), seed=st.integers(0, 99))
def test_clipping_is_that_of_torch(clip: float, seed: int) -> None:
    values, gradients = vectors(1), vectors(seed)
    optimizer = SGD(1.0, clip_norm=clip)
    assert optimizer.needs_norms
    factors = optimizer.factors(squares_of(values, gradients))
    parameters = [torch.nn.Parameter(torch.tensor(vector)) for vector in values.values()]
    for parameter, gradient in zip(parameters, gradients.values(), strict=True):
        parameter.grad = torch.tensor(gradient)
    torch.nn.utils.clip_grad_norm_(parameters, clip)
    for (name, gradient), parameter in zip(gradients.items(), parameters, strict=True):
        assert parameter.grad is not None
        assert factors[name] * gradient == pytest.approx(parameter.grad.numpy(), rel=1e-12)


def test_a_small_gradient_is_left_alone_to_the_bit() -> None:
    factors = Adam(0.1, clip_norm=1e9).factors(squares_of(vectors(1), vectors(2)))
    assert set(factors.values()) == {1.0}
    assert set(SGD(0.1).factors(squares_of(vectors(1), vectors(2))).values()) == {1.0}


@pytest.mark.parametrize("bad", [math.nan, math.inf])
@pytest.mark.parametrize("optimizer", [SGD(0.1, clip_norm=1.0), LARS(0.1)])
def test_a_nonfinite_gradient_makes_the_factor_nan(optimizer: SGD | LARS, bad: float) -> None:
    gradients = vectors(2)
    gradients["hidden.bias"][3] = bad
    assert math.isnan(optimizer.factors(squares_of(vectors(1), gradients))["hidden.bias"])


rates = st.floats(0.01, 10) | st.builds(Cosine, st.floats(0.1, 10), st.integers(1, 50))


@settings(max_examples=examples(10))
@given(
    learning_rate=rates,
    momentum=st.floats(0, 0.99),
    trust=st.floats(1e-4, 0.1),
    decay=st.floats(0, 0.1),
    seed=st.integers(0, 99),
)
def test_lars_is_the_formula_of_its_paper(
    learning_rate: float | Cosine, momentum: float, trust: float, decay: float, seed: int
) -> None:
    """Replica and shard, each on its own numbers: the replica's way is the paper's, and so is the shard's."""
    optimizer = LARS(learning_rate, momentum, trust, weight_decay=decay)
    shard = optimizer.on_shard()
    own, held, expected = vectors(seed), vectors(seed), vectors(seed)
    states = {name: optimizer.state(len(vector), np.float64) for name, vector in own.items()}
    kept = {name: shard.state(len(vector), np.float64) for name, vector in own.items()}
    velocity = {name: np.zeros_like(vector) for name, vector in own.items()}
    for count in range(10):
        gradients = vectors(1000 + seed + count)
        factors = optimizer.factors(squares_of(own, gradients))
        gamma = learning_rate.at(count) if isinstance(learning_rate, Cosine) else learning_rate
        for name, w in expected.items():
            g = gradients[name]
            local = trust * np.linalg.norm(w) / (np.linalg.norm(g) + decay * np.linalg.norm(w))
            velocity[name] = momentum * velocity[name] + gamma * local * (g + decay * w)
            expected[name] = w - velocity[name]
            pushed = np.zeros_like(g)
            step = optimizer.bind(own[name], g, states[name], accumulated=pushed)
            assert step(UpdateContext(count, factors[name]))
            assert shard.bind(held[name], pushed, kept[name])(UpdateContext(count))
    for name, vector in expected.items():
        assert own[name] == pytest.approx(vector, rel=1e-9, abs=1e-9)
        assert held[name] == pytest.approx(vector, rel=1e-9, abs=1e-9)


def test_lars_begins_where_a_norm_is_zero() -> None:
    optimizer = LARS(0.5, trust=0.1, weight_decay=0.0)
    assert optimizer.factors({"bias": (0.0, 4.0), "still": (9.0, 0.0), "weight": (9.0, 4.0)}) == {
        "bias": 1.0,
        "still": 1.0,
        "weight": pytest.approx(0.1 * 3 / 2),
    }


def test_lamb_is_algorithm_2_of_its_paper(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of a vector have the norms of their own parameter, also where a block is smaller than it."""
    monkeypatch.setattr(directions, "_IN_CACHE", 3)
    rate, (b1, b2), eps, decay = 0.02, (0.8, 0.95), 1e-6, 0.03
    optimizer = LAMB(LinearWarmup(3, rate), (b1, b2), eps, weight_decay=decay)
    own, expected = vectors(4), vectors(4)
    device = Device()
    state = {name: optimizer.state(len(vector), np.float64) for name, vector in own.items()}
    m, s = ({name: np.zeros_like(vector) for name, vector in own.items()} for _ in range(2))
    for t in range(1, 8):
        gradients = vectors(50 + t)
        squares = {}
        for name, vector in own.items():
            measured = Directions(optimizer.measured, vector, state[name], device=device, dtype=np.float64)
            found = measured.bind(slice(0, len(vector)), gradients[name])(UpdateContext(t - 1))
            squares[name] = sum_of_squares(vector), found
        factors = optimizer.factors(squares)
        for name, w in expected.items():
            g = gradients[name]
            m[name], s[name] = b1 * m[name] + (1 - b1) * g, b2 * s[name] + (1 - b2) * g * g
            r = (m[name] / (1 - b1**t)) / (np.sqrt(s[name] / (1 - b2**t)) + eps) + decay * w
            trust = np.linalg.norm(w) / np.linalg.norm(r)
            expected[name] = w - min(1.0, t / 4) * rate * trust * r
            assert optimizer.bind(own[name], g, state[name])(UpdateContext(t - 1, factors[name]))
            assert own[name] == pytest.approx(expected[name], rel=1e-11, abs=1e-12)


def test_lamb_begins_where_a_norm_is_zero_and_is_refused_where_it_cannot_be() -> None:
    assert LAMB(0.1).factors({"bias": (0.0, 4.0), "weight": (9.0, 4.0)}) == {"bias": 1.0, "weight": 1.5}
    assert math.isnan(LAMB(0.1).factors({"weight": (9.0, math.inf)})["weight"])
    with pytest.raises(ValueError, match="LAMB: clip_norm is 1"):
        LAMB(0.1, clip_norm=1.0)
    with pytest.raises(ValueError, match="needs norms over both; use AllReduce"):
        Downpour(optimizer=LAMB(0.1))
