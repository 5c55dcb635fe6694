"""The launcher's side of a template: starts it, requests hosts, and receives their exit statuses.

A requested host looks like a process that `subprocess` has started. When the template itself ends, the kernel
kills the hosts that run; those that do not run yet get the template's exit status.
"""

from __future__ import annotations

import contextlib
import select
import signal
import socket
import subprocess
import time
from typing import Final

import msgspec

from partita.engine.launch.start import command
from partita.engine.launch.template import MOST_BYTES, NUMBER_BYTES, Ended, Forked, Imported, Report

LATEST_S: Final = 5.0
"""Seconds after which a template that has not killed a host is killed itself."""


class Forks:
    """A template's process. Belongs to one thread."""

    def __init__(self) -> None:
        """Starts the template. Hosts can be requested at once, and are forked when all is imported."""
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._control.setblocking(False)
        with theirs:
            self._process = subprocess.Popen(
                command("template", "partita"),
                stdin=theirs.fileno(),
                start_new_session=True,  # a Ctrl-C in the terminal is the parent's business alone
            )
        self._is_connected = True
        self._hosts: dict[int, ForkedHost] = {}  # those that have not ended, by number
        self._requested = 0
        self.has_imported = False

    @property
    def is_alive(self) -> bool:
        """Returns whether hosts can still be requested."""
        self.read()
        return self._is_connected

    def start(self, bootstrap: bytes) -> ForkedHost:
        """Requests a host with an encoded `Bootstrap`. Returns before it runs."""
        host = self._hosts[self._requested] = ForkedHost(self, self._requested)
        self._requested += 1
        self._ask(host, bootstrap)
        return host

    def kill(self, host: ForkedHost) -> None:
        """Requests the end of a host."""
        self._ask(host, b"")

    def _ask(self, host: ForkedHost, what: bytes) -> None:
        packet = host.number.to_bytes(NUMBER_BYTES) + what
        assert len(packet) <= MOST_BYTES, len(packet)
        while self._is_connected:
            try:
                self._control.send(packet)
                return
            except BlockingIOError:  # it is importing, or waits until its own reports are read
                self._wait(select.POLLIN | select.POLLOUT)
                self.read()
            except (BrokenPipeError, ConnectionResetError):
                self.read()  # up to its end

    def _wait(self, events: int, timeout_s: float | None = None) -> None:
        """Waits until the template can be written to, or has reported; its descriptor may be above 1,023."""
        poll = select.poll()
        poll.register(self._control, events)
        poll.poll(None if timeout_s is None else timeout_s * 1000)

    def read(self, timeout_s: float = 0.0) -> None:
        """Reads the template's reports, after waiting for one at most so long."""
        if timeout_s > 0 and self._is_connected:
            self._wait(select.POLLIN, timeout_s)
        while self._is_connected:
            try:
                packet = self._control.recv(MOST_BYTES)
            except BlockingIOError:
                return
            except ConnectionResetError:
                packet = b""
            if packet:
                self._take_in(msgspec.json.decode(packet, type=Report))
            else:
                self._lost()

    def _take_in(self, report: Report) -> None:
        match report:
            case Imported():
                self.has_imported = True
            case Forked(number=number, pid=pid):
                self._hosts[number].pid = pid
            case Ended(number=number, code=code):
                self._hosts.pop(number).code = code

    def _lost(self) -> None:
        """Gives every host an exit status after the template has ended: killed with it, or never forked."""
        code = self._end()
        for host in self._hosts.values():
            host.code = code if host.pid is None else -signal.SIGKILL
        self._hosts.clear()

    def _end(self) -> int:
        """Closes the connection and waits for the end of the template; returns its exit status."""
        if self._is_connected:
            self._is_connected = False
            with contextlib.suppress(OSError):  # it has ended
                self._control.shutdown(socket.SHUT_RDWR)  # whoever else may have a copy of this end
            self._control.close()
        try:
            return self._process.wait(LATEST_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            return self._process.wait()

    def give_up(self) -> None:
        """Kills the template, with which its hosts die."""
        self._process.kill()
        self._lost()

    def close(self) -> None:
        """Ends the template and all of its hosts."""
        self._end()


class ForkedHost:
    """A host of a template, with the interface of `subprocess.Popen`.

    Attributes:
        number: its number in the template.
        pid: id of its process; None while it does not run yet.
        code: its exit status, or minus the signal that ended it; None while it has not ended.
    """

    def __init__(self, forks: Forks, number: int) -> None:
        self._forks, self.number = forks, number
        self.pid: int | None = None
        self.code: int | None = None

    def poll(self) -> int | None:
        """Returns its exit status, if it has ended."""
        self._forks.read()
        return self.code

    def kill(self) -> None:
        """Ends it at once."""
        if self.poll() is None:
            self._forks.kill(self)

    def wait(self, timeout: float | None = None) -> int:
        """Waits for its end.

        Args:
            timeout: in seconds; None: until it has ended after `kill`, by which the template ends if it must.

        Raises:
            subprocess.TimeoutExpired: it has not ended in time.
        """
        until = time.monotonic() + (LATEST_S if timeout is None else timeout)
        while self.poll() is None:
            left_s = until - time.monotonic()
            if left_s > 0:
                self._forks.read(left_s)
            elif timeout is None:
                self._forks.give_up()
            else:
                raise subprocess.TimeoutExpired(f"host {self.number}", timeout)
        assert self.code is not None
        return self.code


def exit_reason(code: int) -> str:
    """Words the exit status of a host's process, or minus the signal that ended it."""
    if code < 0:
        return f"its process was ended by {signal.Signals(-code).name}"
    return f"its process exited with {code}"
