"""Machines on one machine: addresses, links and files of their own, and nothing in common but installed code.

Each machine is a network and a mount namespace (see `benchmarks/_namespaces.py`). Its /tmp, /var/tmp,
/dev/shm and home are its own and begin empty; all other files, the checkout and the virtual environment
among them, are read-only. A machine's processes are those in its network namespace, so all of them can be
killed or frozen together; its files stay, as those of a computer whose power was cut.

What it is not: the machines have one clock, one kernel and the cores of this machine in common.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from benchmarks._namespaces import GBIT, Network, network, why_not
from partita.engine.numerics.cache import cache_folder
from tests.launch.pool.helpers import Program

_OWN: Final = ("/tmp", "/var/tmp", "/dev/shm")
_DEADLINE_S: Final = 10.0


@dataclass(frozen=True)
class Machine:
    """A machine.

    Args:
        number: its index.
        command: what is put before a command to run it there.
        address: of its only interface, `cable`.
        net: the network that it is in.
    """

    number: int
    command: tuple[str, ...]
    address: str
    net: Network

    def start(self, *arguments: str, env: dict[str, str] | None = None) -> Program:
        """Starts `partita ...` there."""
        return Program(*arguments, inside=self.command, env=_ENVIRONMENT | (env or {}))

    def start_file(self, file: Path, *arguments: str, env: dict[str, str] | None = None) -> Program:
        """Starts a program of Python there."""
        found = _ENVIRONMENT | (env or {})
        return Program(*arguments, inside=self.command, env=found, program=(str(file.resolve()),))

    def run(self, *command: str, data: bytes = b"") -> bytes:
        """Runs a command there and returns its output. Raises CalledProcessError."""
        done = subprocess.run([*self.command, *command], input=data, stdout=subprocess.PIPE, check=True)
        return done.stdout

    def copy(self, source: Path, target: str) -> None:
        """Copies a folder of this machine to a path there, with its permissions."""
        packed = subprocess.run(
            ["tar", "-C", str(source), "-c", "."], stdout=subprocess.PIPE, check=True
        ).stdout
        made = f"mkdir -p -m 700 {shlex.quote(target)} && tar -C {shlex.quote(target)} -xp"
        self.run("sh", "-c", made, data=packed)

    def processes(self) -> list[psutil.Process]:
        """Its processes."""
        own = os.stat(f"/proc/{self.net.holders[self.number]}/ns/net").st_ino
        found = []
        for process in psutil.process_iter():
            try:
                if os.stat(f"/proc/{process.pid}/ns/net").st_ino == own:
                    found.append(process)
            except OSError:  # it has just ended
                continue
        return [one for one in found if one.pid != self.net.holders[self.number]]

    def hosts(self) -> list[str]:
        """The names of the hosts that run there."""
        names = []
        for process in self.processes():
            try:
                names.append(process.name())
            except psutil.Error:
                continue
        return sorted(name for name in names if name.startswith(("part ", "shard ")))

    def kill(self) -> None:
        """Kills all of its processes at once: none can act on the end of another."""
        self.freeze()
        until = time.monotonic() + _DEADLINE_S
        while found := self._send(signal.SIGKILL):
            psutil.wait_procs(found, timeout=0.2)
            assert time.monotonic() < until, f"they live on: {found}"

    def freeze(self) -> None:
        """Stops all of its processes."""
        self._send(signal.SIGSTOP)

    def thaw(self) -> None:
        """Lets all of its processes go on."""
        self._send(signal.SIGCONT)

    def link_down(self) -> None:
        """Pulls its cable."""
        self.net.plug(self.number, up=False)

    def link_up(self) -> None:
        """Puts its cable back."""
        self.net.plug(self.number, up=True)

    def limit(self, bits_per_s: float) -> None:
        """Changes what its link carries, each way."""
        self.net.limit(self.number, bits_per_s)

    def _send(self, number: int) -> list[psutil.Process]:
        found = [one for one in self.processes() if _is_alive(one)]
        for process in found:
            try:
                process.send_signal(number)
            except psutil.NoSuchProcess:
                continue
        return found


@contextmanager
def machines(
    count: int = 4, *, bits_per_s: float = GBIT, common: Sequence[Path] = ()
) -> Iterator[list[Machine]]:
    """Makes machines on a network, and takes them down with all that runs there.

    Args:
        count: how many.
        bits_per_s: of the link of each, each way.
        common: folders that all of them have in common with this machine.
    """
    reason = why_not()
    if reason is not None:
        pytest.skip(reason)
    with network(count, bits_per_s=bits_per_s, mounts=_mounts(common)) as net:
        made = [Machine(n, place.command, place.address, net) for n, place in enumerate(net.places)]
        try:
            yield made
        finally:
            for machine in made:
                machine.kill()


def _mounts(common: Sequence[Path]) -> str:
    """The script that gives a machine its own files: what lies below an own folder and is kept is moved."""
    home = str(Path.home())
    own = (*_OWN, home)
    kept = [*_code(), *(str(path.resolve()) for path in common)]
    hidden = [path for path in dict.fromkeys(kept) if any(Path(path).is_relative_to(one) for one in own)]
    cache, lines = cache_folder("code"), ["mount --make-rprivate /"]
    stage = "/mnt"
    lines += [f"mount -t tmpfs none {stage}"]
    for number, path in enumerate(hidden):
        lines += [f"mkdir {stage}/{number}", f"mount --bind {shlex.quote(path)} {stage}/{number}"]
    lines += [f"mkdir {stage}/code", f"mount --bind {shlex.quote(str(cache.resolve()))} {stage}/code"]
    lines += [f"mount -t tmpfs -o mode=1777 none {folder}" for folder in own]
    for number, path in enumerate(hidden):
        lines += [f"mkdir -p {shlex.quote(path)}", f"mount --bind {stage}/{number} {shlex.quote(path)}"]
    below = f"{_CACHE}/partita"
    lines += [f"mkdir -p -m 700 {below}", f"cp -rL {stage}/code {below}/code", f"umount -l {stage}"]
    lines += ["mount -o remount,bind,ro /"]
    return "\n".join(lines)


def _code() -> list[str]:
    """Folders of the code: this checkout, the virtual environment, and Python."""
    checkout = str(Path(__file__).resolve().parents[1])
    return [checkout, sys.prefix, sys.base_prefix]


def _is_alive(process: psutil.Process) -> bool:
    try:
        return bool(process.status() != psutil.STATUS_ZOMBIE)
    except psutil.Error:
        return False


_CACHE: Final = "/tmp/.cache"
_ENVIRONMENT: Final = {"XDG_CACHE_HOME": _CACHE, "TMPDIR": "/tmp", "HOME": str(Path.home())}
