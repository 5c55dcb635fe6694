"""The command line: what it prints, and that each mistake ends it with one sentence and a non-zero exit."""

from __future__ import annotations

import re
import socket
import sys
import tomllib
from collections.abc import Callable, Iterator
from dataclasses import fields
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import safetensors.numpy
from typer.main import get_command

from partita.engine import SGD, AllReduce, Downpour, Momentum, Tree, cli, train
from partita.engine.cli import drivers
from partita.engine.run.phases import Phases
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import WatchedThreads
from tests.faults import toy

FILE = str(Path(toy.__file__))


class Ended(NamedTuple):
    code: object
    out: str
    err: str


Partita = Callable[..., Ended]


@pytest.fixture
def partita(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> Iterator[Partita]:
    """Runs a command in this process, in a folder of its own; no phase lasts long enough to be shown."""
    monkeypatch.setattr(Phases.__init__, "__kwdefaults__", {"after_s": 3600.0, "stream": None})
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setenv("COLUMNS", "200")
    modules = set(sys.modules)

    def run(*arguments: str) -> Ended:
        monkeypatch.setattr(sys, "argv", ["partita", *arguments])
        with pytest.raises(SystemExit) as ended:
            cli.main()
        said = capsys.readouterr()
        return Ended(ended.value.code, said.out, said.err)

    yield run
    for name in set(sys.modules) - modules:
        if getattr(sys.modules[name], "__file__", None) and str(tmp_path) in str(sys.modules[name].__file__):
            del sys.modules[name]


def assert_one_sentence(ended: Ended, sentence: str) -> None:
    assert ended.code == 1
    assert ended.err.startswith("partita: ") and ended.err.count("\n") == 1, ended.err
    assert sentence in ended.err


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
        assert known <= options | {"warm_start"}, name
        made, epochs = drivers.make_driver({"driver": name})
        assert type(made) is kind and (epochs is None) == bool(kind.ends)
    by_hand = {"driver": "all-reduce", "elastic": (2, 3), "by": "tree", "momentum": 0.5}
    made, _ = drivers.make_driver(by_hand | {"optimizer": "momentum"})
    assert made == AllReduce(elastic=(2, 3), by=Tree(), optimizer=Momentum(0.05, momentum=0.5))


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


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["no.py"], "there is no file no.py; give the path of a Python file with network()"),
        (["."], "there is no file ."),
        ([FILE, "--epochs", "0"], "epochs is 0; write a whole number of at least 1"),
        ([FILE, "--replicas", "0"], "Downpour's replicas is 0; write a whole number of at least 1"),
        ([FILE, "--learning-rate", "-1"], "learning_rate is -1.0, not a finite number above 0"),
        (
            [FILE, "--momentum", "0.9"],
            "the optimizer adagrad has no momentum; leave it out, or use one that has: ",
        ),
        (
            [FILE, "--optimizer", "lars", "--clip-norm", "1"],
            "LARS: clip_norm is 1.0, and its steps do not depend",
        ),
        ([FILE, "--weight-decay", "-1"], "Adagrad: weight_decay is -1.0, not 0 or a finite number above"),
        ([FILE, "--schedule", "linear:5"], "'linear:5' is no schedule; write step:EVERY[:FACTOR], "),
        ([FILE, "--schedule", "step:0"], "StepDecay: every is 0; write a whole number of at least 1"),
        ([FILE, "--seed", "-1"], "seed is -1; write a whole number of at least 0"),
        ([FILE, "--machines", "0"], "the number of machines is 0"),
        ([FILE, "--machines", "4", "--cut", "scores=0,1,2,3"], "has 3 nodes and cannot be cut into 4 pieces"),
        (
            [FILE, "--cut", "hidden"],
            "'hidden' is not a cut (name a layer and its machines); write LAYER=MACHINE",
        ),
        ([FILE, "--checkpoint-every", "0"], "checkpoint_every_s is 0.0; give seconds above 0"),
        ([FILE, "--checkpoints", "/proc/nobody/writes/here"], "no checkpoint can be written in /proc/nobody"),
        ([FILE, "--save", "nowhere/net.safetensors"], "there is no folder nowhere; make it first"),
        ([FILE, "--save", "."], ". is a folder; give a file name in it"),
        ([FILE, "--listen", "127.0.0.1:80"], "write tcp://127.0.0.1:PORT, or leave it out"),
        ([FILE, "--listen", "tcp://10.0.0.1:5555"], "no endpoint for hosts that are all on this machine"),
    ],
)
def test_a_mistake_in_an_option_is_one_sentence(
    partita: Partita, arguments: list[str], sentence: str
) -> None:
    assert_one_sentence(partita("train", *arguments), sentence)


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (
            ["--history", "5"],
            "--history is an option of Sandblaster; leave it out, or train with --driver sandblaster",
        ),
        (["--no-backups"], "--no-backups is an option of Sandblaster; leave it out"),
        (
            ["--driver", "sandblaster", "--epochs", "5"],
            "--epochs is an option of Downpour and AllReduce; leave it out, or give ",
        ),
        (
            ["--driver", "sandblaster", "--learning-rate", "1"],
            "--learning-rate is an option of Downpour and AllReduce; leave it out, or let Downpour",
        ),
        (["--driver", "sandblaster", "--overlap", "2"], "--overlap is an option of Downpour; leave it out"),
        (
            ["--driver", "all-reduce", "--shards", "2"],
            "--shards is an option of Downpour and Sandblaster; leave it out, or train with "
            "--driver downpour or --driver sandblaster",
        ),
        (["--by", "tree"], "--by is an option of AllReduce; leave it out, or train with --driver all-reduce"),
        (["--driver", "all-reduce", "--backup-workers", "1"], "use by=Server(), or backup_workers=0"),
        (
            ["--driver", "sandblaster", "--method", "cg", "--history", "5"],
            "the method cg has no history; leave --his",
        ),
        (["--driver", "sandblaster", "--history", "0"], "history is 0; keep at least 1 pair"),
        (["--driver", "sandblaster", "--gtol", "-1"], "gtol is -1.0; a tolerance must not be below 0"),
        (
            ["--driver", "sandblaster", "--portion", "300"],
            "a portion of 300 examples is more than the data has, 256",
        ),
        (
            ["--driver", "sandblaster", "--sample", "300"],
            "a batch of 300 examples is more than the data has, 256",
        ),
        (
            ["--driver", "sandblaster", "--sample", "64", "--portion", "64"],
            "batches of 1 portion cannot share 1",
        ),
        (
            ["--driver", "sandblaster", "--overlap-share", "0.9"],
            "Sandblaster's overlap is 0.9; give a number above 0",
        ),
        (["--driver", "sandblaster", "--l2", "-1"], "Sandblaster's l2 is -1.0; give 0 or a number above"),
        (
            ["--driver", "sandblaster", "--warm-epochs", "0"],
            "Sandblaster's warm_epochs is 0; write a whole number",
        ),
        (
            ["--driver", "sandblaster", "--warm-epochs", "1", "--learning-rate", "-1"],
            "learning_rate is -1.0, not a finite number",
        ),
    ],
)
def test_options_of_another_driver_and_mistakes_in_a_drivers_own(
    partita: Partita, arguments: list[str], sentence: str
) -> None:
    assert_one_sentence(partita("train", FILE, *arguments), sentence)


MACHINES = """
[[machine]]
name = "m"
count = 2
memory = "1 GiB"

[link]
latency = "50 us"
bandwidth = "1 Gbit/s"
"""


@pytest.mark.parametrize("command", ["plan", "train", "profile"])
@pytest.mark.parametrize(
    ("before", "after", "sentence"),
    [
        (
            "memory",
            "memmory",
            "cluster.toml: machine 'm' has the unknown key 'memmory'; known are name, count",
        ),
        (
            'memory = "1 GiB"',
            "",
            "cluster.toml: machine 'm' has no memory; write for example memory = \"64 GiB\"",
        ),
        (
            "[link]",
            '[[between]]\nhosts = ["m0", "m0"]',
            "cluster.toml: there is no link between 'm0' and 'm1'; give",
        ),
        (
            'memory = "1 GiB"',
            'memory = "1 GiB"\ntimes = "old.json"',
            "old.json holds times of kernels in version 1, and this Partita reads version ",
        ),
    ],
)
def test_a_mistake_in_a_cluster_file_is_one_sentence(
    partita: Partita, tmp_path: Path, command: str, before: str, after: str, sentence: str
) -> None:
    (tmp_path / "old.json").write_text('{"version": 1, "seconds": {}}')
    (tmp_path / "cluster.toml").write_text(MACHINES.replace(before, after, 1))
    assert_one_sentence(partita(command, FILE, "--cluster", "cluster.toml"), sentence)


def test_an_unknown_value_shows_what_is_known(partita: Partita) -> None:
    ended = partita("train", FILE, "--optimizer", "adamax")
    assert ended.code == 2
    assert "'adamax' is not one of 'sgd', 'momentum', 'adagrad'" in ended.err


@pytest.mark.parametrize(
    ("option", "meant"),
    [
        ("--rule", "--optimizer"),
        ("--rate=0.1", "--learning-rate"),
        ("--lr", "--learning-rate"),
        ("--workers", "--replicas"),
        ("--batch-size", "--batch"),
    ],
)
def test_an_option_of_other_libraries_is_answered(partita: Partita, option: str, meant: str) -> None:
    ended = partita("train", FILE, option, "1")
    assert ended.code == 2
    assert f"No such option: {option.partition('=')[0]}; did you mean {meant}?" in ended.err


def test_every_option_has_the_help_and_the_default_of_its_field(partita: Partita) -> None:
    ended = partita("train", "--help")
    text = " ".join(re.sub(r"[\u2500-\u257f]", " ", ended.out).split())
    assert "Steps from one fetch of parameters to the next. [default: 1]" in text
    assert "Adds l2 / 2 * |x|^2 over all parameters to the mean loss. [default: 0.0]" in text
    for command in ("plan", "train", "profile", "calibrate", "kernels"):
        for parameter in get_command(cli.app_of()).commands[command].params:  # type: ignore[attr-defined]
            assert len(parameter.help) > 8, (command, parameter.name)


def test_a_port_in_use_is_one_sentence(partita: Partita) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        endpoint = f"tcp://127.0.0.1:{taken.getsockname()[1]}"
        assert_one_sentence(
            partita("train", FILE, "--listen", endpoint), f"{endpoint} is already in use; choose"
        )


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("def network(:\n", "file.py, line 1: invalid syntax; correct it"),
        ("x = 1\n", "file.py has no function network(); define one"),
        (
            "def network():\n    return 7\n",
            "network() in file.py returns a int; return a partita.layers.Network",
        ),
        (
            "from partita.layers import Dense, Network\n\ndef network():\n"
            "    return Dense(0)(Network('n').input('x', shape=(2,)))\n",
            "file.py, line 4: Dense: the number of nodes is 0",
        ),
        ("from tests.faults.toy import network\n", "file.py has no function data(); define one"),
        (
            "from tests.faults.toy import network\nimport tests.faults.toy as toy\n"
            "def data():\n    return toy.data(), {'picture': toy.data()['picture']}\n",
            "held-out data: the data has no 'digit'",
        ),
        (
            "from tests.faults.toy import network\nimport tests.faults.toy as toy\n"
            "def data():\n    return toy.data(), toy.data(), 3\n",
            "data() in file.py returns 3 things; return one dictionary, or two",
        ),
    ],
)
def test_a_mistake_in_the_file_is_one_sentence(
    partita: Partita, tmp_path: Path, text: str, sentence: str
) -> None:
    (tmp_path / "file.py").write_text(text)
    assert_one_sentence(partita("train", "file.py"), sentence)


def test_an_error_of_the_file_shows_its_own_lines_and_none_of_ours(partita: Partita, tmp_path: Path) -> None:
    (tmp_path / "file.py").write_text(
        "def network():\n    return helper()\n\ndef helper():\n    return 1 / 0\n"
    )
    ended = partita("train", "file.py")
    assert ended.code == 1
    assert ended.err.endswith(
        "partita: file.py, line 5: network() raised ZeroDivisionError: division by zero\n"
    )
    assert "return helper()" in ended.err and "return 1 / 0" in ended.err
    assert "engine/cli" not in ended.err


@pytest.fixture
def kept(on_threads: list[WatchedThreads], tmp_path: Path) -> Path:
    """A folder with a checkpoint of the toy network, under SGD."""
    plan = partition(toy.network(), Cluster.local(machines=1), batch=32, strategy="balanced")
    folder = tmp_path / "kept"
    train(plan, toy.data(), driver=Downpour(optimizer=SGD(0.1)), epochs=1, checkpoints=folder, show="nothing")
    return folder


def test_a_damaged_checkpoint_is_named(partita: Partita, kept: Path) -> None:
    file = next(kept.rglob("*.safetensors"))
    damaged = bytearray(file.read_bytes())
    damaged[-3] ^= 1
    file.write_bytes(damaged)
    ended = partita("train", FILE, "--optimizer", "sgd", "--checkpoints", str(kept), "--resume")
    assert_one_sentence(ended, "is damaged (its SHA-256 is not the one in the manifest)")
    assert "Train from the start, or give another folder" in ended.err
    (next(kept.rglob("manifest.json"))).write_text("{}")
    ended = partita("train", FILE, "--optimizer", "sgd", "--checkpoints", str(kept), "--resume")
    assert_one_sentence(ended, "its manifest is damaged")


def test_a_checkpoint_of_another_rule_is_named(partita: Partita, kept: Path) -> None:
    ended = partita("train", FILE, "--optimizer", "adagrad", "--checkpoints", str(kept), "--resume")
    assert_one_sentence(ended, "was written with SGD(learning_rate=0.1), whose state Adagrad")


def test_a_checkpoint_of_another_network_is_named(kept: Path) -> None:
    net = Network("other")
    scores = Dense(2, name="scores")(net.input("picture", shape=(8,)))
    net.loss = HalfSquaredError()(scores, net.target("wanted"))
    data = {"picture": np.zeros((64, 8)), "wanted": np.zeros((64, 2))}
    plan = partition(net, Cluster.local(machines=1), batch=32, strategy="balanced")
    with pytest.raises(ValueError, match=r"checkpoint .* cannot be used: it is of another network: "):
        train(plan, data, driver=Downpour(), epochs=1, checkpoints=kept, resume=True)
