"""Many workers on one machine: what a worker costs while it waits, and 64 that join, train and end."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from partita.engine import SGD, Downpour, Pool, evaluate, train
from partita.partitioner import Cluster, partition
from tests.faults import toy
from tests.launch.pool.helpers import new_keys, pool_of

WORKERS = 64
HEAVY = ("numba", "torch", "scipy", "networkx", "cryptography", "partita.layers", "partita.partitioner")


def test_a_worker_that_waits_has_imported_nothing_that_computes() -> None:
    code = f"import sys, partita.engine.cli.worker; print(*[m for m in {HEAVY!r} if m in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []


@pytest.mark.slow
def test_many_workers_join_train_and_end(tmp_path: Path) -> None:
    keys, began = new_keys(tmp_path / "keys"), time.monotonic()
    with pool_of(keys, WORKERS, "--resources", "cpu=1") as (address, serve, workers):
        joined_s = time.monotonic() - began
        idle = [psutil.Process(one.pid) for one in workers]
        assert not any(one.children() for one in idle)
        unique = [one.memory_full_info().uss for one in idle]
        assert max(unique) < 64 << 20
        plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")
        driver = Downpour(replicas=8, shards=2, optimizer=SGD(0.02))
        pool = Pool(address, keys=keys, workers=WORKERS, wait_s=120.0)
        run = train(plan, toy.data(), driver=driver, epochs=40, on=pool, show="nothing")
        assert evaluate(run, toy.data()).accuracy > 0.9
        trained_s = time.monotonic() - began - joined_s
        everything = [*idle, *(child for one in idle for child in one.children(recursive=True))]
        total = sum(one.memory_full_info().pss for one in everything)
        serve.wait_for("the run of 'toy' by Downpour has ended")
        for one in workers:
            one.signal(15)
        assert [one.end() for one in workers] == [0] * WORKERS
    print(
        f"{WORKERS} workers joined in {joined_s:.1f} s with {sum(unique) >> 20} MiB together; "
        f"trained in {trained_s:.1f} s; {total >> 20} MiB at its end",
        file=sys.stderr,
    )
