"""Text forms of optimizers and schedules for the command line: names, numbers, and `cosine:1000`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final

from partita.engine.parameters.optimizers.adagrad import Adagrad, RMSProp
from partita.engine.parameters.optimizers.adam import Adam, AdamW
from partita.engine.parameters.optimizers.lamb import LAMB
from partita.engine.parameters.optimizers.lars import LARS
from partita.engine.parameters.optimizers.optimizer import Optimizer
from partita.engine.parameters.optimizers.schedule import (
    Cosine,
    ExponentialDecay,
    InverseTime,
    LearningRate,
    LinearWarmup,
    StepDecay,
)
from partita.engine.parameters.optimizers.sgd import SGD, Momentum

OPTIMIZERS: Final[Mapping[str, type[Optimizer]]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
    "lars": LARS,
    "lamb": LAMB,
}
"""Optimizers by their names on the command line."""

SLOW: Final = ("adam", "adamw", "rmsprop", "lamb")
"""Optimizers whose steps are about the size of the rate: default 0.001; for all others 0.05."""

_FORMS: Final = (
    "step:EVERY[:FACTOR], exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], "
    "or warmup:STEPS alone or before one of them and a comma"
)


def make_optimizer(
    name: str, learning_rate: float | None = None, *, schedule: str | None = None, **settings: float | None
) -> Optimizer:
    """Creates the optimizer of a name in `OPTIMIZERS`; settings that are None have their defaults.

    `learning_rate` is that of the first update, see `SLOW`; `schedule` is a text for `parse_schedule`.

    Raises:
        ValueError: the optimizer has no such setting, or a number is out of range.
    """
    kind = OPTIMIZERS[name]
    given = {setting: value for setting, value in settings.items() if value is not None}
    learning_rate = (0.001 if name in SLOW else 0.05) if learning_rate is None else learning_rate
    for setting in given.keys() - {found.name for found in fields(kind)}:
        having = ", ".join(
            other
            for other, optimizer in OPTIMIZERS.items()
            if setting in {found.name for found in fields(optimizer)}
        )
        raise ValueError(
            f"the optimizer {name} has no {setting.replace('_', ' ')}; leave it out, or use one "
            f"that has: {having}"
        )
    return kind(learning_rate if schedule is None else parse_schedule(schedule, learning_rate), **given)


def parse_schedule(written: str, learning_rate: float) -> LearningRate:
    """Parses a schedule: `cosine:10000`, `step:2000:0.5`, `warmup:500`, `warmup:500,cosine:10000`.

    Counts are updates. The learning rate is the initial one, or the one after the warm-up.

    Raises:
        ValueError: not a schedule, or a number is out of range.
    """
    first, comma, rest = written.partition(",")
    kind, _, numbers = first.partition(":")
    if kind == "warmup" and (steps := _numbers(numbers, least=1, most=1)) is not None:
        return LinearWarmup(int(steps[0]), parse_schedule(rest, learning_rate) if comma else learning_rate)
    makers: dict[str, tuple[int, int, Callable[..., LearningRate]]] = {
        "step": (1, 2, lambda every, *factor: StepDecay(learning_rate, every, *factor)),
        "exponential": (2, 2, lambda steps, factor: ExponentialDecay(learning_rate, factor, steps)),
        "inverse": (1, 2, lambda steps, *power: InverseTime(learning_rate, steps, *power)),
        "cosine": (1, 2, lambda steps, *end: Cosine(learning_rate, steps, *end)),
    }
    if kind in makers and not comma:
        least, most, make = makers[kind]
        if (found := _numbers(numbers, least=least, most=most)) is not None:
            return make(int(found[0]), *found[1:])
    raise ValueError(f"'{written}' is no schedule; write {_FORMS}")


def _numbers(written: str, *, least: int, most: int) -> list[float] | None:
    """Parses numbers between colons, the first one whole; None if there are others, or too many or few."""
    texts = written.split(":")
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    return numbers if least <= len(numbers) <= most and texts[0].isdecimal() else None
