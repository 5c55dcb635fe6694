"""`partita profile`, on threads of this process."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from partita.engine import Pool, cli
from partita.engine.launch import ThreadLauncher
from partita.engine.launch.request import LaunchRequest
from partita.engine.profile import Report
from partita.partitioner import Cluster, Link, Machine, partition
from tests.faults import toy

FILE = str(Path(toy.__file__))
CLUSTER = """
[[machine]]
name = "m"
count = 3
cores = 2
memory = "1 GiB"

[link]
latency = "50 us"
bandwidth = "1 Gbit/s"
"""


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> object:
    session = sys.modules["partita.engine.run.session"]
    monkeypatch.setattr(session, "ProcessLauncher", lambda **_: ThreadLauncher())
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    monkeypatch.setattr(sys, "argv", ["partita", "profile", "--uncalibrated", *arguments])
    with pytest.raises(SystemExit) as ended:
        cli.main()
    return ended.value.code


def test_it_prints_and_writes_everything(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    files = {name: tmp_path / name for name in ("profile.html", "trace.json", "profile.json")}
    options = ["--page", "--trace", "--json"]
    written = [word for pair in zip(options, map(str, files.values()), strict=True) for word in pair]
    code = run(monkeypatch, FILE, "--machines", "1,2", "--batch", "8", "--steps", "2", *written)
    said = capsys.readouterr().out
    assert code == 0 and all(f"written: {file}" in said for file in files.values())
    report = Report.from_json(files["profile.json"].read_text())
    assert said.startswith(str(report)) and [point.machines for point in report.points] == [1, 2]
    assert files["profile.html"].read_text().lower().startswith("<!doctype html>")
    assert json.loads(files["trace.json"].read_text())["traceEvents"]


def test_a_file_without_data_and_cuts_by_hand(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """A cut that names machine 1 holds where there is one."""
    (tmp_path / "bare.py").write_text("from tests.faults.toy import network\n")
    file = str(tmp_path / "bare.py")
    cuts = ["--cut", "hidden=1", "--cut", "scores=1"]
    code = run(monkeypatch, file, "--machines", "2", "--batch", "8", "--steps", "1", *cuts)
    said = capsys.readouterr().out
    assert code == 0 and "2  measured" in said and "1  measured" in said


def test_the_strategy_and_the_micro_batches_are_those_asked_for(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """Whole layers in order: the states of four portions travel up, and their errors down."""
    asked = ["--strategy", "layers", "--micro-batches", "4", "--json", str(tmp_path / "r.json")]
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    code = run(monkeypatch, FILE, "--machines", "2", "--batch", "8", "--cluster", str(file), *asked)
    assert code == 0, capsys.readouterr().err
    found = Report.from_json((tmp_path / "r.json").read_text())
    machines = tuple(Machine(f"m{n}", threads=2, cores=2, memory_bytes=1 << 30) for n in range(2))
    on = Cluster(machines, link=Link(latency_s=50e-6, bytes_per_s=125e6))
    plan = partition(toy.network(), on, batch=8, strategy="layers", micro_batches=4)
    sent = [[part.sent_messages for part in point.parts] for point in found.points]
    assert sent == [[0], [sum(m.source == n for m in plan.messages) for n in range(2)]]
    assert sent[-1] == [4, 4] and found.points[-1].step_s == plan.predicted_step_s


def test_a_cluster_from_a_file_is_simulated_up_to_all_of_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    file = tmp_path / "cluster.toml"
    file.write_text(CLUSTER)
    code = run(monkeypatch, FILE, "--batch", "8", "--cluster", str(file), "--json", str(tmp_path / "r.json"))
    assert code == 0, capsys.readouterr().err
    found = Report.from_json((tmp_path / "r.json").read_text())
    assert [(p.machines, p.source) for p in found.points] == [
        (1, "simulated"),
        (2, "simulated"),
        (3, "simulated"),
    ]
    assert {part.threads for point in found.points for part in point.parts} == {2}


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        ([FILE, "--machines", "1;2"], "'1;2' are no numbers of machines; write for example 1,2,4"),
        ([FILE, "--machines", "0"], "the number of machines is 0; write a whole number of at least 1"),
        ([FILE, "--steps", "0"], "the number of steps is 0; write a whole number of at least 1"),
        ([FILE, "--page", "nowhere/page.html"], "there is no folder nowhere; make it first"),
        ([FILE, "--machines", "2", "--cut", "scores=0,1,2"], "is put on machine 2"),
        ([FILE, "--machines", "2", "--cut", "nothing=0"], "there is no layer 'nothing' to cut"),
    ],
)
def test_a_mistake_is_one_sentence(
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    arguments: list[str],
    sentence: str,
) -> None:
    assert run(monkeypatch, *arguments) == 1
    assert sentence in capsys.readouterr().err.splitlines()[-1]


def test_with_a_pool_all_numbers_of_machines_are_measured_there(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Doublings up to the workers that it waits for, however many cores are here."""
    asked: list[object] = []

    @contextmanager
    def opened(settings: object, log: object) -> Iterator[Callable[[LaunchRequest], ThreadLauncher]]:
        asked.append(settings)
        yield lambda request: ThreadLauncher()

    monkeypatch.setattr(sys.modules["partita.engine.run.session"], "opened", opened)
    arguments = ["--on", "tcp://198.18.0.1:7077", "--keys", "nowhere", "--pool-workers", "3"]
    code = run(monkeypatch, FILE, "--batch", "8", "--steps", "1", "--threads", "64", *arguments)
    said = capsys.readouterr().out
    pool = Pool("tcp://198.18.0.1:7077", keys=Path("nowhere"), workers=3)
    assert code == 0 and asked == [pool] * 3, asked
    assert sum(" measured " in line for line in said.splitlines()) == 3, said
