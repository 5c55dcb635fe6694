"""Hosts as processes that this one starts and supervises: they die with their parent and leave nothing
behind.

They are all on this machine unless their launcher has other places; beyond loopback, as on it, every
connection is encrypted, and only the listed keys get in.

A process gets its key pair and its coordinator's address through its standard input: no secret is ever in a
command line, in the environment or on disk.
"""

from __future__ import annotations

import contextlib
import secrets
import subprocess
import sys
import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import TypeAlias

import msgspec
from typing_extensions import override

from partita.engine.files.access import FilesAddress
from partita.engine.files.catalogue import Catalogue
from partita.engine.files.server import serving
from partita.engine.kernels.products.blas import blas_on_one_thread
from partita.engine.launch.bootstrap import Bootstrap
from partita.engine.launch.descriptors import reserve
from partita.engine.launch.forks import ForkedHost, Forks, exit_reason
from partita.engine.launch.inline import InlineNetwork
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.placement import Placement
from partita.engine.launch.start import command
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import COORDINATOR, part_indices
from partita.engine.transport.encryption import ENCRYPTED, Encryption
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import LOOPBACK, is_loopback
from partita.engine.transport.zeromq import ZmqMailbox

Process: TypeAlias = ForkedHost | subprocess.Popen[bytes]
"""Interface of a host's process."""


class ProcessLauncher(Launcher):
    """Starts each host as a process that uses encrypted ZeroMQ.

    On this machine it is forked from a template, in other places it is started by a command.
    """

    kind = ("process", "processes")

    def __init__(
        self,
        *,
        hosts: int = 1,
        listen: str | None = None,
        places: Mapping[str, Placement] | None = None,
        inline: Collection[str] = (),
        encryption: Encryption = ENCRYPTED,
        files: Catalogue | None = None,
    ) -> None:
        """Opens the coordinator's mailbox.

        Args:
            hosts: number of hosts that will run at a time.
            listen: its endpoint, `tcp://ADDRESS:PORT`; any free port of loopback if not given. Other
                addresses than loopback's need `places`.
            places: where hosts run, by name; the others run here, on loopback, and share memory with one
                another and with the coordinator.
            inline: names of hosts that run in this process, see `inline`; not where there are `places`.
            encryption: of all hosts, see `ZmqMailbox`.
            files: that hosts in other places read and write; None: they have them by their paths.

        Raises:
            ValueError: the endpoint is none, or hosts could not reach it; or payloads would not be encrypted
                on a network that is not trusted.
            OSError: it is in use, or no address of this machine; or this process may open too few files.
        """
        super().__init__()
        reserve(hosts)
        endpoint = listen or LOOPBACK
        self._places = dict(places or {})
        _check(endpoint, self._places)
        self._encryption = encryption
        for place in (endpoint, *(one.endpoint for one in self._places.values())):
            encryption.check(place)
        self._here = Placement(machine=secrets.token_hex(8))
        self._keys = KeyPair.generate()
        self._processes: dict[str, Process] = {}
        self._forks: Forks | None = None
        self._unborn: dict[str, ForkedHost] = {}  # that were asked for, and are not known to run
        self._network = ZmqMailbox(
            self._keys, endpoint=endpoint, machine=self._here.machine, encryption=encryption
        )
        self._inline = InlineNetwork(self._network)
        self._inline_names = frozenset(inline if not self._places else ())
        self.mailbox = self._inline if self._inline_names else self._network
        self._ending = contextlib.ExitStack()
        self._address = None if files is None else self._serve(files, endpoint)
        if any(part_indices(name) for name in self._inline_names):
            self._ending.enter_context(blas_on_one_thread())  # a host's process has no other threads of it
        self._coordinator = Peer(
            COORDINATOR, 0, self.mailbox.endpoint, self.mailbox.public_key, self._here.machine
        )

    def _serve(self, files: Catalogue, endpoint: str) -> FilesAddress:
        """Begins to serve files at the coordinator's address."""
        address = endpoint.removeprefix("tcp://").rpartition(":")[0]
        self.files, found = self._ending.enter_context(
            serving(files, address=address, encryption=self._encryption)
        )
        return found

    def pid(self, name: str) -> int:
        """Returns the process id of a host. Raises LookupError where it does not run yet."""
        process = self._processes[name]
        process.poll()
        if process.pid is None:
            raise LookupError(f"the process of {name} does not run yet; wait for its first message")
        return process.pid

    def _start(self, name: str, incarnation: int) -> Peer:
        keys, place = KeyPair.generate(), self._places.get(name, self._here)
        if name in self._inline_names:
            return self._start_inline(Peer(name, incarnation, "", keys.public, place.machine), keys)
        bootstrap = Bootstrap(
            name,
            incarnation,
            keys.public,
            keys.secret,
            self._coordinator,
            place.endpoint,
            place.machine,
            not self._places,
            tuple(sys.path),
            encryption=self._encryption,
            files=self._address if name in self._places else None,
        )
        encoded = msgspec.json.encode(bootstrap)
        if place.command:
            self._processes[name] = _by_command(place.command, name, encoded)
        else:
            self._processes[name] = self._unborn[name] = self._fork(encoded)
        return Peer(name, incarnation, "", keys.public, place.machine)

    def _start_inline(self, peer: Peer, keys: KeyPair) -> Peer:
        mailbox = ZmqMailbox(
            keys,
            endpoint=self._here.endpoint,
            machine=peer.machine,
            polled_by=self._network,
            encryption=self._encryption,
        )
        self._inline.start(peer, mailbox, self._coordinator)
        return peer

    def _fork(self, bootstrap: bytes) -> ForkedHost:
        if self._forks is None or not self._forks.is_alive:
            self._forks = Forks()
        return self._forks.start(bootstrap)

    @override
    def began(self) -> list[tuple[str, int]]:
        for host in self._unborn.values():
            host.poll()
        found = [name for name, host in self._unborn.items() if host.pid is not None]
        for name in found:
            del self._unborn[name]
        return [(name, self._running[name].incarnation) for name in found if name in self._running]

    def ended(self) -> list[tuple[str, int, str]]:
        """Returns processes that have exited or were killed."""
        found = []
        for name in list(self._processes):
            code = self._processes[name].poll()
            if code is not None and name in self._running:
                del self._processes[name]
                found.append((name, self._running[name].incarnation, exit_reason(code)))
        for name, host in self._inline.hosts.items():
            if host.stopped and name in self._running:
                found.append((name, self._running[name].incarnation, "it has stopped"))
        return found

    def _started(self) -> list[str]:
        return [*self._processes, *self._inline.hosts]

    def _stop(self, names: Iterable[str], *, patience_s: float = 0.0) -> None:
        stopping = list(names)
        for name in stopping:
            self._inline.stop(name)
        ending = [self._processes.pop(name) for name in stopping if name in self._processes]
        until = time.monotonic() + patience_s
        try:
            for process in ending:
                with contextlib.suppress(subprocess.TimeoutExpired):
                    process.wait(max(until - time.monotonic(), 0.0))
        finally:  # a Ctrl-C in the waiting must not let any of them live
            for process in ending:
                process.kill()
            for process in ending:
                process.wait()

    @override
    def close(self, *, patience_s: float = 0.5) -> None:
        try:
            super().close(patience_s=patience_s)
        finally:
            self._ending.close()
            if self._forks is not None:
                self._forks.close()


def _by_command(place: Sequence[str], name: str, bootstrap: bytes) -> subprocess.Popen[bytes]:
    process = subprocess.Popen(
        [*place, *command("host", name)],
        stdin=subprocess.PIPE,
        start_new_session=True,  # a Ctrl-C in the terminal is the parent's business alone
    )
    assert process.stdin is not None
    # Where it has died already, `ended` will report it.
    with contextlib.suppress(BrokenPipeError), process.stdin:
        process.stdin.write(bootstrap)
    return process


def _check(endpoint: str, places: Mapping[str, Placement]) -> None:
    far = [name for name, place in places.items() if not place.is_loopback]
    if is_loopback(endpoint) and far:
        raise ValueError(
            f"'{far[0]}' has the address {places[far[0]].address}, from which the coordinator at {endpoint} "
            "cannot be reached; give listen= an address that all hosts reach"
        )
    if not is_loopback(endpoint) and not places:
        raise ValueError(
            f"'{endpoint}' is no endpoint for hosts that are all on this machine; "
            "write tcp://127.0.0.1:PORT, or leave it out"
        )
