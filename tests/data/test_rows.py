"""Rows of a file, read by calls: those of the mapped array."""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine.data.rows import FileRows, file_rows, place_of


@given(
    chosen=st.lists(st.integers(0, 39), max_size=30),
    shape=st.sampled_from([(), (3,), (2, 700), (0,)]),
    dtype=st.sampled_from(["uint8", "float64"]),
    first=st.integers(0, 5),
)
def test_rows_are_those_of_the_array(
    chosen: list[int],
    shape: tuple[int, ...],
    dtype: str,
    first: int,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    path = tmp_path_factory.mktemp("rows") / "array.npy"
    whole = np.random.default_rng(0).integers(0, 99, (45, *shape)).astype(dtype)
    np.save(path, whole)
    if not whole.size:
        rows = FileRows(path, whole.dtype, whole.shape, 0)
    else:
        mapped = np.load(path, mmap_mode="r")[first:]
        found = file_rows(mapped)
        assert found is not None
        rows = found
        np.testing.assert_array_equal(rows[np.array(chosen, np.int64)], mapped[np.array(chosen, np.int64)])
        np.testing.assert_array_equal(rows[slice(2, 9)], mapped[2:9])
    rows.close()


def test_only_arrays_that_are_as_their_file_have_a_place(tmp_path: Path) -> None:
    np.save(tmp_path / "array.npy", np.arange(24.0).reshape(4, 6))
    mapped = np.load(tmp_path / "array.npy", mmap_mode="r")
    assert place_of(mapped[1:]) is not None
    assert place_of(mapped[:, 1:]) is None  # not in C order
    assert place_of(np.load(tmp_path / "array.npy", mmap_mode="c")) is None  # may differ from the file
    assert place_of(np.arange(3)) is None
    rows = file_rows(mapped)
    assert rows is not None
    os.truncate(tmp_path / "array.npy", 200)
    with pytest.raises(OSError, match="ends within example 3; it was cut since it was opened"):
        rows[np.array([3])]
