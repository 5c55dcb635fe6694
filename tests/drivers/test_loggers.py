"""Loggers: what they write of a run, read back."""

from __future__ import annotations

import csv
import json
import logging
import struct
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from partita.engine import (
    SGD,
    AllReduce,
    CSVLog,
    JSONLinesLog,
    MLflowLog,
    PythonLog,
    TensorBoardLog,
    WandBLog,
    train,
)
from partita.engine.run.loggers.figures import Line
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

DATA = toy.data(48)


def trained(*loggers: object, epochs: int = 2) -> Any:
    plan = partition(toy.network(), Cluster.local(1), batch=8)
    held_out = {name: array[:13] for name, array in DATA.items()}
    settings = {"driver": AllReduce(optimizer=SGD(0.1)), "show": "nothing", "validation": held_out}
    return train(plan, DATA, epochs=epochs, callbacks=loggers, **settings)  # type: ignore[arg-type]


def events_of(path: Path) -> Iterator[Any]:
    """Yields the events of a file of TensorBoard: records of a length, a payload and their checksums."""
    from tensorboardX.proto.event_pb2 import Event

    data, at = path.read_bytes(), 0
    while at < len(data):
        (length,) = struct.unpack_from("<Q", data, at)
        yield Event.FromString(data[at + 12 : at + 12 + length])
        at += 12 + length + 4


class Fake(types.ModuleType):
    """The part of `wandb` and of `mlflow` that loggers call."""

    def __init__(self) -> None:
        super().__init__("fake")
        self.calls = list[tuple[Any, ...]]()

    def init(self, **settings: object) -> Fake:
        self.calls.append(("init", settings))
        return self

    start_run = init

    def log(self, figures: dict[str, float], *, step: int) -> None:
        self.calls.append((step, sorted(figures)))

    log_metrics = log

    def finish(self) -> None:
        self.calls.append(("end",))

    end_run = finish


def test_all_loggers_have_the_validations_of_a_run(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    wandb, mlflow = Fake(), Fake()
    monkeypatch.setitem(sys.modules, "wandb", wandb)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    caplog.set_level(logging.INFO, logger="partita")
    files = tmp_path / "log.csv", tmp_path / "log.jsonl", tmp_path / "events"
    services = WandBLog({"project": "toy"}), MLflowLog({"run_name": "toy"})
    run = trained(CSVLog(files[0]), JSONLinesLog(files[1]), TensorBoardLog(files[2]), PythonLog(), *services)
    expected = [(one.step, one.metrics["val_loss"]) for one in run.validations]
    assert [step for step, _ in expected] == [6, 12]
    with files[0].open(newline="") as file:
        rows = [*csv.DictReader(file)]
    found = [(int(row["step"]), float(row["val_loss"])) for row in rows if row["kind"] == "validation"]
    assert found == expected and any(row["kind"] == "training" and row["loss"] for row in rows)
    lines = [json.loads(line) for line in files[1].read_text().splitlines()]
    assert [(one["step"], one["val_loss"]) for one in lines if one["kind"] == "validation"] == expected
    (events,) = files[2].iterdir()
    scalars = [(e.step, v.tag, v.simple_value) for e in events_of(events) for v in e.summary.value]
    losses = [(step, value) for step, tag, value in scalars if tag == "validation/loss"]
    assert losses == [(step, pytest.approx(loss, rel=1e-6)) for step, loss in expected]
    assert any(tag == "training/loss" for _, tag, _ in scalars)
    messages = [one for one in caplog.records if one.getMessage().startswith("validation")]
    assert [one.figures["val_loss"] for one in messages] == [loss for _, loss in expected]  # type: ignore[attr-defined]
    for fake, settings in ((wandb, {"project": "toy"}), (mlflow, {"run_name": "toy"})):
        assert fake.calls[0] == ("init", settings) and fake.calls[-1] == ("end",)
        assert [one[0] for one in fake.calls[1:-1] if "val_loss" in one[1]] == [6, 12]


def test_a_csv_file_gets_further_columns_and_is_continued(tmp_path: Path) -> None:
    path = tmp_path / "new" / "log.csv"
    for first in (1, 3):
        log = CSVLog(path)
        log.open(None)  # type: ignore[arg-type]
        log.write(Line("training", first, 0.5, 1.0, {"loss": 0.1}))
        log.write(Line("validation", first + 1, 1.0, 2.0, {"val_loss": 0.25}))
    assert path.read_text().splitlines() == [
        "kind,step,epoch,seconds,loss,val_loss",
        "training,1,0.5,1.000,0.1,",
        "validation,2,1,2.000,,0.25",
        "training,3,0.5,1.000,0.1,",
        "validation,4,1,2.000,,0.25",
    ]
    other = tmp_path / "other.csv"
    other.write_text("a,b\n1,2\n")
    with pytest.raises(ValueError, match=r"other\.csv is no log of a run"):
        CSVLog(other).open(None)  # type: ignore[arg-type]


def test_a_missing_package_is_named_with_the_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "wandb", None)
    with pytest.raises(ModuleNotFoundError, match=r"'wandb' is missing, .*: pip install wandb"):
        WandBLog().open(None)  # type: ignore[arg-type]
