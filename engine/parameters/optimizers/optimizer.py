"""What an optimizer is: its settings, what it keeps for each number, and one pass over memory.

An optimizer is a frozen dataclass. It must not know where a vector comes from or which piece of it is seen:
what a number becomes depends on its own gradient and state alone, to the bit, so cutting changes nothing.

The loops use no fast-math. An addition, product, quotient or square root is rounded the same way in a vector
register and outside of one, which is what makes the result independent of the position, and memory, not
arithmetic, is what they wait for. One loop for each optimizer serves every use of it: Numba leaves out what
is done to an array that is None. To add an optimizer, add a file with its loop and its class here.
"""

from __future__ import annotations

import dataclasses
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.optimizers.norms import Squares, clip_factor
from partita.engine.parameters.optimizers.schedule import LearningRate, check_learning_rate, learning_rate_at
from partita.engine.parameters.vector import Vector
from partita.layers.arguments import Arguments
from partita.layers.checks import check_fields, check_number

State: TypeAlias = Mapping[str, Vector]
"""What an optimizer remembers: vectors as long as the values, by name."""

Stored: TypeAlias = npt.NDArray[Any]
"""float32 or float64, or bfloat16 as its bits (uint16)."""

Number: TypeAlias = float | np.floating[Any]
"""What a loop is told: Python's float as it comes, and of the type of the values inside."""


class Moment(NamedTuple):
    """What is known of an update when it is made.

    Attributes:
        updates: how many these numbers have had before; what schedules go by.
        factor: what the gradient is multiplied with first (see `Optimizer.factors`).
        age: how many updates the state has had, where it is younger than the numbers: a part's own state
            starts empty, whatever the parameters that it fetches have been through. None: as many.
    """

    updates: int
    factor: float = 1.0
    age: int | None = None


Apply: TypeAlias = Callable[[Moment], bool]
"""An update of given arrays, prepared. It says whether every number of the (scaled) gradient was finite. If
not, the values and the state are spoilt already: the caller stops, and goes back to a checkpoint."""


@dataclass(frozen=True, repr=False)
class Optimizer(Arguments, ABC):
    """How a gradient changes parameters. Safe from several threads on disjoint ranges.

    Args:
        learning_rate: the learning rate: a number above 0, or a schedule.
        weight_decay: what is added to the gradient for each number, times the number itself; 0 or above.
            (`AdamW` decays otherwise.)
        clip_norm: above 0. The gradient of a step, over all parameters of a replica, is scaled down to this
            norm where it is larger. None leaves it as it is.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: LearningRate
    weight_decay: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        check_fields(self, check_learning_rate, "learning_rate")
        check_fields(self, check_number, "weight_decay", zero=True)
        if self.clip_norm is not None:
            check_fields(self, check_number, "clip_norm")

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """The state for `n` numbers before the first update: vectors of `n`, of the dtype of the values."""
        return {name: np.zeros(n, dtype) for name in self._keeps}

    def bind(
        self,
        values: Vector,
        gradient: Stored,
        state: State,
        *,
        accumulated: Vector | None = None,
        copy: Stored | None = None,
    ) -> Apply:
        """Prepares the update of these arrays, and compiles it (a second, once for each machine).

        Args:
            values: `[n]`, float32 or float64, C-contiguous; changed in place by every call.
            gradient: `[n]`, of the dtype of the values or bfloat16 (uint16); read by every call.
            state: as `state(n)` makes it, or a range of it; changed in place.
            accumulated: `[n]`, like the values: the scaled gradient is added to it. None: there is none.
            copy: `[n]` of uint16: takes the new values, rounded to bfloat16. None: there is none.

        Returns:
            The update: one pass over these arrays. About a microsecond and the time of the memory.

        Raises:
            ValueError: the arrays do not fit one another.
        """
        arrays = (values, gradient, *self._arrays(state), accumulated, copy)
        check_arrays(values, gradient, *arrays[2:])
        loop, numbers = self._loop, self._numbers

        def apply(moment: Moment) -> bool:
            return loop(*arrays, moment.factor, *numbers(moment))

        loop(*(None if array is None else array[:0] for array in arrays), 1.0, *numbers(Moment(0)))
        return apply

    @property
    def needs_norms(self) -> bool:
        """Whether `factors` must be asked before every update of a replica."""
        return self.clip_norm is not None

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """What the gradient of each parameter is to be multiplied with (`Moment.factor`) in this step.

        Args:
            squares: of each parameter of the network, by name, over all machines of the replica.
        """
        factor = 1.0 if self.clip_norm is None else clip_factor(squares, self.clip_norm)
        return dict.fromkeys(squares, factor)

    def on_shard(self) -> Optimizer:
        """What a shard does with a push: this optimizer, without what a replica has already done."""
        return dataclasses.replace(self, clip_norm=None)

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": ("learning_rate",),
        "rate": ("learning_rate",),
        "alpha": ("learning_rate",),
        "eps": ("epsilon",),
        "rho": ("alpha",),
        "decay": ("weight_decay",),
        "l2": ("weight_decay",),
        "clipnorm": ("clip_norm",),
        "global_clipnorm": ("clip_norm",),
        "max_norm": ("clip_norm",),
        "grad_clip": ("clip_norm",),
        "beta1": ("betas",),
        "beta2": ("betas",),
        "beta_1": ("betas",),
        "beta_2": ("betas",),
        "trust_coefficient": ("trust",),
        "eta": ("trust", "learning_rate"),
        "initial_accumulator_value": ("initial_accumulator",),
        "momentum": "write Momentum(learning_rate, momentum=0.9)",
        "nesterov": "write Momentum(learning_rate, nesterov=True)",
        "dampening": "there is none, as by default in PyTorch; leave it out",
        "lr_decay": "give a schedule for the learning rate, for example InverseTime(0.05, steps=1000)",
        "amsgrad": "there is none, as by default in PyTorch; leave it out",
        "maximize": "losses are made small; leave it out, or negate the loss",
        "params": "leave it out: an optimizer is given to a driver, as Downpour(optimizer=SGD(0.05))",
    }
    """What Keras and PyTorch call the arguments of optimizers."""

    _keeps: ClassVar[tuple[str, ...]] = ()
    """The vectors of its state, which begin as zeros, in the order in which the loop takes them."""

    _loop: ClassVar[Callable[..., bool]]
    """Compiled: (values, gradient, *state, accumulated, copy, factor, *numbers) -> whether all was finite."""

    @abstractmethod
    def _numbers(self, moment: Moment) -> tuple[float, ...]:
        """What the loop is told of a moment, after the factor."""

    def _arrays(self, state: State) -> tuple[Vector | None, ...]:
        """The state as the loop takes it."""
        return tuple(state[name] for name in self._keeps)

    def _learning_rate(self, moment: Moment) -> float:
        return learning_rate_at(self.learning_rate, moment.updates)

    def _epsilon(self) -> None:
        """Turns `epsilon` into Python's number, or refuses it where a zero gradient would give 0/0."""
        check_fields(self, check_number, "epsilon")
        if is_nothing(self.epsilon):  # type: ignore[attr-defined]
            raise ValueError(
                f"{self}: epsilon is 0 in float32, and a zero gradient gives 0/0; leave it at 1e-8"
            )

    def __repr__(self) -> str:
        """The rate, and what is not as it is by default."""
        settings = [
            f"{setting.name}={getattr(self, setting.name)!r}"
            for setting in dataclasses.fields(self)
            if getattr(self, setting.name) != setting.default
        ]
        return f"{type(self).__name__}({', '.join(settings)})"


def check_arrays(values: Vector, gradient: Stored, *others: Stored | None) -> None:
    """Checks what compiled loops, which know no bounds, are given: vectors of one size. Raises ValueError."""
    for array in (values, gradient, *others):
        if array is not None and (array.shape != (values.size,) or not array.flags.c_contiguous):
            raise ValueError(
                f"{array.shape} of {array.dtype} beside {values.size} values; give vectors alike"
            )
    if values.dtype not in (np.float32, np.float64) or gradient.dtype not in (values.dtype, np.uint16):
        raise ValueError(
            f"values are {values.dtype}, their gradient {gradient.dtype}; both float32 or float64"
        )


def is_nothing(value: float) -> bool:
    """Whether a value is 0 in float32, the narrowest type of parameters."""
    return bool(np.float32(value) == 0)
