"""Schedules: learning rates that change with the number of updates.

The count is the number of updates of a parameter. On a shard it counts the pushes of all replicas that were
applied to the range of the parameter's machine: with 4 replicas that push at every step it increases four
times as fast as the steps of one. Checkpoints contain it. A part's own steps continue from the count that
came with the last fetched parameters.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, TypeAlias

from typing_extensions import override

from partita.engine.parameters.optimizers.settings import Settings


class Schedule(Settings, ABC):
    """A learning rate for each count of updates: plain data, safe from several threads."""

    _meant: ClassVar[Mapping[str, str | tuple[str, ...]]] = {
        **dict.fromkeys(("lr", "rate", "initial_learning_rate"), ("learning_rate",)),
        **dict.fromkeys(("gamma", "decay_rate"), ("factor",)),
        "step_size": ("every",),
        "decay_steps": ("steps", "every"),
        **dict.fromkeys(("T_max", "total_iters", "warmup_steps"), ("steps",)),
        "eta_min": ("end",),
    }
    """Names of the arguments in Keras and PyTorch."""

    @abstractmethod
    def at(self, count: int) -> float:
        """Returns the learning rate, 0 or above, of the update after `count` others (0 for the first one)."""


LearningRate: TypeAlias = float | Schedule
"""A constant, or a schedule."""


def rate_at(learning_rate: LearningRate, count: int) -> float:
    """Returns the learning rate of the update after `count` others."""
    return learning_rate.at(count) if isinstance(learning_rate, Schedule) else learning_rate


@dataclass(frozen=True)
class StepDecay(Schedule):
    """`learning_rate * factor ** (count // every)`, as PyTorch's `StepLR`.

    Args:
        learning_rate: initial value, above 0.
        every: updates between two drops.
        factor: of each drop, above 0 and below 1.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    every: int
    factor: float = 0.1

    @override
    def at(self, count: int) -> float:
        return self.learning_rate * math.pow(self.factor, count // self.every)


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """`learning_rate * factor ** (count / steps)`, as PyTorch's `ExponentialLR`.

    Args:
        learning_rate: initial value, above 0.
        factor: in `steps` updates, above 0 and below 1.
        steps: number of updates.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    factor: float
    steps: int = 1

    @override
    def at(self, count: int) -> float:
        return self.learning_rate * math.pow(self.factor, count / self.steps)


@dataclass(frozen=True)
class InverseTime(Schedule):
    """`learning_rate / (1 + count / steps) ** power`; with power 0.5 the inverse square root.

    With power 1, 1 / steps is the `lr_decay` of PyTorch's `Adagrad`.

    Args:
        learning_rate: initial value, above 0.
        steps: updates until it has halved (with power 1).
        power: above 0.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    steps: int
    power: float = 1.0

    @override
    def at(self, count: int) -> float:
        return self.learning_rate / math.pow(1.0 + count / self.steps, self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """Half a cosine wave from `learning_rate` down to `end` in `steps` updates, then constant.

    As PyTorch's `CosineAnnealingLR` up to its `T_max` (Loshchilov and Hutter, 2017, equation 5, one cycle).

    Args:
        learning_rate: initial value, above 0.
        steps: number of updates.
        end: final value, 0 or above.

    Raises:
        ValueError: a setting out of range.
    """

    learning_rate: float
    steps: int
    end: float = 0.0

    @override
    def at(self, count: int) -> float:
        done = min(count, self.steps) / self.steps
        return self.end + (self.learning_rate - self.end) * (1.0 + math.cos(math.pi * done)) / 2.0


@dataclass(frozen=True)
class LinearWarmup(Schedule):
    """Linear increase up to another learning rate, which follows.

    Update k, counted from 1, of the first `steps` has k / (steps + 1) of the initial rate of `then`.

    Args:
        steps: updates of the warm-up.
        then: a learning rate above 0, or a schedule, whose first update is the one after the warm-up.

    Raises:
        ValueError: a setting out of range.
    """

    steps: int
    then: LearningRate

    @override
    def at(self, count: int) -> float:
        if count >= self.steps:
            return rate_at(self.then, count - self.steps)
        return rate_at(self.then, 0) * (count + 1) / (self.steps + 1)
