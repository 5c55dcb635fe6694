"""Files that earlier versions wrote are read, and written again with the same names of fields."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors

from partita.engine.parameters import Checkpoints, Journal
from partita.engine.parameters.files import layer_difference
from partita.engine.parameters.journal_format import encode_header
from partita.engine.parameters.manifest import encode_manifest, encode_record

DATA = Path(__file__).parent / "data"
SHAPES = {"hidden.weight": (4, 3), "hidden.bias": (4,)}


def test_a_checkpoint_is_read_and_keeps_its_fields() -> None:
    checkpoints = Checkpoints(DATA / "checkpoints", run="5f3a9c20d1")
    found = checkpoints.open(12, SHAPES, network={"hidden": "Dense(4)"})
    for n, (name, values) in enumerate(found.parameters().items()):
        assert np.array_equal(values.reshape(-1), 100 * n + np.arange(values.size))
        assert np.array_equal(found.parameters("state.sum")[name], values**2)
    former, today = (
        json.loads(data)["manifest"]
        for data in ((found.path / "manifest.json").read_bytes(), encode_manifest(found.manifest))
    )
    assert {name: today[name] for name in former} == former
    assert {name: today[name] for name in today.keys() - former} == {"done": []}, "younger than the file"
    for record in found.records.values():
        with safetensors.safe_open(found.path / record.file, framework="numpy") as file:
            assert encode_record(record) == file.metadata()
    assert [(record.version, record.updates) for record in found.records.values()] == [(7, 50), (8, 51)]


def test_a_journal_is_read_and_keeps_its_fields() -> None:
    found = Journal.read(DATA / "journal")
    assert found is not None
    assert [(entry.index, entry.digest, *entry.scalars) for entry in found.entries] == [
        (n, 1000 + n, n / 3, float("inf")) for n in range(3)
    ]
    assert (DATA / "journal").read_bytes().startswith(encode_header(found.header))
    assert found.cut == ""


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
