"""Tasks and bodies: what a host is set up with, and the one place where something is unpickled.

A role is a pure machine (`protocol.host.RoleMachine`) and a body, which carries out the machine's effects. A
task may hold functions of the user (the arithmetic of a `Node`), so it travels as a cloudpickle. It is
read only when it comes from the coordinator, whose key the host was given when it was started.
"""

from __future__ import annotations

import io
import pickle
import platform
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from types import FunctionType
from typing import Any, Protocol

import cloudpickle
import numpy as np
import numpy.typing as npt

from partita.engine.files.access import HostFiles
from partita.engine.kernels.nodes.source import carry_source
from partita.engine.protocol.events import Received, Send
from partita.engine.protocol.host import RoleMachine
from partita.engine.protocol.messages import Message
from partita.engine.protocol.names import COORDINATOR
from partita.engine.protocol.watch_messages import Watch
from partita.engine.runtime.measured_host import Observed
from partita.engine.transport.counters import Counters
from partita.engine.transport.payload import Payload, PayloadLike


@dataclass(frozen=True)
class HostContext:
    """The services of a host for its role.

    Args:
        name, incarnation: of the host.
        send: sends a message with a payload or without; from any thread.
        wake: calls `Body.poll` soon; from any thread.
        counters: of the host's mailbox.
        refuse: counts a message out of place by its sender and the reason; the message had no effect.
        memory: see `Mailbox.memory`.
        files: opens the data, the first parameters and checkpoints.
    """

    name: str
    incarnation: int
    send: Callable[[str, Message, PayloadLike], None]
    wake: Callable[[], None]
    counters: Counters
    refuse: Callable[[str, str], None]
    memory: Callable[[int], npt.NDArray[np.uint8] | None] = lambda n_bytes: None
    files: HostFiles = field(default_factory=HostFiles)


class CannotGoOn(Exception):
    """Raised where trying again would end the same way: the run fails at once, with this sentence."""


class NeverEnds(Exception):
    """Raised where a computation does not end: its thread cannot be stopped, so the process has to go.

    Args:
        reason: one sentence, and what to do.
        stack: of the process's threads.
    """

    def __init__(self, reason: str, stack: str) -> None:
        super().__init__(reason)
        self.reason, self.stack = reason, stack


class Body(ABC):
    """The hands of a role: arrays, threads, files. Called on the host's own thread; it decides nothing."""

    @abstractmethod
    def carry_out(self, effect: Any, now: float) -> Any:
        """Carries out one effect of the role's machine, in its order.

        Returns:
            A result that is there at once, which the machine receives after all effects of this event; None:
            there is none, or `poll` will report it.
        """

    def payload(self, send: Send) -> PayloadLike:
        """Returns the numbers of a message's span, which is not None."""
        raise AssertionError(f"{type(self).__name__} has no payload for {send}")

    def poll(self, now: float) -> Iterable[Any]:
        """Returns the results of other threads since the last call, as events for the role's machine."""
        return ()

    def observed(self, watch: Watch) -> Observed:
        """Returns figures of the role for those who watch the run; called about once a second."""
        return Observed()

    def tick(self, now: float) -> None:  # noqa: B027 - nothing, unless a body says so
        """Looks for what takes too long; called about ten times a second. Raises what the host reports."""

    @abstractmethod
    def close(self) -> None:
        """Ends every thread of the role."""


class HostTask(Protocol):
    """The description of a role, which can be pickled."""

    @property
    def threads(self) -> int:
        """The number of threads that the role's kernels may use."""

    @property
    def rank(self) -> tuple[int, int]:
        """The index and the number of the roles that compute at the same time, each with as many threads."""

    def role(self, host: HostContext) -> tuple[RoleMachine, Body]:
        """Builds the role: allocates, compiles, opens files. Raises what goes wrong."""


class _Pickler(cloudpickle.Pickler):  # type: ignore[misc]
    """Adds its source to each function of the user, which can then be read where its file is not."""

    def reducer_override(self, one: object) -> object:
        if isinstance(one, FunctionType):
            carry_source(one)
        return super().reducer_override(one)


def pack_task(task: HostTask) -> bytes:
    """Pickles a task for the payload of `SetUp`.

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
    """Unpickles the task in a `SetUp`.

    Raises:
        PermissionError: the message does not come from the coordinator.
        CannotGoOn: a package that it needs is missing here.
    """
    if event.sender != COORDINATOR:
        raise PermissionError(f"'{event.sender}' sent a task; only the coordinator may")
    if not isinstance(event.payload, Payload):
        raise ValueError("the coordinator sent an empty task")
    try:
        task: HostTask = cloudpickle.loads(event.payload.to_bytes())
    except ModuleNotFoundError as error:
        package = (error.name or "?").partition(".")[0]
        raise CannotGoOn(
            f"the package '{package}', which the network needs, is missing on {platform.node()}; install it "
            f"for {sys.executable} there"
        ) from error
    return task
