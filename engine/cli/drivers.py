"""The driver that a command was asked for, from the options that were given by hand."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import fields
from typing import Any, Final, TypeAlias

from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.methods import LBFGS, GradientDescent, Method, NonlinearCG
from partita.engine.parameters.optimizers.options import make_optimizer

METHODS: Final[Mapping[str, type[Method]]] = {
    "lbfgs": LBFGS,
    "cg": NonlinearCG,
    "descent": GradientDescent,
}
"""Every batch method, by the name that it has on the command line."""

EPOCHS: Final = 10
"""Of Downpour, where nobody says."""

_OPTIMIZER: Final = ("optimizer", "learning_rate", "momentum", "weight_decay", "clip_norm", "schedule")
_DOWNPOUR: Final = (*_OPTIMIZER, "fetch_every", "overlap")
_OF_METHOD: Final = ("history", "gtol", "ftol", "max_iterations")
_SANDBLASTER: Final = {
    "portion": "portion",
    "sample": "batch",
    "overlap_share": "overlap",
    "l2": "l2",
    "backups": "backups",
    "warm_epochs": "warm_epochs",
    "push_every": "push_every",
}
"""Options by what they are called in `Sandblaster`."""

BY_HAND: Final = frozenset({*_DOWNPOUR, *_OF_METHOD, *_SANDBLASTER, "method", "epochs"})
"""The options that are a driver's."""

Options: TypeAlias = Mapping[str, Any]
"""Options by name; None where one was not given by hand."""


def make_driver(
    name: str, *, replicas: int, shards: int, given: Options
) -> tuple[Downpour | Sandblaster, int | None]:
    """The driver of this name, and how many epochs it is given.

    Raises:
        ValueError: an option is another driver's, or not what it should be.
    """
    by_hand = {option: value for option, value in given.items() if value is not None}
    if name == "downpour":
        others = {*_SANDBLASTER, *_OF_METHOD, "method"} - {"push_every"}
        _refuse(by_hand, others, "Sandblaster", "leave it out, or train with --driver sandblaster")
        driver = _downpour(by_hand, replicas=replicas, shards=shards, push_every=by_hand.get("push_every", 1))
        return driver, by_hand.get("epochs", EPOCHS)
    _refuse(by_hand, {"epochs"}, "Downpour", "leave it out, or give --max-iterations or --warm-epochs")
    warm = "warm_epochs" in by_hand
    if not warm:
        told = "leave it out, or let Downpour begin with --warm-epochs"
        _refuse(by_hand, _DOWNPOUR, "Downpour", told)
    settings = {name: by_hand[option] for option, name in _SANDBLASTER.items() if option in by_hand}
    before = _downpour(by_hand, replicas=replicas, shards=shards) if warm else None
    method = make_method(by_hand)
    return Sandblaster(method, replicas=replicas, shards=shards, warm_start=before, **settings), None


def make_method(by_hand: Options) -> Method:
    """The method that was asked for.

    Raises:
        ValueError: it has no such setting, or a number is out of range.
    """
    name = by_hand.get("method", "lbfgs")
    kind: Any = METHODS[name]
    settings = {option: by_hand[option] for option in _OF_METHOD if option in by_hand}
    known = {field.name for field in fields(kind)}
    for option in settings:
        if option not in known:
            raise ValueError(f"the method {name} has no {option}; leave {_written(option)} out, or use lbfgs")
    method: Method = kind(**settings)
    return method


def _downpour(by_hand: Options, *, replicas: int, shards: int, push_every: int = 1) -> Downpour:
    optimizer = {option: by_hand[option] for option in _OPTIMIZER if option in by_hand}
    kind, learning_rate, schedule = (
        optimizer.pop(option, None) for option in ("optimizer", "learning_rate", "schedule")
    )
    chosen = make_optimizer(kind or "adagrad", learning_rate, schedule=schedule, **optimizer)
    settings = {option: by_hand[option] for option in ("fetch_every", "overlap") if option in by_hand}
    return Downpour(replicas, shards, chosen, push_every=push_every, **settings)


def _refuse(by_hand: Options, options: Collection[str], whose: str, what: str) -> None:
    for option in by_hand:
        if option in options:
            raise ValueError(f"{_written(option)} is an option of {whose}; {what}")


def _written(option: str) -> str:
    return "--no-backups" if option == "backups" else f"--{option.replace('_', '-')}"
