"""A run goes on with the very network that it began with: layers, settings, and nodes' source."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest

from partita.engine import LBFGS, Downpour, Sandblaster, train
from partita.engine.drivers.identity import identity
from partita.engine.parameters import Checkpoints, Journal
from partita.engine.parameters.manifest import decode_manifest, encode_manifest
from partita.layers import Dense, Network, OneToOne, Patch, SoftmaxCrossEntropy, node, per_edge
from partita.partitioner import Cluster, partition
from tests.drivers import shifted as shifted_network
from tests.drivers.conftest import WatchedThreads
from tests.drivers.shifted import network, shifted
from tests.faults import toy


def train_it(net: Network, driver: Downpour | Sandblaster, folder: Path, **more: Any) -> None:
    plan = partition(net, Cluster.local(machines=1), batch=64, strategy="balanced")
    epochs = 1 if isinstance(driver, Downpour) else None
    arguments = {"show": "nothing", "epochs": epochs} | more
    train(plan, toy.data(), driver=driver, checkpoints=folder, **arguments)


DRIVERS = [Downpour(), Sandblaster(LBFGS(max_iterations=2))]


@pytest.mark.parametrize("driver", DRIVERS, ids=["downpour", "sandblaster"])
def test_a_network_of_equal_shapes_is_refused_with_what_differs(
    on_threads: list[WatchedThreads], tmp_path: Path, driver: Downpour | Sandblaster
) -> None:
    train_it(network(), driver, tmp_path)
    with pytest.raises(
        ValueError, match=r"another network: layer 'hidden' is Dense\(activation='tanh', .* of p"
    ):
        train_it(network(activation="relu"), driver, tmp_path, resume=True)
    train_it(network(initialiser="he"), driver, tmp_path, resume=True)  # how it was drawn does not matter


@pytest.mark.parametrize("driver", DRIVERS, ids=["downpour", "sandblaster"])
def test_a_node_with_other_source_is_refused(
    on_threads: list[WatchedThreads], tmp_path: Path, driver: Downpour | Sandblaster
) -> None:
    train_it(network(odd=shifted(1.0, kind="helped")), driver, tmp_path)
    with pytest.raises(
        ValueError, match="another network: the code or the numbers of layer 'odd' are others"
    ):
        train_it(network(odd=shifted(2.0, kind="helped")), driver, tmp_path, resume=True)


def test_helpers_globals_and_closures_count_and_comments_do_not(monkeypatch: pytest.MonkeyPatch) -> None:
    def text(odd: Any) -> str:
        return identity(network(odd=odd).graph())["odd"]

    before = text(shifted(1.0, kind="helped"))
    assert before == text(shifted(1.0, kind="helped"))
    assert len({before, text(shifted(2.0, kind="helped")), text(shifted(1.0))}) == 3
    monkeypatch.setattr(shifted_network, "FACTOR", 3.0)
    assert text(shifted(1.0, kind="helped")) != before


WIRINGS = """
import json
from partita.engine.drivers.identity import identity
from tests.drivers.shifted import network, shifted
print(json.dumps(identity(network(odd=shifted(1.0, kind="helped")).graph())))
"""


def test_it_is_the_same_in_every_process() -> None:
    done = subprocess.run(
        [sys.executable, "-c", WIRINGS],
        capture_output=True,
        text=True,
        check=True,
        env={"PYTHONHASHSEED": "7"},
    )
    assert json.loads(done.stdout) == identity(network(odd=shifted(1.0, kind="helped")).graph())


def test_a_long_text_is_cut_and_still_tells_networks_apart() -> None:
    def of(number: float) -> str:
        kind = node(Patch(3), weight=per_edge("glorot"))(lambda incoming, weight: incoming[0] * weight[0])
        net = Network("long")
        layer = kind(name="a" * 500)
        states = layer(net.input("b" * 500, shape=(8, 8, 1)))
        net.loss = SoftmaxCrossEntropy()(Dense(3, initialiser=number)(states), net.target("digit"))
        return identity(net.graph())["a" * 500]

    assert len(of(1.0)) < 450 and of(1.0) == of(2.0)


def without_network(folder: Path) -> None:
    """Makes the files as they were before networks had texts."""
    for path in folder.glob("*/manifest.json"):
        manifest = decode_manifest(path.read_bytes())
        path.write_bytes(encode_manifest(msgspec.structs.replace(manifest, network={})))
    found = Journal.read(folder / "journal")
    if found is not None:
        older = Journal.create(folder / "journal", msgspec.structs.replace(found.header, network={}))
        for entry in found.entries:
            older.append(entry.index, entry.digest, entry.scalars)
        older.close()


@pytest.mark.parametrize("driver", DRIVERS, ids=["downpour", "sandblaster"])
def test_older_files_are_read_with_a_warning(
    on_threads: list[WatchedThreads],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    driver: Downpour | Sandblaster,
) -> None:
    train_it(network(), driver, tmp_path)
    without_network(tmp_path)
    train_it(
        network(activation="relu") if driver is DRIVERS[0] else network(),
        driver,
        tmp_path,
        resume=True,
        show="lines",
    )
    assert (
        "does not say more of its network than shapes; see that the layers are the same"
        in capsys.readouterr().err
    )
    assert Checkpoints(tmp_path).complete()


def test_every_function_has_a_digest() -> None:
    """A function without source has one too."""
    scope: dict[str, Callable[..., float]] = {}
    for text in ("incoming[0] + 1.0", "incoming[0] + 2.0"):
        exec(f"def made(incoming): return {text}", scope)
        scope[text] = scope.pop("made")
    one, two = (
        identity(network(odd=node(OneToOne())(scope[text])).graph())["odd"]
        for text in list(scope)
        if "inc" in text
    )
    assert one != two
