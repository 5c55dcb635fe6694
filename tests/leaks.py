"""Counts what a test could leave behind: threads, child processes, ZeroMQ sockets, shared memory.

Other test runs may share the machine, so a segment counts only if this process still maps it or nobody
alive does. Leaked processes are killed (this process started them) so that one test cannot spoil the next.
"""

from __future__ import annotations

import gc
import os
import threading
import time
import weakref
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import zmq

_SHARED_MEMORY = Path("/dev/shm")
_MARK = "PARTITA_TEST_SESSION"
_sockets: weakref.WeakSet[zmq.Socket[Any]] = weakref.WeakSet()
_make_socket = zmq.Socket.__init__


def _make_and_remember(self: zmq.Socket[Any], *args: Any, **kwargs: Any) -> None:
    _make_socket(self, *args, **kwargs)
    _sockets.add(self)


zmq.Socket.__init__ = _make_and_remember  # type: ignore[method-assign]


@dataclass(frozen=True)
class Census:
    """Resources of this process at one moment."""

    threads: frozenset[threading.Thread]
    processes: frozenset[psutil.Process]
    sockets: frozenset[zmq.Socket[Any]]
    segments: frozenset[str]
    rings: frozenset[str]

    @classmethod
    def take(cls) -> Census:
        """Counts now."""
        return cls(
            threads=frozenset(_threads()),
            processes=frozenset(_children()),
            sockets=frozenset(_open_sockets()),
            segments=frozenset(_segments()),
            rings=frozenset(_rings()),
        )

    def what_is_new(self, *, settle_s: float) -> list[str]:
        """Names what has come since and is still there after `settle_s` seconds, one sentence part for each.

        Threads and processes that are on their way out are waited for, together no longer than `settle_s`.
        """
        deadline = time.monotonic() + settle_s
        threads = [thread for thread in _threads() if thread not in self.threads]
        for thread in threads:
            thread.join(max(0.0, deadline - time.monotonic()))
        processes = [process for process in _children() if process not in self.processes]
        _, alive = psutil.wait_procs(processes, timeout=max(0.0, deadline - time.monotonic()))

        found = [f"thread {thread.name!r}" for thread in threads if thread.is_alive()]
        found += [f"process {process.pid} ({_command(process)})" for process in alive]
        found += [f"open socket {socket!r}" for socket in _open_sockets() if socket not in self.sockets]
        found += [f"/dev/shm/{name}" for name in self._abandoned_until(deadline)]
        if rings := _rings() - self.rings:
            gc.collect()  # an error that the test has looked at keeps its frames in a circle
            rings &= _rings()
        found += [f"shared memory at {place}" for place in sorted(rings)]
        for process in alive:
            process.kill()
        psutil.wait_procs(alive, timeout=5.0)
        return found

    def _abandoned_until(self, deadline: float) -> list[str]:
        """New segments that nobody maps, up to the deadline: another run's may have been made just now."""
        while (found := _abandoned(_segments() - self.segments)) and time.monotonic() < deadline:
            time.sleep(0.05)
        return found


def mark_descendants() -> str:
    """Makes every process started from now on recognisable by its environment, whoever its parent becomes."""
    mark = f"{os.getpid()}-{time.time_ns()}"
    os.environ[_MARK] = mark
    return mark


def orphans_killed(mark: str) -> list[str]:
    """Kills the living processes that carry the mark, and names them. This process itself is none of them."""
    found = [process for process in psutil.process_iter() if _carries(process, mark)]
    names = [f"process {process.pid} ({_command(process)})" for process in found]
    for process in found:
        process.kill()
    return names


def _carries(process: psutil.Process, mark: str) -> bool:
    if process.pid == os.getpid() or "multiprocessing.resource_tracker" in _command(process):
        return False
    try:
        return bool(process.environ().get(_MARK) == mark)
    except (psutil.Error, OSError):  # it has ended since, or belongs to somebody else
        return False


def _threads() -> list[threading.Thread]:
    # A thread that Python did not start (a library's pool calling back) ends when its library likes.
    return [thread for thread in threading.enumerate() if not isinstance(thread, threading._DummyThread)]


def _children() -> list[psutil.Process]:
    # The resource tracker is the standard library's own: one for a whole process, it ends with it.
    if not _has_children():
        return []
    children = psutil.Process().children(recursive=True)
    return [child for child in children if "multiprocessing.resource_tracker" not in _command(child)]


def _has_children() -> bool:
    """Reads what Linux keeps for each thread, since looking through all processes takes milliseconds."""
    try:
        return any((task / "children").read_bytes() for task in Path("/proc/self/task").iterdir())
    except OSError:  # a thread has ended since, or the kernel does not say
        return True


def _command(process: psutil.Process) -> str:
    try:
        return " ".join(process.cmdline())[:200]
    except psutil.Error:  # it has ended since, or is a zombie
        return "ended"


def _open_sockets() -> list[zmq.Socket[Any]]:
    return [socket for socket in _sockets if not socket.closed]


def _segments() -> set[str]:
    """Names of all segments, without the semaphores that joblib keeps in other programs."""
    names = {entry.name for entry in _SHARED_MEMORY.iterdir()} if _SHARED_MEMORY.is_dir() else set()
    own = f"sem.loky-{os.getpid()}-"
    return {name for name in names if name.startswith(own) or not name.startswith("sem.loky-")}


def _rings() -> set[str]:
    """Mappings of this process of anonymous memory that its hosts share."""
    maps = Path("/proc/self/maps").read_bytes()
    if b"/memfd:partita" not in maps:
        return set()
    return {line.split(maxsplit=1)[0] for line in maps.decode().splitlines() if "/memfd:partita" in line}


def _abandoned(names: set[str]) -> list[str]:
    """Segments that this process maps, or that no living process does."""
    if not names:
        return []
    own = psutil.Process().pid
    elsewhere: set[str] = set()
    for process in psutil.process_iter():
        if process.pid != own:
            elsewhere |= names & _mapped_by(process.pid)
    mine = names & _mapped_by(own)
    return sorted(((names - elsewhere) | mine) & _segments())


def _mapped_by(pid: int) -> set[str]:
    prefix = f"{_SHARED_MEMORY}/"
    try:
        lines = Path(f"/proc/{pid}/maps").read_text().splitlines()
    except OSError:  # it has ended since, or belongs to somebody else
        return set()
    paths = (line.split(maxsplit=5)[5] for line in lines if prefix in line)
    return {path.removeprefix(prefix).removesuffix(" (deleted)") for path in paths}
