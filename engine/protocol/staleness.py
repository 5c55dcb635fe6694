"""Settings of what is done about stale gradients: those that others have overtaken.

The staleness (tau) of a push is the number of pushes of other replicas that a shard has applied to these
numbers since the version from which the gradient was computed. A replica applies its own pushes over what it
fetches, so they do not count, and one replica alone has none.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from numbers import Integral, Real


@dataclass(frozen=True)
class Staleness:
    """Applies gradients as they are, however stale: the paper's Downpour, and the base of the others."""

    def scale(self, tau: int) -> float:
        """Returns the factor of the learning rate for a push of this staleness."""
        return 1.0

    @property
    def most_ahead(self) -> int | None:
        """The steps that a replica may be before the slowest one; None: any number."""
        return None


@dataclass(frozen=True)
class Damped(Staleness):
    """Divides the learning rate of a push by its staleness plus 1.

    Source: W. Zhang, S. Gupta, X. Lian, J. Liu, "Staleness-aware async-SGD for distributed deep learning",
    2016, which divides by the staleness, counted from 1.
    """

    def scale(self, tau: int) -> float:
        """Returns the factor of the learning rate for a push of this staleness."""
        return 1.0 / (tau + 1)


@dataclass(frozen=True)
class Compensated(Staleness):
    """Corrects a gradient for what others have changed since: g + strength * g * g * (w - w_then).

    The parameters w are those of the shard, and w_then those from which the gradient was computed. g * g
    stands for the diagonal of the Hessian. With `adaptive`, the strength is divided by the root of a running
    mean of g * g, which begins anew where a shard is started again.

    Source: S. Zheng et al., "Asynchronous stochastic gradient descent with delay compensation" (DC-ASGD-c and
    DC-ASGD-a), 2017.

    Args:
        strength: lambda; lambda_0 where it is adaptive, for which the paper has 2.
        adaptive: whether it is divided by the root of the mean square of the gradient.
        decay: of the running mean, from 0 to below 1.

    Raises:
        ValueError: a setting is out of range.
    """

    strength: float = 0.04
    adaptive: bool = False
    decay: float = 0.95

    def __post_init__(self) -> None:
        if not _is_number(self.strength) or not 0.0 <= self.strength < math.inf:
            raise ValueError(f"Compensated's strength is {self.strength!r}; write 0 or a finite number above")
        if not _is_number(self.decay) or not 0.0 <= self.decay < 1.0:
            raise ValueError(f"Compensated's decay is {self.decay!r}; write a number from 0 to below 1")


@dataclass(frozen=True)
class Bounded(Staleness):
    """Lets a replica be at most so many steps before the slowest one, and waits beyond that.

    One that died holds nobody up: it goes on from where the slowest one is. At the end of the work a replica
    may be one step further.

    Source: Q. Ho et al., "More effective distributed ML via a stale synchronous parallel parameter server",
    2013.

    Args:
        steps: s; 0 lets nobody begin a step before all have done the one before.

    Raises:
        ValueError: it is no whole number of at least 0.
    """

    steps: int = 4

    def __post_init__(self) -> None:
        steps: object = self.steps
        if isinstance(steps, bool) or not isinstance(steps, Integral) or int(steps) < 0:
            raise ValueError(f"Bounded's steps are {self.steps!r}; write a whole number of at least 0")

    @property
    def most_ahead(self) -> int:
        """The steps that a replica may be before the slowest one."""
        return self.steps


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


AS_IT_IS = Staleness()
"""Gradients are applied as they are."""
