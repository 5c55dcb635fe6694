"""Data in files that every machine of a run has."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from partita.engine import Downpour, Files, evaluate, train
from partita.engine.files.access import HostFiles
from partita.engine.files.host_files import FileDiffers
from partita.partitioner import Cluster, partition
from tests.faults import toy


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    data = toy.data()
    for name, array in data.items():
        np.save(tmp_path / f"{name}.npy", array)
        array.tofile(tmp_path / f"{name}.raw")
    np.savez(tmp_path / "both.npz", **data)
    np.savez_compressed(tmp_path / "small.npz", **data)
    return tmp_path


def of(folder: Path, kind: str) -> dict[str, Files]:
    data = toy.data()
    match kind:
        case "npy":
            return {name: Files(folder / f"{name}.npy") for name in data}
        case "npz":
            return {name: Files(folder / "both.npz", key=name) for name in data}
    return {
        name: Files(folder / f"{name}.raw", shape=array.shape, dtype=array.dtype)
        for name, array in data.items()
    }


@pytest.mark.parametrize("kind", ["npy", "npz", "raw"])
def test_a_host_maps_the_file(folder: Path, kind: str) -> None:
    for name, source in of(folder, kind).items():
        bound = source.bound(name)
        rows: Any = bound.open(HostFiles())
        assert isinstance(rows, np.memmap) and (rows.shape, rows.dtype) == (bound.shape, bound.dtype)
        np.testing.assert_array_equal(rows, toy.data()[name])


@pytest.mark.parametrize("kind", ["npy", "raw"])
def test_a_file_that_is_another_one_on_a_host_is_named(folder: Path, kind: str) -> None:
    (name, source), *_ = of(folder, kind).items()
    bound, path = source.bound(name), folder / f"{name}.{kind}"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    with pytest.raises(FileDiffers, match=rf"{path} of '{name}' has the checksum .* copy it"):
        bound.open(HostFiles())
    path.write_bytes(data[:-1])
    with pytest.raises(FileDiffers, match=r"bytes on .*, and .* where the run was started"):
        bound.open(HostFiles())
    path.unlink()
    with pytest.raises(FileDiffers, match=rf"cannot be read on .* every machine of the run needs {path}"):
        bound.open(HostFiles())


def test_mistakes_are_named_where_the_run_starts(folder: Path) -> None:
    with pytest.raises(ValueError, match=r"a \.npz file needs a key"):
        Files(folder / "both.npz")
    with pytest.raises(ValueError, match="no other has one"):
        Files(folder / "x.npy", key="x")
    with pytest.raises(ValueError, match="raw numbers need shape= and dtype="):
        Files(folder / "x.raw")
    with pytest.raises(ValueError, match=r"has no array 'y'; it has "):
        Files(folder / "both.npz", key="y")
    with pytest.raises(ValueError, match=r"is compressed; write it with numpy\.savez"):
        Files(folder / "small.npz", key=next(iter(toy.data())))
    name = next(iter(toy.data()))
    with pytest.raises(ValueError, match="not float64 of shape"):
        Files(folder / f"{name}.npy", dtype=np.float64)
    with pytest.raises(FileNotFoundError):
        Files(folder / "nothing.npy")


@pytest.mark.slow
def test_a_run_has_the_bits_of_one_with_arrays(folder: Path) -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32)
    files = of(folder, "npy")
    runs = [train(plan, data, driver=Downpour(), epochs=2, show="nothing") for data in (toy.data(), files)]
    for name, values in runs[0].parameters.items():
        np.testing.assert_array_equal(runs[1].parameters[name], values)
    assert evaluate(runs[1], files) == evaluate(runs[0], toy.data())


def test_numbers_that_are_not_finite_are_named_with_their_file(folder: Path) -> None:
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32)
    files = of(folder, "npy")
    name = next(name for name, array in toy.data().items() if array.dtype.kind == "f")
    array = np.load(folder / f"{name}.npy")
    array[5, 0] = np.nan
    np.save(folder / f"{name}.npy", array)
    with pytest.raises(ValueError, match=rf"is not finite in 1 of .*first in example 5.*{name}\.npy"):
        train(plan, files, driver=Downpour(), epochs=1, show="nothing")
