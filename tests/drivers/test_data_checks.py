"""The user's arrays: each mistake gets one sentence that names it."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from partita.engine.run.data import check_data
from partita.layers import Dense, Graph, HalfSquaredError, Network
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
            r"examples of 'picture' differ: example 0 has shape \(8,\), example 1 \(7,\); give every",
        ),
        (
            {"picture": [torch.zeros(8), torch.zeros(7)]},
            r"examples of 'picture' differ: example 0 has shape \(8,\), example 1 \(7,\)",
        ),
        ({"picture": [[[0] * 4, [0] * 3]]}, "'picture' is a list, of which NumPy makes no array"),
        (
            {"picture": (row for row in [])},
            "'picture' is a generator; give an array, with one entry for each",
        ),
        (
            {"picture": np.zeros((256, 8), object)},
            "'picture' holds Python objects .*all are numbers; convert it",
        ),
        (
            {"picture": [[0.0] * 7 + [None]]},
            r"'picture' holds Python objects .* at \[0, 7\] is None, no number",
        ),
        (
            {"picture": np.zeros(256, [("a", "f4"), ("b", "f4")])},
            "'picture' holds records with the fields a, b;",
        ),
        (
            {"picture": torch.zeros(256, 8).to_sparse()},
            r"'picture' is a sparse tensor .*tensor\.to_dense\(\)",
        ),
        ({"picture": torch.zeros(256, 8, device="meta")}, "'picture' is a tensor without numbers"),
        ({"picture": torch.zeros(256, 8, dtype=torch.complex64).conj()}, "'picture' holds complex64"),
        (
            {"picture": np.ma.masked_array(np.zeros((256, 8)), mask=np.eye(256, 8))},
            r"'picture' is a masked array, and 8 of its 2048 numbers .* the first at \[0, 0\]; leave",
        ),
        (
            {"digit": np.ma.masked_array(np.zeros(256, int), mask=np.arange(256) == 9)},
            r"'digit' is a masked array, and 1 of its 256 .* at \[9\]; leave those examples out, or fill",
        ),
        (
            {"picture": [np.zeros(8)] * 2 + [np.ma.masked_array(np.zeros(8), mask=np.arange(8) == 1)]},
            r"'picture\[2\]' is a masked array, and 1 of its 8 numbers are masked, the first at \[1\]",
        ),
        ({"picture": np.zeros((256, 8), complex)}, "'picture' holds complex128, not real numbers"),
        ({"picture": np.zeros((256, 8), "m8[s]")}, r"'picture' holds timedelta64\[s\], not real numbers"),
        ({"digit": np.int64(1)}, r"'digit' has shape \(\); .*; for one example give array\[None\]"),
        ({"picture": np.float32(1)}, r"'picture' has shape \(\)"),
        (
            {"picture": np.full((256, 8), np.nan)},
            "'picture' is not finite in 256 of 256 examples, first in .* 0;",
        ),
        (
            {"picture": np.where(np.arange(256) == 7, 1e300, 0)[:, None] * np.ones(8)},
            "'picture' has numbers too large for float32 in 1 of 256 examples, first in example 7; scale it",
        ),
        ({"picture": np.full((256, 8), "x")}, "'picture' holds text, not real numbers"),
        ({"digit": np.full(256, 3)}, "'digit' has the label 3 in example 0, but the network has 3 classes"),
        ({"digit": np.full(256, -1)}, "'digit' has the label -1 in example 0"),
        ({"digit": np.arange(256) % 3 + 1}, "'digit' has the label 3 in .* begin at 1: subtract 1"),
        (
            {"digit": np.full(256, 2**64 - 1, np.uint64)},
            "'digit' has the label 18446744073709551615 in example 0",
        ),
        (
            {"digit": np.zeros(256)},
            r"'digit' holds float64; labels .* 0 to 2; convert it: array\.astype\(np\.int64",
        ),
        (
            {"digit": np.zeros(256, bool)},
            r"'digit' holds bool; labels .*; convert it: array\.astype\(np\.int64\)",
        ),
        ({"digit": np.full(256, np.nan)}, "'digit' holds float64; labels are whole numbers from 0 to 2$"),
        ({"digit": ["a", "b"] * 128}, r"'digit' holds text; labels .*; number them: np\.unique"),
        (
            {"digit": np.zeros((256, 3), int)},
            r"'digit' has shape \(256, 3\); .* give array\.argmax\(axis=1\)",
        ),
        ({"digit": np.zeros(200, int)}, "differ in their number of examples: {'picture': 256, 'digit': 200}"),
        ({"digit": None}, "the data has no 'digit'; the network takes 'picture', 'digit'"),
        ({"label": np.zeros(256, int)}, "the data has 'label', but the network takes 'picture', 'digit'"),
        ({"picture": np.zeros((0, 8)), "digit": np.zeros(0, int)}, "the data has no examples"),
    ],
)
def test_mistakes_are_named(graph: Graph, change: dict[str, Any], sentence: str) -> None:
    data = {name: array for name, array in (toy.data() | change).items() if array is not None}
    with pytest.raises(ValueError, match=sentence):
        check_data(graph, data, targets=True, precision="float32")


def test_what_is_no_dictionary_is_named(graph: Graph) -> None:
    with pytest.raises(ValueError, match=r"the data is a list; give a dictionary with an .*'digit': "):
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


@pytest.mark.parametrize(
    "given",
    [
        torch.arange(32.0).reshape(4, 8).requires_grad_(),
        torch.arange(32).reshape(4, 8).bfloat16(),
        list(torch.arange(32.0).reshape(4, 8).requires_grad_()),
        np.ma.masked_array(np.arange(32).reshape(4, 8)),
        np.arange(32).reshape(4, 8).tolist(),
        list(np.arange(32).reshape(4, 8)),
    ],
    ids=["requires_grad", "bfloat16", "list of tensors", "nothing masked", "lists", "list of arrays"],
)
def test_numbers_are_taken_from_wherever_they_are(graph: Graph, given: Any) -> None:
    found = check_data(graph, {"picture": given}, targets=False, precision="float32")
    assert found["picture"].tobytes() == np.arange(32, dtype=np.float32).tobytes()


def test_one_number_for_each_example_needs_no_second_axis() -> None:
    net = Network("line")
    net.loss = HalfSquaredError()(Dense(1)(net.input("x", shape=1)), net.target("y"))
    given: dict[str, Any] = {"x": np.arange(5), "y": [0.5] * 5}
    found = check_data(net.graph(), given, targets=True, precision="float64")
    assert found["x"].tolist() == [[0], [1], [2], [3], [4]] and found["y"].shape == (5, 1)
