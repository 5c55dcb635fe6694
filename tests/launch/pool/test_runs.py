"""Runs on a pool of real processes: trained as on this machine, and whoever dies there is replaced."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import numpy as np
import psutil
import pytest

from partita.engine import (
    SGD,
    AllReduce,
    Downpour,
    Pool,
    Run,
    RunFailed,
    Sandblaster,
    Session,
    evaluate,
    train,
)
from partita.engine.launch.pool import PoolServer, ask_pool
from partita.engine.protocol.pool.messages import Inspect
from partita.engine.transport import Keyring
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import Witness
from tests.launch.pool.helpers import DEADLINE_S, Program, new_keys, pool_of, worker


@pytest.fixture
def witness(monkeypatch: pytest.MonkeyPatch) -> Witness:
    made = Witness()
    monkeypatch.setattr("partita.engine.run.display.Display", made)
    return made


def plan_of_toy(*, threads: int = 1) -> Plan:
    cluster = Cluster.local(machines=2, threads=threads)
    return partition(toy.network(), cluster, batch=8, strategy="balanced")


def assert_trained(run: Run) -> None:
    assert evaluate(run, toy.data()).accuracy > 0.9


@pytest.mark.slow
def test_drivers_train_on_workers_which_outlive_the_runs(tmp_path: Path) -> None:
    """Where the bits do not depend on arrival, they are those of processes of this machine.

    Each run needs all cores of both workers, so it waits until they have the places of the one before back.
    """
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 2, "--resources", "cpu=2") as (address, serve, workers):
        pool = Pool(address, keys=keys, workers=2)
        runs: list[Run] = []
        for on in (pool, None):
            run = train(
                plan_of_toy(),
                toy.data(),
                driver=AllReduce(replicas=2, optimizer=SGD(0.05)),
                epochs=10,
                show="nothing",
                on=on,
            )
            runs.append(run)
        for name, values in runs[0].parameters.items():
            np.testing.assert_array_equal(values, runs[1].parameters[name])
        again = train(
            plan_of_toy(),
            toy.data(),
            driver=Downpour(replicas=2, shards=2),
            epochs=20,
            show="nothing",
            on=pool,
        )
        assert_trained(again)
        batch = Sandblaster(replicas=2)
        assert_trained(train(plan_of_toy(), toy.data(), driver=batch, show="nothing", on=pool))
        for one in workers:
            one.wait_for("the run of 'toy' by Sandblaster is over: it has ended")
            assert not one.hosts() and one.output.count("hosts for a run") == 3
        serve.wait_for("the run of 'toy' by Sandblaster has ended")
        status = ask_pool(address, Keyring(keys), Inspect())
        assert [one.name for one in status.workers] == ["w0", "w1"] and not status.runs
        assert all(one.free == one.resources for one in status.workers)


@pytest.mark.slow
def test_a_worker_that_dies_is_replaced_by_another(tmp_path: Path, witness: Witness) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 2, "--resources", "cpu=2") as (address, serve, workers):
        victims: list[str] = []

        def kill_one() -> None:
            victim = next(one for one in workers if one.hosts())
            victims.append(next(name for name in victim.hosts()))
            victim.signal(signal.SIGKILL)

        witness.when(lambda progress: progress.step > 20, kill_one)
        run = train(
            plan_of_toy(),
            toy.data(),
            driver=Downpour(shards=1, optimizer=SGD(0.05)),
            epochs=60,
            checkpoints=tmp_path / "checkpoints",
            checkpoint_every_s=0.5,
            on=Pool(address, keys=keys, workers=2),
        )
        assert victims
        serve.wait_for("is gone: silent for")
    assert_trained(run)
    assert any("is gone (silent for" in text for text in witness.texts), witness.texts


@pytest.mark.slow
def test_a_host_that_dies_begins_again_at_its_worker(tmp_path: Path, witness: Witness) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 1) as (address, _, [one]):
        witness.when(lambda progress: progress.step > 20, lambda: one.hosts()["part 0.0"].kill())
        run = train(
            plan_of_toy(),
            toy.data(),
            driver=Downpour(shards=1, optimizer=SGD(0.05)),
            epochs=60,
            on=Pool(address, keys=keys),
        )
    assert_trained(run)
    assert any("ended by SIGKILL at worker 'w0'" in text for text in witness.texts), witness.texts


@pytest.mark.slow
def test_a_pool_that_is_started_again_is_not_noticed_by_a_run(tmp_path: Path, witness: Witness) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 1) as (address, serve, _):
        again: list[Program] = []

        def restart() -> None:
            serve.signal(signal.SIGKILL)
            assert serve.end() == -signal.SIGKILL
            again.append(Program("pool", "serve", address, "--keys", str(keys)))
            again[0].wait_for("worker 'w0' joined")
            again[0].wait_for("a run of 'toy' by Downpour needs")

        witness.when(lambda progress: progress.step > 20, restart)
        try:
            run = train(
                plan_of_toy(),
                toy.data(),
                driver=Downpour(shards=1, optimizer=SGD(0.05)),
                epochs=200,
                on=Pool(address, keys=keys),
            )
            again[0].wait_for("the run of 'toy' by Downpour has ended")
        finally:
            for program in again:
                program.__exit__(None, None, None)
    assert_trained(run)
    assert not any("begins again" in text for text in witness.texts), witness.texts


def test_a_process_serves_the_pool_itself_where_nobody_does(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    port = 20_000 + os.getpid() % 12_000  # below those that the system gives to connections
    address = f"tcp://127.0.0.1:{port}"
    with worker(address, keys, "early", "--death-timeout", "90") as early:
        early.wait_for("cannot be reached from 127.0.0.1 (lo): nothing listens at this port")
        run = train(
            plan_of_toy(),
            toy.data(),
            driver=Downpour(shards=1),
            epochs=20,
            show="nothing",
            on=Pool(address, keys=keys),
        )
        assert_trained(run)
        early.wait_for("the run of 'toy' by Downpour is over")


def test_a_registry_that_is_started_just_now_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A run finds that nobody listens; before it does itself, the registry is back."""
    keys = new_keys(tmp_path / "keys")
    with PoolServer(Keyring(keys), "tcp://127.0.0.1:*", log=print) as server:
        looks = iter(["nothing listens at this port", None])
        monkeypatch.setattr("partita.engine.launch.pool.pool.unreachable", lambda address: next(looks))
        with Pool(server.endpoint, keys=keys).door(print) as door:
            assert (door.peer.endpoint, door.peer.public_key) == (server.endpoint, server.public_key)


@pytest.mark.slow
def test_a_placement_that_cannot_be_met_is_refused_within_five_seconds(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 2, "--resources", "cpu=2,memory=1GiB") as (address, _, _):
        began = time.monotonic()
        with pytest.raises(RunFailed) as refused:
            train(
                plan_of_toy(threads=3), toy.data(), driver=Downpour(), epochs=1, on=Pool(address, keys=keys)
            )
        took_s = time.monotonic() - began
        print(f"refused after {took_s:.1f} s", file=sys.stderr)
        assert took_s < 5.0 + 2.0  # data and checkpoints are prepared before
    text = str(refused.value)
    assert "cannot place this run: part 0.0 (and 1 more) needs cpu 3" in text
    assert "w0 has cpu 2, memory 1 GiB free of cpu 2, memory 1 GiB" in text and "w1 has" in text


@pytest.mark.slow
def test_a_users_modules_travel_and_a_missing_package_is_named(tmp_path: Path) -> None:
    """The worker has neither the user's folder nor a package that only the client has."""
    keys = new_keys(tmp_path / "keys")
    own = tmp_path / "mine"
    own.mkdir()
    (own / "formulas.py").write_text("def double(value):\n    return value * 2.0\n")
    (own / "net.py").write_text(
        textwrap.dedent("""
        import os
        import numpy as np
        from partita.layers import Dense, Network, OneToOne, SoftmaxCrossEntropy, node
        from formulas import double

        @node(OneToOne())
        def doubled(incoming):
            return double(incoming[0])

        @doubled.downward
        def doubled_errors(incoming, state, error):
            return (incoming * 0 + 2.0 * error,)

        def network():
            net = Network("mine")
            scores = Dense(3)(doubled()(net.input("x", shape=(8,))))
            net.loss = SoftmaxCrossEntropy()(scores, net.target("y"))
            return net

        def data():
            return {"x": np.ones((64, 8), np.float32), "y": np.zeros(64, int)}
        """)
    )
    with pool_of(keys, 1) as (address, _, _):
        arguments = ["train", str(own / "net.py"), "--on", address, "--keys", str(keys)]
        arguments += ["--machines", "2", "--epochs", "1", "--checkpoints", str(tmp_path / "kept")]
        with Program(*arguments, "--strategy", "balanced") as command:
            assert command.end() == 0, command.output
        installed = tmp_path / "site"
        installed.mkdir()
        (installed / "onlyhere.py").write_text("def triple(value):\n    return value * 3.0\n")
        script = textwrap.dedent(f"""
        import sys
        sys.path.insert(0, {str(installed)!r})
        import onlyhere
        from partita.engine.launch.pool import user_code
        user_code._INSTALLED += (user_code.Path({str(installed)!r}),)  # as if pip had installed it
        sys.argv = ["partita"] + {arguments!r} + ["--overwrite"]
        from partita.engine.cli import main
        main()
        """)
        text = (
            (own / "net.py").read_text().replace("from formulas import double", "from onlyhere import triple")
        )
        (own / "net.py").write_text(text.replace("double(incoming", "triple(incoming"))
        (tmp_path / "run.py").write_text(script)
        done = subprocess.run(
            [sys.executable, str(tmp_path / "run.py")], capture_output=True, text=True, check=False
        )
        assert done.returncode == 1
        assert "the package 'onlyhere', which the network needs, is missing on" in done.stderr, done.stderr


@pytest.mark.slow
def test_hosts_end_when_their_client_is_killed_and_when_their_worker_is(tmp_path: Path) -> None:
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 1) as (address, serve, [one]):
        arguments = ["train", str(Path(toy.__file__)), "--on", address, "--keys", str(keys), "--batch", "8"]
        arguments += ["--epochs", "100000", "--checkpoints", str(tmp_path / "kept"), "--machines", "2"]
        with Program(*arguments) as command:
            command.wait_for("staleness")
            hosts = one.hosts()
            assert len(hosts) == 3
            command.signal(signal.SIGKILL)
            command.end()
        one.wait_for("is over: its client was silent for", within_s=40.0)
        serve.wait_for("is gone: silent for", within_s=40.0)
        assert not psutil.wait_procs(hosts.values(), timeout=10.0)[1]
        with Program(*arguments, "--overwrite") as command:
            command.wait_for("staleness")
            hosts = one.hosts()
            one.signal(signal.SIGKILL)
            assert not psutil.wait_procs(hosts.values(), timeout=10.0)[1]
            command.signal(signal.SIGINT)
            command.signal(signal.SIGINT)


@pytest.mark.slow
def test_a_killed_command_that_is_given_again_has_its_places_at_once(tmp_path: Path) -> None:
    """The worker has no other places: without the dead process's places it would wait for 20 s."""
    keys = new_keys(tmp_path / "keys")
    with pool_of(keys, 1, "--resources", "cpu=3") as (address, serve, [one]):
        arguments = ["train", str(Path(toy.__file__)), "--on", address, "--keys", str(keys), "--batch", "8"]
        arguments += ["--epochs", "100000", "--checkpoints", str(tmp_path / "kept"), "--machines", "2"]
        arguments += ["--resume"]
        hosts: dict[str, psutil.Process] = {}
        for earlier in range(3):
            with Program(*arguments) as command:
                command.wait_for("worker w0: part 0.0, part 0.1, shard 0")
                if earlier:
                    one.wait_for("is over: a new process goes on with it", within_s=5.0)
                    assert len(hosts) == 3
                    assert not psutil.wait_procs(hosts.values(), timeout=5.0)[1]
                command.wait_for("staleness")
                hosts = one.hosts()
                command.signal(signal.SIGKILL)
                command.end()
        assert not any("silent" in line for line in [*serve.said, *one.said])
        assert len((tmp_path / "kept" / ".partita.runs").read_text().split(",")) == 3


@pytest.mark.slow
def test_parts_of_one_machine_have_cores_of_their_own(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also where their workers are two, and the runs are two."""
    if len(os.sched_getaffinity(0)) != 2:
        pytest.skip("two parts fill a machine of two cores")
    monkeypatch.setenv("TMPDIR", str(tmp_path))  # the locks of this test's workers alone
    one = partition(toy.network(), Cluster.local(machines=1), batch=8)
    keys = new_keys(tmp_path / "keys")
    batch = {name: values[:8] for name, values in toy.data().items()}
    with pool_of(keys, 2, "--resources", "cpu=1") as (address, _, workers):
        pool = Pool(address, keys=keys, workers=2)
        with Session(one, 0, hosts=pool) as first, Session(one, 0, hosts=pool) as second:
            until = time.monotonic() + DEADLINE_S
            while True:
                for session in (first, second):
                    session.step(batch)
                found = [process.cpu_affinity() for w in workers for process in w.hosts().values()]
                if sorted(found) == [[n] for n in sorted(os.sched_getaffinity(0))]:
                    break
                assert time.monotonic() < until, f"the parts keep to {found}"
