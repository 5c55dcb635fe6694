"""Options of drivers, optimizers and batch methods, and the driver that was asked for."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, fields
from typing import Any, ClassVar, Final, Literal

from partita.engine.cli.fields import ByHand, Fields
from partita.engine.drivers.downpour import Downpour
from partita.engine.drivers.sandblaster import Sandblaster
from partita.engine.methods import LBFGS, GradientDescent, Method, NonlinearCG
from partita.engine.parameters.optimizers.options import OPTIMIZERS, SLOW, make_optimizer

METHODS: Final[Mapping[str, type[Method]]] = {
    "lbfgs": LBFGS,
    "cg": NonlinearCG,
    "descent": GradientDescent,
}
"""Every batch method, by its name on the command line."""


@dataclass(frozen=True)
class Choices:
    """Choices by name.

    Args:
        driver: how replicas and shards work together.
        optimizer: what a shard does with a gradient.
        schedule: how the learning rate changes with the updates of a shard: step:EVERY[:FACTOR],
            exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], warmup:STEPS, or
            warmup:STEPS,OTHER.
        epochs: passes over the data.
        method: what is done with values and gradients: L-BFGS, conjugate gradients, gradient descent.
        warm_epochs: epochs of Downpour that come first; none if not given.
    """

    _meant: ClassVar = {"rule": ("optimizer",), "optimiser": ("optimizer",), "num_epochs": ("epochs",)}

    driver: Literal["downpour", "sandblaster"] = "downpour"
    optimizer: Literal[tuple(OPTIMIZERS)] = "adagrad"  # type: ignore[valid-type]
    schedule: str | None = None
    epochs: int = 10
    method: Literal[tuple(METHODS)] = "lbfgs"  # type: ignore[valid-type]
    warm_epochs: int | None = None


_D, _S = "Downpour", "Sandblaster"
_BOTH: Final = Fields.of(Sandblaster, "replicas", "shards", "push_every").helped(
    push_every="Steps (or portions, under sandblaster) from one push of gradients to the next; "
    "1 if not given, under sandblaster up to 4."
)
_OPTIMIZER: Final = Fields.of(
    OPTIMIZERS.values(), "learning_rate", "momentum", "weight_decay", "clip_norm", panel=_D
).helped(
    learning_rate=f"Learning rate; if not given, 0.05, or 0.001 for {', '.join(SLOW)}.",
    momentum="How much of the velocity is kept; for momentum, rmsprop and lars.",
    weight_decay="Weight decay, 0 or above.",
    clip_norm="Scale a step's gradient down to this norm where it is larger.",
)
_DOWNPOUR: Final = Fields.of(Downpour, "fetch_every", "overlap", "elastic", panel=_D)
_METHOD: Final = Fields.of(METHODS.values(), "history", "max_iterations", "gtol", "ftol", panel=_S)
_SANDBLASTER: Final = Fields.of(
    Sandblaster,
    "l2",
    "portion",
    "backups",
    panel=_S,
    sample="batch",
    overlap_share="overlap",
)

OPTIONS: Final = (
    Fields.of(Choices, "driver"),
    _BOTH,
    Fields.of(Choices, "optimizer", panel=_D),
    _OPTIMIZER,
    Fields.of(Choices, "schedule", "epochs", panel=_D),
    _DOWNPOUR,
    Fields.of(Choices, "method", panel=_S),
    _METHOD,
    _SANDBLASTER,
    Fields.of(Choices, "warm_epochs", panel=_S),
)
"""All options of drivers, in the order of the help."""


def make_driver(given: ByHand) -> tuple[Downpour | Sandblaster, int | None]:
    """Makes the driver that the options ask for, and says how many epochs it is given.

    Raises:
        ValueError: an option belongs to another driver, or its value is out of range.
    """
    if given.get("driver", "downpour") == "downpour":
        _refuse(given, _options(_S), _S, "leave it out, or train with --driver sandblaster")
        return _downpour(given, push_every=given.get("push_every", 1)), given.get("epochs", Choices.epochs)
    _refuse(given, {"epochs"}, _D, "leave it out, or give --max-iterations or --warm-epochs")
    settings = _BOTH.given(given) | _SANDBLASTER.given(given)
    if "warm_epochs" in given:
        settings |= {"warm_start": _downpour(given), "warm_epochs": given["warm_epochs"]}
    else:
        _refuse(given, _options(_D), _D, "leave it out, or let Downpour begin with --warm-epochs")
    return Sandblaster(make_method(given), **settings), None


def make_method(given: ByHand) -> Method:
    """Makes the batch method that the options ask for.

    Raises:
        ValueError: the method has no such setting, or a number is out of range.
    """
    name = given.get("method", Choices.method)
    kind: Any = METHODS[name]
    settings = _METHOD.given(given)
    for option in settings.keys() - {field.name for field in fields(kind)}:
        raise ValueError(f"the method {name} has no {option}; leave {_written(option)} out, or use lbfgs")
    method: Method = kind(**settings)
    return method


def _downpour(given: ByHand, *, push_every: int = 1) -> Downpour:
    optimizer = make_optimizer(
        given.get("optimizer", Choices.optimizer), schedule=given.get("schedule"), **_OPTIMIZER.given(given)
    )
    common = {name: given[name] for name in ("replicas", "shards") if name in given}
    return Downpour(optimizer=optimizer, push_every=push_every, **common, **_DOWNPOUR.given(given))


def _options(panel: str) -> set[str]:
    return {option for some in OPTIONS if some.panel == panel for option in some.options}


def _refuse(given: ByHand, options: Collection[str], whose: str, what: str) -> None:
    for option in given:
        if option in options:
            raise ValueError(f"{_written(option)} is an option of {whose}; {what}")


def _written(option: str) -> str:
    return "--no-backups" if option == "backups" else f"--{option.replace('_', '-')}"
