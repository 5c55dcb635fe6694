"""Schedules: a learning rate that changes with the number of updates.

The count that a schedule is asked for is how many updates a number has had. On a shard that is the pushes
that were applied to the range of the machine the number belongs to, from all replicas together: with 4
replicas that push at every step it runs four times as fast as the steps of one. Checkpoints keep it. A part's
own steps go on from what the shards said with the last parameters that it fetched. This module must not know
optimizers, nor where a count comes from.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from partita.layers.arguments import Arguments
from partita.layers.checks import check_fields, check_number, check_whole


class Schedule(Arguments, ABC):
    """A rate for each count of updates: plain data, safe from several threads."""

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        "lr": ("learning_rate",),
        "rate": ("learning_rate",),
        "initial_learning_rate": ("learning_rate",),
        "gamma": ("factor",),
        "decay_rate": ("factor",),
        "step_size": ("every",),
        "decay_steps": ("steps", "every"),
        "T_max": ("steps",),
        "total_iters": ("steps",),
        "warmup_steps": ("steps",),
        "eta_min": ("end",),
    }
    """What Keras and PyTorch call the arguments of schedules."""

    @abstractmethod
    def at(self, count: int) -> float:
        """The rate of the update that follows `count` others (0 for the first one): 0 or above."""


LearningRate: TypeAlias = float | Schedule
"""A learning rate: a number, which never changes, or a schedule."""


def check_learning_rate(learning_rate: object, what: str) -> LearningRate:
    """The rate, a number as Python's. Raises ValueError where it is neither above 0 nor a schedule."""
    return (
        learning_rate
        if isinstance(learning_rate, Schedule)
        else check_number(learning_rate, what, rule=", not a finite number above 0 or a schedule; change it")
    )


def learning_rate_at(learning_rate: LearningRate, count: int) -> float:
    """The rate of the update that follows `count` others."""
    return learning_rate.at(count) if isinstance(learning_rate, Schedule) else learning_rate


@dataclass(frozen=True)
class StepDecay(Schedule):
    """`learning_rate * factor ** (count // every)`, as PyTorch's `StepLR`.

    Args:
        learning_rate: at the start, above 0.
        every: updates from one drop to the next.
        factor: of each drop, above 0 and below 1.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    every: int
    factor: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, check_number, "learning_rate")
        check_fields(self, check_whole, "every")
        check_fields(self, check_number, "factor", below=1.0)

    def at(self, count: int) -> float:
        """See `Schedule`."""
        return self.learning_rate * math.pow(self.factor, count // self.every)


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """`learning_rate * factor ** (count / steps)`: by this factor in so many updates (PyTorch's
    `ExponentialLR`).

    Args:
        learning_rate: at the start, above 0.
        factor: in `steps` updates, above 0 and below 1.
        steps: updates.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    factor: float
    steps: int = 1

    def __post_init__(self) -> None:
        check_fields(self, check_number, "learning_rate")
        check_fields(self, check_number, "factor", below=1.0)
        check_fields(self, check_whole, "steps")

    def at(self, count: int) -> float:
        """See `Schedule`."""
        return self.learning_rate * math.pow(self.factor, count / self.steps)


@dataclass(frozen=True)
class InverseTime(Schedule):
    """`learning_rate / (1 + count / steps) ** power`; with power 0.5 the inverse square root.

    With power 1 it is what PyTorch's `Adagrad` calls `lr_decay`, which is 1 / steps.

    Args:
        learning_rate: at the start, above 0.
        steps: updates in which it falls to the half (with power 1).
        power: above 0.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    steps: int
    power: float = 1.0

    def __post_init__(self) -> None:
        check_fields(self, check_number, "learning_rate")
        check_fields(self, check_whole, "steps")
        check_fields(self, check_number, "power")

    def at(self, count: int) -> float:
        """See `Schedule`."""
        return self.learning_rate / math.pow(1.0 + count / self.steps, self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a wave of a cosine, from `learning_rate` down to `end` in `steps` updates; then it stays there.

    As PyTorch's `CosineAnnealingLR` up to its `T_max` (Loshchilov and Hutter, 2017, equation 5, one cycle).

    Args:
        learning_rate: at the start, above 0.
        steps: updates.
        end: 0 or above.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    steps: int
    end: float = 0.0

    def __post_init__(self) -> None:
        check_fields(self, check_number, "learning_rate")
        check_fields(self, check_whole, "steps")
        check_fields(self, check_number, "end", zero=True)

    def at(self, count: int) -> float:
        """See `Schedule`."""
        done = min(count, self.steps) / self.steps
        return self.end + (self.learning_rate - self.end) * (1.0 + math.cos(math.pi * done)) / 2.0


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """From nearly nothing up to another rate, in equal steps; then the other one begins.

    Update k, counted from 1, of the first `steps` has k / (steps + 1) of the rate that `then` starts with.

    Args:
        steps: updates of the warm-up.
        then: a rate above 0, or a schedule, whose first update is the one after the warm-up.

    Raises:
        ValueError: a setting out of range.
    """

    steps: int
    then: LearningRate

    def __post_init__(self) -> None:
        check_fields(self, check_whole, "steps")
        check_fields(self, check_learning_rate, "then")

    def at(self, count: int) -> float:
        """See `Schedule`."""
        if count >= self.steps:
            return learning_rate_at(self.then, count - self.steps)
        return learning_rate_at(self.then, 0) * (count + 1) / (self.steps + 1)
