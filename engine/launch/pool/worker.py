"""The body of a worker: its door for clients, its visit at the pool, and the template that forks hosts."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Self

import msgspec

from partita.engine.launch.forks import ForkedHost, Forks, exit_reason
from partita.engine.launch.pool.facts import machine_label, versions
from partita.engine.launch.pool.host_cores import HostCores
from partita.engine.launch.pool.probes import Probes
from partita.engine.protocol.messages import MalformedMessage, Peer
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.registry_events import Log, PoolTick
from partita.engine.protocol.pool.resources import Resources
from partita.engine.protocol.pool.worker import WorkerMachine
from partita.engine.protocol.pool.worker_events import (
    EndHost,
    EndWorker,
    FromClient,
    FromRegistry,
    HostBegan,
    HostEnded,
    Reach,
    Reached,
    SendToClient,
    SendToRegistry,
    StartHost,
    Unreached,
    WorkerEffect,
)
from partita.engine.transport.addresses import described, unreachable
from partita.engine.transport.door import Door
from partita.engine.transport.keys import KeyPair
from partita.engine.transport.visit import Trouble, Visit

TICK_S: Final = 0.1
DEATH_TIMEOUT_S: Final = 60.0
"""Default of the seconds without an answer of the pool after which a worker ends."""

_NONE: Final = msgspec.Raw(b"null")
_ZERO: Final = msgspec.Raw(b"0")
_PROBES: Final = 8  # at once
_DIAGNOSED_S: Final = 2.0  # between two looks at why the pool cannot be reached


@dataclass(frozen=True)
class WorkerSettings:
    """Settings of a worker.

    Args:
        pool: name, endpoint and public key of the pool's door.
        keys: the pair by which the pool knows this worker.
        address: address of this machine at which the pool, clients and other hosts reach it.
        name: for messages.
        resources: what its hosts may use up.
        death_timeout_s: seconds without an answer of the pool after which it ends.
    """

    pool: Peer
    keys: KeyPair
    address: str
    name: str
    resources: Resources
    death_timeout_s: float = DEATH_TIMEOUT_S


class PoolWorker:
    """A worker, at work. Belongs to one thread; `stop` may come from any, or from a signal handler."""

    def __init__(self, settings: WorkerSettings, *, log: Callable[[str], object]) -> None:
        """Opens the door and begins to import what hosts need.

        Raises:
            ValueError, EndpointUnavailable: the address cannot be used.
        """
        self._settings, self._log = settings, log
        self._session = KeyPair.generate()
        self._hosts: dict[tuple[str, str, int], ForkedHost] = {}
        self._unborn: set[tuple[str, str, int]] = set()
        self._cores = HostCores()
        self._scratch: dict[str, tuple[ExitStack, str]] = {}  # folders, by run
        self._stop_requested = False
        self._ended: EndWorker | None = None
        self._diagnosed_at = float("-inf")
        with ExitStack() as stack:
            self._door = stack.enter_context(
                Door(
                    self._session,
                    f"tcp://{settings.address}:*",
                    is_authorised=lambda key: key in self._machine.keys,
                )
            )
            self._machine = WorkerMachine(self._join(), death_timeout_s=settings.death_timeout_s)
            self._visit = stack.enter_context(Visit(settings.keys, settings.pool))
            self._forks: Forks | None = None
            stack.callback(self._end_template)
            self._probes = stack.enter_context(Probes(self._door, at_once=_PROBES))
            stack.callback(self._cores.close)
            self._closing = stack.pop_all()

    def _join(self) -> m.Join:
        return m.Join(
            session=self._session.public,
            endpoint=self._door.endpoint,
            name=self._settings.name,
            machine=machine_label(),
            versions=versions(),
            resources=self._settings.resources,
        )

    @property
    def is_in(self) -> bool:
        """Returns whether it takes part in the pool."""
        return self._machine.is_in

    def run(self) -> EndWorker:
        """Works until the pool drains it, it is stopped, or the pool does not answer."""
        ticked_at = float("-inf")
        while self._ended is None:
            self._door.watch(self._visit.sockets)
            for asked in self._door.receive(TICK_S):
                self._asked(asked.route, asked.key, asked.data)
            self._door.strangers()  # a client may come before the pool has said so: it tries again
            for answer in self._visit.receive():
                self._answered(answer)
            for event in self._probes.found():
                if not isinstance(event, Unreached) or self._visit.trouble is not None:
                    self._give(event)
            self._look_at_hosts()
            if self._stop_requested:
                self._carry_out_all(self._machine.stop())
            elif (now := time.monotonic()) - ticked_at >= TICK_S:
                ticked_at = now
                self._diagnose(now)
                self._give(PoolTick())
                self._remove_scratch()
        return self._ended

    def stop(self) -> None:
        """Ends `run` soon, and its hosts at once."""
        self._stop_requested = True
        self._door.wake()

    def close(self) -> None:
        """Ends every host and the template, and removes what they have copied."""
        try:
            self._closing.close()
        finally:
            while self._scratch:
                self._scratch.popitem()[1][0].close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    # Messages.

    def _asked(self, route: bytes, key: str, data: bytes) -> None:
        try:
            self._give(FromClient(route, key, m.decode(data)))
        except MalformedMessage as error:
            self._log(f"dropped a message of a client: {error}")

    def _answered(self, data: bytes) -> None:
        try:
            message = m.decode(data)
        except MalformedMessage as error:
            self._log(f"dropped an answer of the pool: {error}")
        else:
            if isinstance(message, m.Orders) and message.clients:
                self._template()  # imports while the first client comes
            self._give(FromRegistry(message))

    def _diagnose(self, now: float) -> None:
        """Finds out why there is no connection to the pool; clients are answered meanwhile."""
        trouble = self._visit.trouble
        if trouble is None or now - self._diagnosed_at < _DIAGNOSED_S:
            return
        self._diagnosed_at = now
        self._probes.submit(lambda: Unreached(self._worded(trouble)))

    def _worded(self, trouble: Trouble) -> str:
        pool, own = self._settings.pool, self._settings
        match trouble:
            case Trouble.REFUSED:
                return (
                    f"the pool at {pool.endpoint} refuses this worker's key {own.keys.public}, which is not "
                    "authorised there; copy worker.pub to the pool's machine and run "
                    "`partita keys authorise worker.pub --as worker` there"
                )
            case Trouble.OTHER_KEY:
                return (
                    f"the pool at {pool.endpoint} has another key than {pool.public_key}, which this worker "
                    "trusts; copy pool.pub from the pool's machine and run "
                    "`partita keys authorise pool.pub --as pool` here"
                )
            case Trouble.UNREACHABLE:
                why = self._visit.reason() or "the connection ended"
                return (
                    f"the pool at {pool.endpoint} cannot be reached from {described(own.address)}: {why}; "
                    "see that `partita pool serve` runs there and that the address is right"
                )

    # Effects.

    def _give(self, event: object) -> None:
        self._carry_out_all(self._machine.receive(event, time.monotonic()))

    def _carry_out_all(self, effects: object) -> None:
        assert isinstance(effects, list | tuple)
        for effect in effects:
            self._carry_out(effect)

    def _carry_out(self, effect: WorkerEffect) -> None:
        match effect:
            case SendToRegistry(message=message):
                self._visit.send(m.encode(message))
            case SendToClient(route=route, message=message):
                self._door.answer(route, m.encode(message))
            case Reach():
                self._probes.submit(lambda: self._reach(effect))
            case StartHost():
                self._start(effect)
            case EndHost(run=run, name=name, incarnation=incarnation):
                host = self._hosts.pop((run, name, incarnation), None)
                self._unborn.discard((run, name, incarnation))
                self._cores.give_back((run, name, incarnation))
                if host is not None:
                    host.kill()
            case EndWorker():
                self._ended = effect
            case Log(text=text):
                self._log(text)

    def _reach(self, effect: Reach) -> Reached:
        """Tries to connect to all, from this worker's own address, and to read the files."""
        own, found = self._settings.address, ""
        for path, text in effect.files:
            if not _reads(Path(path), text):
                found = (
                    f"{Path(path).parent} is not here as it is on the machine that trains, and hosts write "
                    "checkpoints there; share it by the same path, or give the folder without SharedFolder"
                )
        for name, endpoint in effect.endpoints:
            why = unreachable(endpoint, source=own)
            if why is not None:
                found = f"{name} at {endpoint} cannot be reached from {described(own)}: {why}"
                break
        return Reached(effect.run, found)

    # Hosts.

    def _start(self, effect: StartHost) -> None:
        place = (effect.run, effect.name, effect.incarnation)
        try:
            # The class of a `Bootstrap` knows all that a host imports, and this process is to stay small.
            bootstrap = msgspec.json.decode(effect.bootstrap, type=dict[str, msgspec.Raw])
            cores = msgspec.json.decode(bootstrap.get("cores", _ZERO), type=int)
        except msgspec.MsgspecError:
            self._give(HostEnded(*place, "its description cannot be read"))
            return
        scratch = self._scratch_of(effect.run) if bootstrap.get("files", _NONE) != _NONE else ""
        own = {"listen": f"tcp://{self._settings.address}:*", "scratch": scratch}
        self._cores.take(place, cores)
        self._hosts[place] = self._template().start(msgspec.json.encode(bootstrap | own))
        self._unborn.add(place)

    def _template(self) -> Forks:
        """Returns the template, which is started for the first client, and kept for those that follow."""
        if self._forks is None or not self._forks.is_alive:
            self._end_template()
            self._forks = Forks()
        return self._forks

    def _end_template(self) -> None:
        if self._forks is not None:
            self._forks.close()

    def _scratch_of(self, run: str) -> str:
        """Returns the folder of this machine for copies of a run's files; "" if it cannot be made."""
        # A worker that waits for runs needs none of this, and may be one of many on a machine.
        from partita.engine.files.temporary import temporary_folder

        if run not in self._scratch:
            try:
                stack = ExitStack()
                folder = stack.enter_context(temporary_folder("a worker of a pool"))
            except (OSError, ValueError) as error:
                self._log(f"no folder for copies of a run's files can be made ({error})")
                return ""
            self._scratch[run] = stack, str(folder)
        return self._scratch[run][1]

    def _remove_scratch(self) -> None:
        """Removes the folders of runs that are over."""
        for run in [one for one in self._scratch if one not in self._machine.runs]:
            self._scratch.pop(run)[0].close()

    def _look_at_hosts(self) -> None:
        if self._forks is not None:
            self._forks.read()
        for place in [one for one in self._unborn if self._hosts[one].pid is not None]:
            self._unborn.discard(place)
            self._give(HostBegan(*place, self._hosts[place].pid or 0))
        for place in [one for one, host in self._hosts.items() if host.code is not None]:
            code = self._hosts.pop(place).code
            self._unborn.discard(place)
            self._cores.give_back(place)
            self._give(HostEnded(*place, exit_reason(code or 0)))
        self._cores.apply({place: host.pid for place, host in self._hosts.items() if host.pid is not None})


def _reads(path: Path, text: str) -> bool:
    try:
        return path.read_text(encoding="ascii") == text
    except (OSError, UnicodeDecodeError):
        return False


def stop_on_signals(worker: PoolWorker) -> None:
    """Lets Ctrl-C and SIGTERM end a worker and its hosts. In the main thread."""
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, lambda number, frame: worker.stop())
