"""A pool that this process serves for its own runs, and whose workers it has started or expects by name."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Final

from typing_extensions import override

from partita.engine.launch.launcher import Launcher
from partita.engine.launch.pool.inspect import ask
from partita.engine.launch.pool.launcher import PoolLauncher
from partita.engine.launch.pool.needs import needs_of
from partita.engine.launch.pool.pool import Door, Pool, WorkerSource
from partita.engine.launch.pool.server import PoolServer, PoolThread
from partita.engine.launch.request import LaunchRequest, Log
from partita.engine.protocol.failure import RunFailed
from partita.engine.protocol.messages import Peer
from partita.engine.protocol.pool.messages import Inspect, Need
from partita.engine.transport.keyring import Keyring
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.sockets import EndpointUnavailable

SAID_S: Final = 5.0
"""Seconds after which workers that are missing are named, and then twice as long from one time to the
next."""

DRAINED_S: Final = 2.0
"""Seconds that workers that this process has started may take to leave at the end."""

_LOOK_S: Final = 0.25
_NAMED: Final = 8  # workers in a sentence


@dataclass(frozen=True)
class ServedPool(Pool):
    """A pool that is served already.

    Args:
        entry: how its runs reach it.
    """

    entry: Door | None = None

    @override
    @contextmanager
    def door(self, log: Log) -> Iterator[Door]:
        assert self.entry is not None
        yield self.entry


def launch_on(pool: WorkerSource, request: LaunchRequest, needs: Sequence[Need] | None = None) -> Launcher:
    """Makes the launcher of a run at the workers of a pool. Raises as `PoolLauncher`.

    Args:
        pool: its workers start the hosts.
        request: the run.
        needs: of its hosts; those that follow from its plan if not given.
    """
    return PoolLauncher(
        pool,
        needs_of(request.plan, request.topology) if needs is None else needs,
        title=request.title,
        log=request.log,
        files=request.files,
        encryption=request.encryption,
        folder=request.folder,
    )


class OwnPool:
    """A pool on a thread of this process.

    Attributes:
        endpoint: where workers reach it.
        public_key: by which they know it.
    """

    def __init__(
        self,
        keyring: Keyring,
        endpoints: Sequence[str],
        address: str,
        *,
        log: Log,
        drained_s: float = DRAINED_S,
    ) -> None:
        """Listens.

        Args:
            keyring: has the pool's own pair and the workers' keys.
            endpoints: are tried in turn.
            address: of this machine, at which workers reach a run's coordinator.
            log: shows a line. From any thread.
            drained_s: seconds that workers may take to leave at the end.

        Raises:
            OSError: no endpoint can be used.
            FileNotFoundError, ValueError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
        """
        self._log, self._drained_s = log, drained_s
        self._client, self._are_complete = KeyPair.generate(), False
        with ExitStack() as stack:
            server = self._listening(keyring, endpoints)
            stack.callback(PoolThread(server).close)
            self._closing = stack.pop_all()
        self.endpoint, self.public_key = server.endpoint, server.public_key
        self._peer = Peer("the pool", 0, self.endpoint, self.public_key)
        self._pool = ServedPool(self.endpoint, entry=Door(self._peer, self._client, address))

    def _listening(self, keyring: Keyring, endpoints: Sequence[str]) -> PoolServer:
        tried = []
        for endpoint in endpoints:
            try:
                return PoolServer(keyring, endpoint, own_clients=[self._client.public], log=self.say)
            except EndpointUnavailable as error:
                tried.append(str(error))
        raise OSError(f"the pool of this run can listen nowhere: {'; '.join(tried)}")

    def at_end(self, function: Callable[..., object], *arguments: object) -> None:
        """Calls a function when the pool is closed, after all workers have left and before it listens no
        more.
        """
        self._closing.callback(function, *arguments)

    def say(self, text: str) -> None:
        """Shows a line where lines are shown now."""
        self._log(text)

    @contextmanager
    def shown_by(self, log: Log) -> Iterator[None]:
        """Lets another function show lines meanwhile."""
        before, self._log = self._log, log
        try:
            yield
        finally:
            self._log = before

    def launch(self, request: LaunchRequest) -> Launcher:
        """Makes the launcher of a run."""
        return launch_on(self._pool, request)

    def wait_for(
        self,
        workers: Mapping[str, Callable[[], str]],
        wait_s: float,
        *,
        what: str,
        check: Callable[[frozenset[str]], object] = lambda missing: None,
    ) -> None:
        """Waits until all workers have joined once, and says for whom. Later, those that died are not
        awaited.

        Args:
            workers: their names, with functions that word them.
            wait_s: seconds to wait.
            what: one word for all of them, for messages.
            check: is called with the names of those that are missing.

        Raises:
            RunFailed: some did not come.
        """
        began = time.monotonic()
        say_at = began + SAID_S
        while not self._are_complete:
            missing = frozenset(workers) - self._joined()
            self._are_complete = not missing
            check(missing)
            now, named = time.monotonic(), [name for name in workers if name in missing]
            if missing and now - began >= wait_s:
                raise RunFailed(
                    f"{_worded(workers, named, what)} did not join within {wait_s:g} s; their own output "
                    "says why, if they have started"
                )
            if missing and now >= say_at:
                say_at = now + 2 * SAID_S
                self.say(f"waits for {_worded(workers, named, what)}")
            if missing:
                time.sleep(_LOOK_S)

    def _joined(self) -> frozenset[str]:
        return frozenset(one.name for one in ask(self._peer, self._client, Inspect()).workers)

    def close(self) -> None:
        """Lets all workers end, waits until they have left, and serves no more."""
        with self.shown_by(lambda text: None), self._closing:
            until = time.monotonic() + self._drained_s
            with contextlib.suppress(OSError, ValueError):
                drain = Inspect(drain=())
                while ask(self._peer, self._client, drain).workers and time.monotonic() < until:
                    time.sleep(_LOOK_S)


def _worded(workers: Mapping[str, Callable[[], str]], missing: Sequence[str], what: str) -> str:
    """Words how many of all are missing, and which."""
    more = f" and {len(missing) - _NAMED} more" if len(missing) > _NAMED else ""
    named = ", ".join(workers[name]() for name in missing[:_NAMED])
    return f"{len(missing)} of {len(workers)} {what}: {named}{more}"
