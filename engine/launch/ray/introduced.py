"""The keys of one run on Ray: its own pair, and the public keys that actors have returned."""

from __future__ import annotations

import threading

from partita.engine.transport.keyring import Authorised
from partita.engine.transport.keys import KeyPair


class IntroducedKeys:
    """Keys that are in the memory of this process alone. Safe from every thread.

    An actor returns its public key by a call of Ray's: whoever may start actors in the cluster may be a
    worker of the run.
    """

    def __init__(self) -> None:
        """Makes a pair for the registry of this run."""
        self._lock = threading.Lock()
        self._pair = KeyPair.generate()
        self._workers: dict[str, Authorised] = {}
        self._changes = 0

    @property
    def public_key(self) -> str:
        """Public half of the registry's pair."""
        return self._pair.public

    def introduce(self, name: str, public_key: str) -> None:
        """Lets a worker in, in the place of the one that had this name."""
        with self._lock:
            self._workers[name] = Authorised("worker", public_key, name)
            self._changes += 1

    def pair(self, name: str) -> KeyPair:
        """Returns the registry's pair."""
        assert name == "pool", name
        return self._pair

    def authorised(self) -> tuple[Authorised, ...]:
        """Returns the workers that may come in."""
        with self._lock:
            return tuple(self._workers.values())

    def stamp(self) -> tuple[int, int]:
        """Returns a value that changes when `authorised` does."""
        with self._lock:
            return self._changes, 0

    def remedy(self, *, other_key: bool) -> str:
        """Words what somebody who did not get in has to do."""
        return "it is no actor of this run"
