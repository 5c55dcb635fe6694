"""The body of a pool's registry: its door, its list of authorised keys, and connections that it tries out."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Final, Self

from partita.engine.launch.pool.facts import versions
from partita.engine.launch.pool.probes import Probes
from partita.engine.protocol.conduct import Conduct
from partita.engine.protocol.failure import sentence
from partita.engine.protocol.messages import MalformedMessage
from partita.engine.protocol.pool import messages as m
from partita.engine.protocol.pool.registry import RegistryMachine
from partita.engine.protocol.pool.registry_events import (
    Answer,
    FromVisitor,
    Log,
    PoolTick,
    Probe,
    Probed,
    RegistryEffect,
    Revoked,
)
from partita.engine.transport.addresses import split, unreachable
from partita.engine.transport.door import Asked, Door, Stranger
from partita.engine.transport.keyring import Authorised, Trust
from partita.engine.transport.keys import KeyPair, MalformedKeyFile

TICK_S: Final = 0.25
_PROBES: Final = 16  # at once
_NAMED_S: Final = 30.0  # before the same one is named again


class PoolServer:
    """The registry of a pool, at work. Belongs to one thread; `stop` may come from any.

    Attributes:
        endpoint: where workers and clients reach it.
        public_key: by which they know it.
    """

    def __init__(
        self,
        keyring: Trust,
        endpoint: str,
        *,
        own_clients: Sequence[str] = (),
        log: Callable[[str], object],
    ) -> None:
        """Listens.

        Args:
            keyring: has the pool's own pair, and the keys that are authorised.
            endpoint: `tcp://HOST:PORT`, or `tcp://HOST:*` for any free port.
            own_clients: public keys of clients in this process.
            log: shows a line.

        Raises:
            FileNotFoundError, InsecureKeyFile, MalformedKeyFile: a key cannot be read.
            ValueError, EndpointUnavailable: the endpoint cannot be used.
        """
        self._keyring, self._log = keyring, log
        self._own = {key: Authorised("client", key, "this process") for key in own_clients}
        self._stamp = keyring.stamp()
        self._members = self._own | {one.public_key: one for one in keyring.authorised()}
        self._machine = RegistryMachine(versions(), identity=secrets.token_hex(4))
        self._stopped = False
        self._conduct = Conduct()  # of connections, by route
        self._named: dict[str, float] = {}
        with ExitStack() as stack:
            pair: KeyPair = keyring.pair("pool")
            self._door = stack.enter_context(Door(pair, endpoint, is_authorised=self._is_authorised))
            self._probes = stack.enter_context(Probes(self._door, at_once=_PROBES))
            self._closing = stack.pop_all()
        self.endpoint, self.public_key = self._door.endpoint, self._door.public_key

    def serve(self) -> None:
        """Serves until `stop` is called."""
        ticked_at = float("-inf")
        while not self._stopped:
            for asked in self._door.receive(TICK_S):
                self._asked(asked)
            for event in self._probes.found():
                self._give(event)
            for stranger in self._door.strangers():
                self._log(_named(stranger, self.endpoint, self._keyring))
            self._read_keys()
            now = time.monotonic()
            if now - ticked_at >= TICK_S:
                ticked_at = now
                self._give(PoolTick())

    def stop(self) -> None:
        """Ends `serve` soon. From any thread."""
        self._stopped = True
        self._door.wake()

    def close(self) -> None:
        """Closes the door and waits for connections that are tried out."""
        self._closing.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _is_authorised(self, key: str) -> bool:
        if key not in self._members:  # perhaps since a moment ago
            self._read_keys()
        return key in self._members

    def _asked(self, asked: Asked) -> None:
        member = self._members.get(asked.key)
        if member is None:
            return
        name, now = self._name_of(member), time.monotonic()
        flood = self._conduct.too_many(asked.route.hex(), "request", now)
        if flood is not None:
            self._cut_off(asked, f"{member.role} {name}", flood, now)
            return
        try:
            message = m.decode(asked.data)
        except MalformedMessage as error:
            answer = m.Rejection(reason=f"{error}; all of a pool need the same version of Partita")
            self._door.answer(asked.route, m.encode(answer))
            if self._conduct.refused(asked.route.hex(), now) == "cut off":
                self._cut_off(asked, f"{member.role} {name}", str(error), now)
            return
        self._give(FromVisitor(asked.route, name, member.role, message))

    def _name_of(self, member: Authorised) -> str:
        """Names a member. Whoever serves the pool is one member, whatever key its client has this time."""
        key = self.public_key if member.public_key in self._own else member.public_key
        return f"{member.name} {key[:6]}"

    def _cut_off(self, asked: Asked, who: str, why: str, now: float) -> None:
        """Closes a connection that is misused: several processes may have the same key."""
        self._door.cut(asked)
        if now - self._named.get(who, float("-inf")) >= _NAMED_S:
            self._named[who] = now
            self._log(f"cut off a connection of the {who}: {sentence(why)}")

    def _give(self, event: object) -> None:
        for effect in self._machine.receive(event, time.monotonic()):
            self._carry_out(effect)

    def _carry_out(self, effect: RegistryEffect) -> None:
        match effect:
            case Answer(route=route, message=message):
                self._door.answer(route, m.encode(message))
            case Probe(session=session, endpoint=endpoint):
                self._probes.submit(lambda: Probed(session, unreachable(endpoint) or ""))
            case Log(text=text):
                self._log(text)

    def _read_keys(self) -> None:
        stamp = self._keyring.stamp()
        if stamp == self._stamp:
            return
        try:
            found = {one.public_key: one for one in self._keyring.authorised()}
        except (OSError, MalformedKeyFile) as error:
            self._log(f"the authorised keys stay as they were: {error}")
        else:
            self._members = self._own | found
            names = map(self._name_of, self._members.values())
            self._give(Revoked(frozenset(names)))
        self._stamp = stamp


class PoolThread:
    """The registry of a pool on a thread of this process."""

    def __init__(self, server: PoolServer) -> None:
        """Begins to serve."""
        self.server = server
        self._thread = threading.Thread(target=server.serve, name="pool", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stops serving and closes the door."""
        self.server.stop()
        self._thread.join()
        self.server.close()


def _named(stranger: Stranger, endpoint: str, keyring: Trust) -> str:
    """Words who did not get in, and what to do."""
    source = stranger.address or "an address that was gone at once"
    if not stranger.key:
        return (
            f"refused a connection from {source}: it expects another key of the pool at {endpoint}; "
            f"{keyring.remedy(other_key=True)}"
        )
    port = split(endpoint)[1]
    return (
        f"refused a connection from {source} at port {port}: its key {stranger.key} is not authorised; "
        f"{keyring.remedy(other_key=False)}"
    )
