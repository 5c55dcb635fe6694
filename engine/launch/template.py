"""The template: a process that has imported the engine, and forks a host in milliseconds on request.

The template has one thread and no mailbox, so a fork copies no lock that another thread holds. The standard
library's fork server would import the user's main module into each host, which then needs a main guard.

A request is a packet: the number of a host, then its encoded `Bootstrap` to fork it, or nothing to kill it.
The template never decodes a bootstrap, and keeps none: the next host must not find this one's secret.
"""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import socket
import sys
import traceback
from collections.abc import Callable
from typing import Final, NoReturn, TypeAlias

import msgspec

from partita.engine.launch.start import die_with_parent

MOST_BYTES: Final = 1 << 17
"""Bytes of a request or a report; a socket takes no longer packets."""

NUMBER_BYTES: Final = 8
"""Bytes of a host's number, at the beginning of a request."""


class Imported(msgspec.Struct, frozen=True, tag=True):
    """Report: everything is imported, and hosts are forked from now on."""


class Forked(msgspec.Struct, frozen=True, tag=True):
    """Report: the process of a host runs."""

    number: int
    pid: int


class Ended(msgspec.Struct, frozen=True, tag=True):
    """Report: the process of a host has ended, with this exit status, or by minus this signal."""

    number: int
    code: int


Report: TypeAlias = Imported | Forked | Ended


class Template:
    """Forks hosts, reports their ends, and ends with all of them when the launcher closes its socket."""

    def __init__(self, control: socket.socket, become: Callable[[bytearray], object]) -> None:
        """Creates a template without hosts.

        Args:
            control: the connection to the launcher, which keeps packets apart.
            become: makes a process the host of an encoded `Bootstrap`.
        """
        self._control, self._become = control, become
        self._pid = os.getpid()
        self._pids: dict[int, int] = {}  # process ids of the running hosts, by host number
        self._packet = bytearray(MOST_BYTES)
        self._wakes, self._wake = socket.socketpair()  # written when a child has ended
        for end in (self._wakes, self._wake):
            end.setblocking(False)

    def serve(self) -> None:
        """Serves until the launcher closes its end of the connection; then kills every host."""
        signal.set_wakeup_fd(self._wake.fileno(), warn_on_full_buffer=False)
        signal.signal(signal.SIGCHLD, lambda number, frame: None)
        self._report(Imported())
        with selectors.DefaultSelector() as selector:
            selector.register(self._control, selectors.EVENT_READ)
            selector.register(self._wakes, selectors.EVENT_READ)
            is_open = True
            while is_open:
                readable = {key.fileobj for key, _ in selector.select()}
                if self._wakes in readable:
                    self._wakes.recv(4096)
                    self._reap()
                if self._control in readable:
                    is_open = self._serve_one()
        for pid in self._pids.values():
            os.kill(pid, signal.SIGKILL)
        for pid in self._pids.values():
            os.waitpid(pid, 0)

    def _serve_one(self) -> bool:
        """Serves one request; returns False when the launcher has closed its end."""
        try:
            n_bytes = self._control.recv_into(self._packet)
        except ConnectionResetError:  # the launcher ended without reading a report
            return False
        if not n_bytes:
            return False
        number = int.from_bytes(self._packet[:NUMBER_BYTES])
        if n_bytes > NUMBER_BYTES:
            self._fork(number, n_bytes)
        elif number in self._pids:
            os.kill(self._pids[number], signal.SIGKILL)
        return True

    def _fork(self, number: int, n_bytes: int) -> None:
        pid = os.fork()
        if pid == 0:
            self._run_host(self._packet[NUMBER_BYTES:n_bytes])
        self._packet[:n_bytes] = bytes(n_bytes)
        self._pids[number] = pid
        self._report(Forked(number, pid))

    def _run_host(self, encoded: bytearray) -> NoReturn:
        """Runs a host in the child process, and ends the process: a child never becomes a second template."""
        code = 1
        try:
            die_with_parent(self._pid)
            signal.set_wakeup_fd(-1)
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            for end in (self._control, self._wakes, self._wake):
                end.close()
            os.setsid()
            self._become(encoded)
            code = 0
        except SystemExit as end:
            code = _status(end)
        except BaseException:  # noqa: BLE001 - printed, as Python does at the end of a process
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)

    def _reap(self) -> None:
        numbers = {pid: number for number, pid in self._pids.items()}
        while self._pids:
            pid, status = os.waitpid(-1, os.WNOHANG)
            if pid == 0:
                return
            if (number := numbers.get(pid)) is not None:
                del self._pids[number]
                self._report(Ended(number, os.waitstatus_to_exitcode(status)))

    def _report(self, report: Report) -> None:
        with contextlib.suppress(
            BrokenPipeError, ConnectionResetError
        ):  # the launcher is gone: `serve` ends soon
            self._control.send(msgspec.json.encode(report))


def _status(end: SystemExit) -> int:
    """The exit status that Python gives a process for this exception, after printing its text."""
    if end.code is None or isinstance(end.code, int):
        return end.code or 0
    print(end.code, file=sys.stderr)
    return 1
