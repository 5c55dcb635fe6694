"""Tasks: what the coordinator gives a host to do, and the one place where something is unpickled.

A task may hold functions of the user (the arithmetic of a `Node`), so it travels as a cloudpickle. It is
read only when it comes from the coordinator, whose key the host was given when it was started.
"""

from __future__ import annotations

import io
import pickle
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import FunctionType
from typing import Protocol

import cloudpickle

from partita.engine.kernels.nodes.source import carry_source
from partita.engine.protocol.events import Received
from partita.engine.protocol.messages import Message
from partita.engine.protocol.names import COORDINATOR
from partita.engine.transport.counters import Counters
from partita.engine.transport.payload import Payload, PayloadLike


@dataclass(frozen=True)
class HostContext:
    """What a role has of its host: who it is, and how it speaks.

    Args:
        name, incarnation: of the host.
        send: sends a message with a payload or without; from any thread.
        wake: calls `Role.wakened` soon; from any thread.
        counters: of the host's mailbox.
        refuse: counts what a host (the first argument) said out of place, and why; it had no effect.
    """

    name: str
    incarnation: int
    send: Callable[[str, Message, PayloadLike], None]
    wake: Callable[[], None]
    counters: Counters
    refuse: Callable[[str, str], None]


class CannotGoOn(Exception):
    """Raised where trying again would end the same way: the run fails at once, with this sentence."""


class NeverEnds(Exception):
    """Raised where a computation does not end, and its thread cannot be helped: the process has to go.

    Args:
        reason: one sentence, and what to do.
        stack: of the process's threads.
    """

    def __init__(self, reason: str, stack: str) -> None:
        super().__init__(reason)
        self.reason, self.stack = reason, stack


class Role(ABC):
    """What a host is: a part in training or in a session, or a shard. Called on the host's own thread."""

    version: int = 0
    """Of the parameters that it starts from, said in `Ready`."""

    @abstractmethod
    def receive(self, event: Received, now: float) -> None:
        """Takes in a message that is not the host's own business."""

    def wakened(self, now: float) -> None:  # noqa: B027 - nothing, unless a role says so
        """Looks after what other threads have finished."""

    def tick(self, now: float) -> None:  # noqa: B027
        """Time has passed; about ten times a second."""

    def learned(self, revision: int, peers: Mapping[str, int], now: float) -> None:  # noqa: B027
        """Every host that this one may talk to, by name, and its incarnation: newer than what was known."""

    @abstractmethod
    def close(self) -> None:
        """Ends every thread of the role."""


class HostTask(Protocol):
    """What a role is made from. It can be pickled."""

    @property
    def threads(self) -> int:
        """How many threads the role's kernels may use."""

    @property
    def rank(self) -> tuple[int, int]:
        """Which it is of how many that compute at the same time, each with as many threads."""

    def role(self, link: HostContext) -> Role:
        """Builds the role: allocates, compiles, opens files. Raises what goes wrong."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Lets a user's functions carry their source: they are understood where their file is not."""

    def reducer_override(self, one: object) -> object:
        """As cloudpickle pickles it."""
        if isinstance(one, FunctionType):
            carry_source(one)
        return super().reducer_override(one)


def pack_task(task: HostTask) -> bytes:
    """A task as the payload of `Assign`.

    Raises:
        ValueError: something of the user in it cannot be pickled.
    """
    try:
        written = io.BytesIO()
        _Pickler(written).dump(task)
        return written.getvalue()
    except (TypeError, AttributeError, pickle.PicklingError) as error:
        raise ValueError(
            f"the network cannot be sent to its hosts ({error}); "
            "a function of a Node must not hold what only this process has, as open files or locks"
        ) from error


def unpack_task(event: Received) -> HostTask:
    """The task in an `Assign`.

    Raises:
        PermissionError: it does not come from the coordinator.
    """
    if event.sender != COORDINATOR:
        raise PermissionError(f"'{event.sender}' sent a task; only the coordinator may")
    if not isinstance(event.payload, Payload):
        raise ValueError("the coordinator sent an empty task")
    task: HostTask = cloudpickle.loads(event.payload.to_bytes())
    return task
