"""Cores of a part's own."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import Session
from partita.engine.launch import ProcessLauncher
from partita.engine.launch.cores import own_cores, physical_cores
from partita.engine.protocol.names import part_name
from partita.layers import Dense, HalfSquaredError, Network
from partita.partitioner import Cluster, partition


@given(st.integers(1, 6), st.integers(1, 4), st.integers(1, 2), st.integers(0, 3))
def test_parts_that_fill_a_machine_share_no_core_and_leave_none(
    ranks: int, threads: int, siblings: int, more: int
) -> None:
    n = ranks * threads + more
    cores = [frozenset(range(core, siblings * n, n)) for core in range(n)]
    found = [own_cores(cores, rank, ranks, threads) for rank in range(ranks)]
    if more:
        assert found == [None] * ranks
        return
    assert sorted(processor for some in found for processor in some or ()) == list(range(siblings * n))
    assert all(some is not None and len(some) == siblings * threads for some in found)


def test_processors_of_one_core_are_told_apart_from_cores(tmp_path: Path) -> None:
    for n, written in enumerate(("0,2", "1,3", "0,2", "1,3", "nonsense")):
        folder = tmp_path / f"cpu{n}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(written + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == [{0, 2}, {1, 3}]
    assert physical_cores({0, 1, 3}, tmp_path) == [{0}, {1, 3}]  # what this process may not use is not there
    assert physical_cores({3, 4, 5}, tmp_path) == [{3}, {4}, {5}]


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system keeps no thread to a core")
def test_processes_keep_to_their_cores_while_they_play() -> None:
    cores = physical_cores(os.sched_getaffinity(0))
    if not 2 <= len(cores) <= 16:
        pytest.skip(f"{len(cores)} processes: one core is not shared out, and very many are slow to start")
    net = Network("cores")
    net.loss = HalfSquaredError(name="loss")(
        Dense(len(cores), name="out")(net.input("x", shape=4)), net.target("y")
    )
    plan = partition(net, Cluster.local(len(cores)), batch=2, strategy="balanced")
    with Session(plan, 0, hosts="processes") as session:
        assert isinstance(session.launcher, ProcessLauncher)
        pids = [session.launcher.pid(part_name(0, machine)) for machine in range(len(cores))]
        allowed = [os.sched_getaffinity(pid) for pid in pids]
    assert sorted(map(sorted, allowed)) == sorted(map(sorted, cores))
