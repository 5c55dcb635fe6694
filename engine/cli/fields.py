"""Options made from the fields of dataclasses: each has the name, type, default and help of its field.

The help is the first sentence of the field's entry under `Args:` in the docstring of its class.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import MISSING, Field, dataclass, field, fields, is_dataclass
from functools import wraps
from inspect import Parameter, Signature, cleandoc, signature
from pathlib import Path
from types import NoneType
from typing import Annotated, Any, Final, Literal, Self, TypeAlias, get_args, get_origin, get_type_hints

import typer
from typer.core import TyperCommand

ByHand: TypeAlias = dict[str, Any]
"""The options that were given on the command line, by name."""

_SIMPLE: Final = (Path, bool, int, float, str)
"""Types that an option can have; of a union the first of these is taken."""

_ENTRY: Final = re.compile(r"^    (\w+(?:, \w+)*): ((?:.|\n(?!    \S))*)", re.MULTILINE)


@dataclass(frozen=True)
class Fields:
    """Fields of a dataclass, or of several alternative ones, as options of a command.

    Args:
        kinds: the dataclasses. A default is shown where all of them that have the field agree.
        options: the name of a field, by the name of its option.
        panel: heading above the options in the help; None for the usual one.
        help: texts in the place of the docstring's, by option.
        names: the default of the one option and all names that it can have, where the field's value is chosen
            by name.
    """

    kinds: tuple[type, ...]
    options: Mapping[str, str]
    panel: str | None = None
    help: Mapping[str, str] = field(default_factory=dict)
    names: tuple[str, ...] | None = None

    @classmethod
    def of(cls, kinds: type | Iterable[type], *names: str, panel: str | None = None, **renamed: str) -> Self:
        """Makes options of some fields; without `names` and `renamed`, of all.

        Args:
            kinds: the dataclass, or the alternative ones.
            names: fields whose options have their names, without `_s` at the end.
            panel: see `Fields`.
            renamed: the field of each option that has another name.
        """
        found = (kinds,) if isinstance(kinds, type) else tuple(kinds)
        chosen = names or (() if renamed else tuple(_fields_of(found)))
        return cls(found, {name.removesuffix("_s"): name for name in chosen} | renamed, panel)

    def helped(self, **texts: str) -> Self:
        """Returns the same options with these texts as help."""
        return type(self)(self.kinds, self.options, self.panel, texts)

    def parameters(self) -> Iterator[Parameter]:
        """Yields a parameter for each option, as typer reads them."""
        known, texts = _fields_of(self.kinds), _help_of(self.kinds)
        for option, name in self.options.items():
            kind, found = known[name]
            hint, default = _type_of(get_type_hints(kind)[name]), _default_of(found)
            if self.names is not None:
                default, hint = self.names[0], Literal[self.names[1:]]
            elif any(_default_of(other) != default for other in self._alternatives(name)):
                default = None
            text = self.help.get(option) or texts.get(name, "")
            shown = typer.Option(help=text, rich_help_panel=self.panel)
            annotation = Annotated[hint if default is not None else hint | None, shown]  # type: ignore[valid-type]
            yield Parameter(option, Parameter.KEYWORD_ONLY, default=default, annotation=annotation)

    def _alternatives(self, name: str) -> list[Field[Any]]:
        return [found for kind in self.kinds for found in fields(kind) if found.name == name]

    def given(self, by_hand: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the values of the options that were given, by field."""
        return {name: by_hand[option] for option, name in self.options.items() if option in by_hand}


def command(
    **groups: Sequence[Fields],
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Makes a command of a function whose parameters are options, dataclasses, or groups of options.

    A parameter that is a dataclass becomes an option for each field. A parameter of a group receives the
    options of the group that were given on the command line, as `ByHand`.
    """

    def decorate(function: Callable[..., None]) -> Callable[..., None]:
        hints = get_type_hints(function, include_extras=True)
        spread, parameters = dict(groups), []
        for name, own in signature(function).parameters.items():
            if is_dataclass(hints[name]):
                spread[name] = [Fields.of(hints[name])]
            some = [one for each in spread.get(name, ()) for one in each.parameters()]
            parameters += some or [own.replace(annotation=hints[name], kind=Parameter.KEYWORD_ONLY)]

        @wraps(function)
        def run(ctx: typer.Context, **values: Any) -> None:
            by_hand = {name: value for name, value in values.items() if _is_by_hand(ctx, name)}
            for name, some in spread.items():
                options = [option for each in some for option in each.options]
                given = {option: by_hand[option] for option in options if option in by_hand}
                for option in options:
                    del values[option]
                values[name] = given if name in groups else hints[name](**some[0].given(given))
            function(**values)

        parameters.insert(0, Parameter("ctx", Parameter.KEYWORD_ONLY, annotation=typer.Context))
        run.__signature__ = Signature(parameters)  # type: ignore[attr-defined]
        run.__annotations__ = {one.name: one.annotation for one in parameters}
        run.fields = [each for some in spread.values() for each in some]  # type: ignore[attr-defined]
        return run

    return decorate


class Command(TyperCommand):
    """A command that answers options of other libraries, and old ones, with the option that is meant."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        """Reads the options of a command line."""
        known = {option for parameter in self.params for option in parameter.opts}
        for argument in args:
            option = argument.partition("=")[0]
            meant = _meant_by(option, getattr(self.callback, "fields", ()))
            if option.startswith("--") and option not in known and meant in known:
                ctx.fail(f"No such option: {option}; did you mean {meant}?")
        return super().parse_args(ctx, args)


def _meant_by(option: str, groups: Iterable[Fields]) -> str | None:
    """Returns the option that is meant by a name that the dataclasses know as another library's."""
    name = option.removeprefix("--").replace("-", "_")
    for each in groups:
        tables = (vars(one).get("_meant", {}) for kind in each.kinds for one in kind.__mro__)
        meant = [table[name] for table in tables if isinstance(table.get(name), tuple)]
        for own, found in each.options.items():
            if any(found in others for others in meant):
                return f"--{own.replace('_', '-')}"
    return None


def _is_by_hand(ctx: typer.Context, name: str) -> bool:
    source = ctx.get_parameter_source(name)
    return source is not None and source.name != "DEFAULT"


def _fields_of(kinds: Iterable[type]) -> dict[str, tuple[type, Field[Any]]]:
    """Each field by name, with the first dataclass that has it."""
    found: dict[str, tuple[type, Field[Any]]] = {}
    for kind in kinds:
        for one in fields(kind):
            found.setdefault(one.name, (kind, one))
    return found


def _help_of(kinds: Iterable[type]) -> dict[str, str]:
    """The first sentence of each field's entry, in the docstrings of the dataclasses and their bases."""
    found: dict[str, str] = {}
    for one in (base for kind in kinds for base in kind.__mro__):
        _, _, section = cleandoc(one.__doc__ or "").partition("\nArgs:\n")
        for names, entry in _ENTRY.findall(section.partition("\n\n")[0]):
            text = re.split(r"(?<=\.) +(?=[A-Z])", " ".join(entry.replace("`", "").split()))[0]
            if not text.startswith("see "):
                for name in names.split(", "):
                    found.setdefault(name, f"{text[:1].upper()}{text[1:].rstrip('.')}.")
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
