"""The launcher of a run on a pool: its hosts run at workers, wherever those are."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from pathlib import Path

import msgspec
from typing_extensions import override

from partita.engine.files.access import FilesAddress
from partita.engine.files.catalogue import Catalogue
from partita.engine.files.server import serving
from partita.engine.launch.bootstrap import Bootstrap
from partita.engine.launch.descriptors import reserve
from partita.engine.launch.launcher import Launcher
from partita.engine.launch.pool.client import PoolClient
from partita.engine.launch.pool.facts import machine_label, versions
from partita.engine.launch.pool.pool import Door, WorkerSource
from partita.engine.launch.pool.run_ids import run_ids
from partita.engine.launch.pool.user_code import carried_by_value
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.pool.client import ClientMachine
from partita.engine.protocol.pool.messages import Ask, Need
from partita.engine.transport.encryption import ENCRYPTED, Encryption
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.zeromq import ZmqMailbox


class PoolLauncher(Launcher):
    """Starts each host at the worker of a pool that has a place for it."""

    kind = ("host", "hosts")

    def __init__(
        self,
        pool: WorkerSource,
        needs: Sequence[Need],
        *,
        title: str,
        log: Callable[[str], object],
        files: Catalogue | None = None,
        encryption: Encryption = ENCRYPTED,
        folder: Path | None = None,
    ) -> None:
        """Waits until every host has a place.

        Args:
            pool: where the run finds its workers.
            needs: of all hosts of the run.
            title: of the run, for messages.
            log: shows a line. From any thread.
            files: that hosts read and write; None: they need none.
            encryption: of all hosts, see `ZmqMailbox`.
            folder: see `LaunchRequest`. In it are the ids of this run's processes: one that goes on with a
                run takes over the places of those that were killed.

        Raises:
            RunFailed: the pool cannot be reached, refuses the run, or has no place for it.
            FileNotFoundError, ValueError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
            OSError: an address cannot be used; or this process may open too few files.
        """
        super().__init__()
        reserve(len(needs))
        self._encryption = encryption
        self._needed = {need.host: need.resources.cpu for need in needs}
        self._address: FilesAddress | None = None
        self._hosts: dict[str, int] = {}  # incarnation of every host that was started and not stopped
        with ExitStack() as stack:
            door = stack.enter_context(pool.door(log))
            self._open_mailbox(door)
            stack.callback(self.mailbox.close)
            if files is not None:
                self.files, self._address = stack.enter_context(
                    serving(files, address=door.address, encryption=encryption)
                )
            common = files is not None and files.shared
            ids = stack.enter_context(run_ids(folder))
            ask = Ask(
                run=ids[-1],
                key="",
                title=title,
                versions=versions(),
                needs=tuple(needs),
                workers=pool.workers,
                earlier=ids[:-1],
            )
            self._client = self._connect(pool, door, ask, log, common=common)
            stack.callback(self._client.close)
            try:
                self._client.wait_until_placed()
            except RuntimeError as error:
                raise RunFailed(str(error)) from None
            stack.enter_context(carried_by_value())
            self._closing = stack.pop_all()
        log(_worded(self._client.places()))

    def _open_mailbox(self, door: Door) -> None:
        keys, label = KeyPair.generate(), machine_label()
        self.mailbox = ZmqMailbox(
            keys, endpoint=f"tcp://{door.address}:*", machine=label, encryption=self._encryption
        )
        self._coordinator = Peer(COORDINATOR, 0, self.mailbox.endpoint, keys.public, label)

    def _connect(
        self,
        pool: WorkerSource,
        door: Door,
        ask: Ask,
        log: Callable[[str], object],
        *,
        common: bool,
    ) -> PoolClient:
        """Asks for places; `common`: workers must have the folder for checkpoints."""
        own = KeyPair.generate()
        ask = msgspec.structs.replace(ask, key=own.public)
        reach = [("the run's coordinator", self.mailbox.endpoint)]
        files: tuple[tuple[str, str], ...] = ()
        if self._address is not None:
            reach.append(("the run's files", self._address.server.endpoint))
            if common:
                mark = self._address.mark
                files = ((f"{self._address.checkpoints}/{mark}", mark),)
        machine = ClientMachine(ask, reach=tuple(reach), files=files, wait_s=pool.wait_s)
        return PoolClient(machine, door.peer, door.keys, own, address=door.address, log=log)

    @property
    def places(self) -> dict[str, str]:
        """The name of the worker of each host."""
        return self._client.places()

    def _start(self, name: str, incarnation: int) -> Peer:
        keys, machine = KeyPair.generate(), self._client.machine_of(name)
        bootstrap = Bootstrap(
            name,
            incarnation,
            keys.public,
            keys.secret,
            self._coordinator,
            listen="",  # the worker's own address
            machine=machine,
            together=False,
            path=(),
            encryption=self._encryption,
            files=self._address,
            cores=self._needed.get(name, 0),
        )
        self._hosts[name] = incarnation
        self._client.want(name, incarnation, msgspec.json.encode(bootstrap))
        return Peer(name, incarnation, "", keys.public, machine)

    @override
    def began(self) -> list[tuple[str, int]]:
        return [(name, inc) for name, inc in self._client.began() if self._hosts.get(name) == inc]

    def ended(self) -> list[tuple[str, int, str]]:
        """Returns hosts that have ended, or whose workers are gone.

        Raises:
            RunFailed: the run cannot go on.
        """
        try:
            found = self._client.ended()
        except RuntimeError as error:
            raise RunFailed(str(error)) from None
        current = [one for one in found if self._hosts.get(one[0]) == one[1]]
        for name, _, _ in current:
            del self._hosts[name]
        return current

    def _started(self) -> list[str]:
        return list(self._hosts)

    def _stop(self, names: Iterable[str], *, patience_s: float = 0.0) -> None:
        ending = [name for name in names if name in self._hosts]
        if ending and patience_s:
            self._client.wait_for_ends(len(ending), patience_s)
        for name in ending:
            del self._hosts[name]
            self._client.end(name)

    @override
    def close(self, *, patience_s: float = 0.5) -> None:
        try:
            super().close(patience_s=patience_s)
        finally:
            self._closing.close()


def _worded(places: dict[str, str]) -> str:
    """Words which hosts are where: `worker a: part 0.0, shard 0; worker b: part 0.1`."""
    by_worker: dict[str, list[str]] = {}
    for host, worker in sorted(places.items()):
        by_worker.setdefault(worker, []).append(host)
    return "; ".join(f"worker {worker}: {', '.join(hosts)}" for worker, hosts in sorted(by_worker.items()))
