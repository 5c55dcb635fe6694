"""The bases of what computes the steps of a part: one after the other, on threads of its own."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any, Final

from typing_extensions import override

from partita.engine.protocol.events import Received, Refuse
from partita.engine.protocol.program_effects import StepDone
from partita.engine.runtime.player import PlayedStep, Player
from partita.engine.runtime.recorded_steps import StepSampler


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

    @property
    def sampler(self) -> StepSampler | None:
        """The recorder of some steps; None where none can be recorded."""
        return None

    def tick(self, now: float) -> None:  # noqa: B027 - most have nothing to wait for
        """Raises what has waited for other machines."""

    @abstractmethod
    def close(self) -> None:
        """Ends all threads, after the computations that are going on."""


class PlayerRunner(Runner):
    """A player's steps, as they are ordered, each as soon as its receivers keep up."""

    def __init__(self, player: Player) -> None:
        """Takes over the player, which has not begun."""
        self._player = player
        self._next: Any = None  # ordered, not begun
        self._step: Any = None  # under way
        self._sampler: Final = player.sampler

    @abstractmethod
    def prepare(self, step: Any) -> None:
        """Prepares a step that begins now."""

    def phase_of(self, step: Any) -> int:
        """Returns the phase of the program that a step plays."""
        return 0

    @abstractmethod
    def ended(self, over: PlayedStep, now: float) -> StepDone | None:
        """Returns the results of the step under way; None: it was dropped, or its error is raised later."""

    @override
    def begin(self, step: Any) -> None:
        self._next = step
        self._begin()

    def _begin(self) -> None:
        step = self._next
        if step is None or self._step is not None or not self._player.may_begin():
            return
        self._next, self._step = None, step
        self.prepare(step)
        if self._sampler is not None:
            self._sampler.begins(step.number, getattr(step, "step", step.number))
        self._player.begin(step.number, self.phase_of(step))

    @override
    def restart(self, first: int) -> None:
        self._next = self._step = None
        if self._sampler is not None:
            self._sampler.dropped()
        self._player.start(first)

    @override
    def poll(self, now: float) -> Iterator[StepDone]:
        for over in self._player.poll():
            if (done := self.ended(over, now)) is not None:
                self._step = None
                if self._sampler is not None:
                    self._sampler.ended()
                yield done
        self._begin()

    @property
    @override
    def sampler(self) -> StepSampler | None:
        return self._sampler

    @override
    def receive(self, event: Received) -> None:
        self._player.receive(event)

    @property
    @override
    def stuck_on(self) -> tuple[int, tuple[tuple[str, str], ...]]:
        return self._player.stuck_on

    @override
    def refused(self) -> list[Refuse]:
        return self._player.refused()

    @override
    def close(self) -> None:
        self._player.close()
