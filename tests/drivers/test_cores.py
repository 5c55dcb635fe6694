"""Cores of a part's own."""

from __future__ import annotations

import contextlib
import os
import subprocess
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from partita.engine import Session
from partita.engine.launch import ProcessLauncher
from partita.engine.launch.cores import own_cores, physical_cores, shares
from partita.engine.launch.pool.host_cores import HostCores
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


@given(
    st.integers(1, 8),
    st.integers(1, 2),
    st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=12),
    st.sets(st.integers(0, 7)),
)
def test_hosts_that_come_and_go_have_cores_of_their_own_and_keep_them(
    n: int, siblings: int, changes: list[tuple[bool, int]], elsewhere: set[int]
) -> None:
    cores = [frozenset(range(core, siblings * n, n)) for core in range(n)]
    taken = [cores[core] for core in sorted(elsewhere) if core < n]
    wanted: dict[int, int] = {}
    own: dict[int, frozenset[int]] = {}
    for host, (ends, count) in enumerate(changes):
        wanted[host] = count
        if ends and len(wanted) > 1:
            oldest = next(iter(wanted))
            del wanted[oldest]
            own.pop(oldest, None)
        before, own = own, shares(cores, wanted, own, taken)
        assert before.items() <= own.items(), "a host keeps its cores"
        used = [processor for some in (*own.values(), *taken) for processor in some]
        assert len(used) == len(set(used)), "two have one processor"
        assert all(len(some) == siblings * wanted[one] for one, some in own.items())
        left = n - len(used) // siblings
        assert all(wanted[one] > left for one in wanted if wanted[one] and one not in own)


@pytest.fixture
def two_cores(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    found = sorted(os.sched_getaffinity(0))[:2] if hasattr(os, "sched_getaffinity") else []
    if len(found) < 2:
        pytest.skip("one processor, or a system without affinities")
    monkeypatch.setattr(
        "partita.engine.launch.pool.host_cores.physical_cores", lambda _: [frozenset({n}) for n in found]
    )
    return found


def allowed(process: subprocess.Popen[bytes]) -> set[int]:
    return os.sched_getaffinity(process.pid)


def test_hosts_of_two_workers_on_one_machine_have_cores_of_their_own(
    two_cores: list[int], tmp_path: Path
) -> None:
    one, other = HostCores(tmp_path / "locks"), HostCores(tmp_path / "locks")
    first, second = two_cores
    with contextlib.ExitStack() as stack:
        waiting = ("sh", "-c", "read line")
        processes = [stack.enter_context(subprocess.Popen(waiting, stdin=subprocess.PIPE)) for _ in range(2)]
        everything = allowed(processes[0])
        one.take("part 0.0", 1)
        one.apply({"part 0.0": processes[0].pid})
        assert allowed(processes[0]) == everything, "nobody has the other core"
        other.take("part 0.0", 1)
        other.take("shard 0", 0)
        assert dict(one.own) == {"part 0.0": {first}} and dict(other.own) == {"part 0.0": {second}}
        one.take("part 0.1", 1)
        assert "part 0.1" not in one.own, "no core is left"
        other.apply({"part 0.0": processes[1].pid})
        one.apply({"part 0.0": processes[0].pid, "part 0.1": processes[0].pid})
        assert allowed(processes[1]) == {second}
        one.close()
        other.take("part 0.1", 1)
        assert other.own["part 0.1"] == {first}
        other.close()


def test_processors_of_one_core_are_told_apart_from_cores(tmp_path: Path) -> None:
    for n, written in enumerate(("0,2", "1,3", "0,2", "1,3", "nonsense")):
        folder = tmp_path / f"cpu{n}" / "topology"
        folder.mkdir(parents=True)
        (folder / "thread_siblings_list").write_text(written + "\n")
    assert physical_cores({0, 1, 2, 3}, tmp_path) == [{0, 2}, {1, 3}]
    assert physical_cores({0, 1, 3}, tmp_path) == [{0}, {1, 3}]  # what this process may not use is not there
    assert physical_cores({3, 4, 5}, tmp_path) == [{3}, {4}, {5}]


@pytest.mark.slow
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
