"""Workers with file systems of their own: nothing of the machine that trains is there but the network."""

from __future__ import annotations

import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from benchmarks._namespaces import GBIT, network, why_not
from partita.engine import (
    Adagrad,
    AllReduce,
    Downpour,
    Pool,
    Run,
    RunFailed,
    Sandblaster,
    SharedFolder,
    evaluate,
    train,
)
from partita.engine.drivers import Driver
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.launch.pool.helpers import Program, new_keys, worker

SOON_S = 10.0
pytestmark = [pytest.mark.netns, pytest.mark.slow]


@pytest.fixture(autouse=True)
def _root_alone() -> None:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)


def plan_of_toy() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")


@contextmanager
def machines(folder: Path, kept: Path, *names: str) -> Iterator[Pool]:
    """A pool of machines: each has a network namespace, and a /tmp, a TMPDIR and a `kept` of its own."""
    temporary = folder / "temporary"
    temporary.mkdir(parents=True)
    keys = new_keys(folder / "keys")
    hidden = [temporary, kept, *([] if folder.is_relative_to("/tmp") else [Path("/tmp")])]  # the keys stay
    mounts = " && ".join(f"mount -t tmpfs none {one}" for one in hidden)
    apart = ("unshare", "--mount", "sh", "-c", f'{mounts} && exec "$@"', "sh")
    tempfile.tempdir = str(temporary)
    try:
        with network(len(names), bits_per_s=GBIT) as net, ExitStack() as stack:
            serve = stack.enter_context(Program("pool", "serve", net.listen, "--keys", str(keys)))
            serve.wait_for("serves a pool at")
            address = serve.said[-1].split()[4]
            for name, place in zip(names, net.places, strict=True):
                inside = (*place.command, *apart)
                stack.enter_context(worker(address, keys, name, "--resources", "cpu=2", inside=inside))
                serve.wait_for(f"worker '{name}' joined")
            yield Pool(address, keys=keys, workers=len(names))
        assert not list(temporary.iterdir()), "nothing is left of a run"
    finally:
        tempfile.tempdir = None


def trained(on: Pool | None, folder: Path, driver: Driver, epochs: int | None, resume: bool = False) -> Run:
    return train(
        plan_of_toy(),
        toy.data(),
        driver=driver,
        epochs=epochs,
        show="nothing",
        on=on,
        checkpoints=folder,
        checkpoint_every_s=0.3,
        resume=resume,
    )


def assert_same(found: Run, expected: Run) -> None:
    for name, values in expected.parameters.items():
        np.testing.assert_array_equal(found.parameters[name], values, err_msg=name)


def test_every_driver_trains_evaluates_and_goes_on_with_nothing_shared(tmp_path: Path) -> None:
    """All-reduce and Sandblaster have the bits of a run on one machine. Others go on, with none of the
    files.
    """
    few = Sandblaster(shards=2)
    few = replace(few, method=replace(few.method, max_iterations=4))
    together = AllReduce(replicas=2, optimizer=Adagrad(0.05))
    first = {"together": (together, 3), "batch": (few, None), "alone": (Downpour(replicas=2, shards=2), 10)}
    later = {"together": (together, 6), "batch": (Sandblaster(shards=2), None), "alone": (Downpour(), 20)}
    near, kept = tmp_path / "near", tmp_path / "kept"
    kept.mkdir()
    with machines(tmp_path / "first", kept, "left", "right") as pool:
        for name, (driver, epochs) in first.items():
            run = trained(pool, kept / name, driver, epochs)
            assert evaluate(run, toy.data(), hosts=pool, show="nothing") == evaluate(run, toy.data())
            if name != "alone":
                assert_same(run, trained(None, near / name, driver, epochs))
    with machines(tmp_path / "later", kept, "middle", "new") as pool:
        for name, (driver, epochs) in later.items():
            run = trained(pool, kept / name, driver, epochs, True)
            assert evaluate(run, toy.data()).accuracy > 0.9, name
            if name != "alone":
                assert_same(run, trained(None, near / name, driver, epochs, True))
    assert not list(tmp_path.rglob(".partita-*")), "what marks the folders is removed"


def test_a_shared_folder_that_a_worker_does_not_have_is_named(tmp_path: Path) -> None:
    keys, kept = new_keys(tmp_path / "keys"), tmp_path / "kept"
    kept.mkdir()
    apart = ("unshare", "--mount", "sh", "-c", f'mount -t tmpfs none {kept} && exec "$@"', "sh")
    with Program("pool", "serve", "tcp://127.0.0.1:*", "--keys", str(keys)) as serve:
        serve.wait_for("serves a pool at")
        address = serve.said[-1].split()[4]
        pool, driver = Pool(address, keys=keys), Downpour(shards=2)
        with worker(address, keys, "apart", inside=apart) as one:
            serve.wait_for("worker 'apart' joined")
            began = time.monotonic()
            with pytest.raises(RunFailed, match=r"worker 'apart' at .* is not here as it is on the machine"):
                train(
                    plan_of_toy(),
                    toy.data(),
                    driver=driver,
                    epochs=1,
                    show="nothing",
                    checkpoints=SharedFolder(kept),
                    on=pool,
                )
            assert time.monotonic() - began < SOON_S
            one.wait_for("no host of 'toy' by Downpour is started", str(kept))
        with worker(address, keys, "beside"):
            serve.wait_for("worker 'beside' joined")
            run = train(
                plan_of_toy(),
                toy.data(),
                driver=driver,
                epochs=2,
                show="nothing",
                checkpoints=SharedFolder(kept),
                on=pool,
            )
            assert run.checkpoint == kept and len(list(kept.rglob("shard-*"))) >= 2
    assert not list(tmp_path.rglob(".partita-*")), "what marks the folder is removed"
