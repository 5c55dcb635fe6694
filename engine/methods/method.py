"""What a batch method is: something that asks for operations until it is done."""

from __future__ import annotations

from abc import ABC, abstractmethod

from partita.engine.methods.objective import Objective
from partita.engine.protocol.commands import Steps
from partita.layers.arguments import Arguments


class Method(Arguments, ABC):
    """A way to minimise. A subclass is immutable: settings, no state; a run's state lives in its `steps`.

    Most methods are a direction and a line search: see `LineSearchMethod`, which has all but the direction.
    """

    @abstractmethod
    def steps(self, objective: Objective) -> Steps:
        """Minimises the objective from the point that `x` holds; at the end `x` holds the point that was
        found.

        It must ask for the same again when it is told the same scalars: an interrupted run is repeated from
        its journal. So no clock, no random numbers without a fixed seed, nothing kept between two calls.

        Args:
            objective: makes the operations that evaluate it, and reads their scalars.
        """
