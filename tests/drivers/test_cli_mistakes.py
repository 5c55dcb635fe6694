"""The command line: each mistake ends it with one sentence and a non-zero exit."""

from __future__ import annotations

import socket
from pathlib import Path

import numpy as np
import pytest

from partita.engine import SGD, Downpour, train
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition
from tests.drivers.conftest import MACHINES, Partita, WatchedThreads, assert_one_sentence
from tests.faults import toy

FILE = str(Path(toy.__file__))


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
            "--epochs is an option of every driver but Sandblaster and FedAvg; leave it out, or give ",
        ),
        (
            ["--driver", "sandblaster", "--learning-rate", "1"],
            "--learning-rate is an option of every driver but Sandblaster; leave it out, or let Downpour",
        ),
        (["--driver", "sandblaster", "--overlap", "2"], "--overlap is an option of Downpour; leave it out"),
        (
            ["--driver", "all-reduce", "--outer-momentum", "0.5"],
            "--outer-momentum is an option of DiLoCo and DecoupledDiLoCo; leave it out, or train with "
            "--driver diloco or --driver decoupled-diloco",
        ),
        (
            ["--by", "tree"],
            "--by is an option of every driver but Downpour, EASGD, Sandblaster, DecoupledDiLoCo and FedAvg; "
            "leave it out, or train with another driver",
        ),
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
