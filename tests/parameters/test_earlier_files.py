"""Files of every format are read, with the numbers that their writers read, and kept in today's format."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path

import msgspec
import numpy as np
import pytest
import safetensors
import safetensors.numpy

from partita.engine.parameters import CheckpointError, Checkpoints, Journal, manifest
from partita.engine.parameters.files import layer_difference
from partita.engine.parameters.formats import NewerFormat, decode_any, newest
from partita.engine.parameters.journal_format import HEADER_UPGRADES, encode_header
from partita.engine.parameters.manifest import decode_manifest, decode_record, encode_manifest, encode_record
from tests.drivers.conftest import run_on_threads
from tests.parameters.kept_runs import numbers_of, resumed, shapes_of_run

DATA = Path(__file__).parent / "data"
SHAPES = {"hidden.weight": (4, 3), "hidden.bias": (4,)}
FORMATS = sorted(DATA.glob("format-*"))
KEPT = [
    pytest.param(run, id=f"{folder.name} {run.name}")
    for folder in FORMATS
    for run in sorted(folder.iterdir())
]


@pytest.mark.parametrize("folder", KEPT)
def test_the_checkpoint_of_any_format_has_the_numbers_that_its_writer_read(folder: Path) -> None:
    found = Checkpoints(folder).latest(shapes_of_run())
    assert found is not None and not found.skipped
    kept = safetensors.numpy.load_file(folder / "numbers.safetensors")
    numbers = numbers_of(found)
    assert numbers.keys() == {name for name in kept if not name.startswith("resumed/")}
    for name, array in numbers.items():
        assert np.array_equal(array, kept[name]), name
    assert decode_manifest(encode_manifest(found.manifest)) == found.manifest
    for record in found.records.values():
        assert decode_record(encode_record(record)) == record


@pytest.mark.parametrize("folder", KEPT)
def test_a_run_of_any_format_goes_on_as_with_its_writer(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    run_on_threads(monkeypatch)
    copy = shutil.copytree(folder, tmp_path / "copy")
    run = resumed(folder.name, copy, show="lines")
    has_log = folder.name == "downpour-log"
    assert capsys.readouterr().err.count("of its log carried out again") == (2 if has_log else 0)
    kept = safetensors.numpy.load_file(folder / "numbers.safetensors")
    # Another processor may round products otherwise. Parts did not begin with a checkpoint's state when files
    # had format 1, so that the steps of their writer were others, and depended on the time of the answers.
    estimates = folder.parent.name == "format-1" and folder.name in ("downpour-adagrad", "downpour-adam")
    for name, array in run.parameters.items():
        np.testing.assert_allclose(array, kept[f"resumed/{name}"], rtol=2e-4, atol=0.1 if estimates else 2e-6)
    found = Checkpoints(copy).latest(shapes_of_run())
    assert found is not None and found.manifest.format == newest(manifest.MANIFEST_UPGRADES)
    journal = Journal.read(copy / "journal")
    assert (journal is None) == ("sandblaster" not in folder.name)
    assert journal is None or not journal.older


def test_files_from_before_there_were_units_and_stops_are_read() -> None:
    found = Checkpoints(DATA / "checkpoints", run="5f3a9c20d1").open(
        12, SHAPES, network={"hidden": "Dense(4)"}
    )
    for n, (name, values) in enumerate(found.parameters().items()):
        assert np.array_equal(values.reshape(-1), 100 * n + np.arange(values.size))
        assert np.array_equal(found.parameters("state.sum")[name], values**2)
    former, today = (
        json.loads(data)["manifest"]
        for data in ((found.path / "manifest.json").read_bytes(), encode_manifest(found.manifest))
    )
    later = {"rule": "optimizer", "steps_per_epoch": "units_per_epoch", "epoch": "incarnation"}
    files = [{later.get(name, name): value for name, value in one.items()} for one in former["entries"]]
    changed = {"entries": files, "done": [], "callbacks": {}, "module": [], "format": 3}
    assert today == {later.get(name, name): value for name, value in former.items()} | changed
    assert [(record.version, record.updates) for record in found.records.values()] == [(7, 50), (8, 51)]


def test_a_journal_is_continued_in_the_format_of_today(tmp_path: Path) -> None:
    path = shutil.copy(DATA / "journal", tmp_path)
    entries = [(n, 1000 + n, n / 3, float("inf")) for n in range(3)]
    found = Journal.read(Path(path))
    assert found is not None and found.older and found.cut == ""
    assert [(entry.index, entry.digest, *entry.scalars) for entry in found.entries] == entries
    found.append(3, 1003, (1.0,))
    found.close()
    after = Journal.read(Path(path))
    assert after is not None and not after.older
    assert [(entry.index, entry.digest, *entry.scalars) for entry in after.entries] == [
        *entries,
        (3, 1003, 1.0),
    ]
    assert Path(path).read_bytes().startswith(encode_header(found.header))


class Third(msgspec.Struct, forbid_unknown_fields=True):
    """A file of which there were two formats before."""

    c: int
    format: int = 3


def test_each_format_is_upgraded_to_the_next_and_a_newer_one_is_refused() -> None:
    upgrades = (lambda old: {"b": old["a"] + 1}, lambda old: {"c": old["b"] * 10})
    assert [decode_any(data, Third, upgrades).c for data in (b'{"a":1}', b'{"b":1,"format":2}')] == [20, 10]
    assert decode_any(b'{"c":1,"format":3}', Third, upgrades).c == 1
    with pytest.raises(NewerFormat, match="has format 4, and this version of Partita reads formats up to 3"):
        decode_any(b'{"d":1,"format":4}', Third, upgrades)
    for damaged in (b'{"format":0}', b'{"a":1,"format":3}', b'{"format":"1"}', b"[]"):
        with pytest.raises(msgspec.MsgspecError):
            decode_any(damaged, Third, upgrades)


def test_a_newer_checkpoint_or_journal_is_refused_and_no_older_one_used(tmp_path: Path) -> None:
    shutil.copytree(FORMATS[0] / "sandblaster-lbfgs", tmp_path, dirs_exist_ok=True)
    checkpoints, shapes = Checkpoints(tmp_path, run="later"), shapes_of_run()
    found = checkpoints.latest(shapes)
    assert found is not None
    newer = msgspec.structs.replace(found.manifest, checkpoint=9, format=7)
    folder = shutil.copytree(found.path, tmp_path / "00000009-later")
    (folder / "manifest.json").write_bytes(encode_manifest(newer))
    says = (
        r"00000009-later cannot be used: its manifest has format 7, and .* reads formats up to \d+; use the"
    )
    with pytest.raises(NewerFormat, match=says):
        checkpoints.latest(shapes)
    journal = Journal.read(tmp_path / "journal")
    assert journal is not None
    (tmp_path / "journal").write_bytes(encode_header(msgspec.structs.replace(journal.header, format=5)))
    with pytest.raises(NewerFormat, match=f"journal has format 5, .* up to {newest(HEADER_UPGRADES)}"):
        Journal.read(tmp_path / "journal")


@pytest.mark.parametrize("change", [{"optimizer": "SGD()"}, {"entries": {}}, {"entries": [1]}, {"rule": 3}])
def test_a_manifest_of_format_1_with_other_fields_is_damaged(change: dict[str, object]) -> None:
    (path,) = (FORMATS[0] / "downpour-sgd").glob("0*/manifest.json")
    body = json.dumps(json.loads(path.read_bytes())["manifest"] | change, separators=(",", ":")).encode()
    sealed = b'{"sha256":"' + hashlib.sha256(body).hexdigest().encode() + b'","manifest":' + body + b"}"
    with pytest.raises(CheckpointError, match="its manifest is damaged"):
        decode_manifest(sealed)


@pytest.mark.parametrize(
    ("former", "today"),
    [
        ("Given(given_shape=(8,), role='input')", "Placeholder(given_shape=(8,), role='input')"),
        ("SquaredError(scale=1.0)", "HalfSquaredError(scale=1.0)"),
        ("OneAgainstAll()", "OneVsRest()"),
        ("LogisticCrossEntropy()", "BinaryCrossEntropy()"),
    ],
)
def test_layers_of_older_files_are_known_by_their_former_names(former: str, today: str) -> None:
    assert layer_difference({"a": former}, {"a": today}) is None
    assert layer_difference({"a": f"Dense{former}"}, {"a": today}) is not None


@pytest.mark.parametrize(
    ("former", "today", "same"),
    [
        ("SoftmaxCrossEntropy() of a, b", "SoftmaxCrossEntropy(weight=None) of a, b", True),
        ("SoftmaxCrossEntropy() of a, b", "SoftmaxCrossEntropy(label_smoothing=0.1) of a, b", False),
        ("SoftmaxCrossEntropy() of a, b", "SoftmaxCrossEntropy(weight=None) of a, c", False),
        ("Dense(units=8)", "Dense(units=8, weight=None)", True),
        ("Dense(units=(8, 2))", "Dense(units=(8, 3), weight=None)", False),
        ("Dense(units=8, old=1)", "Dense(units=8, weight=None)", False),
        ("Dense(units=8, weight=None)", "Dense(units=8)", False),
        ("MyLayer(a=1)", "MyLayer(a=1, b=None)", False),
    ],
)
def test_settings_that_came_later_are_those_of_older_files_by_default(
    former: str, today: str, same: bool
) -> None:
    assert (layer_difference({"x": former}, {"x": today}) is None) is same
