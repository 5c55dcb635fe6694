"""Any damage to any file of a run: no wrong number in silence, the file is named, an older one is used."""

from __future__ import annotations

import contextlib
import io
import shutil
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from hypothesis import given, settings
from hypothesis import strategies as st

from partita.engine import Run
from partita.engine.parameters import CheckpointError, Checkpoints
from partita.engine.parameters.vector import Vector
from partita.engine.runtime.buffers import layout_of
from tests.draws import examples
from tests.drivers.conftest import run_on_threads
from tests.parameters.kept_runs import DATA, METHOD, RUNS, plan_of_run, shapes_of_run, train_run

SHAPES = shapes_of_run()
LAYOUTS = [layout_of(plan_of_run(machines=n), shards=shards) for n in (1, 2, 3) for shards in (1, 3, 70)]


@st.composite
def damages(draw: st.DrawFn, path: Path) -> str:
    """Flips some bits of a file, cuts it, empties a range of it, or puts another file in its place."""
    data, others = bytearray(path.read_bytes()), sorted(one for one in path.parent.iterdir() if one != path)
    how = draw(st.sampled_from(("flip", "flip", "cut", "zeros", "other", "missing")))
    start = draw(st.integers(0, len(data) - 1))
    if how == "flip":
        for at in {start, draw(st.integers(0, len(data) - 1))}:
            data[at] ^= 1 << draw(st.integers(0, 7))
    elif how == "cut":
        del data[start:]
    elif how == "zeros":
        stop = draw(st.integers(start, len(data)))
        data[start:stop] = bytes(stop - start)
    elif how == "other":
        data = bytearray(draw(st.sampled_from([one for one in others if one.is_file()])).read_bytes())
    path.unlink() if how == "missing" else path.write_bytes(data)
    return how


@settings(max_examples=examples(20))
@given(st.data())
def test_whatever_of_a_checkpoint_is_damaged_no_shard_of_any_plan_reads_other_numbers(
    tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    kept = data.draw(st.sampled_from(sorted(DATA.glob("format-*/*"))), label="run")
    folder = shutil.copytree(kept, tmp_path_factory.mktemp("damaged") / "run")
    store = Checkpoints(folder)
    (number,) = store.complete()
    whole, found = safetensors.numpy.load_file(kept / "numbers.safetensors"), store.open(number, SHAPES)
    victim = data.draw(st.sampled_from(sorted(found.path.iterdir())), label="file")
    before = victim.read_bytes()
    data.draw(damages(victim), label="damage")
    # The manifest's last byte, a line feed, says nothing; nor does the mark, beyond that it is one.
    harmless = victim.exists() and victim.read_bytes().rstrip(b"\n") == before.rstrip(b"\n")
    layout = data.draw(st.sampled_from(LAYOUTS), label="layout")
    refused = []
    for slots in filter(None, map(layout.slots_of, range(layout.shards))):
        try:
            read = store.open(number, SHAPES, slots=slots)
            snapshot = read.snapshot(slots)
        except CheckpointError as error:
            refused.append(str(error))
            continue
        for kind, vector in {"values": snapshot.values, **snapshot.state}.items():
            prefix = kind if kind == "values" else f"state.{kind}"
            parts = [slot.of(whole[f"{prefix}/{slot.parameter}"].reshape(-1)) for slot in slots]
            assert np.array_equal(vector, np.concatenate([part.reshape(-1) for part in parts])), kind
        assert (read.updates(slots), read.state_names) == (found.updates(slots), found.state_names)
    name = "manifest" if victim.name == "manifest.json" else victim.name
    assert all(f"{name} " in text for text in refused), refused
    if harmless or victim.name == "partita":
        assert not refused, refused
    elif victim.exists() or name != "manifest":
        with pytest.raises(CheckpointError, match=name):
            store.latest(SHAPES)
    else:
        assert store.latest(SHAPES) is None, "without a manifest it was never complete"


GOES_ON = {"all-reduce-adam": {"epochs": 4}, "sandblaster-lbfgs": {}}
"""Drivers whose resumed runs have the bits of any other way to the same end."""


def begun(name: str, folder: Path) -> None:
    """Two or more checkpoints of a run."""
    if name == "sandblaster-lbfgs":
        method = replace(METHOD, max_iterations=8)
        train_run(replace(RUNS[name], method=method), folder, checkpoint_every_s=0.005)
        return
    train_run(RUNS[name], folder)
    train_run(RUNS[name], folder, epochs=3, resume=True)


@pytest.fixture(scope="module", params=GOES_ON)
def kept(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> tuple[str, Path, dict[str, Vector]]:
    """A driver, the files of its run, and the parameters to which they lead."""
    name, folder = request.param, tmp_path_factory.mktemp("kept")
    with pytest.MonkeyPatch.context() as patch:
        run_on_threads(patch)
        begun(name, folder / "run")
        copy = shutil.copytree(folder / "run", folder / "copy")
        return name, folder / "run", train_run(RUNS[name], copy, resume=True, **GOES_ON[name]).parameters


def gone_on(name: str, folder: Path) -> Run | CheckpointError:
    try:
        return train_run(RUNS[name], folder, resume=True, show="lines", **GOES_ON[name])
    except CheckpointError as error:
        return error


@settings(max_examples=examples(3))
@given(st.data())
def test_a_run_goes_on_from_what_is_whole_and_names_what_is_not(
    kept: tuple[str, Path, dict[str, Vector]],
    tmp_path_factory: pytest.TempPathFactory,
    data: st.DataObject,
) -> None:
    name, run, expected = kept
    folder = shutil.copytree(run, tmp_path_factory.mktemp("damaged") / "run")
    files = sorted(one for one in folder.rglob("*") if one.is_file() and not one.name.startswith(".partita"))
    victim = data.draw(st.sampled_from(files), label="file")
    newest, before = Checkpoints(folder).complete()[0], victim.read_bytes()
    how = data.draw(damages(victim), label="damage")
    harmless = victim.exists() and victim.read_bytes().rstrip(b"\n") == before.rstrip(b"\n")
    said = io.StringIO()
    with pytest.MonkeyPatch.context() as patch, contextlib.redirect_stderr(said):
        run_on_threads(patch)
        found = gone_on(name, folder)
    if isinstance(found, CheckpointError):
        assert victim.name == "journal" and "journal" in str(found), (how, found)
        return
    for key, array in found.parameters.items():
        assert np.array_equal(array, expected[key]), (how, key)
    is_of_newest = victim.parent.name.startswith(f"{newest:08d}") and victim.name != "partita"
    if is_of_newest and not harmless and (victim.exists() or victim.name != "manifest.json"):
        assert f"{victim.parent} cannot be used: " in said.getvalue(), said.getvalue()
        assert victim.name.removesuffix(".json") in said.getvalue()
