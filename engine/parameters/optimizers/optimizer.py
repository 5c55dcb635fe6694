"""Interface of an optimizer: its settings, its state, and one pass over memory.

An optimizer is a frozen dataclass. It does not know where a vector comes from or which part of it is updated:
the result for a number depends on its own gradient and state alone, to the bit, so cutting changes nothing. A
new optimizer is the arithmetic of one number and a class in a file here.
"""

from __future__ import annotations

import dataclasses
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import ClassVar, Final, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from partita.engine.parameters.optimizers.schedule import LearningRate, rate_at
from partita.engine.parameters.optimizers.settings import Settings
from partita.engine.parameters.optimizers.update_loop import (
    Arithmetic,
    Stored,
    row_update_loop,
    scaled,
    update_loop,
)
from partita.engine.parameters.vector import Vector

CLIP_EPSILON: Final = 1e-6  # added to a norm before dividing by it, as PyTorch does

Squares: TypeAlias = tuple[float, float]
"""Sums of squares over one whole parameter: of its numbers, and of their gradient (or see `measured`)."""


class UpdateContext(NamedTuple):
    """Circumstances of one update.

    Attributes:
        updates: number of updates of these parameters so far, for schedules.
        factor: factor of the gradient (see `Optimizer.factors`).
        age: number of updates of the state so far, where that is younger: a part's own state starts empty,
            whatever the parameters that it fetches have been through. None: as `updates`.
        scale: factor of the learning rate, which callbacks may change.
    """

    updates: int
    factor: float = 1.0
    age: int | None = None
    scale: float = 1.0


Update: TypeAlias = Callable[[UpdateContext], bool]
"""A prepared update of given arrays. Returns whether every (scaled) gradient was finite; if not, values and
state are spoilt already: the caller stops, and returns to a checkpoint.
"""


@dataclass(frozen=True, repr=False)
class Optimizer(Settings, ABC):
    """Updates parameters by gradients. Safe from several threads on disjoint ranges.

    Args:
        learning_rate: a number above 0, or a schedule.
        weight_decay: factor of each number that is added to its gradient; 0 or above. (`AdamW` decays
            otherwise.)
        clip_norm: above 0. The gradient of a step, over all parameters of a replica, is scaled down to this
            norm where it is larger. None: no clipping.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: LearningRate
    weight_decay: float = field(default=0.0, kw_only=True)
    clip_norm: float | None = field(default=None, kw_only=True)

    state_names: ClassVar[tuple[str, ...]] = ()
    """Names of the state vectors, in the order in which the arithmetic takes them."""

    _keeps_untouched: ClassVar[bool] = False
    _arithmetic: ClassVar[Arithmetic]
    _scale: ClassVar[Arithmetic] = staticmethod(scaled)

    @abstractmethod
    def _settings(self, context: UpdateContext) -> tuple[float, ...]:
        """Returns the settings that the arithmetic takes."""

    def state(self, n: int, dtype: npt.DTypeLike = np.float32) -> dict[str, Vector]:
        """Returns the initial state for `n` numbers: vectors `[n]` of the dtype of the values, by name."""
        return {name: np.zeros(n, dtype) for name in self.state_names}

    def bind(
        self,
        values: Vector,
        gradient: Stored,
        state: Mapping[str, Vector],
        *,
        accumulated: Vector | None = None,
        copy: Stored | None = None,
    ) -> Update:
        """Prepares the update of these arrays, and compiles it (a second, once for each machine).

        Args:
            values: `[n]`, float32 or float64, C-contiguous; changed in place by every call.
            gradient: `[n]`, of the dtype of the values or bfloat16 (uint16); read by every call.
            state: from `state(n)`, or a range of it; changed in place.
            accumulated: `[n]`, like the values: the scaled gradient is added to it.
            copy: `[n]` of uint16: receives the new values, rounded to bfloat16.

        Returns:
            The update: one pass over these arrays, about a microsecond and the time of the memory.

        Raises:
            ValueError: the arrays do not fit one another.
        """
        vectors = tuple(state[name] for name in self.state_names)
        check_arrays(values, gradient, *vectors, accumulated, copy)
        loop, settings = update_loop(self._arithmetic, self._scale), self._settings

        def update(context: UpdateContext) -> bool:
            return loop(values, gradient, vectors, accumulated, copy, context.factor, settings(context))

        some = None if accumulated is None else accumulated[:0], None if copy is None else copy[:0]
        empty = tuple(vector[:0] for vector in vectors)
        loop(values[:0], gradient[:0], empty, *some, 1.0, settings(UpdateContext(0)))
        return update

    def update_rows(
        self,
        values: Vector,
        rows: Stored,
        gradient: Stored,
        state: Mapping[str, Vector],
        context: UpdateContext,
        *,
        copy: Stored | None = None,
    ) -> bool:
        """Updates some rows of a table, as `bind` would all of it; the arrays are not checked.

        Args:
            values: the table, flat; changed in place.
            rows: int64 `[k]`, each once, of the table.
            gradient: `[k, width]`, of the dtype of the values.
            state: of the table, flat; changed in place.
            context: of the update.
            copy: uint16, like the values: receives the new ones, rounded to bfloat16.

        Returns:
            Whether every (scaled) gradient was finite.
        """
        loop, vectors = (
            row_update_loop(self._arithmetic, self._scale),
            tuple(state[n] for n in self.state_names),
        )
        return loop(values, rows, gradient, vectors, copy, context.factor, self._settings(context))

    @property
    def supports_sparse(self) -> bool:
        """Returns whether a gradient of zero leaves a number and its state as they are, to the bit. Then an
        update of the rows that have a gradient is that of the whole table.
        """
        return self._keeps_untouched and not self.weight_decay

    @property
    def needs_norms(self) -> bool:
        """Returns whether `factors` must be called before every update of a replica."""
        return self.clip_norm is not None

    @property
    def measured(self) -> Optimizer | None:
        """An optimizer whose new values are that of which norms are taken in the place of the gradient's; it
        has the same state. None: norms are those of the gradient.
        """
        return None

    def factors(self, squares: Mapping[str, Squares]) -> dict[str, float]:
        """Returns the factor of each parameter's gradient (`UpdateContext.factor`) in this step, by name,
        from the sums of squares over all machines of the replica.
        """
        factor = 1.0 if self.clip_norm is None else clip_factor(squares, self.clip_norm)
        return dict.fromkeys(squares, factor)

    def on_shard(self) -> Optimizer:
        """Returns the optimizer of a shard: this one, without what a replica has already done."""
        return dataclasses.replace(self, clip_norm=None)

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": ("learning_rate",),
        "rate": ("learning_rate",),
        "alpha": ("learning_rate",),
        "eps": ("epsilon",),
        "rho": ("alpha",),
        "decay": ("weight_decay",),
        "l2": ("weight_decay",),
        **dict.fromkeys(("clipnorm", "global_clipnorm", "max_norm", "grad_clip"), ("clip_norm",)),
        **dict.fromkeys(("beta1", "beta2", "beta_1", "beta_2"), ("betas",)),
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
    """Names of the arguments in Keras and PyTorch."""

    def _rate(self, context: UpdateContext) -> float:
        return rate_at(self.learning_rate, context.updates) * context.scale

    def _check_epsilon(self, epsilon: float) -> None:
        if is_zero(epsilon):
            raise ValueError(
                f"{self}: epsilon is 0 in float32, and a zero gradient gives 0/0; leave it at 1e-8"
            )

    def __repr__(self) -> str:
        settings = [
            f"{setting.name}={getattr(self, setting.name)!r}"
            for setting in dataclasses.fields(self)
            if getattr(self, setting.name) != setting.default
        ]
        return f"{type(self).__name__}({', '.join(settings)})"


def check_arrays(values: Vector, gradient: Stored, *others: Stored | None) -> None:
    """Checks that the arrays of a compiled loop, which checks no bounds, are vectors of one size."""
    for array in (values, gradient, *others):
        if array is not None and (array.shape != (values.size,) or not array.flags.c_contiguous):
            raise ValueError(
                f"{array.shape} of {array.dtype} beside {values.size} values; give vectors alike"
            )
    if values.dtype not in (np.float32, np.float64) or gradient.dtype not in (values.dtype, np.uint16):
        raise ValueError(
            f"values are {values.dtype}, their gradient {gradient.dtype}; both float32 or float64"
        )


def is_zero(value: float) -> bool:
    """Returns whether a number is 0 in float32, the lowest precision of values."""
    return bool(np.float32(value) == 0)


def clip_factor(squares: Mapping[str, Squares], most: float) -> float:
    """Returns the factor that reduces the norm of all gradients together to `most`: 1 where it is below.

    As `torch.nn.utils.clip_grad_norm_`: min(1, most / (norm + 1e-6)). NaN where any gradient is not finite,
    so that every update reports it. Sums are added in the order of the mapping: the same factor on every
    machine.
    """
    norm = math.sqrt(sum(gradient for _, gradient in squares.values()))
    return min(1.0, most / (norm + CLIP_EPSILON)) if math.isfinite(norm) else math.nan
