"""Workers with addresses of their own, in network namespaces: machines that share nothing else."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

from benchmarks._namespaces import GBIT, Network, network, why_not
from partita.engine import SGD, AllReduce, Downpour, Pool, RunFailed, Sandblaster, evaluate, train
from partita.engine.profile import calibrate_pool
from partita.engine.transport import Keyring
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.launch.pool.helpers import Program, new_keys, worker

SOON_S = 10.0
pytestmark = [pytest.mark.netns, pytest.mark.slow]


@pytest.fixture
def net() -> Iterator[Network]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(2, bits_per_s=GBIT) as made:
        yield made


def plan_of_toy() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")


def address_of(serve: Program) -> str:
    serve.wait_for("serves a pool at")
    return serve.said[-1].split()[4]


def test_every_driver_trains_over_two_machines_with_the_bits_of_one(net: Network, tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    with Program("pool", "serve", net.listen, "--keys", str(keys)) as serve:
        address = address_of(serve)
        here, there = net.places
        with (
            worker(address, keys, "left", "--resources", "cpu=1", inside=here.command) as left,
            worker(address, keys, "right", "--resources", "cpu=1", inside=there.command) as right,
        ):
            pool = Pool(address, keys=keys, workers=2)
            serve.wait_for("worker 'left' joined", here.address)
            serve.wait_for("worker 'right' joined", there.address)
            driver = AllReduce(replicas=1, optimizer=SGD(0.05))
            far, near = (
                train(plan_of_toy(), toy.data(), driver=driver, epochs=10, show="nothing", on=on)
                for on in (pool, None)
            )
            for name, values in near.parameters.items():
                np.testing.assert_array_equal(far.parameters[name], values)
            for other in (Downpour(shards=2), Sandblaster(shards=2)):
                epochs = None if other.ends else 20
                run = train(plan_of_toy(), toy.data(), driver=other, epochs=epochs, show="nothing", on=pool)
                assert evaluate(run, toy.data()).accuracy > 0.9
            for one in (left, right):
                one.wait_for("the run of 'toy' by Sandblaster is over: it has ended")
                assert one.output.count("hosts for a run") == 3


def test_from_a_join_to_the_first_step_of_a_run_that_waits(net: Network, tmp_path: Path) -> None:
    """A run serves its pool itself, at an address that the worker reaches."""
    keys = new_keys(tmp_path / "keys")
    address = net.listen.replace("*", "7077")
    arguments = ["train", str(Path(toy.__file__)), "--on", address, "--keys", str(keys), "--batch", "8"]
    arguments += ["--epochs", "20", "--checkpoints", str(tmp_path / "kept")]
    with Program(*arguments) as run:
        run.wait_for("serves the pool at")
        began = time.monotonic()
        with worker(address, keys, "late", inside=net.places[0].command) as late:
            late.wait_for("joins tcp://")
            imported = time.monotonic()
            run.wait_for("staleness")
            print(
                f"first step {time.monotonic() - began:.1f} s after the command, "
                f"{time.monotonic() - imported:.1f} s after it joined",
                file=sys.stderr,
            )
            assert run.end() == 0, run.output


def test_what_is_wrong_is_named_on_both_sides(net: Network, tmp_path: Path) -> None:
    keys, others = new_keys(tmp_path / "keys"), new_keys(tmp_path / "others")
    Keyring(others).authorise("pool", Keyring(keys).pair("pool").public, "pool")
    lines = (others / "authorised").read_text().splitlines(keepends=True)
    own_pool = Keyring(others).pair("pool").public
    (others / "authorised").write_text("".join(line for line in lines if own_pool not in line))
    place = net.places[0]
    site = tmp_path / "site"
    site.mkdir()
    (site / "sitecustomize.py").write_text("import cloudpickle\ncloudpickle.__version__ = '0.0.1'\n")
    for command in (
        ("link", "add", "spare", "type", "bridge"),
        ("address", "add", "192.0.2.5/24", "dev", "spare"),
        ("link", "set", "spare", "up"),
    ):
        subprocess.run([*place.command, "ip", *command], check=True)
    after_s: dict[str, float] = {}

    def named(what: str, worker: Program, text: tuple[str, ...], pool: tuple[str, ...]) -> None:
        """Waits until both sides have named what is wrong."""
        at_worker = worker.wait_for(*text, within_s=SOON_S)
        after_s[what] = at_worker + (serve.wait_for(*pool, within_s=SOON_S - at_worker) if pool else 0.0)

    with Program("pool", "serve", net.listen, "--keys", str(keys)) as serve:
        address = address_of(serve)
        with worker(address, keys, "lost", "--interface", "spare", inside=place.command) as lost:
            lost.wait_for("joins tcp://")
            said = ("the pool cannot reach the worker at tcp://192.0.2.5:",)
            named("wrong interface", lost, said, ("'lost' is not let in", "at tcp://192.0.2.5:"))
        with worker(address, others, "stranger", inside=place.command) as stranger:
            stranger.wait_for("joins tcp://")
            key = Keyring(others).pair("worker").public
            told = (f"refused a connection from {place.address}", key)
            named("wrong key", stranger, ("refuses this worker's key", address), told)
        with Program(
            *("worker", address, "--keys", str(keys), "--name", "old"),
            inside=place.command,
            env={"PYTHONPATH": str(site)},
        ) as old:
            old.wait_for("joins tcp://")
            told = (f"worker 'old' at tcp://{place.address}:", "0.0.1 and must be")
            named("wrong version", old, ("cloudpickle is 0.0.1 and must be",), told)
    with worker(address, keys, "alone", inside=place.command) as alone:
        alone.wait_for("joins tcp://")
        said = (f"the pool at {address} cannot be reached from {place.address} (cable)", "nothing listens")
        named("closed port", alone, said, ())
    print(", ".join(f"{what}: {s:.1f} s" for what, s in after_s.items()), file=sys.stderr)


def test_a_worker_that_does_not_reach_the_run_is_named(net: Network, tmp_path: Path) -> None:
    """The coordinator listens where the pool does not lead: on another address of this machine."""
    keys = new_keys(tmp_path / "keys")
    with Program("pool", "serve", net.listen, "--keys", str(keys)) as serve:
        address = address_of(serve)
        with worker(address, keys, "left", inside=net.places[0].command) as left:
            serve.wait_for("worker 'left' joined")
            pool = Pool(address, keys=keys, contact_address="127.0.0.1")
            with pytest.raises(RunFailed, match=r"worker 'left' at .*: the run's coordinator at tcp://127"):
                train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, show="nothing", on=pool)
            left.wait_for("the run's coordinator at tcp://127.0.0.1:", net.places[0].address)


def test_a_worker_that_is_cut_off_is_replaced_and_comes_back(net: Network, tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    here, there = net.places
    arguments = ["train", str(Path(toy.__file__)), "--keys", str(keys), "--batch", "8", "--epochs", "100000"]
    with Program("pool", "serve", net.listen, "--keys", str(keys)) as serve:
        address = address_of(serve)
        with (
            worker(address, keys, "left", "--resources", "cpu=2", inside=here.command) as left,
            worker(address, keys, "right", "--resources", "cpu=2", inside=there.command) as right,
            Program(
                *arguments, "--on", address, "--pool-workers", "2", "--checkpoints", str(tmp_path / "kept")
            ) as run,
        ):
            run.wait_for("staleness")
            ours = here if "part 0.0" in left.hosts() else there
            subprocess.run([*ours.command, "ip", "link", "set", "cable", "down"], check=True)
            name = "left" if ours is here else "right"
            run.wait_for(f"its worker '{name}' at", "is gone (silent for", within_s=SOON_S)
            serve.wait_for(f"worker '{name}' is gone: silent for", within_s=2 * SOON_S)
            before = len(run.said)
            other = right if ours is here else left
            deadline = time.monotonic() + 60.0
            while not any("staleness" in line for line in run.said[before:]):
                assert time.monotonic() < deadline, run.output
                run.wait_for("staleness")
                run.read(0.2)
            assert "part 0.0" in other.hosts()
            subprocess.run([*ours.command, "ip", "link", "set", "cable", "up"], check=True)
            serve.said.clear()
            serve.wait_for(f"worker '{name}' joined", within_s=60.0)


def test_a_pool_is_calibrated_and_a_plan_for_it_goes_where_it_says(
    net: Network, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The link is found, the cluster names the workers, and a run has its parts there or is refused."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    keys, file = new_keys(tmp_path / "keys"), tmp_path / "cluster.toml"
    with Program("pool", "serve", net.listen, "--keys", str(keys)) as serve:
        address = address_of(serve)
        here, there = net.places
        with worker(address, keys, "left", "--resources", "cpu=2", inside=here.command) as left:
            with worker(address, keys, "right", "--resources", "cpu=1", inside=there.command) as right:
                serve.wait_for("worker 'left' joined")
                serve.wait_for("worker 'right' joined")
                pool = Pool(address, keys=keys, workers=2)
                calibrate_pool(pool, toy.network(), batch=8, threads=2).cluster().write(file)
                cluster = Cluster.read(file)
                named = [(machine.worker, machine.threads) for machine in cluster.machines]
                assert named == [("left", 2), ("right", 1)] and len(set(cluster.hosts)) == 2
                rate = cluster.link_between(0, 1).bytes_per_s
                assert 1e6 < rate < 1.5 * GBIT / 8, "1 Gbit/s, on a machine that others use"
                turned = Cluster(cluster.machines[::-1], cluster.link, cluster.between)
                plan = partition(toy.network(), turned, batch=8, strategy="balanced")
                assert plan.costs.calibrated
                run = train(plan, toy.data(), driver=Downpour(), epochs=20, show="nothing", on=pool)
                assert evaluate(run, toy.data()).accuracy > 0.9
                left.wait_for("hosts for a run of 'toy'")
                right.wait_for("hosts for a run of 'toy'")
            serve.wait_for("worker 'right' left")
            began = time.monotonic()
            with pytest.raises(
                RunFailed, match=r"at worker 'right', for which the plan was made, and which has"
            ):
                train(
                    plan, toy.data(), driver=Downpour(), epochs=1, show="nothing", on=Pool(address, keys=keys)
                )
            assert time.monotonic() - began < SOON_S
