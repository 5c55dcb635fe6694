"""Options of drivers, derived from their settings, and the driver that was asked for.

A driver is one line in `DRIVERS`: each field of its dataclass is an option, under a heading that names the
drivers that have it. A field whose value is settings by themselves, such as an optimizer, is the name of one
of its `CHOICES`, with options for what these have in common.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any, ClassVar, Final, Literal, get_type_hints

from partita.engine.cli.fields import ByHand, Option, options_of, written
from partita.engine.drivers import (
    ADMM,
    EASGD,
    AllReduce,
    Codistillation,
    DecoupledDiLoCo,
    DiLoCo,
    Downpour,
    Driver,
    DynamicAveraging,
    FedAvg,
    LocalSGD,
    ParameterAveraging,
    Sandblaster,
)
from partita.engine.methods import LBFGS, GradientDescent, Method, NonlinearCG
from partita.engine.parameters.compression import Compressor
from partita.engine.parameters.compression.options import COMPRESSORS, make_compressor
from partita.engine.parameters.optimizers import Optimizer
from partita.engine.parameters.optimizers.options import OPTIMIZERS, SLOW, make_optimizer
from partita.engine.protocol.exchange import Algorithm, Fastest, Hierarchical, Ring, Server, Tree

DRIVERS: Final[Mapping[str, type[Driver]]] = {
    "downpour": Downpour,
    "easgd": EASGD,
    "sandblaster": Sandblaster,
    "all-reduce": AllReduce,
    "local-sgd": LocalSGD,
    "parameter-averaging": ParameterAveraging,
    "diloco": DiLoCo,
    "decoupled-diloco": DecoupledDiLoCo,
    "dynamic-averaging": DynamicAveraging,
    "admm": ADMM,
    "fed-avg": FedAvg,
    "codistillation": Codistillation,
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
        fixed: settings that the driver has no choice of.
    """

    kinds: Mapping[str, type]
    default: str
    options: tuple[str, ...] = ()
    more: tuple[str, ...] = ()
    make: Callable[..., object] | None = None
    fixed: Mapping[str, Any] = field(default_factory=dict)

    def made(self, name: str, given: Mapping[str, Any]) -> object:
        """Makes the settings of a name. Raises ValueError where they lack what was given."""
        if self.make is not None:
            return self.make(name, **given, **self.fixed)
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


def _make_algorithm(name: str) -> Algorithm | str:
    return name if name == _AUTO else ALGORITHMS[name]()


_AUTO: Final = "auto"
CHOICES: Final[Mapping[object, Choices]] = {
    Optimizer: Choices(
        OPTIMIZERS,
        "adagrad",
        ("learning_rate", "momentum", "weight_decay", "clip_norm"),
        ("schedule",),
        make_optimizer,
    ),
    Method: Choices(METHODS, "lbfgs", ("history", "max_iterations", "gtol", "ftol")),
    Algorithm: Choices(ALGORITHMS, "ring"),
    Algorithm | Literal["auto"]: Choices({**ALGORITHMS, _AUTO: Fastest}, "ring", make=_make_algorithm),
    Compressor | None: Choices(COMPRESSORS, "none", ("share", "rank"), make=make_compressor),
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


def _settings_of(kind: type[Driver]) -> Iterator[tuple[str, str, Choices | None]]:
    """Yields each field of a driver, its option ("": none), and the choices where it is chosen by name."""
    hints = get_type_hints(kind)
    for one in fields(kind):  # type: ignore[arg-type]
        choices = CHOICES.get(hints[one.name])
        if choices is not None and "chosen" in one.metadata:
            choices = replace(choices, default=one.metadata["chosen"])
        if choices is not None and "fixed" in one.metadata:
            choices = replace(choices, fixed=one.metadata["fixed"])
        yield one.name, one.metadata.get("option", one.name), choices


def _options_of(kind: type[Driver]) -> Iterator[Option]:
    """Yields the options of a driver, in the order of its fields."""
    own = {one.name for one in fields(Others)}
    for own_name, name, choices in _settings_of(kind):
        if name:
            names = () if choices is None else (choices.default, *choices.kinds)
            yield Option(name, own_name, (Others if name in own else kind,), names=names)
        if choices is not None:
            yield from (Option(name, name, tuple(choices.kinds.values())) for name in choices.options)
            yield from (Option(name, name, (Others,)) for name in choices.more)
    if not kind.ends:
        yield Option("epochs", "epochs", (Others,))


def _options_by_name() -> dict[str, dict[type[Driver], Option]]:
    """Returns each option as each driver that has it describes it."""
    found: dict[str, dict[type[Driver], Option]] = {}
    for kind in DRIVERS.values():
        for option in _options_of(kind):
            found.setdefault(option.name, {})[kind] = option
    return found


HAVING: Final = _options_by_name()
"""The drivers that have an option, by its name."""


def _joined(having: Mapping[type[Driver], Option]) -> Option:
    """Returns an option of all drivers that have it, under their names."""
    first, panel = next(iter(having.values())), None if len(having) == len(DRIVERS) else _names(having)
    kinds = dict.fromkeys(kind for option in having.values() for kind in option.kinds)
    return replace(first, kinds=tuple(kinds), panel=panel, help=_HELP.get(first.name, ""))


def _names(kinds: Iterable[type[Driver]]) -> str:
    """Names drivers, or those that are left out where these are fewer."""
    having = [kind.__name__ for kind in DRIVERS.values() if kind in set(kinds)]
    others = [kind.__name__ for kind in DRIVERS.values() if kind.__name__ not in having]
    if len(having) > 3 and len(others) < len(having):
        return f"every driver but {_listed(others)}"
    return _listed(having)


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}" if len(names) > 1 else names[0]


OPTIONS: Final = (
    *options_of(Others, "driver"),
    *map(_joined, sorted(HAVING.values(), key=len, reverse=True)),
)
"""All options of drivers: those of all of them first, each one's own last."""


def make_driver(given: ByHand, own: Driver | None = None) -> tuple[Driver, int | None]:
    """Makes the driver that the options ask for, and says how many epochs it is given.

    Args:
        given: the options.
        own: the driver of the user's file, if it has one; taken if the options name no other, with the
            numbers among its settings that are given.

    Raises:
        ValueError: an option belongs to another driver, or its value is out of range.
    """
    if own is not None and "driver" not in given:
        mine = {name: own_name for own_name, name, choices in _settings_of(type(own)) if choices is None}
        for option in given.keys() - mine.keys() - {"epochs"}:
            raise ValueError(
                f"{_written(option)} is given, and the file has a driver(); set it there, or name another "
                "driver with --driver"
            )
        settings = {mine[name]: value for name, value in given.items() if name in mine}
        driver: Driver = replace(own, **settings)  # type: ignore[type-var]
    else:
        driver = _named(DRIVERS[given.get("driver", Others.driver)], given)
    return driver, given.get("epochs") if driver.ends else given.get("epochs", Others.epochs)


def _named(kind: type[Driver], given: ByHand) -> Driver:
    warm = "warm_epochs" in given and kind is Sandblaster
    for option in given.keys() & HAVING.keys():
        _check_has(option, kind, warm=warm)
    settings = _settings(kind, given)
    if warm:
        others = {option: value for option, value in given.items() if option != "push_every"}
        settings["warm_start"] = Downpour(**_settings(Downpour, others))
    return kind(**settings)


def _settings(kind: type[Driver], given: ByHand) -> dict[str, Any]:
    """Returns the arguments of a driver."""
    settings: dict[str, Any] = {}
    for own_name, name, choices in _settings_of(kind):
        if choices is not None:
            some = (*choices.options, *choices.more)
            own = {option: given[option] for option in some if option in given}
            settings[own_name] = choices.made(given.get(name, choices.default), own)
        elif name in given:
            settings[own_name] = given[name]
    return settings


def _check_has(option: str, kind: type[Driver], *, warm: bool) -> None:
    """Refuses an option of other drivers. Raises ValueError."""
    kinds = HAVING[option]
    if kind in kinds or (warm and Downpour in kinds and option != "epochs"):
        return
    instead = " or ".join(f"--driver {name}" for name, one in DRIVERS.items() if one in kinds)
    instead = f"train with {instead}" if len(kinds) <= 3 else "train with another driver"
    if kind is Sandblaster and Downpour in kinds:
        instead = "let Downpour begin with --warm-epochs"
        if option == "epochs":
            instead = "give --max-iterations or --warm-epochs"
    raise ValueError(f"{_written(option)} is an option of {_names(kinds)}; leave it out, or {instead}")


def _written(option: str) -> str:
    return "--no-backups" if option == "backups" else written(option)
