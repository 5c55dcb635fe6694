"""Carriers of the actions of a driver's program in one part, and the program under way.

`part` is the interpreter. It gives each action to the carrier of its kind: a source of work says what is
computed, links exchange with shards, exchanges with other replicas. This module must not know what any action
means.
"""

from __future__ import annotations

from abc import ABC
from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Final

from partita.engine.protocol.actions import Action, Program


class Carrier(ABC):  # noqa: B024 - a carrier defines what its actions need
    """Carries out some kinds of actions, each in up to three moments: may it begin, its effects, its end."""

    carries: ClassVar[tuple[type, ...]] = ()
    """The kinds of its actions."""

    takes: ClassVar[tuple[type, ...]] = ()
    """The kinds of messages that it handles."""

    def may_begin(self, action: Action) -> bool:
        """Returns whether an action can begin now."""
        return True

    def begin(self, action: Action, now: float) -> Iterable[Any]:
        """Begins an action, and returns its effects."""
        raise AssertionError(action)

    def is_done(self, action: Action) -> bool:
        """Returns whether an action that has begun is complete."""
        return True

    def end(self, action: Action) -> Iterable[Any]:
        """Returns the effects that complete an action."""
        return ()

    def awaits(self, action: Action) -> int | None:
        """Returns the number of the result that the program gets for a complete action; None: it gets None.

        The body reads it (`DotsRead`), since the machines know no numbers.
        """
        return None

    def receive(self, event: Any, now: float) -> Iterable[Any]:
        """Returns the effects of a message that it `takes`, of a `Tick`, or of a `Replaced` host."""
        raise AssertionError(event)

    @property
    def waits_for(self) -> tuple[str, ...]:
        """The hosts that it waits for, for reports and error messages."""
        return ()

    def validate(self) -> None:  # noqa: B027 - one without invariants has nothing to check
        """Checks the invariants. Raises AssertionError."""


class RunningProgram:
    """A driver's program in one part.

    Attributes:
        action: that is under way, or waits for its beginning; None: the next one has not been asked for.
        has_begun: whether the action has begun.
        is_over: whether the program has ended.
        awaits: number of the result that the program needs to go on; None: none.
    """

    def __init__(self, replica: Callable[[Any], Program]) -> None:
        """A program that has not begun; `replica` is the driver's."""
        self.action: Action | None = None
        self.has_begun = False
        self.is_over = False
        self.awaits: int | None = None
        self._result: Any = None
        self._replica: Final = replica
        self._generator: Program | None = None

    def advance(self, me: Any) -> Action | None:
        """Returns the next action; the first one begins the program, for the part `me`."""
        if self._generator is None:
            self._generator = self._replica(me)
        result, self._result = self._result, None
        try:  # a program without results may be any iterator
            self.action = next(self._generator) if result is None else self._generator.send(result)
        except StopIteration:
            self.action = None
        self.has_begun, self.is_over = False, self.action is None
        return self.action

    def take(self, number: int, result: Any) -> None:
        """Takes the result of the last action, unless another view has ended the program meanwhile."""
        if number == self.awaits:
            self.awaits, self._result = None, result

    def drop(self) -> None:
        """Ends the program wherever it is; `advance` begins it anew."""
        if self._generator is not None:
            self._generator.close()
        self._generator = self.action = self.awaits = self._result = None
        self.has_begun = self.is_over = False
