"""`Pool`: where a run's hosts are, as an argument of `train`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Final, Protocol

from partita.engine.launch.pool.join_file import default_keys
from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.protocol.messages import Peer
from partita.engine.transport.addresses import address_towards, interfaces, split, unreachable
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import EndpointUnavailable, check_endpoint
from partita.layers.checks import check_fields, check_seconds, check_whole

WAIT_S: Final = 60.0
"""Default of the seconds that a run waits for workers and places."""


@dataclass(frozen=True)
class Door:
    """How a run reaches its pool.

    Args:
        peer: the registry's door.
        keys: the pair by which the pool knows the run's client.
        address: address of this machine at which the pool's workers reach the run's coordinator.
    """

    peer: Peer
    keys: KeyPair
    address: str


class WorkerSource(Protocol):
    """Where a run finds its workers: a `Pool`, or what has the same attributes and `door`."""

    @property
    def workers(self) -> int:
        """Number of workers for which the run waits."""

    @property
    def wait_s(self) -> float:
        """Seconds to wait for them, and for places that other runs have."""

    def door(self, log: Callable[[str], object]) -> AbstractContextManager[Door]:
        """Yields how to reach the registry, while the run lasts."""


@dataclass(frozen=True)
class Pool:
    """A pool of workers, which `partita worker --join ADDRESS` have joined or will join.

    If nothing listens at the address, and it is one of this machine, this process serves the pool itself
    while the run lasts; otherwise `partita pool serve` must run there.

    Args:
        address: the pool's, `tcp://HOST:PORT`.
        keys: folder of keys; the user's own one if not given. To reach a pool, it has the pair `client` and
            trusts the pool's key; to serve one, it has the pair `pool` and trusts the workers' keys.
        workers: number of workers for which the run waits.
        wait_s: seconds to wait for them, and for places that other runs have.
        contact_address: address of this machine at which workers reach the run's coordinator; the one that
            leads to the pool if not given.

    Raises:
        ValueError: an argument is out of range.
    """

    address: str
    _: KW_ONLY
    keys: str | Path | None = None
    workers: int = 1
    wait_s: float = WAIT_S
    contact_address: str | None = None

    def __post_init__(self) -> None:
        check_endpoint(self.address, listening=False)
        check_fields(self, check_whole, "workers", of="Pool's ")
        check_fields(self, check_seconds, "wait_s", of="Pool's ")

    @property
    def keyring(self) -> Keyring:
        """The folder of keys."""
        return Keyring(Path(self.keys) if self.keys is not None else default_keys())

    @contextmanager
    def door(self, log: Callable[[str], object]) -> Iterator[Door]:
        """Yields how to reach the pool, which is served here meanwhile if nobody else does.

        Raises:
            FileNotFoundError, ValueError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
            OSError: the address cannot be reached or used.
        """
        host = split(self.address)[0]
        towards = address_towards(self.address)
        address = self.contact_address or towards
        is_own = host in interfaces().values() or towards in (host, "127.0.0.1")
        keys = KeyPair.generate()
        server = self._own_server(keys, log) if is_own and unreachable(self.address) is not None else None
        if server is None:
            trusted = self.keyring.trusted("pool")
            peer = Peer("the pool", 0, self.address, trusted.public_key)
            yield Door(peer, self.keyring.pair("client"), address)
            return
        thread = PoolThread(server)
        try:
            log(f"serves the pool at {server.endpoint}; waits for `partita worker --join {server.endpoint}`")
            yield Door(Peer("the pool", 0, server.endpoint, server.public_key), keys, address)
        finally:
            thread.close()

    def _own_server(self, keys: KeyPair, log: Callable[[str], object]) -> PoolServer | None:
        """Listens as the pool's registry; returns None if that has just been started by somebody else."""
        try:
            return PoolServer(self.keyring, self.address, own_clients=[keys.public], log=log)
        except EndpointUnavailable:
            if unreachable(self.address) is not None:
                raise
            return None
