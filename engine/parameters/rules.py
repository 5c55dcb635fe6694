"""Update rules: how a gradient changes parameters, in one pass over memory.

A rule is a frozen dataclass: its numbers, the state it keeps for each parameter, and two compiled loops,
one for a shard and one for a part's own step. It must not know where a vector comes from or which piece of
it is seen: what a number becomes depends on its own gradient and state alone, to the bit, so cutting
changes nothing.

The loops use no fast-math. An addition, product, quotient or square root is rounded the same way in a vector
register and outside of one, which is what makes the result independent of the position, and memory, not
arithmetic, is what they wait for: 50 GB/s and more on one core. To add a rule, add its loops and its class.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias, TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from partita.engine.parameters.vector import Vector

State: TypeAlias = Mapping[str, Vector]
"""What a rule remembers: vectors as long as the values, by name."""

Loop = TypeVar("Loop", bound=Callable[..., None])


def _compiled(loop: Loop) -> Loop:
    """The loop in machine code (kept on disk), for the dtype it is called with; it runs without the GIL."""
    return cast(Loop, numba.njit(cache=True, nogil=True, error_model="numpy")(loop))


class Rule(ABC):
    """How a gradient changes parameters. Safe from several threads on disjoint ranges."""

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """The state for `n` numbers before the first update: vectors of `n`, of the dtype of the values."""
        return {}

    @abstractmethod
    def update(self, values: Vector, gradient: Vector, state: State) -> None:
        """Changes `values` and `state` in place, as a shard does.

        Args:
            values: `[n]`, float32 or float64, C-contiguous.
            gradient: like `values`.
            state: as `state(n)` makes it.
        """

    @abstractmethod
    def step(self, values: Vector, gradient: Vector, accrued: Vector, state: State) -> None:
        """Adds `gradient` to `accrued` and updates `values` and `state`, in the same pass, as a part does.

        Args:
            values: `[n]`, float32 or float64, C-contiguous.
            gradient: like `values`.
            accrued: like `values`, changed in place.
            state: as `state(n)` makes it; the part's own, see `partita.engine.parameters`.
        """

    def compile(self, dtype: npt.DTypeLike = np.float32) -> None:
        """Compiles both loops for a dtype (about a second, once for each machine), so that no step has to."""
        nothing = np.empty(0, dtype)
        self.update(nothing, nothing, self.state(0, dtype))
        self.step(nothing, nothing, nothing, self.state(0, dtype))

    def _check(self, name: str, *, zero: bool = False) -> None:
        """Refuses a setting that is not a finite number above zero (or zero, where `zero` allows it)."""
        value = getattr(self, name)
        number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not number or not math.isfinite(value) or value < 0 or (value == 0 and not zero):
            rule = "0 or a finite number above" if zero else "a finite number above 0"
            raise ValueError(f"{type(self).__name__}: {name} is {value!r}, not {rule}; change it")


@dataclass(frozen=True)
class SGD(Rule):
    """Stochastic gradient descent, w <- w - rate * g (DistBelief, algorithm 1.1; PyTorch's `SGD`).

    Args:
        rate: the learning rate, above 0.

    Raises:
        ValueError: the rate is not a finite number above 0.
    """

    rate: float

    def __post_init__(self) -> None:
        self._check("rate")

    def update(self, values: Vector, gradient: Vector, state: State) -> None:
        """See `Rule.update`."""
        _sgd(values, gradient, values.dtype.type(self.rate))

    def step(self, values: Vector, gradient: Vector, accrued: Vector, state: State) -> None:
        """See `Rule.step`."""
        _sgd_step(values, gradient, accrued, values.dtype.type(self.rate))


@dataclass(frozen=True)
class Adagrad(Rule):
    """Adagrad: s <- s + g*g, then w <- w - rate * g / (sqrt(s) + epsilon), each number by itself.

    With the defaults this is DistBelief's rule (section 4.1): eta(i, K) = gamma / sqrt(sum over j of dw(i,
    j)^2), gamma being `rate`, about ten times the best fixed rate. Same arguments and results as PyTorch's
    `Adagrad` without decay.

    Args:
        rate: above 0. While s starts at 0, the first update moves every number by just this much.
        initial_accumulator: where s starts. Above 0 it damps the first updates, as if gradients with this
            sum of squares had been seen.
        epsilon: keeps the quotient finite while s is 0, as it is where no gradient has come yet.

    Raises:
        ValueError: a number out of range, or both of the last two 0 (0/0 where a gradient is 0).
    """

    rate: float
    initial_accumulator: float = 0.0
    epsilon: float = 1e-10

    def __post_init__(self) -> None:
        self._check("rate")
        self._check("initial_accumulator", zero=True)
        self._check("epsilon", zero=True)
        # What counts is what is left in float32, the least that values are kept in.
        if np.float32(self.initial_accumulator) == 0 and np.float32(self.epsilon) == 0:
            raise ValueError(
                f"{self}: with both initial_accumulator and epsilon 0 a zero gradient gives 0/0; "
                "leave epsilon at 1e-10"
            )

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """See `Rule.state`: "sum", the accumulated squares."""
        return {"sum": np.full(n, self.initial_accumulator, dtype)}

    def update(self, values: Vector, gradient: Vector, state: State) -> None:
        """See `Rule.update`."""
        kind = values.dtype.type
        _adagrad(values, gradient, state["sum"], kind(self.rate), kind(self.epsilon))

    def step(self, values: Vector, gradient: Vector, accrued: Vector, state: State) -> None:
        """See `Rule.step`."""
        kind = values.dtype.type
        _adagrad_step(values, gradient, accrued, state["sum"], kind(self.rate), kind(self.epsilon))


@_compiled
def _sgd(values: Vector, gradient: Vector, rate: np.floating[Any]) -> None:
    for i in range(values.size):
        values[i] -= rate * gradient[i]


@_compiled
def _sgd_step(values: Vector, gradient: Vector, accrued: Vector, rate: np.floating[Any]) -> None:
    for i in range(values.size):
        g = gradient[i]
        accrued[i] += g
        values[i] -= rate * g


@_compiled
def _adagrad(
    values: Vector,
    gradient: Vector,
    total: Vector,
    rate: np.floating[Any],
    epsilon: np.floating[Any],
) -> None:
    for i in range(values.size):
        g = gradient[i]
        s = total[i] + g * g
        total[i] = s
        values[i] -= rate * g / (np.sqrt(s) + epsilon)


@_compiled
def _adagrad_step(
    values: Vector,
    gradient: Vector,
    accrued: Vector,
    total: Vector,
    rate: np.floating[Any],
    epsilon: np.floating[Any],
) -> None:
    for i in range(values.size):
        g = gradient[i]
        accrued[i] += g
        s = total[i] + g * g
        total[i] = s
        values[i] -= rate * g / (np.sqrt(s) + epsilon)
