"""Faults that are planted in a machine to see that they are caught: a simulator that finds nothing proves
nothing. A fault replaces one method of a class for as long as it is switched on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Fault:
    """A fault in a method of a machine, a body or a driver.

    Args:
        owner: the class.
        method: the name of one of its methods.
        instead: called as `instead(method, self, *arguments)` with the real method.
    """

    owner: type
    method: str
    instead: Callable[..., Any]

    @contextmanager
    def planted(self) -> Iterator[None]:
        """Switches the fault on for as long as the block lasts."""
        inherited = self.method not in vars(self.owner)
        real, instead = getattr(self.owner, self.method), self.instead

        def broken(this: Any, *arguments: Any, **named: Any) -> Any:
            return instead(real, this, *arguments, **named)

        setattr(self.owner, self.method, broken)
        try:
            yield
        finally:
            if inherited:
                delattr(self.owner, self.method)
            else:
                setattr(self.owner, self.method, real)
