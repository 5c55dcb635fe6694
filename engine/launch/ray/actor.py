"""The actor of a bundle: the worker of a pool on a thread of a Ray actor's process.

Ray gives the process its cores and devices (CUDA_VISIBLE_DEVICES), which the hosts inherit.
"""

from __future__ import annotations

import threading
from queue import Empty, SimpleQueue
from typing import Final

import msgspec
import ray

from partita.engine.launch.pool.facts import resources as resources_here
from partita.engine.launch.pool.worker import PoolWorker, WorkerSettings
from partita.engine.launch.ray.bundles import Bundle, offered
from partita.engine.protocol.messages import Peer
from partita.engine.transport.addresses import address_towards, interfaces
from partita.engine.transport.keys import KeyPair

SAID_S: Final = 5.0
"""Seconds that a call of `said` waits for a line."""


class Introduction(msgspec.Struct, frozen=True):
    """An actor's answer to `introduce`.

    Args:
        address: address of its machine at which others reach its worker.
        public_key: the key by which the registry knows its worker.
        ray: version of Ray in its process.
    """

    address: str
    public_key: str
    ray: str


class Said(msgspec.Struct, frozen=True):
    """Lines of a worker, and whether it has ended."""

    lines: tuple[str, ...]
    ended: bool = False


class BundleWorker:
    """A worker. Ray calls its methods on threads of their own; secret keys stay in its process."""

    def __init__(self) -> None:
        """Makes a key pair."""
        self._keys = KeyPair.generate()
        self._lines: SimpleQueue[str] = SimpleQueue()
        self._ended = threading.Event()

    def introduce(self, pool: str) -> Introduction:
        """Returns address and public key.

        Args:
            pool: endpoint of the registry.

        Raises:
            OSError: no interface leads to the registry.
        """
        return Introduction(_own_address(pool), self._keys.public, ray.__version__)

    def work(self, pool: Peer, name: str, bundle: Bundle) -> None:
        """Begins to work for the registry `pool`, with what the bundle has."""
        address = _own_address(pool.endpoint)
        resources = offered(bundle, resources_here())
        settings = WorkerSettings(pool, self._keys, address, name, resources, death_timeout_s=float("inf"))
        threading.Thread(target=self._work, args=(settings,), name="worker", daemon=True).start()

    def said(self) -> Said:
        """Returns what the worker has said while it was not in the pool; waits for a line."""
        found = []
        try:
            found.append(self._lines.get(timeout=SAID_S))
            while True:
                found.append(self._lines.get_nowait())
        except Empty:
            return Said(tuple(found), self._ended.is_set() and self._lines.empty())

    def _work(self, settings: WorkerSettings) -> None:
        # The template dies with the thread that has started it, so all is made on this one.
        try:
            with PoolWorker(settings, log=lambda text: None if worker.is_in else self._say(text)) as worker:
                self._say(worker.run().reason)
        except Exception as error:  # noqa: BLE001 - the driver shows it
            self._say(f"the worker has failed: {error!r}")
        finally:
            self._ended.set()

    def _say(self, text: str) -> None:
        self._lines.put(text)


def _own_address(pool: str) -> str:
    """Returns the address that Ray uses for this machine, if an interface has it."""
    address = ray.util.get_node_ip_address()
    return address if address in interfaces().values() else address_towards(pool)
