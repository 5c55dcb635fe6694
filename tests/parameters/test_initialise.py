"""Initial values depend on the name and the seed alone, and have the spread that their initialiser names."""

from __future__ import annotations

import hashlib
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.parameters import initialise
from partita.engine.parameters.initial_values import BLOCK, initial_range
from partita.layers import Parameter


def parameter(
    name: str = "hidden.weight",
    shape: tuple[int, ...] = (300, 400),
    initialiser: str | float = "glorot",
    fan_in: int = 400,
) -> Parameter:
    return Parameter(name, shape, initialiser, fan_in, 300)


def test_glorot_is_uniform_within_its_bound() -> None:
    values = initialise([parameter()], 0)["hidden.weight"]
    bound = math.sqrt(6 / 700)
    assert values.shape == (300, 400)
    assert np.abs(values).max() <= bound
    assert np.abs(values).max() > 0.999 * bound
    assert values.std() == pytest.approx(bound / math.sqrt(3), rel=0.01)
    assert abs(values.mean()) < 0.001


@pytest.mark.parametrize(("initialiser", "deviation"), [("he", math.sqrt(2 / 400)), ("normal", 0.05)])
def test_normal_values_have_their_deviation(initialiser: str, deviation: float) -> None:
    values = initialise([parameter(initialiser=initialiser)], 0)["hidden.weight"]
    assert values.std() == pytest.approx(deviation, rel=0.01)
    assert np.abs(values).max() > 3.5 * deviation


@pytest.mark.parametrize(("initialiser", "value"), [("zeros", 0), ("ones", 1), (0.25, 0.25), (-2, -2)])
def test_constants_fill(initialiser: str | float, value: float) -> None:
    values = initialise([parameter(initialiser=initialiser, fan_in=0)], 0)["hidden.weight"]
    assert np.array_equal(values, np.full((300, 400), value))


@given(st.data())
def test_a_range_by_itself_is_that_range_of_the_whole(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(["glorot", "he", "normal", "ones"]))
    spec = parameter(shape=(3, BLOCK - 7), initialiser=name)
    edges = st.one_of(st.integers(0, 3 * (BLOCK - 7)), st.integers(BLOCK - 2, BLOCK + 2))
    start, stop = sorted((data.draw(edges), data.draw(edges)))
    whole = initialise([spec], 5)[spec.name].reshape(-1)
    assert np.array_equal(initial_range(spec, 5, start=start, stop=stop), whole[start:stop])


def test_names_seeds_and_blocks_have_streams_of_their_own() -> None:
    long = parameter(shape=(2, BLOCK))
    first, second = initialise([long], 0)[long.name]
    other_seed = initialise([long], 1)[long.name][0]
    other_name = initialise([parameter("hidden.bias", (2, BLOCK))], 0)["hidden.bias"][0]
    for a, b in [(first, second), (first, other_seed), (first, other_name)]:
        assert abs(np.corrcoef(a, b)[0, 1]) < 0.02


def test_other_parameters_and_their_order_change_nothing() -> None:
    a, b = parameter("a"), parameter("b", initialiser="he")
    together, apart = initialise([b, a], 3), initialise([a], 3)
    assert np.array_equal(together["a"], apart["a"])


def test_float32_is_float64_rounded() -> None:
    wide = initialise([parameter()], 0, dtype=np.float64)["hidden.weight"]
    assert np.array_equal(wide.astype(np.float32), initialise([parameter()], 0)["hidden.weight"])


def test_the_numbers_stay_the_same_from_version_to_version() -> None:
    values = initialise([parameter()], 7, dtype=np.float64)["hidden.weight"]
    assert hashlib.sha256(values.tobytes()).hexdigest()[:16] == "20f4dd1b37f8d190"


def test_a_drawn_parameter_needs_fans() -> None:
    with pytest.raises(ValueError, match="fan_in 0 and fan_out 300; use 1 or more"):
        initialise([parameter(fan_in=0)], 0)


def test_two_parameters_of_one_name_are_refused() -> None:
    with pytest.raises(ValueError, match="two parameters are named"):
        initialise([parameter(), parameter()], 0)


def test_a_seed_or_range_out_of_bounds_is_refused() -> None:
    with pytest.raises(ValueError, match="the seed is -1"):
        initialise([parameter()], -1)
    with pytest.raises(ValueError, match="which has 120000 numbers"):
        initial_range(parameter(), 0, start=0, stop=120001)
