"""The command `partita`, for files that declare a network and its data.

Each command is a function in a file of its own: `plan`, `train`, `profile`, `calibrate`, `kernels`, `worker`,
and the groups `keys` and `pool`. `fields` makes options from the fields of dataclasses, `loading` runs the
user's file, `planning` makes the plan and `drivers` the driver that the options ask for, and `output` knows
how wide text may be and ends a command that went wrong with one sentence.
"""

from importlib.metadata import version as version_of
from typing import Annotated

import typer

from partita.engine.cli import calibrate, kernels, keys, plan, pool, profile, train, worker
from partita.engine.cli.fields import Command

__all__ = ["app", "main"]

app = typer.Typer(
    help="One network, played in parts: train neural networks cut over several machines.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _print_version(asked: bool) -> None:
    if asked:
        print(f"partita {version_of('partita')}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool, typer.Option("--version", help="Prints the version.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Holds the options of `partita` itself; `_print_version` acts on its only one."""


_COMMANDS = (plan.plan, train.train, profile.profile, calibrate.calibrate, kernels.kernels, worker.worker)
for _command in _COMMANDS:
    app.command(cls=Command)(_command)
app.add_typer(keys.app, name="keys")
app.add_typer(pool.app, name="pool")


def main() -> None:
    """Runs the command `partita`."""
    app()
