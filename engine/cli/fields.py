"""Options made from the fields of dataclasses: each has the name, type, default and help of its field.

The help is the first sentence of the field's entry under `Args:` in the docstring of its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, fields, is_dataclass
from functools import cache, wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

from partita.engine.cli.output import one_sentence_each

ByHand: TypeAlias = dict[str, Any]
"""The options that were given on the command line, by name."""

_SIMPLE: Final = (bool, int, float, str, Path)
"""Types that an option can have; of a union the first of these is taken."""

_ENTRY: Final = re.compile(r"^    (\w+(?:, \w+)*): ((?:.|\n(?!    \S))*)", re.MULTILINE)


@dataclass(frozen=True)
class Option:
    """A field of a dataclass, or of several alternative ones, as an option of a command.

    Args:
        name: of the option.
        field: of the dataclasses.
        kinds: the dataclasses. A default is shown where all of them that have the field agree.
        panel: heading above the option in the help; None for the usual one.
        help: text in the place of the docstring's; "" for that.
        names: the default and all names that the option can have, where it chooses by name.
    """

    name: str
    field: str
    kinds: tuple[type, ...]
    panel: str | None = None
    help: str = ""
    names: tuple[str, ...] = ()

    def parameter(self) -> Parameter:
        """Makes the parameter that typer reads."""
        found = [(kind, one) for kind in self.kinds for one in fields(kind) if one.name == self.field]
        first, *others = (_default_of(one) for _, one in found)
        default = first if all(other == first for other in others) else None
        hint = _type_of(get_type_hints(found[0][0])[self.field])
        if self.names:
            default, hint = self.names[0], Literal[self.names[1:]]
        shown = typer.Option(help=self.help or _help_of(self.kinds, self.field), rich_help_panel=self.panel)
        annotation = Annotated[hint if default is not None else hint | None, shown]  # type: ignore[valid-type]
        return Parameter(self.name, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)


def options_of(kind: type, *names: str, **help_of: str) -> tuple[Option, ...]:
    """Returns options for all fields of a dataclass, or for some; a unit of seconds is left out of a name.

    Args:
        kind: the dataclass.
        *names: the fields.
        **help_of: texts in the place of the docstring's, by field.
    """
    chosen = names or [one.name for one in fields(kind)]
    return tuple(Option(n.removesuffix("_s"), n, (kind,), help=help_of.get(n, "")) for n in chosen)


def values_of(options: Iterable[Option], by_hand: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the values of the options that were given, by field."""
    return {one.field: by_hand[one.name] for one in options if one.name in by_hand}


def command(**groups: Sequence[Option]) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function whose parameters are options, dataclasses, or groups of options.

    A parameter that is a dataclass becomes an option for each field. A parameter of a group receives the
    options of the group that were given on the command line, as `ByHand`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        spread, parameters = dict(groups), []
        for name, own in signature(function).parameters.items():
            if is_dataclass(hints[name]):
                spread[name] = options_of(hints[name])
            some = [option.parameter() for option in spread.get(name, ())]
            parameters += some or [own.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)]

        @wraps(function)
        def run(ctx: typer.Context, **values: Any) -> None:
            by_hand = {name: value for name, value in values.items() if _is_by_hand(ctx, name)}
            for name, options in spread.items():
                given = {one.name: by_hand[one.name] for one in options if one.name in by_hand}
                for one in options:
                    del values[one.name]
                values[name] = given if name in groups else hints[name](**values_of(options, given))
            function(**values)

        parameters.insert(0, Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context))
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.options = [one for options in spread.values() for one in options]  # type: ignore[attr-defined]
        return run

    return decorate


class Command(TyperCommand):
    """A command that answers the options of other libraries with ours, and fails with one sentence."""

    def invoke(self, ctx: Any) -> Any:
        """Runs the command; a failure ends it with one sentence."""
        with one_sentence_each():
            return super().invoke(ctx)

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options of a command line."""
        known = {option for parameter in self.params for option in parameter.opts}
        for argument in args:
            option = argument.partition("=")[0]
            meant = _meant_by(option, getattr(self.callback, "options", ()))
            if option.startswith("--") and option not in known and meant in known:
                ctx.fail(f"No such option: {option}; did you mean {meant}?")
        return super().parse_args(ctx, args)


def _meant_by(option: str, options: Iterable[Option]) -> str | None:
    """Returns the option that is meant by a name that the dataclasses know as another library's."""
    name = option.removeprefix("--").replace("-", "_")
    for one in options:
        tables = (vars(base).get("_meant", {}) for kind in one.kinds for base in kind.__mro__)
        meant = (table[name] for table in tables if isinstance(table.get(name), tuple))
        if any(one.field in others for others in meant):
            return written(one.name)
    return None


def written(name: str) -> str:
    """Returns an option as it is written on a command line."""
    return f"--{name.replace('_', '-')}"


def _is_by_hand(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _help_of(kinds: Iterable[type], name: str) -> str:
    """Returns the help of a field, from the docstrings of the dataclasses and their bases; "": none."""
    bases = (base for kind in kinds for base in kind.__mro__)
    return next((texts[name] for texts in map(_help_in, bases) if name in texts), "")


@cache
def _help_in(kind: type) -> Mapping[str, str]:
    """Returns the first sentence of each field's entry in the docstring of a class."""
    found: dict[str, str] = {}
    _, _, section = cleandoc(kind.__doc__ or "").partition("\nArgs:\n")
    for names, entry in _ENTRY.findall(section.partition("\n\n")[0]):
        text = re.split(r"(?<=\.) +(?=[A-Z])", " ".join(entry.replace("`", "").split()))[0]
        if not text.startswith("see "):
            found |= dict.fromkeys(names.split(", "), f"{text[:1].upper()}{text[1:].rstrip('.')}.")
    return found


def _type_of(hint: Any) -> Any:
    """The simple type of a field: without None, and without what cannot be written on a command line."""
    plain = isinstance(hint, type) or get_origin(hint) in (Literal, list)
    members = (hint,) if plain else get_args(hint)
    simple = next((kind for kind in _SIMPLE if kind in members), None)
    return simple or next(member for member in members if member is not NoneType)


def _default_of(found: Field[Any]) -> Any:
    if found.default_factory is not MISSING:
        return found.default_factory()
    return None if found.default is MISSING else found.default
