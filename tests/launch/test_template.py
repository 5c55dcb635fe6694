"""Hosts are forked from one process, and neither it nor they outlive whoever started them."""

from __future__ import annotations

import os
import random
import resource
import signal
import subprocess
import sys
from pathlib import Path
from socket import socket

import psutil
import pytest

from partita.engine import Downpour, HostError, RunFailed, Session, train
from partita.engine.launch import ProcessLauncher
from partita.engine.launch.forks import Forks
from partita.engine.launch.template import Ended
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.faults.helpers import Command, hosts_of

DEADLINE_S = 60.0


def plan_of_toy(machines: int = 2) -> Plan:
    return partition(toy.network(), Cluster.local(machines=machines), batch=8, strategy="balanced")


def test_all_hosts_are_forks_of_one_process_which_ends_with_them() -> None:
    with Session(plan_of_toy(), 0, hosts="processes") as session:
        hosts = hosts_of(os.getpid())
        assert sorted(hosts) == ["part 0.0", "part 0.1"]
        launcher = session.launcher
        assert isinstance(launcher, ProcessLauncher)
        assert {name: launcher.pid(name) for name in hosts} == {name: p.pid for name, p in hosts.items()}
        [template] = {process.ppid() for process in hosts.values()}
        assert psutil.Process(template).ppid() == os.getpid()
        assert psutil.Process(template).num_threads() == 1, "what has threads cannot be forked safely"
        assert len({os.getsid(process.pid) for process in hosts.values()} | {os.getsid(0)}) == 3
    assert not psutil.pid_exists(template)


def test_hosts_that_have_ended_are_forgotten(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("partita.engine.launch.forks.command", lambda *given: ["sleep", "60"])
    forks = Forks()
    try:
        first, second = forks.start(b"one"), forks.start(b"other")
        forks._take_in(Ended(first.number, 3))
        assert (first.poll(), [*forks._hosts.values()]) == (3, [second])
    finally:
        forks.give_up()
    assert second.poll() == -signal.SIGKILL and not forks._hosts


def test_a_process_with_many_open_files_starts_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    """`select` takes no descriptor above 1,023."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft <= HIGH:
        pytest.skip(f"the limit of open files is {soft:,}")
    monkeypatch.setattr("partita.engine.launch.forks.command", lambda *given: ["sleep", "60"])
    forks = Forks()
    try:
        forks._control = socket(fileno=_moved(forks._control.detach(), HIGH))
        forks._control.setblocking(False)
        host = forks.start(b"one")
        forks.read(timeout_s=0.001)
        assert host.poll() is None and forks.is_alive
    finally:
        forks.give_up()


HIGH = 1500


def _moved(descriptor: int, to: int) -> int:
    os.dup2(descriptor, to, inheritable=False)
    os.close(descriptor)
    return to


def test_hosts_end_with_their_template() -> None:
    with Session(plan_of_toy(), 0, hosts="processes") as session:
        hosts = hosts_of(os.getpid())
        os.kill(hosts["part 0.0"].ppid(), signal.SIGKILL)
        assert not psutil.wait_procs(hosts.values(), timeout=DEADLINE_S)[1]
        with pytest.raises(HostError, match=r"its process was ended by SIGKILL"):
            session.step(toy.data(8))


def test_a_process_that_ends_while_it_starts_is_named_and_what_it_printed_is_seen(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "sitecustomize.py").write_text(
        "import os, sys\nprint('libmissing.so: cannot open', file=sys.stderr, flush=True)\nos._exit(3)\n"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    with pytest.raises(RunFailed, match=r"(shard|part) \S+ died \d times .*its process exited with 3"):
        train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, show="nothing")
    assert "libmissing.so: cannot open" in capfd.readouterr().err


@pytest.mark.parametrize("seed", [0, *(pytest.param(n, marks=pytest.mark.slow) for n in range(3, 40))])
def test_a_run_that_is_killed_while_it_starts_leaves_no_process(tmp_path: Path, seed: int) -> None:
    """The moment is drawn: when so many of its processes are there, from none to all of them."""
    drawn = random.Random(seed).randint(0, 7)
    arguments = ["--machines", "2", "--replicas", "2", "--shards", "2", "--batch", "8", "--epochs", "100000"]
    seen: set[psutil.Process] = set()
    with Command("train", str(Path(toy.__file__)), *arguments, folder=tmp_path) as command:
        command.wait_for("2 replicas of 2 machines")
        while len(seen) < drawn:
            assert command.is_running, f"seed {seed}: it ended before {drawn} processes were there"
            seen |= set(command.descendants)
        seen |= set(command.descendants)
        command.kill()
        assert command.end()[0] == -signal.SIGKILL
    alive = psutil.wait_procs(seen, timeout=DEADLINE_S)[1]
    assert not alive, f"seed {seed}: {alive} outlived the command"


def test_a_worker_whose_parent_is_gone_ends_before_it_imports_anything() -> None:
    """A parent's death is noticed even where the coordinator is killed while the worker starts."""
    start = Path(sys.modules[ProcessLauncher.__module__].__file__ or "").with_name("start.py")
    command = [sys.executable, "-X", "importtime", "-P", str(start), "host", str(os.getppid()), "part 0.0"]
    ended = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False)
    assert ended.returncode == 1
    assert "the process that started this one is gone" in ended.stderr
    assert "numpy" not in ended.stderr and "zmq" not in ended.stderr


@pytest.mark.slow
def test_a_script_needs_no_main_guard() -> None:
    """Hosts import nothing of the script that calls `train`; here it even comes from standard input."""
    script = (
        "from partita.engine import Downpour, train\n"
        "from partita.partitioner import Cluster, partition\n"
        "from tests.faults import toy\n"
        "plan = partition(toy.network(), Cluster.local(machines=2), batch=8, strategy='balanced')\n"
        "run = train(plan, toy.data(), driver=Downpour(), epochs=1, show='nothing')\n"
        "print('steps', run.steps)\n"
    )
    root = Path(__file__).resolve().parents[2]
    ended = subprocess.run(
        [sys.executable, "-"], input=script, cwd=root, capture_output=True, text=True, check=False
    )
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "steps (32,)\n", "")
