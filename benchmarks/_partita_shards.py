"""One part and its shards, as processes that exchange gradients and parameters by Partita's messages.

The part is this process. It has a coordinator's mailbox too, which sets the shards up and renews their
leases; the shards are the same processes as in a run.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self

import msgspec
import numpy as np

from benchmarks._worker import serve
from partita.engine import Adagrad
from partita.engine.launch.bootstrap import Bootstrap
from partita.engine.parameters import Layout, Slot, save_parameters
from partita.engine.protocol import Message
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import (
    Directory,
    Failed,
    Fetch,
    Heartbeat,
    Hello,
    Parameters,
    Peer,
    Push,
    PushAck,
    Ready,
    SetUp,
    Stop,
)
from partita.engine.protocol.names import COORDINATOR, part_name, shard_name
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import pack_task
from partita.engine.transport import Encryption, KeyPair, Payload, Steady, ZmqMailbox

SHARDS: Final = 2
PART: Final = part_name(0, 0)
_WAIT_S: Final = 60.0


class Shards:
    """Processes of shards, and the mailbox of the part that pushes to them. Use it as a context manager.

    Args:
        size: parameters of the part.
        machine: label of the machine, see `Peer`: "" uses TCP, another one shares memory.
        encrypt: whether payloads are encrypted.
    """

    def __init__(self, size: int, machine: str, *, encrypt: bool = True) -> None:
        self._layout = Layout(((Slot("w", 0, size),),), {"w": (size,)}, shards=SHARDS)
        self._machine = machine
        self._folder = tempfile.TemporaryDirectory()
        self._encryption = Encryption(payloads=encrypt)
        self._coordinator, self.part = (
            ZmqMailbox(KeyPair.generate(), machine=machine, encryption=self._encryption) for _ in range(2)
        )
        self._me = Peer(COORDINATOR, 0, self._coordinator.endpoint, self._coordinator.public_key, machine)
        self._processes: list[subprocess.Popen[bytes]] = []
        self._over = threading.Event()
        self._leases = threading.Thread(target=self._renew)

    def __enter__(self) -> Self:
        folder = Path(self._folder.name)
        save_parameters(folder / "initial", {"w": np.zeros(self._layout.shapes["w"], np.float32)})
        keys = [KeyPair.generate() for _ in range(SHARDS)]
        peers = [Peer(shard_name(n), 0, "", key.public, self._machine) for n, key in enumerate(keys)]
        self._coordinator.allow(peers)
        self._processes = [self._start(n, key) for n, key in enumerate(keys)]
        peers = self._greeted(peers)
        self.part.allow(peers)
        for n, peer in enumerate(peers):
            self.part.connect(peer)
            self._coordinator.connect(peer)
            self._coordinator.send(peer.name, SetUp("run"), pack_task(self._task(n, folder)))
        self._await(Ready)
        part = Peer(PART, 0, self.part.endpoint, self.part.public_key, self._machine)
        for peer in peers:
            self._coordinator.send(peer.name, Directory((part,), 1))
        self._leases.start()
        return self

    def _start(self, shard: int, keys: KeyPair) -> subprocess.Popen[bytes]:
        bootstrap = Bootstrap(
            shard_name(shard),
            0,
            keys.public,
            keys.secret,
            self._me,
            "tcp://127.0.0.1:*",
            self._machine,
            together=True,
            path=tuple(sys.path),
            encryption=self._encryption,
        )
        process = subprocess.Popen(
            [sys.executable, "-c", "from partita.engine.launch.worker import main; main()"],
            stdin=subprocess.PIPE,
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(bootstrap))
        process.stdin.close()
        return process

    def _task(self, shard: int, folder: Path) -> ShardTask:
        return ShardTask(
            shard=shard,
            layout=self._layout,
            run="run",
            folder=folder,
            checkpoint=None,
            initial=folder / "initial",
            precision="float32",
            policy=ApplyPolicy(optimizer=Adagrad(0.01)),
        )

    def _greeted(self, peers: list[Peer]) -> list[Peer]:
        """The shards with the endpoints that they have reported."""
        hellos = self._await(Hello)
        return [msgspec.structs.replace(peer, endpoint=hellos[peer.name].endpoint) for peer in peers]

    def _await(self, kind: type[Message]) -> dict[str, Any]:
        """The first message of this kind from every shard."""
        found: dict[str, Any] = {}
        until = time.monotonic() + _WAIT_S
        while len(found) < SHARDS:
            assert time.monotonic() < until, f"{kind.__name__} came from {sorted(found)} alone"
            for event in self._coordinator.receive(0.1):
                assert not isinstance(event.message, Failed), event.message
                if isinstance(event.message, kind):
                    found.setdefault(event.sender, event.message)
        return found

    def _renew(self) -> None:
        """Answers heartbeats, so that the shards have their leases."""
        while not self._over.is_set():
            for event in self._coordinator.receive(0.1):
                assert not isinstance(event.message, Failed), event.message
                if isinstance(event.message, Heartbeat):
                    self._coordinator.send(event.sender, Heartbeat(0, event.message.clock))

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._over.set()
        if self._leases.ident is not None:
            self._leases.join()
            for n in range(SHARDS):
                self._coordinator.send(shard_name(n), Stop())
        for process in self._processes:
            try:
                process.wait(5.0)
            except subprocess.TimeoutExpired:
                process.kill()
        self.part.close()
        self._coordinator.close()
        self._folder.cleanup()


class Player:
    """Pushes a gradient to all shards, and fetches the parameters that it leads to.

    Args:
        size: parameters.
        machine, encrypt: see `Shards`.
    """

    def __init__(self, size: int, machine: str, encrypt: bool) -> None:
        self._shards = Shards(size, machine, encrypt=encrypt).__enter__()
        self._mailbox = self._shards.part
        shared = self._mailbox.memory(4 * size)
        self._gradient = np.empty(size, np.float32) if shared is None else shared.view(np.float32)
        self._gradient.fill(0.5)
        self._values = np.zeros(size, np.float32)
        layout = self._shards._layout
        self._slices = {
            shard_name(one.shard): slice(one.machine_start, one.machine_stop) for one in layout.shards_of(0)
        }
        self._step = 0
        self.play(2)

    def play(self, steps: int) -> list[float]:
        """Seconds of each step."""
        return [self._seconds(self._once) for _ in range(steps)]

    def first(self) -> float:
        """The first parameter."""
        return float(self._values[0])

    def close(self) -> None:
        """Ends the shards."""
        self._shards.__exit__(None, None, None)

    @staticmethod
    def _seconds(act: Callable[[], None]) -> float:
        began = time.perf_counter()
        act()
        return time.perf_counter() - began

    def _once(self) -> None:
        step, self._step = self._step, self._step + 1
        for name, numbers in self._slices.items():
            self._mailbox.send(name, Push(0, step, 0, step, step + 1), Steady(self._gradient[numbers]))
            self._mailbox.send(name, Fetch(step, step))
        acknowledged, fetched = set[str](), set[str]()
        until = time.monotonic() + _WAIT_S
        while min(len(acknowledged), len(fetched)) < SHARDS:
            assert time.monotonic() < until, (step, acknowledged, fetched)
            for event in self._mailbox.receive(1.0):
                self._take(event, acknowledged, fetched)

    def _take(self, event: Received, acknowledged: set[str], fetched: set[str]) -> None:
        match event.message:
            case PushAck():
                acknowledged.add(event.sender)
            case Parameters():
                assert isinstance(event.payload, Payload)
                event.payload.copy_into(self._values[self._slices[event.sender]])
                event.payload.release()
                fetched.add(event.sender)


def main() -> None:
    """Serves a player: its size, the machine's label and whether to encrypt are arguments."""
    size, machine, encrypt = json.loads(sys.argv[1])
    players: list[Player] = []

    def made() -> Player:
        players.append(Player(size, machine, encrypt))
        return players[0]

    try:
        serve(made)
    finally:
        for player in players:
            player.close()


if __name__ == "__main__":
    main()
