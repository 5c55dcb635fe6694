"""Interface of batch methods."""

from __future__ import annotations

from abc import ABC, abstractmethod

from partita.engine.methods.objective import Objective
from partita.engine.protocol.commands import Steps
from partita.layers.arguments import Arguments


class Method(Arguments, ABC):
    """A minimisation method. Subclasses are immutable settings; a run's state is in its `steps`.

    Most methods are a direction and a line search, see `LineSearchMethod`.
    """

    @abstractmethod
    def steps(self, objective: Objective) -> Steps:
        """Minimises the objective from the point in `x`, where the result is at the end.

        Must yield the same requests when it receives the same scalars, because an interrupted run is repeated
        from its journal: no clock, no random numbers without a fixed seed, no state between two calls.
        """
