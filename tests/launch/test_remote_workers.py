"""Workers that a run starts on the machines of a hostfile: by a command of one's own, and by a real sshd."""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from benchmarks._namespaces import GBIT, Network, network, why_not
from partita.engine import Downpour, HostFile, RunFailed, evaluate, train
from partita.engine.transport.addresses import unreachable
from partita.partitioner import Cluster, Plan, partition
from tests.faults import toy
from tests.launch.pool.helpers import Program

SSHD = shutil.which("sshd") or shutil.which("sshd", path="/usr/sbin")
pytestmark = pytest.mark.slow


def plan_of_toy() -> Plan:
    return partition(toy.network(), Cluster.local(machines=2), batch=8, strategy="balanced")


def script(path: Path, body: str) -> Path:
    path.write_text(f"#!/bin/sh\n{body}\n")
    path.chmod(0o700)
    return path


@pytest.fixture
def local(tmp_path: Path) -> HostFile:
    """Two machines that are this one; the command notes its arguments."""
    rsh = script(tmp_path / "rsh", f'echo "$@" >> {tmp_path / "seen"}; shift; exec sh -c "exec $*"')
    (tmp_path / "hosts").write_text("127.0.0.1 slots=1\nlocalhost slots=2\n")
    return HostFile(tmp_path / "hosts", rsh=str(rsh))


def workers_below(process: psutil.Process) -> list[psutil.Process]:
    return [one for one in process.children(recursive=True) if "--stdin" in one.cmdline()]


def test_workers_are_started_for_a_run_and_end_with_it(local: HostFile, tmp_path: Path) -> None:
    run = train(plan_of_toy(), toy.data(), driver=Downpour(shards=1), epochs=20, on=local, show="nothing")
    assert evaluate(run, toy.data(), hosts=local).accuracy > 0.9
    assert not workers_below(psutil.Process())
    seen = (tmp_path / "seen").read_text().splitlines()
    assert len(seen) == 4 and all(line.endswith(" -m partita.engine.cli worker --stdin") for line in seen)


def test_a_machine_that_refuses_is_named_with_the_last_line_of_ssh(local: HostFile, tmp_path: Path) -> None:
    body = '[ "$1" = localhost ] && { echo "localhost: Permission denied (publickey)." >&2; exit 255; }'
    rsh = script(tmp_path / "refuses", f'{body}\nshift; exec sh -c "exec $*"')
    refusing = HostFile(local.path, rsh=str(rsh))
    began = time.monotonic()
    with pytest.raises(RunFailed) as refused:
        train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, on=refusing, show="nothing")
    assert time.monotonic() - began < 30.0
    assert str(refused.value) == (
        "machine 'localhost' has no worker: its command ended with status 255: localhost: Permission denied "
        "(publickey)."
    )
    assert not workers_below(psutil.Process())


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_workers_end_with_the_process_that_trains(local: HostFile, tmp_path: Path, number: int) -> None:
    arguments = ["train", str(Path(toy.__file__)), "--on", f"hostfile:{local.path}", "--rsh", local.rsh]
    arguments += ["--batch", "8", "--epochs", "100000", "--checkpoints", str(tmp_path / "kept")]
    with Program(*arguments) as run:
        run.wait_for("staleness")
        assert "[localhost] joined the pool as 'localhost'" in run.output
        below = workers_below(psutil.Process(run.pid))
        hosts = run.hosts()
        assert len(below) >= 2 and len(hosts) == 3
        run.signal(number)
        assert run.end() == (130 if number == signal.SIGINT else -number)
        gone, alive = psutil.wait_procs([*below, *hosts.values()], timeout=10.0)
        assert not alive and len(gone) == len(below) + len(hosts)


@pytest.fixture
def net() -> Iterator[Network]:
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(2, bits_per_s=GBIT) as made:
        yield made


@pytest.mark.netns
def test_machines_with_addresses_of_their_own(net: Network, tmp_path: Path) -> None:
    cases = "\n".join(f'{place.address}) set -- {" ".join(place.command)} "$@";;' for place in net.places)
    body = f'host=$1; shift; command=$*; set -- sh -c "$command"\ncase $host in {cases} esac; exec "$@"'
    (tmp_path / "hosts").write_text("".join(f"{place.address} slots=1\n" for place in net.places))
    hosts = HostFile(tmp_path / "hosts", rsh=str(script(tmp_path / "rsh", body)))
    run = train(plan_of_toy(), toy.data(), driver=Downpour(shards=1), epochs=20, on=hosts, show="nothing")
    assert evaluate(run, toy.data()).accuracy > 0.9


@pytest.fixture
def sshd(tmp_path: Path) -> Iterator[str]:
    """A server of ssh on loopback with keys and a configuration of its own; yields the client's command."""
    if SSHD is None or shutil.which("ssh") is None:
        pytest.skip("there is no sshd; install openssh-server")
    if os.geteuid() == 0:
        Path("/run/sshd").mkdir(exist_ok=True)  # where it separates privileges
    for name in ("host", "user"):
        subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", tmp_path / name], check=True)
    (tmp_path / "authorized").write_text((tmp_path / "user.pub").read_text())
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    (tmp_path / "sshd_config").write_text(
        f"ListenAddress 127.0.0.1:{port}\nHostKey {tmp_path}/host\nAuthorizedKeysFile {tmp_path}/authorized\n"
        f"PasswordAuthentication no\nStrictModes no\nUsePAM no\nPidFile {tmp_path}/pid\nPermitRootLogin yes\n"
    )
    (tmp_path / "config").write_text(
        f"Host shelf-*\n  HostName 127.0.0.1\n  Port {port}\n  User {pwd.getpwuid(os.geteuid()).pw_name}\n"
        f"  IdentityFile {tmp_path}/user\n  StrictHostKeyChecking no\n  UserKnownHostsFile {tmp_path}/known\n"
    )
    server = subprocess.Popen([SSHD, "-D", "-f", tmp_path / "sshd_config", "-E", tmp_path / "sshd.log"])
    try:
        until = time.monotonic() + 10.0
        while unreachable(f"tcp://127.0.0.1:{port}") is not None:
            assert time.monotonic() < until, (tmp_path / "sshd.log").read_text()
            assert server.poll() is None, (tmp_path / "sshd.log").read_text()
        yield f"ssh -F {tmp_path}/config -o BatchMode=yes"
    finally:
        server.terminate()
        server.wait(10.0)


def test_a_real_server_of_ssh(sshd: str, tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("shelf-1 slots=1\nshelf-2 slots=2\n")
    hosts = HostFile(tmp_path / "hosts", rsh=sshd, python=sys.executable, interface="lo")
    run = train(plan_of_toy(), toy.data(), driver=Downpour(shards=1), epochs=20, on=hosts, show="nothing")
    assert evaluate(run, toy.data()).accuracy > 0.9
    (tmp_path / "authorized").write_text("")
    with pytest.raises(
        RunFailed, match=r"machine 'shelf-\d' has no worker.* status 255: .*Permission denied"
    ):
        train(plan_of_toy(), toy.data(), driver=Downpour(), epochs=1, on=hosts, show="nothing")
