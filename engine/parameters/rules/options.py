"""Rules and schedules as somebody writes them on a command line: names, numbers, and `cosine:1000`.

It must not know the command line itself.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields
from typing import Final

from partita.engine.parameters.rules.adagrad import Adagrad, RMSProp
from partita.engine.parameters.rules.adam import Adam, AdamW
from partita.engine.parameters.rules.lars import LARS
from partita.engine.parameters.rules.rule import Rule
from partita.engine.parameters.rules.schedule import (
    Cosine,
    ExponentialDecay,
    InverseTime,
    LinearWarmup,
    Rate,
    StepDecay,
)
from partita.engine.parameters.rules.sgd import SGD, Momentum

RULES: Final[Mapping[str, type[Rule]]] = {
    "sgd": SGD,
    "momentum": Momentum,
    "adagrad": Adagrad,
    "rmsprop": RMSProp,
    "adam": Adam,
    "adamw": AdamW,
    "lars": LARS,
}
"""Every rule, by the name that it has on the command line."""

SLOW: Final = ("adam", "adamw", "rmsprop")
"""Those whose every step is about the size of the rate: their default is 0.001, that of the others 0.05."""

_FORMS: Final = (
    "step:EVERY[:FACTOR], exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], "
    "or warmup:STEPS alone or before one of them and a comma"
)


def make_rule(
    name: str, rate: float | None = None, *, schedule: str | None = None, **settings: float | None
) -> Rule:
    """The rule of this name.

    Args:
        name: one of `RULES`.
        rate: the learning rate, or the one that the schedule starts from; None: the default, see `SLOW`.
        schedule: see `parse_schedule`; None leaves the rate as it is.
        settings: of the rule, by the names of its arguments; None leaves one at its default.

    Raises:
        ValueError: the rule has no such setting, or a number is out of range.
    """
    kind = RULES[name]
    given = {setting: value for setting, value in settings.items() if value is not None}
    rate = (0.001 if name in SLOW else 0.05) if rate is None else rate
    for setting in given.keys() - {found.name for found in fields(kind)}:
        having = ", ".join(
            other for other, rule in RULES.items() if setting in {found.name for found in fields(rule)}
        )
        raise ValueError(
            f"the rule {name} has no {setting.replace('_', ' ')}; leave it out, or use one that has: {having}"
        )
    return kind(rate if schedule is None else parse_schedule(schedule, rate), **given)


def parse_schedule(written: str, rate: float) -> Rate:
    """The schedule in a text: `cosine:10000`, `step:2000:0.5`, `warmup:500`, `warmup:500,cosine:10000`.

    Args:
        written: the text; counts are updates.
        rate: where it starts, or what the warm-up leads to.

    Raises:
        ValueError: it says nothing that is known, or a number is out of range.
    """
    first, comma, rest = written.partition(",")
    kind, _, numbers = first.partition(":")
    if kind == "warmup" and (steps := _numbers(numbers, least=1, most=1)) is not None:
        return LinearWarmup(int(steps[0]), parse_schedule(rest, rate) if comma else rate)
    makers: dict[str, tuple[int, int, Callable[..., Rate]]] = {
        "step": (1, 2, lambda every, *factor: StepDecay(rate, every, *factor)),
        "exponential": (2, 2, lambda steps, factor: ExponentialDecay(rate, factor, steps)),
        "inverse": (1, 2, lambda steps, *power: InverseTime(rate, steps, *power)),
        "cosine": (1, 2, lambda steps, *end: Cosine(rate, steps, *end)),
    }
    if kind in makers and not comma:
        least, most, make = makers[kind]
        if (found := _numbers(numbers, least=least, most=most)) is not None:
            return make(int(found[0]), *found[1:])
    raise ValueError(f"'{written}' is no schedule; write {_FORMS}")


def _numbers(written: str, *, least: int, most: int) -> list[float] | None:
    """The numbers between colons, so many of them, the first of which is whole; None where they are not."""
    texts = written.split(":")
    try:
        numbers = [float(text) for text in texts]
    except ValueError:
        return None
    return numbers if least <= len(numbers) <= most and texts[0].isdecimal() else None
