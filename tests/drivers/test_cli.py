"""The command line: what it prints, plans and trains."""

from __future__ import annotations

import re
import tomllib
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
from typer.main import get_command

from partita.engine import EASGD, AllReduce, Momentum, Tree, cli
from partita.engine.cli import drivers
from partita.engine.parameters.compression import Int8
from tests.drivers.conftest import MACHINES, Partita, WatchedThreads, assert_one_sentence
from tests.faults import toy

FILE = str(Path(toy.__file__))


def test_the_version_is_that_of_the_project(partita: Partita) -> None:
    pyproject = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())
    ended = partita("--version")
    assert ended == (0, f"partita {pyproject['project']['version']}\n", "")


def test_a_plan_is_printed_and_drawn(partita: Partita, tmp_path: Path) -> None:
    ended = partita(
        "plan",
        FILE,
        "--cut",
        "hidden=1,0",
        "--cut",
        "scores=1",
        "--programs",
        "--summary",
        "--draw",
        "plan.svg",
    )
    assert (ended.code, ended.err) == (0, "")
    assert "plan of toy: 2 machines, batch 32" in ended.out and "program of local1:" in ended.out
    assert ended.out.startswith("network toy: ")
    assert (tmp_path / "plan.svg").read_text().startswith("<svg")


SLOW = """
from partita.layers import Network, OneToOne, node

GAIN = {"high": 2.0}

@node(OneToOne())
def looked_up(incoming):
    return GAIN["high"] * incoming[0]

def network():
    net = Network("slow")
    looked_up(name="mine")(net.input("x", shape=4))
    return net
"""


@pytest.mark.parametrize("command", ["plan", "profile"])
def test_a_line_that_makes_a_node_slow_is_a_remark(partita: Partita, tmp_path: Path, command: str) -> None:
    (tmp_path / "slow.py").write_text(SLOW)
    (tmp_path / "cluster.toml").write_text(MACHINES)
    ended = partita(command, "slow.py", "--machines", "1", "--cluster", "cluster.toml")
    assert ended.code == 0, ended.err
    remark = ended.out.partition("\nremark: ")[2]
    assert remark.startswith("Node looked_up 'mine' runs in plain Python, not in compiled loops.\n")
    assert "slow.py\", line 8\n    GAIN['high']" in remark


@pytest.mark.parametrize("width", [60, 80, 120])
def test_a_terminal_breaks_no_word_of_a_plan(
    partita: Partita, monkeypatch: pytest.MonkeyPatch, width: int
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    ended = partita("plan", FILE, "--machines", "8", "--strategy", "balanced")
    assert ended.code == 0 and max(map(len, ended.out.splitlines())) <= width
    assert "local7" in ended.out and "peak memory" in ended.out


def test_training_prints_saves_and_looks_at_what_was_held_out(
    partita: Partita, on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    (tmp_path / "held_out.py").write_text(
        "from tests.faults.toy import network\nimport tests.faults.toy as toy\n"
        "def data():\n    return toy.data(), toy.data(40)\n"
    )
    ended = partita("train", "held_out.py", "--batch", "8", "--epochs", "3", "--save", "net.safetensors")
    assert ended.code == 0
    assert "trained 96 steps" in ended.out and "checkpoint: held_out.checkpoints" in ended.out
    assert "held-out: loss " in ended.out and "on 40 examples" in ended.out
    assert "durability: checkpoint" in ended.err
    assert set(safetensors.numpy.load_file(tmp_path / "net.safetensors")) >= {"hidden.weight", "scores.bias"}
    again = partita("train", "held_out.py", "--batch", "8")
    assert_one_sentence(
        again,
        "held_out.checkpoints holds checkpoint 1 of an earlier run; give --resume to go on with it, "
        "--overwrite to replace it, or another folder",
    )
    assert partita("train", "held_out.py", "--batch", "8", "--overwrite").code == 0
    assert_one_sentence(
        partita("train", FILE, "--overwrite", "--resume"), "--resume and --overwrite exclude each other"
    )


def test_a_batch_method_after_downpour(partita: Partita, on_threads: list[WatchedThreads]) -> None:
    options = ("--driver", "sandblaster", "--batch", "16", "--portion", "32", "--no-backups", "--l2", "1e-3")
    ended = partita(
        "train", FILE, *options, "--max-iterations", "4", "--warm-epochs", "1", "--optimizer", "sgd"
    )
    assert ended.code == 0
    assert "trained 16 steps and 4 iterations in " in ended.out and "toy.checkpoints" in ended.out
    said = ended.err.splitlines()
    assert "durability: checkpoint" in said[0] and said[-1].startswith("Stopped after 4 iterations")
    assert any("LBFGS(" in line and "on all data: 8 portions of 32, 1 for each push" in line for line in said)
    again = partita("train", FILE, *options, "--max-iterations", "4", "--warm-epochs", "1", "--resume")
    assert again.code == 0 and "trained 4 iterations" in again.out
    assert "the method had ended already" in again.err


@pytest.mark.parametrize("by", drivers.ALGORITHMS)
def test_every_algorithm_of_all_reduce_is_a_name(
    partita: Partita, on_threads: list[WatchedThreads], by: str
) -> None:
    more = ("--backup-workers", "1") if by == "server" else ()
    options = ("--driver", "all-reduce", "--replicas", "2", "--by", by, "--optimizer", "momentum", *more)
    ended = partita("train", FILE, "--batch", "16", "--epochs", "1", "--learning-rate", "0.1", *options)
    assert ended.code == 0 and "trained 16 steps in " in ended.out
    assert "toy: 2 replicas of 2 machines; durability: " in ended.err and "staleness" not in ended.err


def test_every_field_of_a_driver_is_an_option() -> None:
    """The settings that the options make are those that a dataclass has, whatever is given."""
    for name, kind in drivers.DRIVERS.items():
        known = {one.name for one in fields(kind)}
        options = {one.field for one in drivers.OPTIONS[1:] if kind in drivers.HAVING[one.name]}
        assert known <= options | {"warm_start", "loss_scale"}, name
        made, epochs = drivers.make_driver({"driver": name})
        assert type(made) is kind and (epochs is None) == bool(kind.ends)
    by_hand = {"driver": "all-reduce", "elastic": (2, 3), "by": "tree", "momentum": 0.5}
    made, _ = drivers.make_driver(by_hand | {"optimizer": "momentum"})
    assert made == AllReduce(elastic=(2, 3), by=Tree(), optimizer=Momentum(0.05, momentum=0.5))
    made, _ = drivers.make_driver({"driver": "easgd", "compress": "int8"})
    assert isinstance(made, EASGD) and made.compress == Int8(feedback=False), "movements have no feedback"


OWN = """
from dataclasses import dataclass
from partita.engine import SGD, Optimizer, Ring
from partita.engine.drivers import Driver
from partita.engine.protocol.actions import AllReduce, Apply, Compute, SafePoint
from tests.faults.toy import data, network

@dataclass(frozen=True)
class Own(Driver):
    replicas: int = 1
    optimizer: Optimizer = SGD(0.1)

    def replica(self, me):
        for step in me.steps():
            yield Compute(step)
            yield AllReduce("gradient", by=Ring())
            yield Apply(self.optimizer)
            yield SafePoint()

def driver():
    return Own(replicas=2)
"""


def test_a_file_may_have_a_driver_of_its_own(
    partita: Partita, on_threads: list[WatchedThreads], tmp_path: Path
) -> None:
    (tmp_path / "own.py").write_text(OWN)
    ended = partita("train", "own.py", "--machines", "1", "--batch", "16", "--epochs", "3")
    assert ended.code == 0 and "trained 48 steps in " in ended.out, ended.err
    assert "toy: 2 replicas of 1 machine; durability: replicas" in ended.err
    named = partita(
        "train", "own.py", "--driver", "downpour", "--shards", "2", "--epochs", "1", "--overwrite"
    )
    assert named.code == 0 and "1 replica of 2 machines, 2 shards" in named.err
    more = partita("train", "own.py", "--replicas", "3", "--epochs", "1", "--overwrite")
    assert more.code == 0 and "toy: 3 replicas of 2 machines" in more.err
    assert_one_sentence(
        partita("train", "own.py", "--learning-rate", "0.1"),
        "--learning-rate is given, and the file has a driver(); set it there, or name another driver with ",
    )
    (tmp_path / "wrong.py").write_text(OWN.replace("Own(replicas=2)", "Own"))
    assert_one_sentence(
        partita("train", "wrong.py"), "driver() in wrong.py returns a type; return a driver, a dataclass"
    )


def test_every_option_has_the_help_and_the_default_of_its_field(partita: Partita) -> None:
    ended = partita("train", "--help")
    text = " ".join(re.sub(r"[\u2500-\u257f]", " ", ended.out).split())
    assert "Steps from one fetch of parameters to the next. [default: 1]" in text
    assert "Adds l2 / 2 * |x|^2 over all parameters to the mean loss. [default: 0.0]" in text
    for command in ("plan", "train", "profile", "calibrate", "kernels"):
        for parameter in get_command(cli.app_of()).commands[command].params:  # type: ignore[attr-defined]
            assert len(parameter.help) > 8, (command, parameter.name)


def test_a_run_is_validated_logged_and_limited(
    partita: Partita, tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    (tmp_path / "held.py").write_text(
        "from tests.faults.toy import network\nfrom tests.faults import toy\n"
        "def data():\n    return toy.data(64), toy.data(20)\n"
    )
    asked = [
        "--machines",
        "1",
        "--batch",
        "8",
        "--max-steps",
        "12",
        "--driver",
        "all-reduce",
        "--epochs",
        "3",
    ]
    logs = ["--validation", "--log", "csv:log.csv", "--log", "jsonl:log.jsonl"]
    ended = partita("train", "held.py", *asked, *logs, "--max-s", "600", "--epochs", "3")
    assert ended.code == 0 and "max_steps=12 is reached" in ended.err
    rows = [line.split(",")[:2] for line in (tmp_path / "log.csv").read_text().splitlines()]
    assert [row for row in rows if row[0] == "validation"] == [["validation", "8"], ["validation", "12"]]
    assert (tmp_path / "log.jsonl").read_text().count('"kind":"validation"') == 2


def test_files_are_trained_on_in_the_place_of_the_files_data(
    partita: Partita, tmp_path: Path, on_threads: list[WatchedThreads]
) -> None:
    (tmp_path / "net.py").write_text("from tests.faults.toy import network\n")
    for number, given in enumerate((toy.data(20), toy.data(12), toy.data(8))):
        np.savez(tmp_path / f"{number}.npz", **given)
    asked = [
        "--machines",
        "1",
        "--batch",
        "8",
        "--epochs",
        "1",
        "--replicas",
        "1",
        "--log",
        "jsonl:log.jsonl",
    ]
    ended = partita("train", "net.py", *asked, "--data", "[01].npz", "--held-out", "2.npz", "--validation")
    assert ended.code == 0, ended.err
    assert "trained 4 steps" in ended.out and "held-out: loss" in ended.out
    assert (tmp_path / "log.jsonl").read_text().count('"kind":"validation"') == 1
    ended = partita("train", "net.py", *asked, "--data", "none/*.npz", "--overwrite")
    assert_one_sentence(ended, "none/*.npz")


@pytest.mark.parametrize(
    ("given", "text"),
    [
        (["--log", "xml:file"], "--log is 'xml:file'; give csv:FILE, jsonl:FILE or tensorboard:FOLDER"),
        (["--validation"], "--validation needs held-out data"),
    ],
)
def test_mistakes_about_logs_and_validations_are_said(partita: Partita, given: list[str], text: str) -> None:
    ended = partita("train", FILE, "--epochs", "1", *given)
    assert ended.code != 0 and text in ended.err
