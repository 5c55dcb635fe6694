"""The user's arrays: each mistake gets one sentence that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from partita.engine.drivers.data import check_data
from partita.layers import Dense, Graph, Network, SquaredError
from tests.faults import toy


@pytest.fixture(scope="module")
def graph() -> Graph:
    return toy.network().graph()


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"picture": np.zeros((256, 7))}, r"'picture' has shape \(256, 7\), .* declares \(8,\) for each"),
        ({"picture": np.zeros(8)}, r"'picture' has shape \(8,\), .*; for one example give array\[None\]"),
        (
            {"picture": [[0] * 8, [0] * 7]},
            r"'picture' cannot be made an array \(.*give every example the same",
        ),
        ({"picture": np.zeros((256, 8), complex)}, "'picture' holds complex128, not real numbers"),
        ({"picture": np.zeros((256, 8), "m8[s]")}, r"'picture' holds timedelta64\[s\], not real numbers"),
        ({"digit": np.int64(1)}, r"'digit' has shape \(\); .*; for one example give array\[None\]"),
        ({"picture": np.float32(1)}, r"'picture' has shape \(\)"),
        (
            {"picture": np.full((256, 8), np.nan)},
            "'picture' is not finite in 256 of 256 examples, first in .* 0;",
        ),
        ({"picture": np.full((256, 8), 1e300)}, "'picture' is not finite"),
        ({"picture": np.full((256, 8), "x")}, "'picture' holds <U1, not real numbers"),
        ({"digit": np.full(256, 3)}, "'digit' has the label 3 in example 0, but the network has 3 classes"),
        ({"digit": np.full(256, -1)}, "'digit' has the label -1 in example 0"),
        ({"digit": np.zeros(256)}, "'digit' holds float64; labels are whole numbers from 0 to 2"),
        ({"digit": np.zeros((256, 3), int)}, r"'digit' has shape \(256, 3\); give one label for each"),
        ({"digit": np.zeros(200, int)}, "differ in their number of examples: {'picture': 256, 'digit': 200}"),
        ({"digit": None}, "the data has no 'digit'; the network takes 'picture', 'digit'"),
        ({"label": np.zeros(256, int)}, "the data has 'label', but the network takes 'picture', 'digit'"),
        ({"picture": np.zeros((0, 8)), "digit": np.zeros(0, int)}, "the data has no examples"),
    ],
)
def test_mistakes_are_named(graph: Graph, change: dict[str, Any], sentence: str) -> None:
    data = {name: array for name, array in (toy.data() | change).items() if array is not None}
    with np.errstate(over="ignore"), pytest.raises(ValueError, match=sentence):
        check_data(graph, data, targets=True, precision="float32")


def test_what_is_no_dictionary_is_named(graph: Graph) -> None:
    with pytest.raises(ValueError, match="the data is a list; give a dictionary of arrays"):
        check_data(graph, [1, 2], targets=True, precision="float32")  # type: ignore[arg-type]


def test_what_fits_is_converted(graph: Graph) -> None:
    data = toy.data()
    given = {
        "picture": data["picture"].astype(np.float64)[:, ::-1],
        "digit": data["digit"][:, None].astype(np.int8),
    }
    found = check_data(graph, given, targets=True, precision="float32")
    assert found["picture"].dtype == np.float32 and found["picture"].flags.c_contiguous
    assert found["digit"].dtype == np.int64 and found["digit"].shape == (256,)
    assert list(check_data(graph, given, targets=False, precision="float64")) == ["picture"]


def test_one_number_for_each_example_needs_no_second_axis() -> None:
    net = Network("line")
    net.loss = SquaredError()(Dense(1)(net.input("x", shape=1)), net.target("y"))
    given: dict[str, Any] = {"x": np.arange(5), "y": [0.5] * 5}
    found = check_data(net.graph(), given, targets=True, precision="float64")
    assert found["x"].tolist() == [[0], [1], [2], [3], [4]] and found["y"].shape == (5, 1)
