"""An optimizer that makes a host misbehave, once: user code in the host's process, with its own mailbox."""

from __future__ import annotations

import gc
import os
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from partita.engine import SGD
from partita.engine.protocol.checkpoint_messages import Save
from partita.engine.protocol.messages import Fetch, Heartbeat, Push, PushAck, Stop
from partita.engine.protocol.names import COORDINATOR
from partita.engine.transport import ZmqMailbox

_EVERY_S: Final = 0.02


def _repeat(box: ZmqMailbox, send: Callable[[ZmqMailbox], None]) -> None:
    while True:
        send(box)
        time.sleep(_EVERY_S)  # from a process that is to be ended


def _raw(box: ZmqMailbox) -> None:
    with box._outbound_lock:
        box._outbound[COORDINATOR]._send([(b"\xc1 is no envelope", None)])


def _flood(box: ZmqMailbox) -> None:
    for _ in range(500):
        box.send(COORDINATOR, Heartbeat(0, 1.0))


DEEDS: Final[dict[str, Callable[[ZmqMailbox], None]]] = {
    "forbidden": lambda box: box.send(COORDINATOR, PushAck(0, 0, 0, 0, 0)),
    "orders": lambda box: box.send(COORDINATOR, Stop()),
    "malformed": _raw,
    "flood": _flood,
    "sizes": lambda box: box.send("shard 0", Push(0, 0, 10**6, 10**6), bytes(5000)),
    "orders to a shard": lambda box: box.send("shard 0", Save(99)),
    "requests to a part": lambda box: box.send("part 0.0", Fetch(0)),
}


def _misbehave(deed: str) -> None:
    box = next(one for one in gc.get_objects() if isinstance(one, ZmqMailbox))
    while len(box._outbound) < 2:  # it knows nobody yet
        time.sleep(_EVERY_S)
    _repeat(box, DEEDS[deed])


@dataclass(frozen=True, repr=False)
class Rogue(SGD):
    """SGD; the first process of the host `role` also does a deed, again and again."""

    role: str = ""
    deed: str = ""
    marker: str = ""

    def bind(self, *arguments: Any, **named: Any) -> Any:
        if Path("/proc/self/comm").read_text().strip() == self.role:
            try:
                os.close(os.open(self.marker, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass
            else:
                threading.Thread(target=_misbehave, args=(self.deed,), daemon=True).start()
        return super().bind(*arguments, **named)
