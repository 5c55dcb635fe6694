"""The command `partita`, for files that declare a network and its data.

Each command is a function in a file of its own: `plan`, `train`, `profile`, `calibrate`, `kernels`, `export`,
`watch`, `worker`, and the groups `keys` and `pool`. `fields` makes options from the fields of dataclasses,
`loading` runs the user's file (of which `torch_module`, with `torch_options`, takes a module of PyTorch),
`planning` makes the plan and `drivers` the driver that the options ask for, and `output` knows how wide text
may be and ends a command that went wrong with one sentence: `user_code_error` is one of the user's own code.
"""

import sys
from importlib import import_module
from importlib.metadata import version as version_of
from typing import Annotated, Final

import typer

from partita.engine.cli.fields import Command

__all__ = ["ALL", "app_of", "main"]

_GROUPS: Final = ("keys", "pool")

ALL: Final = ("plan", "train", "profile", "calibrate", "kernels", "export", "watch", "worker", *_GROUPS)
"""All commands and groups."""


def _print_version(asked: bool) -> None:
    if asked:
        print(f"partita {version_of('partita')}")
        raise typer.Exit


def options(
    version: Annotated[
        bool, typer.Option("--version", help="Prints the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Holds the options of `partita` itself; `_print_version` acts on its only one."""


def app_of(*names: str) -> typer.Typer:
    """Imports commands and groups, all if none is named, and returns `partita` with these."""
    app = typer.Typer(
        help="One network, played in parts: train neural networks cut over several machines.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
    )
    app.callback()(options)
    for name in names or ALL:
        module = import_module(f"partita.engine.cli.{name}")
        if name in _GROUPS:
            app.add_typer(module.app, name=name)
        else:
            app.command(cls=Command)(getattr(module, name))
    return app


def main() -> None:
    """Runs the command `partita`. One that is named first is imported alone: a worker needs no driver."""
    app_of(*(name for name in sys.argv[1:2] if name in ALL))()
