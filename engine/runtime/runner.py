"""The base of what computes the steps of a part: one after the other, on threads of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable
from typing import Any

from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.program_effects import StepDone


class Runner(ABC):
    """Computes what the part's machine orders. A step is an effect of its work, of whatever kind.

    All methods are for the thread that owns the mailbox.
    """

    @abstractmethod
    def begin(self, step: Any) -> None:
        """Begins a step as soon as it may begin; one at a time."""

    @abstractmethod
    def poll(self, now: float) -> Iterable[StepDone]:
        """Goes on, and reports the ends of steps. Raises what a computation has raised."""

    @abstractmethod
    def receive(self, event: Received) -> None:
        """Handles a message of another part."""

    @property
    @abstractmethod
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        """The step, and (host, what) of every message that is missing while nothing is computed."""

    @abstractmethod
    def refused(self) -> list[Refuse]:
        """Returns the messages since the last call that did not fit the program."""

    def restart(self, first: int) -> None:
        """Drops the step that is computed or ordered; the next one has the number `first`."""
        raise AssertionError(f"{type(self).__name__} does its steps in one go")

    def tick(self, now: float) -> None:  # noqa: B027 - most have nothing to wait for
        """Raises what has waited for other machines."""

    @abstractmethod
    def close(self) -> None:
        """Ends all threads, after the computations that are going on."""
