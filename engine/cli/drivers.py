"""Options of drivers, derived from their settings, and the driver that was asked for.

A driver is one line in `DRIVERS`: each field of its dataclass is an option, under a heading that names the
drivers that have it. A field whose value is settings by themselves, such as an optimizer, is the name of one
of its `CHOICES`, with options for what these have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, fields
from typing import Any, ClassVar, Final, Literal, get_type_hints

from partita.engine.cli.fields import ByHand, Fields
from partita.engine.drivers import AllReduce, Downpour, Driver, Sandblaster
from partita.engine.methods import LBFGS, GradientDescent, Method, NonlinearCG
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.optimizers.options import OPTIMIZERS, SLOW, make_optimizer
from partita.engine.protocol.exchange import Algorithm, Hierarchical, Ring, Server, Tree

DRIVERS: Final[Mapping[str, type[Driver]]] = {
    "downpour": Downpour,
    "sandblaster": Sandblaster,
    "all-reduce": AllReduce,
}
"""Every driver, by its name on the command line."""


@dataclass(frozen=True)
class Choices:
    """Settings that an option chooses by name.

    Args:
        kinds: the classes, by name.
        default: the name that is taken if none is given.
        options: fields of the classes that are options, too.
        more: options that are no fields, and the classes that describe them.
        make: makes the settings of a name and the options that were given.
    """

    kinds: Mapping[str, type]
    default: str
    options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    make: Callable[..., object] | None = None

    def made(self, name: str, given: Mapping[str, Any]) -> object:
        """Makes the settings of a name. Raises ValueError where they lack what was given."""
        if self.make is not None:
            return self.make(name, **given)
        known = {one.name for one in fields(self.kinds[name])}
        for option in given.keys() - known:
            raise ValueError(
                f"the method {name} has no {option}; leave {_written(option)} out, or use {self.default}"
            )
        return self.kinds[name](**given)


METHODS: Final[Mapping[str, type[Method]]] = {"lbfgs": LBFGS, "cg": NonlinearCG, "descent": GradientDescent}
ALGORITHMS: Final[Mapping[str, type[Algorithm]]] = {
    "ring": Ring,
    "tree": Tree,
    "hierarchical": Hierarchical,
    "server": Server,
}
CHOICES: Final[Mapping[type, Choices]] = {
    Optimizer: Choices(
        OPTIMIZERS,
        "adagrad",
        ("learning_rate", "momentum", "weight_decay", "clip_norm"),
        ("schedule",),
        make_optimizer,
    ),
    Method: Choices(METHODS, "lbfgs", ("history", "max_iterations", "gtol", "ftol")),
    Algorithm: Choices(ALGORITHMS, "ring"),
}
"""The names for a field of such a type."""


@dataclass(frozen=True)
class Others:
    """Options that are no fields of a driver.

    Args:
        driver: how replicas work together.
        schedule: how the learning rate changes with the updates: step:EVERY[:FACTOR],
            exponential:STEPS:FACTOR, inverse:STEPS[:POWER], cosine:STEPS[:END], warmup:STEPS, or
            warmup:STEPS,OTHER.
        epochs: passes over the data.
        warm_epochs: epochs of Downpour that come first; none if not given.
    """

    _meant: ClassVar = {"num_epochs": ("epochs",)}

    driver: Literal[tuple(DRIVERS)] = "downpour"  # type: ignore[valid-type]
    schedule: str | None = None
    epochs: int = 10
    warm_epochs: int | None = None


_HELP: Final = {
    "optimizer": "What is done with a gradient.",
    "method": "What is done with values and gradients: L-BFGS, conjugate gradients, gradient descent.",
    "push_every": "Steps (or portions, under sandblaster) from one push of gradients to the next; 1 if not "
    "given, under sandblaster up to 4.",
    "learning_rate": f"Learning rate; if not given, 0.05, or 0.001 for {', '.join(SLOW)}.",
    "momentum": "How much of the velocity is kept; for momentum, rmsprop and lars.",
    "weight_decay": "Weight decay, 0 or above.",
    "clip_norm": "Scale a step's gradient down to this norm where it is larger.",
}
"""Texts of options in the place of a docstring's."""


@dataclass
class _Option:
    """An option of the drivers that have it: the field `name` of `kinds`, or of each driver that has it."""

    name: str
    kinds: list[type]
    drivers: list[type[Driver]] = field(default_factory=list)
    choices: Choices | None = None


def _options_of(driver: type[Driver]) -> Iterator[tuple[str, _Option]]:
    """Yields the options of a driver, in the order of its fields."""
    hints = get_type_hints(driver)
    for one in fields(driver):  # type: ignore[arg-type]
        option = one.metadata.get("option", one.name)
        choices = CHOICES.get(hints[one.name])
        if option == "warm_epochs":
            yield option, _Option(option, [Others])
        elif option:
            yield option, _Option(one.name, [driver], choices=choices)
        if choices is not None:
            kinds = list(choices.kinds.values())
            yield from ((name, _Option(name, kinds)) for name in choices.options)
            yield from ((name, _Option(name, [Others])) for name in choices.more)
    if not driver.ends:
        yield "epochs", _Option("epochs", [Others])


def _all_options() -> dict[str, _Option]:
    found: dict[str, _Option] = {}
    for driver in DRIVERS.values():
        for option, new in _options_of(driver):
            known = found.setdefault(option, new)
            known.drivers.append(driver)
            if driver in new.kinds and driver not in known.kinds:
                known.kinds.append(driver)
    return found


_ALL: Final = _all_options()


def _fields_of(option: str, has: _Option) -> Fields:
    everybody = len(has.drivers) == len(DRIVERS)
    panel = None if everybody else " and ".join(driver.__name__ for driver in has.drivers)
    names = None if has.choices is None else (has.choices.default, *has.choices.kinds)
    help_of = {option: _HELP[option]} if option in _HELP else {}
    return Fields(tuple(has.kinds), {option: has.name}, panel, help_of, names)


def _by_panel() -> tuple[Fields, ...]:
    """All options: first those of all drivers, then those of several, and each driver's own last."""
    every = [_fields_of(option, has) for option, has in _ALL.items()]
    several = sorted(every, key=lambda one: -len(next(_ALL[option] for option in one.options).drivers))
    return (Fields.of(Others, "driver"), *several)


OPTIONS: Final = _by_panel()
"""All options of drivers, in the order of the help."""


def make_driver(given: ByHand) -> tuple[Driver, int | None]:
    """Makes the driver that the options ask for, and says how many epochs it is given.

    Raises:
        ValueError: an option belongs to another driver, or its value is out of range.
    """
    kind = DRIVERS[given.get("driver", Others.driver)]
    warm = "warm_epochs" in given and kind is Sandblaster
    for option in given.keys() & _ALL.keys():
        _check_has(option, kind, warm=warm)
    settings = _settings(kind, given)
    if warm:
        others = {option: value for option, value in given.items() if option != "push_every"}
        settings["warm_start"] = Downpour(**_settings(Downpour, others))
    return kind(**settings), None if kind.ends else given.get("epochs", Others.epochs)


def _settings(kind: type[Driver], given: ByHand) -> dict[str, Any]:
    """Returns the arguments of a driver."""
    settings: dict[str, Any] = {}
    for option, has in _options_of(kind):
        if has.choices is not None:
            some = (*has.choices.options, *has.choices.more)
            own = {name: given[name] for name in some if name in given}
            settings[has.name] = has.choices.made(given.get(option, has.choices.default), own)
        elif option in given and (kind in has.kinds or option == "warm_epochs"):
            settings[has.name] = given[option]
    return settings


def _check_has(option: str, kind: type[Driver], *, warm: bool) -> None:
    """Refuses an option of other drivers. Raises ValueError."""
    drivers = _ALL[option].drivers
    if kind in drivers or (warm and Downpour in drivers and option != "epochs"):
        return
    whose = " and ".join(driver.__name__ for driver in drivers)
    instead = " or ".join(f"--driver {name}" for name, driver in DRIVERS.items() if driver in drivers)
    instead = f"train with {instead}"
    if kind is Sandblaster and Downpour in drivers:
        instead = "let Downpour begin with --warm-epochs"
        if option == "epochs":
            instead = "give --max-iterations or --warm-epochs"
    raise ValueError(f"{_written(option)} is an option of {whose}; leave it out, or {instead}")


def _written(option: str) -> str:
    return "--no-backups" if option == "backups" else f"--{option.replace('_', '-')}"
