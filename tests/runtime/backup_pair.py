"""Processes of a shard and its backup with real numbers, whose messages a test delivers."""

from __future__ import annotations

from collections import deque
from pathlib import Path
from typing import Any

import numpy as np

from partita.engine import Adagrad
from partita.engine.parameters import Layout, Slot, save_parameters
from partita.engine.protocol.copy_messages import CopyRequest
from partita.engine.protocol.durability import Replicated
from partita.engine.protocol.durability.fill import ALL_VECTORS
from partita.engine.protocol.events import Received, Send, Span
from partita.engine.protocol.host import PeersChanged
from partita.engine.protocol.messages import Heartbeat, Push, PushAck
from partita.engine.protocol.names import COORDINATOR
from partita.engine.runtime.backup import BackupTask
from partita.engine.runtime.shard import ShardTask
from partita.engine.runtime.shard_policies import ApplyPolicy
from partita.engine.runtime.task import HostContext
from partita.engine.transport import Counters, Payload

SIZE = 7
LAYOUT = Layout(((Slot("weight", 0, 4),), (Slot("weight", 4, SIZE),)), {"weight": (SIZE,)}, shards=1)


class Pair:
    """Processes of a shard and its backup, whose messages are delivered one by one."""

    def __init__(self, folder: Path) -> None:
        initial = folder / "initial"
        save_parameters(initial, {"weight": np.linspace(-1, 1, SIZE)})
        self.task = ShardTask(
            shard=0,
            layout=LAYOUT,
            run="run",
            folder=folder,
            checkpoint=None,
            initial=initial,
            precision="float32",
            policy=ApplyPolicy(optimizer=Adagrad(0.1)),
            durability=Replicated(),
        )
        self.roles: dict[str, Any] = {}
        self.under_way: deque[tuple[str, int, str, Any, bytes | None]] = deque()
        self.acknowledged: list[PushAck] = []

    def begin(self, name: str, incarnation: int, *, task: Any) -> None:
        host = HostContext(name, incarnation, self._send, lambda: None, Counters(), self._refuse)
        self.roles[name] = (incarnation, *task.role(host))
        self.give(name, Received(COORDINATOR, 0, Heartbeat(incarnation, 0.0)))
        present = {name: role[0] for name, role in self.roles.items()}
        for one in self.roles:
            self.give(one, PeersChanged(1, {name: n for name, n in present.items() if name != one}))

    def _send(self, to: str, message: Any, payload: Any) -> None:
        raise AssertionError((to, message))

    _refuse = _send  # type: ignore[assignment]

    def give(self, name: str, event: Any) -> None:
        incarnation, machine, body = self.roles[name]
        for effect in machine.receive(event, 0.1):
            if not isinstance(effect, Send):
                again = body.carry_out(effect, 0.1)
                if again is not None:
                    self.give(name, again)
                continue
            if isinstance(effect.message, PushAck):
                self.acknowledged.append(effect.message)
            elif effect.to in self.roles:
                has_payload = effect.payload is not None or effect.forwarded is not None
                found = body.payload(effect) if has_payload else ()
                arrays = found if isinstance(found, list | tuple) else [found]
                numbers = b"".join(bytes(one) for one in arrays)
                self.under_way.append((name, incarnation, effect.to, effect.message, numbers))
        machine.validate()

    def deliver(self) -> None:
        sender, incarnation, to, message, numbers = self.under_way.popleft()
        payload = Payload([memoryview(numbers)]) if numbers else None
        self.give(to, Received(sender, incarnation, message, payload))

    def push(self, machine: int, sequence: int) -> None:
        size = 4 if machine == 0 else SIZE - 4
        gradient = np.random.default_rng([machine, sequence]).normal(size=size).astype(np.float32)
        payload = Payload([memoryview(gradient).cast("B")])
        push = Push(0, sequence, 0, 0, sequence + 1)
        self.give("shard 0", Received(f"part 0.{machine}", 0, push, payload))

    def bits(self, name: str) -> list[bytes]:
        asked = Send("", CopyRequest(0), Span(ALL_VECTORS, 0, SIZE))
        return [bytes(vector) for vector in self.roles[name][2].payload(asked)]

    def fill_backup(self, pushes: int) -> None:
        """Begins a backup behind two pushes, and pushes on while it is filled, up to so many."""
        self.begin("shard 0", 0, task=self.task)
        for sequence in range(2):
            self.push(0, sequence)
        self.begin("backup 0", 0, task=BackupTask(self.task))
        for sequence in range(2, pushes):
            self.push(0, sequence)
            self.deliver()
        while self.under_way:
            self.deliver()
        assert len(self.acknowledged) == pushes and self.bits("shard 0") == self.bits("backup 0")
        for _, _, body in self.roles.values():
            body.close()
